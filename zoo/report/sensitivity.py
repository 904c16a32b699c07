"""The final loss over each tuned setting, as in Figure 7 of the nGPT paper."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from zoo.ablate.results import Results
from zoo.report.plot import Plot, Series, View


def sensitivity(results: Results) -> Iterator[Plot]:
    """A view per tuned key whose values are numbers; none where nothing was tuned."""
    tune = results.manifest.tune
    views = [_view(results, key) for key in (tune.keys if tune else ())]
    drawn = [view for view in views if view.series]
    if tune and drawn:
        yield Plot(
            "sensitivity",
            "Final loss over the tuned settings",
            drawn,
            "Line: mean over the seeds of the tuning, at the best values of the other tuned keys; band: "
            f"lowest and highest seed. Chosen by: {tune.rule}. Runs that failed or were given up on are not "
            "drawn.",
        )


def _view(results: Results, key: str) -> View:
    series = [s for v in results.manifest.variants if (s := _series(results, v.name, key))]
    positive = all(x > 0 for s in series for x in s.x)
    ticks = sorted({x for s in series for x in s.x})
    return View(key, key, "final validation loss, nats per target", series, positive, ticks=ticks)


def _series(results: Results, variant: str, key: str) -> Series | None:
    """The mean loss at each value of a key; with several keys, the lowest of the means there."""
    losses: dict[float, dict[str, list[float]]] = {}
    for run in results.runs(variant, "tune"):
        value, found = run.tuned.get(key), results.measured.get(run.id)
        if isinstance(value, int | float) and run.status == "finished" and found and found.final is not None:
            others = repr(sorted((k, v) for k, v in run.tuned.items() if k != key))
            losses.setdefault(value, {}).setdefault(others, []).append(found.final)
    if not losses:
        return None
    best = {value: min(groups.values(), key=mean) for value, groups in sorted(losses.items())}
    several = max(map(len, best.values())) > 1
    return Series(
        variant,
        variant,
        list(best),
        [mean(found) for found in best.values()],
        [min(found) for found in best.values()] if several else [],
        [max(found) for found in best.values()] if several else [],
    )
