"""The ratio of Amos' Assumption 1 over the training."""

from __future__ import annotations

from collections.abc import Iterator

from zoo.ablate.results import Results
from zoo.diagnose.history import ENOUGH, History, read_history
from zoo.report.losses import AXES
from zoo.report.monitors import MOST
from zoo.report.plot import Plot, Series, View

RATIO = "M2(E[g]) / √E[M2(g)²]"


def gradients(results: Results) -> Iterator[Plot]:
    """A plot of the first seed of every variant, if any has measured it: the lowest ratio, then each."""
    runs = {v.name: begun[0][1].folder for v in results.manifest.variants if (begun := results.begun(v.name))}
    histories = {name: read_history(run.path) for name, run in runs.items()}
    found = {name: history for name, history in histories.items() if history.curves["ratio"]}
    if found:
        variables = list(dict.fromkeys(name for h in found.values() for name in h.curves["ratio"]))
        series = {
            "lowest of all": [_lowest(variant, history) for variant, history in found.items()],
            **{
                v: [_one(*item, v) for item in found.items() if v in item[1].curves["ratio"]]
                for v in variables[:MOST]
            },
        }
        yield Plot(
            "assumption-1",
            "The ratio of Amos' Assumption 1",
            [View(name, AXES["steps"], RATIO, lines, log_y=True) for name, lines in series.items()],
            "Amos' learning rate xi should not be above the ratio of any variable (Amos, Figure 6). Running "
            "averages of gradients with decay 0.98: independent gradients of mean 0 would have a ratio of "
            "about 0.1, gradients that cancel out have less. Lowest: of the variables of at least "
            f"{ENOUGH} entries. First seed of every variant.",
        )


def _lowest(variant: str, history: History) -> Series:
    at: dict[float, float] = {}
    for steps, values in history.ratios.values():
        for step, value in zip(steps, values, strict=True):
            if value is not None:
                at[step] = min(value, at.get(step, value))
    return Series(variant, variant, list(at), list(at.values()))


def _one(variant: str, history: History, variable: str) -> Series:
    steps, values = history.curves["ratio"][variable]
    known = [(step, value) for step, value in zip(steps, values, strict=True) if value is not None]
    return Series(variant, variant, [step for step, _ in known], [value for _, value in known])
