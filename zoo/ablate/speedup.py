"""The speed-up factors of the papers: the cost at which a variant reaches the baseline's final value."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from statistics import mean

from zoo.ablate.curve import COSTS
from zoo.ablate.results import Results
from zoo.ablate.run_metrics import RunMetrics
from zoo.utils.measures import CROSS_ENTROPY, Measure


@dataclass(frozen=True)
class Speedup:
    """The cost of a variant until its validation loss, or another measure, reaches the baseline's final one.

    Attributes:
        variant: name of the variant.
        cost: name of the cost, one of `zoo.ablate.curve.COSTS`.
        baseline: the cost of a whole run of the baseline, mean over seeds.
        needed: the cost of the variant's run until it reached the value, by seed; None if it never did.
    """

    variant: str
    cost: str
    baseline: float
    needed: dict[int, float | None]

    @property
    def reached(self) -> list[float]:
        """The costs of the runs that reached the value."""
        return [value for value in self.needed.values() if value is not None]

    @property
    def factor(self) -> float | None:
        """The baseline's cost over the mean of the variant's; None unless all seeds reached the value."""
        reached = self.reached
        return _ratio(self.baseline, mean(reached)) if reached and len(reached) == len(self.needed) else None

    @property
    def range(self) -> tuple[float, float] | None:
        """The lowest and the highest factor among the seeds that reached the value."""
        factors = [_ratio(self.baseline, value) for value in self.reached]
        return (min(factors), max(factors)) if factors else None


def target_loss(results: Results) -> float | None:
    """The value to reach: the mean of the baseline's final losses, or of another measure.

    Returns:
        The value. None if no run of the baseline has finished, if one ended no better than it began (every
        run reaches such a value before its first step), or for a measure that is taken only at the end.
    """
    runs = list(results.finished(results.baseline).values())
    once = any(len(run.curve(results.measure)) < 2 for run in runs)
    if not runs or once or any(has_risen(run, results.measure) for run in runs):
        return None
    return mean(results.finals(results.baseline).values())


def has_risen(run: RunMetrics, measure: Measure = CROSS_ENTROPY) -> bool:
    """Whether the final value is no better than one measured before the first step."""
    curve = run.curve(measure)
    if len(curve) < 2 or curve.steps[0] > 0:
        return False
    return measure.cost(float(curve.values[-1])) >= measure.cost(float(curve.values[0]))


def speedups(results: Results) -> list[Speedup]:
    """The costs until the baseline's final value.

    Returns:
        One `Speedup` for each of `COSTS` and each variant but the baseline that has finished runs, in the
        order of the variants; empty if there is no `target_loss`.
    """
    target = target_loss(results)
    if target is None:
        return []
    totals = [run.validation.total for run in results.finished(results.baseline).values()]
    factors = []
    for variant, runs in results.all_finished().items():
        if variant != results.baseline:
            reached = {
                seed: run.curve(results.measure).reach(target, results.measure.lower_is_better)
                for seed, run in runs.items()
            }
            for cost in COSTS:
                needed = {seed: None if costs is None else costs[cost] for seed, costs in reached.items()}
                factors.append(Speedup(variant, cost, mean(total[cost] for total in totals), needed))
    return factors


def _ratio(baseline: float, needed: float) -> float:
    """The ratio of the costs; infinite if the variant has the value before its first step."""
    return baseline / needed if needed else inf
