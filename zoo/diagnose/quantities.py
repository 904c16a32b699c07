"""The quantities that a run measures for its variables during training."""

from __future__ import annotations

from typing import NamedTuple


class Quantity(NamedTuple):
    """A quantity that is plotted over the steps of a run.

    Attributes:
        title: a heading.
        symbol: a label for an axis.
        note: how it is defined, and what to expect.
    """

    title: str
    symbol: str
    note: str


QUANTITIES = {
    "update_ratio": Quantity(
        "Update ratio",
        "‖ΔW‖ / ‖W‖",
        "Norm of a step's change of each trained matrix over the norm of the matrix before the step (WeSaR, "
        "Figures 1 and 9 to 12). Matrices that move much faster than others make loss spikes likely; WeSaR "
        "keeps the ratios alike.",
    ),
    "norm": Quantity("Norm", "‖W‖", "Frobenius norm of each trained matrix (WeSaR, Figure 3)."),
    "gradient_norm": Quantity(
        "Gradient norm", "‖∇W‖", "Norm of each matrix's gradient, before clipping (WeSaR, Figure 8)."
    ),
    "m2_over_eta": Quantity(
        "Scale over eta",
        "M2 / eta",
        "M2 = sqrt(mean(theta^2)) of each variable over Amos' eta (Amos, Figure 3). Amos should bring the "
        "quotient close to 1; other optimizers do not know eta.",
    ),
    "ratio": Quantity(
        "The ratio of Amos' Assumption 1",
        "M2(E[g]) / √E[M2(g)²]",
        "E is a running average of gradients with decay 0.98 (Amos, Figure 6): the learning rate xi should "
        "not be above the ratio of any variable. Independent gradients with mean 0 would have a ratio of "
        "about 0.1; gradients that cancel out have less.",
    ),
}
"""All quantities by their names in metrics.jsonl."""

DIAGNOSED = ("m2_over_eta", "ratio")
"""The quantities that are measured for all variables; the others are measured for matrices only."""
