"""Curves over the steps of a run, or of several runs side by side, as in the papers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from zoo.diagnose.history import History, read_history
from zoo.diagnose.section import Curve, Section, draw_curves, draw_line, legend, panels
from zoo.utils.plotting import SOFT

AT_MOST = 4
"""Layers that get a panel, from the first to the last one."""

QUANTITIES = {
    "update_ratio": (
        "Update ratios",
        "||dW|| / ||W||",
        "Norm of a step's change of each matrix over the norm before it, of what is trained (WeSaR, Figures "
        "1 and 9 to 12). Matrices that move much faster than others make spikes likely; WeSaR keeps them "
        "alike.",
    ),
    "norm": (
        "Norms",
        "||W||",
        "Norm of each matrix, of what is trained (WeSaR, Figure 3).",
    ),
    "gradient_norm": (
        "Gradient norms",
        "||gradient||",
        "Norm of each matrix' gradient, before clipping (WeSaR, Figure 8).",
    ),
    "m2_over_eta": (
        "Scales over eta",
        "M2 / eta",
        "M2 = sqrt(mean(theta^2)) of every variable over Amos' eta (Amos, Figure 3). Amos should bring it "
        "close to 1, dotted; other optimizers do not know eta.",
    ),
    "ratio": (
        "The ratio of Assumption 1",
        "M2(E[g]) / sqrt(E[M2(g)^2])",
        "E is a running average with decay 0.98 over the steps before (Amos, Figure 6): the learning rate xi "
        "should not be above the lowest curve. Dotted: what independent gradients of mean 0 would give; "
        "curves at or below it say only that the true ratio is smaller.",
    ),
}


def run_sections(run: Path) -> list[Section]:
    """The curves of one run, panel by panel for layers from the first to the last.

    Args:
        run: a run folder.

    Returns:
        A section for every quantity that was measured.

    Raises:
        ZooError: not a run folder.
    """
    history = read_history(run)
    layers = _spread(history.layers)
    titles = ["outside of the layers" if i == 0 else f"layer {i}" for i in layers]
    found = ((history, title, layer) for title, layer in zip(titles, layers, strict=True))
    return list(_sections(list(found), ""))


def sections(runs: Sequence[Path]) -> list[Section]:
    """The curves of several runs side by side: a panel per run, of the last layer of each.

    Args:
        runs: run folders.

    Returns:
        A section for every quantity that was measured in any of them.

    Raises:
        ZooError: not a run folder.
    """
    found = [(h, h.name, h.layers[-1]) for h in map(read_history, runs)]
    return list(_sections(found, " Each run's last layer."))


def _sections(found: Sequence[tuple[History, str, int]], where: str) -> Iterator[Section]:
    for quantity, (title, axis, caption) in QUANTITIES.items():
        curves = [history.of_layer(quantity, layer) for history, _, layer in found]
        if not any(curves):
            continue
        order = list(dict.fromkeys(label for panel in curves for label in panel))
        figure, every = panels(len(found), columns=3 if len(found) > 4 else 2, height=3.0)
        for axes, (history, name, _), panel in zip(every, found, curves, strict=True):
            draw_curves(axes, name, "step", axis, panel, order, log=True)
            for guide in _guides(quantity, history.floor):
                draw_line(axes, guide, True, color=SOFT, lw=1, ls=":", zorder=1)
        limits = [limit for axes in every if axes.lines for limit in axes.get_ylim()]
        for axes in every:
            axes.set_ylim(min(limits), max(limits))
        legend(figure, every)
        yield Section(quantity.replace("_", "-"), title, caption + where, figure)


def _guides(quantity: str, floor: Curve) -> Iterator[Curve]:
    """The dotted lines of a panel."""
    steps, values = floor
    if quantity == "ratio":
        yield floor
    elif quantity == "m2_over_eta":
        yield steps, [1.0] * len(values)


def _spread(layers: Sequence[int]) -> list[int]:
    """What is outside, and at most `AT_MOST` layers, evenly from the first to the last."""
    inside = [layer for layer in layers if layer]
    count = min(AT_MOST, len(inside))
    picks = [inside[round(i * (len(inside) - 1) / max(count - 1, 1))] for i in range(count)]
    return [0, *picks] if 0 in layers else picks
