"""Plots with a row per variant: the differences of the verdict, time per step, memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import mean

from zoo.ablate.measured import Measured
from zoo.ablate.results import Results
from zoo.ablate.statistics import LEVEL
from zoo.ablate.verdict import Judgement
from zoo.report.plot import Plot, Series, View


def forest(judgement: Judgement) -> Iterator[Plot]:
    """The differences from the baseline with their intervals, where there are any."""
    found = [(v.variant, v.comparison) for v in judgement.verdicts if v.comparison]
    series = [Series(name, name, [c.difference], [name], [c.low], [c.high]) for name, c in found]
    if series:
        base = judgement.results.manifest.baseline
        yield Plot(
            "verdict",
            f"Final loss less that of {base}",
            [View("difference", "nats per target; left of 0 is better", "", series)],
            f"Point: mean difference; line: its {LEVEL:.0%} confidence interval, of the one comparison.",
            variant_rows=True,
            zero_line=True,
        )


def costs(results: Results) -> Iterator[Plot]:
    """Time per step and memory, where they were measured."""
    measurements: tuple[tuple[str, str, str, Callable[[Measured], float | None]], ...] = (
        ("time", "Time per step", "milliseconds", lambda r: r.step_seconds and 1e3 * r.step_seconds),
        ("memory", "Peak memory", "MiB", lambda r: r.peak_memory and r.peak_memory / 2**20),
    )
    for key, title, unit, value in measurements:
        series = [
            Series(variant.name, variant.name, [mean(known)], [variant.name], [min(known)], [max(known)])
            for variant in results.manifest.variants
            if (known := [found for _, run in results.begun(variant.name) if (found := value(run))])
        ]
        if series:
            note = "Point: mean over seeds; line: lowest and highest seed."
            yield Plot(key, title, [View(unit, unit, "", series)], note, variant_rows=True)
