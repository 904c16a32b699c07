"""Which runs a sweep needs, given what is known of them: a pure function, asked again after every run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from zoo.ablate.contenders import Contender
from zoo.ablate.identity import digest, essence
from zoo.ablate.manifest import Phase
from zoo.ablate.outcome import Outcome
from zoo.ablate.sweep import Sweep
from zoo.ablate.tuning import Choice, Point, best, on_border, survivors
from zoo.run.config import RunConfig
from zoo.utils.errors import ConfigError

UNKNOWN = Outcome()


@dataclass(frozen=True)
class Planned:
    """A run that a sweep needs.

    Attributes:
        config: named by the run's id.
        variant: name of the variant.
        point: values of the tuned keys.
        steps: of the whole run.
        until: the step it has to reach for now.
        phases: what it counts for.
        given_up: whether tuning has left it behind.
    """

    config: RunConfig
    variant: str
    point: Point
    steps: int
    until: int
    phases: tuple[Phase, ...]
    given_up: bool = False

    @property
    def id(self) -> str:
        """Of the run."""
        return self.config.name

    def done(self, outcome: Outcome) -> bool:
        """Whether there is nothing to do for it now."""
        reached = self.until < self.steps and self.until in outcome.losses
        return self.given_up or outcome.ended or outcome.error is not None or reached


@dataclass(frozen=True)
class Plan:
    """The runs known so far.

    Attributes:
        runs: each once, variant by variant.
        choices: of the variants whose tuning is through, by name.
    """

    runs: tuple[Planned, ...]
    choices: Mapping[str, Choice]


class Planner:
    """Makes the plans of a sweep."""

    def __init__(self, sweep: Sweep) -> None:
        """Name every run that there may be.

        Raises:
            ConfigError: two different runs with one id.
        """
        self._sweep = sweep
        self._configs: dict[tuple[str, int, int], RunConfig] = {}
        hashes: dict[str, str] = {}
        seeds = {*sweep.seeds, *(sweep.tune.seeds if sweep.tune else ())}
        for contender in sweep.contenders:
            for point in range(len(contender.points)):
                for seed in sorted(seeds):
                    config = sweep.run(contender, point, seed)
                    full = digest(essence(config))
                    if hashes.setdefault(config.name, full) != full:
                        raise ConfigError(
                            f"two different runs have the id {config.name}, one of them {contender.name} "
                            f"with seed {seed}: change something without effect, for instance a value's "
                            "last digit"
                        )
                    self._configs[contender.name, point, seed] = config

    @property
    def ids(self) -> list[str]:
        """Of all runs that there may be."""
        return sorted({config.name for config in self._configs.values()})

    @property
    def configs(self) -> list[RunConfig]:
        """Of all runs that there may be, variant by variant."""
        return list(self._configs.values())

    def plan(self, outcomes: Mapping[str, Outcome]) -> Plan:
        """What the sweep consists of, as far as that follows from `outcomes`, by id."""
        runs: dict[str, Planned] = {}
        choices = {}
        for contender in self._sweep.contenders:
            tuning, choice = self._tuning(contender, outcomes)
            final = () if choice is None else self._runs(contender, choice.point, self._sweep.seeds, "final")
            for run in (*tuning, *final):
                before = runs.get(run.id)
                runs[run.id] = run if before is None else _both(before, run)
            if choice is not None:
                choices[contender.name] = choice
        return Plan(tuple(runs.values()), choices)

    def _tuning(
        self, contender: Contender, outcomes: Mapping[str, Outcome]
    ) -> tuple[list[Planned], Choice | None]:
        """The tuning runs of a variant, and what they say once they all say something."""
        tune = self._sweep.tune
        if tune is None:
            return [], Choice(0, ())
        found: dict[str, Planned] = {}
        alive = list(range(len(contender.points)))
        for rung in contender.rungs:
            runs = [self._runs(contender, point, tune.seeds, "tune", rung) for point in alive]
            found |= {run.id: run for group in runs for run in group}
            losses = [[_loss(run, outcomes) for run in group] for group in runs]
            known = [[loss for loss in group if loss is not None] for group in losses]
            if known != losses:
                return list(found.values()), None
            if rung == contender.steps:
                break
            assert tune.halving is not None
            going_on = survivors(known, tune.halving.keep)
            for i in set(range(len(alive))) - set(going_on):
                found |= {run.id: replace(run, given_up=True) for run in runs[i]}
            alive = [alive[i] for i in going_on]
        chosen = alive[best(known)]
        border = on_border(contender.points[chosen], contender.grid)
        return list(found.values()), Choice(chosen, border)

    def _runs(
        self, contender: Contender, point: int, seeds: Sequence[int], phase: Phase, until: int | None = None
    ) -> tuple[Planned, ...]:
        return tuple(
            Planned(
                self._configs[contender.name, point, seed],
                contender.name,
                contender.points[point],
                contender.steps,
                contender.steps if until is None else until,
                (phase,),
            )
            for seed in seeds
        )


def _loss(run: Planned, outcomes: Mapping[str, Outcome]) -> float | None:
    outcome = outcomes.get(run.id, UNKNOWN)
    known = outcome.ended or outcome.error is not None or run.until < run.steps
    return outcome.loss(run.until) if known else None


def _both(tuning: Planned, final: Planned) -> Planned:
    """A tuning run that is also one of the comparison."""
    return replace(final, phases=(*tuning.phases, *final.phases))
