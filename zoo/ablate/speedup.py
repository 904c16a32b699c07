"""How much sooner a variant reaches the baseline's final loss: the papers' speed-up factors."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from statistics import mean

from zoo.ablate.curve import COSTS
from zoo.ablate.results import Results
from zoo.ablate.run_metrics import RunMetrics


@dataclass(frozen=True)
class Speedup:
    """What a variant costs until its validation loss is the baseline's final one.

    Attributes:
        variant: its name.
        cost: one of `zoo.ablate.curve.COSTS`.
        baseline: the cost of a whole run of the baseline, mean over seeds.
        needed: the cost of the variant's run until it reached the loss, by seed; None where it never did.
    """

    variant: str
    cost: str
    baseline: float
    needed: dict[int, float | None]

    @property
    def reached(self) -> list[float]:
        """The costs of the runs that reached the loss."""
        return [value for value in self.needed.values() if value is not None]

    @property
    def factor(self) -> float | None:
        """The baseline's cost over the mean of the variant's; None unless all seeds reached the loss."""
        reached = self.reached
        return _ratio(self.baseline, mean(reached)) if reached and len(reached) == len(self.needed) else None

    @property
    def range(self) -> tuple[float, float] | None:
        """The lowest and the highest factor among the seeds that reached the loss."""
        factors = [_ratio(self.baseline, value) for value in self.reached]
        return (min(factors), max(factors)) if factors else None


def target_loss(results: Results) -> float | None:
    """The loss to reach: the mean of the baseline's final losses.

    Returns:
        None before a run of the baseline has finished, and if one ended no lower than it began: every run
        reaches such a loss before its first step.
    """
    runs = list(results.finished(results.baseline).values())
    if not runs or any(has_risen(run) for run in runs):
        return None
    return mean(float(run.validation.loss[-1]) for run in runs)


def has_risen(run: RunMetrics) -> bool:
    """Whether the final loss is not below a loss that was measured before the first step."""
    steps, losses = run.validation.steps, run.validation.loss
    return bool(steps[0] == 0 < steps[-1] and losses[-1] >= losses[0])


def speedups(results: Results) -> list[Speedup]:
    """The costs until the baseline's final loss.

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
            reached = {seed: run.validation.reach(target) for seed, run in runs.items()}
            for cost in COSTS:
                needed = {seed: None if costs is None else costs[cost] for seed, costs in reached.items()}
                factors.append(Speedup(variant, cost, mean(total[cost] for total in totals), needed))
    return factors


def _ratio(baseline: float, needed: float) -> float:
    """A variant that has the loss before its first step is infinitely faster."""
    return baseline / needed if needed else inf
