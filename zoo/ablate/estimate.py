"""The cost of a sweep before it is run: runs, steps, tokens, floating point operations, time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from rich.console import Group

from zoo.ablate.added_seeds import stages
from zoo.ablate.amount import of_variant
from zoo.ablate.compiling import shape_of
from zoo.ablate.earlier import replaced_runs
from zoo.ablate.execute import planner_of
from zoo.ablate.identity import digest
from zoo.ablate.outcome import Outcome
from zoo.ablate.plan import NOT_STARTED, PlannedRun
from zoo.ablate.pool import Pool
from zoo.ablate.run_metrics import read_run_metrics
from zoo.ablate.step_cost import step_cost
from zoo.ablate.sweep import Sweep
from zoo.ablate.variants import SweepVariant
from zoo.run.config import plain
from zoo.run.job import Job
from zoo.utils.errors import ZooError
from zoo.utils.fitting import FittingTable
from zoo.utils.progress import format_duration

PROBE_STEPS = 4
"""Number of steps from which the time is estimated if no run has finished."""


class VariantCost(NamedTuple):
    """The cost of all runs of a variant, or of several variants.

    Attributes:
        runs: the number of runs.
        steps: number of steps of all runs, as far as tuning trains them.
        tokens: number of tokens of all steps, or of other units of the data, for instance images.
        flops: floating point operations of training and evaluation.
        flops_left: the operations that are still to be done.
    """

    runs: int
    steps: int
    tokens: int
    flops: float
    flops_left: float

    def cells(self, flops_per_second: float) -> list[str]:
        """The cells of the table."""
        return [
            f"{self.runs}",
            f"{self.steps:,}",
            f"{self.tokens:,}",
            f"{self.flops:.2e}",
            f"{self.flops_left / self.flops:.0%}",
            format_duration(self.flops_left / flops_per_second),
        ]


def estimate(sweep: Sweep, probe: SpeedProbe) -> Group:
    """The cost of a sweep as a table with a row per variant and their sum.

    The time is estimated from finished runs. If there are none, a few steps of the first variant are trained
    in a temporary folder.

    Args:
        sweep: the sweep, from `load_sweep`.
        probe: measures the speed if no run has finished; its workers are the runs at a time.

    Raises:
        ConfigError: Two runs have the same id, or a run folder was edited.
        ZooError: The steps cannot be trained.
    """
    planner = planner_of(sweep)
    outcomes = {run: sweep.outcome(run) for run in planner.ids}
    planned = planner.plan(outcomes).runs
    flops_per_second, source = _speed(sweep, planned, outcomes, probe)
    costs = {
        stage: [_cost(sweep, variant, seeds, planned, outcomes) for variant in sweep.variants]
        for stage, seeds in stages(sweep).items()
    }
    unit = Job.of(sweep.variants[0].configs[0]).data.units.noun
    numbers = ("runs", "steps", unit, "FLOPs", "left", "time left")
    rows = [
        [variant.name, *cost.cells(flops_per_second)]
        for variant, cost in zip(sweep.variants, next(iter(costs.values())), strict=True)
    ]
    for stage, every in costs.items():
        total = VariantCost(*map(sum, zip(*every, strict=True)))
        name = f"all: {stage}" if stage else "all"
        rows.append([name, *total.cells(probe.workers * flops_per_second)])
    title, drop = f"{sweep.name}: what it costs", ("FLOPs", "left", unit, "steps")
    return Group(
        FittingTable(title, ("variant", *numbers), rows, drop, numbers, lines=False, totals=len(costs)),
        f"Time: {source}, in proportion to the FLOPs; of a variant with one worker, of all with "
        f"{probe.workers}. Runs that are both tuned with and compared are counted once."
        + " Variants are those at the first look; seeds are added until every word is decided."
        * (sweep.max_seeds is not None),
        *sweep.notes,
        *replaced_runs(sweep, planned, outcomes),
    )


def _cost(
    sweep: Sweep,
    variant: SweepVariant,
    seeds: Collection[int],
    planned: tuple[PlannedRun, ...],
    outcomes: Mapping[str, Outcome],
) -> VariantCost:
    runs, steps = of_variant(variant, sweep.tune, seeds)
    units, flops = step_cost(variant.configs[0])
    # Steps that a run has made beyond the needed ones do not count.
    done = sum(
        min(outcomes.get(r.id, NOT_STARTED).step, r.until) for r in planned if r.variant == variant.name
    )
    return VariantCost(runs, steps, steps * units, steps * flops, max(0, steps - done) * flops)


def _speed(
    sweep: Sweep, planned: tuple[PlannedRun, ...], outcomes: Mapping[str, Outcome], probe: SpeedProbe
) -> tuple[float, str]:
    """The operations per second of a worker, and the source of the number in words."""
    flops = {variant.name: step_cost(variant.configs[0]).flops for variant in sweep.variants}
    ended = [run for run in planned if outcomes[run.id].losses.get(run.steps) is not None]
    seconds = [(run.variant, read_run_metrics(sweep.runs / run.id).step_seconds) for run in ended]
    measured = [(flops[variant], value) for variant, value in seconds if value is not None]
    if measured:
        speed = sum(of_step for of_step, _ in measured) / sum(value for _, value in measured)
        return speed, f"that of {len(measured)} finished runs"
    first = sweep.variants[0]
    speed = flops[first.name] / probe.seconds(sweep, first.name)
    return speed, f"that of {PROBE_STEPS} steps of {first.name}"


@dataclass
class SpeedProbe:
    """Measures the seconds of a training step in a few steps, once for all runs of a shape.

    Attributes:
        workers: the number of runs at a time; a worker has its share of the cores.
        progress: a function that is called with a description before each measurement, which takes a
            minute if the model is compiled first.
    """

    workers: int
    progress: Callable[[str], object] = lambda _: None
    _measured: dict[str, float] = field(default_factory=dict, init=False)

    def seconds(self, sweep: Sweep, what: str) -> float:
        """The seconds of a step of a sweep's first variant in a worker.

        Args:
            sweep: the sweep.
            what: the name of the variant, and of its size, for the description.

        Raises:
            ZooError: The variant cannot be trained.
        """
        config = sweep.variants[0].configs[0]
        shape = digest([shape_of(config), plain(Job.of(config).optimizer)])
        if shape not in self._measured:
            self.progress(f"{sweep.name}: measuring the speed of {what} in {PROBE_STEPS} steps")
            self._measured[shape] = _step_seconds(sweep, self.workers)
        return self._measured[shape]


def _step_seconds(sweep: Sweep, workers: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        first = sweep.variants[0]
        # A validation costs more than the steps, and its seconds do not count.
        train = Job.of(first.configs[0]).train.model_copy(update={"log_every": 1, "eval_batches": 1})
        probed = replace(first, configs=(first.configs[0].model_copy(update={"train": train}),))
        elsewhere = replace(sweep, out=Path(folder))
        config = elsewhere.run(probed, 0, sweep.seeds[0])
        run = PlannedRun(config, first.name, first.points[0], first.steps, PROBE_STEPS, ("final",))
        pool = Pool(workers, elsewhere.out, elsewhere.folder)
        try:
            pool.start(run)
            while pool.running:
                for _, error in pool.ended(1.0):
                    if error is not None:
                        raise ZooError(f"sweep: {first.name} cannot be trained: {error}")
        finally:
            pool.stop()
        seconds = read_run_metrics(elsewhere.runs / run.id).step_seconds
    if seconds is None:
        raise ZooError(f"sweep: {first.name}: no step was logged, so that its time is unknown")
    return seconds
