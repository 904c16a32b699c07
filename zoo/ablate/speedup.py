"""How much sooner a variant has the baseline's final loss: the papers' speed-up factors."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from statistics import mean

from zoo.ablate.curve import COSTS
from zoo.ablate.measured import Measured
from zoo.ablate.results import Results


@dataclass(frozen=True)
class Speedup:
    """What a variant needs until its validation loss is the baseline's final one.

    Attributes:
        variant: its name.
        cost: one of `zoo.ablate.curve.COSTS`.
        baseline: what the baseline's runs cost in all, the mean over seeds.
        needed: by seed what the variant's runs needed; None where the loss was not reached.
    """

    variant: str
    cost: str
    baseline: float
    needed: dict[int, float | None]

    @property
    def reached(self) -> list[float]:
        """What the runs that reached the loss needed."""
        return [value for value in self.needed.values() if value is not None]

    @property
    def factor(self) -> float | None:
        """Baseline / mean of what was needed; None unless all seeds reached the loss."""
        reached = self.reached
        return _ratio(self.baseline, mean(reached)) if reached and len(reached) == len(self.needed) else None

    @property
    def range(self) -> tuple[float, float] | None:
        """The lowest and the highest factor among the seeds that reached the loss."""
        factors = [_ratio(self.baseline, value) for value in self.reached]
        return (min(factors), max(factors)) if factors else None


def target(results: Results) -> float | None:
    """The loss to reach: the mean of the baseline's final losses.

    None before the first is there, and where a run of the baseline ended no lower than it began:
    everybody has such a loss before the first step.
    """
    runs = list(results.finished(results.manifest.baseline).values())
    if not runs or any(risen(run) for run in runs):
        return None
    return mean(float(run.validation.loss[-1]) for run in runs)


def risen(run: Measured) -> bool:
    """Whether the loss was measured before the first step, and is not below that in the end."""
    steps, losses = run.validation.steps, run.validation.loss
    return bool(steps[0] == 0 < steps[-1] and losses[-1] >= losses[0])


def speedups(results: Results) -> list[Speedup]:
    """Costs until the baseline's final loss, of every variant but the baseline, in order.

    Per variant one `Speedup` for each of `COSTS`; variants without finished runs are left out.
    """
    loss, manifest = target(results), results.manifest
    if loss is None:
        return []
    totals = [run.validation.total for run in results.finished(manifest.baseline).values()]
    found = []
    for variant in manifest.variants:
        runs = results.finished(variant.name)
        if variant.name == manifest.baseline or not runs:
            continue
        reached = {seed: run.validation.reach(loss) for seed, run in runs.items()}
        for cost in COSTS:
            needed = {seed: None if costs is None else costs[cost] for seed, costs in reached.items()}
            found.append(Speedup(variant.name, cost, mean(total[cost] for total in totals), needed))
    return found


def _ratio(baseline: float, needed: float) -> float:
    """A variant that has the loss before its first step is infinitely faster."""
    return baseline / needed if needed else inf
