"""The final loss, or another measure, over each tuned setting, as in Figure 7 of the nGPT paper."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import mean

from zoo.ablate.results import Results
from zoo.report.plot import Plot, Series, View, legible_ticks


def sensitivity_plots(results: Results) -> Iterator[Plot]:
    """A plot with a view per tuned key whose values are numbers; none if nothing was tuned."""
    tune = results.manifest.tune
    views = [_view(results, key) for key in (tune.keys if tune else ())]
    views = [view for view in views if view.series]
    if tune and views:
        yield Plot(
            "sensitivity",
            f"Final {results.measure.title} over the tuned settings",
            views,
            "Line: mean over the seeds of the tuning, at the best values of the other tuned keys; band: "
            f"lowest and highest seed. Chosen by: {tune.rule}. Runs that failed or were stopped early are "
            "not drawn.",
        )


def _view(results: Results, key: str) -> View:
    series = [s for variant in results.variants if (s := _series(results, variant, key))]
    positive = all(x > 0 for s in series for x in s.x)
    ticks = legible_ticks(x for s in series for x in s.x)
    measure = results.measure
    unit = f", {measure.unit}" if measure.unit else ""
    return View(key, key, f"final validation {measure.title}{unit}", series, positive, ticks=ticks)


def _series(results: Results, variant: str, key: str) -> Series | None:
    """The results at each value of a key, at the best values of the other tuned keys."""
    measure = results.measure
    finals: dict[float, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in results.runs(variant, "tune"):
        value, metrics = run.tuned.get(key), results.metrics.get(run.id)
        final = metrics.final(measure) if metrics and run.status == "finished" else None
        if isinstance(value, bool) or not isinstance(value, int | float) or final is None:
            continue
        others = repr(sorted((k, v) for k, v in run.tuned.items() if k != key))
        finals[value][others].append(final)
    if not finals:
        return None
    best = {
        value: min(by_others.values(), key=lambda group: measure.cost(mean(group)))
        for value, by_others in sorted(finals.items())
    }
    middle = [mean(group) for group in best.values()]
    if max(map(len, best.values())) == 1:
        return Series(variant, variant, list(best), middle)
    return Series(
        variant, variant, list(best), middle, [*map(min, best.values())], [*map(max, best.values())]
    )
