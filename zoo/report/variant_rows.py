"""Plots with a row per variant: the differences from the baseline, time per step, memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import mean

from zoo.ablate.results import Results
from zoo.ablate.run_metrics import RunMetrics
from zoo.ablate.verdict import Judgement
from zoo.report.plot import Plot, Series, View


def difference_plots(judgement: Judgement) -> Iterator[Plot]:
    """The differences from the baseline with their confidence intervals, if there are any."""
    comparisons = [(v.variant, v.comparison) for v in judgement.verdicts if v.comparison]
    series = [Series(name, name, [c.difference], [name], [c.low], [c.high]) for name, c in comparisons]
    measure = judgement.results.measure
    side = "left" if measure.lower_is_better else "right"
    if series:
        yield Plot(
            "verdict",
            f"Final {measure.title} less that of {judgement.results.baseline}",
            [View("difference", f"{measure.unit or measure.title}; {side} of 0 is better", "", series)],
            f"Point: mean difference; line: {judgement.level_text} confidence interval of this comparison "
            "alone.",
            variant_rows=True,
            zero_line=True,
        )


def cost_plots(results: Results) -> Iterator[Plot]:
    """Yield the plots of time per step and memory for which there are measurements."""
    costs: tuple[tuple[str, str, str, Callable[[RunMetrics], float | None]], ...] = (
        ("time", "Time per step", "milliseconds", lambda run: run.step_seconds and 1e3 * run.step_seconds),
        ("memory", "Peak memory", "MiB", lambda run: run.peak_memory and run.peak_memory / 2**20),
    )
    for key, title, unit, cost in costs:
        series = [
            Series(variant, variant, [mean(values)], [variant], [min(values)], [max(values)])
            for variant in results.variants
            if (values := [value for run in results.started(variant).values() if (value := cost(run))])
        ]
        if series:
            note = "Point: mean over seeds; line: lowest and highest seed."
            yield Plot(key, title, [View(unit, unit, "", series)], note, variant_rows=True, from_zero=True)
