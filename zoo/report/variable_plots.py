"""Plots of the runs' measurements of every variable during training: norms, updates, Assumption 1."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from statistics import median

from zoo.ablate.results import Results
from zoo.diagnose.history import MIN_ENTRIES, Curve, read_history
from zoo.diagnose.quantities import QUANTITIES
from zoo.report.loss_plots import COST_TITLES
from zoo.report.plot import Plot, Series, View

LOGARITHMIC = ("update_ratio", "gradient_norm")

MAX_VIEWS = 40
"""Number of variables with a view of their own."""

Curves = Mapping[str, Curve]
"""Curves by the name of the variable."""


def variable_plots(results: Results) -> Iterator[Plot]:
    """A plot per quantity that was measured, of the first seed of every variant."""
    histories = {name: read_history(run.folder.path) for name, run in results.first_runs().items()}
    for quantity, (title, symbol, note) in QUANTITIES.items():
        curves = {name: history.monitor.get(quantity, {}) for name, history in histories.items()}
        curves = {name: c for name, c in curves.items() if any(len(steps) > 1 for steps, _ in c.values())}
        if curves:
            series = [_summary(name, c, min, median, max) for name, c in curves.items()]
            yield Plot(
                quantity.replace("_", "-"),
                title,
                _views("all matrices", series, curves, symbol, quantity in LOGARITHMIC),
                f"{note} First seed of every variant. All matrices: their median, and a band from the "
                "lowest to the highest.",
            )
    ratios = {name: h.diagnosis["ratio"] for name, h in histories.items() if "ratio" in h.diagnosis}
    if ratios:
        title, symbol, note = QUANTITIES["ratio"]
        lowest = [_summary(name, histories[name].ratios, min) for name in ratios]
        yield Plot(
            "assumption-1",
            title,
            _views("lowest of all", lowest, ratios, symbol, True),
            f"{note} Lowest: of the variables of at least {MIN_ENTRIES} entries. First seed of every "
            "variant.",
        )


def _views(
    name: str, series: Sequence[Series], curves: Mapping[str, Curves], symbol: str, log_y: bool
) -> list[View]:
    """A view of all variables, and one for each of the first `MAX_VIEWS` variables."""
    variables = list(dict.fromkeys(variable for of_variant in curves.values() for variable in of_variant))
    lines = {name: series} | {
        variable: [_summary(v, {"": c[variable]}, min) for v, c in curves.items() if variable in c]
        for variable in variables[:MAX_VIEWS]
    }
    return [View(name, COST_TITLES["steps"], symbol, each, log_y=log_y) for name, each in lines.items()]


def _summary(variant: str, curves: Curves, *statistics: Callable[[list[float]], float]) -> Series:
    """Statistics over the variables at each step: one for a line, or three for a line and its band."""
    by_step: dict[float, list[float]] = defaultdict(list)
    for steps, values in curves.values():
        for step, value in zip(steps, values, strict=True):
            if value is not None and isfinite(value):
                by_step[step].append(value)
    by_step = dict(sorted(by_step.items()))
    lines = [[statistic(values) for values in by_step.values()] for statistic in statistics]
    low, middle, high = lines if len(lines) == 3 else ((), lines[0], ())
    return Series(variant, variant, list(by_step), middle, low, high)
