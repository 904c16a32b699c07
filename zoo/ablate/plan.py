"""The runs that a sweep needs: a pure function of the state of all runs, called after every run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from zoo.ablate.identity import digest, effective_settings
from zoo.ablate.lines import Key, tuned_values
from zoo.ablate.manifest import Phase
from zoo.ablate.outcome import Outcome
from zoo.ablate.sweep import Sweep
from zoo.ablate.tuning import ChosenPoint, Point, best_point, on_border, survivors
from zoo.ablate.variants import SweepVariant
from zoo.run.config import RunConfig
from zoo.utils.errors import ConfigError

NOT_STARTED = Outcome()


@dataclass(frozen=True)
class PlannedRun:
    """A run that a sweep needs.

    Attributes:
        config: the configuration, named by the run's id.
        variant: the name of the variant.
        point: values of the tuned keys.
        steps: the number of steps of the whole run.
        until: the step that the run has to reach for now.
        phases: the phases that use the run.
        stopped_early: whether successive halving has dropped the run.
        params: number of parameters of the baseline's model of the same size. Only runs of a ladder have it.
        tokens: number of tokens of the run's budget. Only runs of a ladder have it.
        trunk: the id of the run whose first steps this one shares; the run's own id if it is a trunk.
        begins: the number of steps that the run shares with its trunk.
    """

    config: RunConfig
    variant: str
    point: Point
    steps: int
    until: int
    phases: tuple[Phase, ...]
    stopped_early: bool = False
    params: int = 0
    tokens: int = 0
    trunk: str = ""
    begins: int = 0

    @property
    def id(self) -> str:
        """The id of the run, which is the name of its folder."""
        return self.config.name

    @property
    def key(self) -> Key:
        """The key of the line of a run in a ladder."""
        values = tuned_values(self.point)
        return self.variant, float(self.params), float(self.tokens), self.config.seed, *values

    def is_done(self, outcome: Outcome) -> bool:
        """Whether the run needs no training now."""
        reached = self.until < self.steps and self.until in outcome.losses
        return self.stopped_early or outcome.ended or outcome.error is not None or reached

    def loss(self, outcome: Outcome) -> float | None:
        """The loss at `until`; infinite for a run that diverged, None if it is not known."""
        known = outcome.ended or outcome.error is not None or self.until < self.steps
        return outcome.loss(self.until) if known else None


def add_planned(runs: dict[str, PlannedRun], run: PlannedRun) -> None:
    """Add a run to planned ones, by their ids; a run that is planned already gets the further phases."""
    phases = runs[run.id].phases if run.id in runs else ()
    runs[run.id] = replace(run, phases=(*phases, *run.phases))


@dataclass(frozen=True)
class SweepPlan:
    """The runs of a sweep that are known so far; further ones follow from the results of the tuning.

    Attributes:
        runs: the runs, each once, variant by variant.
        chosen: the chosen points of the variants whose tuning is finished, by the name of the variant.
    """

    runs: tuple[PlannedRun, ...]
    chosen: Mapping[str, ChosenPoint]


class Planner:
    """Makes the plans of a sweep."""

    def __init__(self, sweep: Sweep) -> None:
        """Compute the ids of all runs that the sweep may need.

        Raises:
            ConfigError: Two different runs have the same id.
        """
        self._sweep = sweep
        self._configs: dict[tuple[str, int, int], RunConfig] = {}
        hashes: dict[str, str] = {}
        seeds = sorted({*sweep.seeds, *sweep.added_seeds, *(sweep.tune.seeds if sweep.tune else ())})
        for variant in sweep.variants:
            for point in range(len(variant.points)):
                for seed in seeds:
                    config = sweep.run(variant, point, seed)
                    full = digest(effective_settings(config))
                    if hashes.setdefault(config.name, full) != full:
                        raise ConfigError(
                            f"two different runs have the id {config.name}, one of them {variant.name} "
                            f"with seed {seed}: change something without effect, for instance a value's "
                            "last digit"
                        )
                    self._configs[variant.name, point, seed] = config

    @property
    def ids(self) -> list[str]:
        """The ids of all runs that the sweep may need."""
        return sorted({config.name for config in self._configs.values()})

    @property
    def configs(self) -> list[RunConfig]:
        """The configurations of all runs that the sweep may need, variant by variant."""
        return list(self._configs.values())

    def plan(self, outcomes: Mapping[str, Outcome], added: Sequence[int] = ()) -> SweepPlan:
        """The plan that follows from the outcomes.

        Args:
            outcomes: outcomes by id.
            added: seeds of the comparison besides those of the sweep.
        """
        runs: dict[str, PlannedRun] = {}
        chosen = {}
        seeds = (*self._sweep.seeds, *added)
        for variant in self._sweep.variants:
            tuning, choice = self._tune(variant, outcomes)
            runs |= tuning
            if choice is not None:
                chosen[variant.name] = choice
                point = variant.points.index(choice.values)
                for run in self._runs(variant, point, seeds, "final", variant.steps):
                    add_planned(runs, run)
        return SweepPlan(tuple(runs.values()), chosen)

    def _tune(
        self, variant: SweepVariant, outcomes: Mapping[str, Outcome]
    ) -> tuple[dict[str, PlannedRun], ChosenPoint | None]:
        """The tuning runs of a variant by id, and the chosen point once all of them have results."""
        tune = self._sweep.tune
        if tune is None:
            return {}, ChosenPoint({}, ())
        planned: dict[str, PlannedRun] = {}
        points = list(range(len(variant.points)))
        for rung in variant.rungs:
            runs = [self._runs(variant, point, tune.seeds, "tune", rung) for point in points]
            planned |= {run.id: run for of_point in runs for run in of_point}
            losses: list[list[float]] = []
            for of_point in runs:
                known = [run.loss(outcomes.get(run.id, NOT_STARTED)) for run in of_point]
                losses.append([loss for loss in known if loss is not None])
            if any(len(known) < len(tune.seeds) for known in losses):
                return planned, None
            if tune.halving is not None and rung < variant.steps:
                kept = survivors(losses, tune.halving.keep)
                dropped = [run for i, of_point in enumerate(runs) if i not in kept for run in of_point]
                planned |= {run.id: replace(run, stopped_early=True) for run in dropped}
                points = [points[i] for i in kept]
        best = variant.points[points[best_point(losses)]]
        return planned, ChosenPoint(best, on_border(best, variant.points))

    def _runs(
        self, variant: SweepVariant, point: int, seeds: Iterable[int], phase: Phase, until: int
    ) -> list[PlannedRun]:
        return [
            PlannedRun(
                self._configs[variant.name, point, seed],
                variant.name,
                variant.points[point],
                variant.steps,
                until,
                (phase,),
            )
            for seed in seeds
        ]
