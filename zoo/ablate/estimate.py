"""What a sweep costs before it is run: runs, tokens, floating point operations, time."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from rich.console import Group
from rich.table import Table

from zoo.ablate.contenders import Contender
from zoo.ablate.live import duration
from zoo.ablate.outcome import Outcome, read_outcome
from zoo.ablate.plan import Planned, Planner
from zoo.ablate.pool import Pool
from zoo.ablate.run_metrics import read_run_metrics
from zoo.ablate.sweep import Sweep
from zoo.checkpoint.recipe import declare
from zoo.run.explanation import flops_per_target
from zoo.run.factory import recipe_of
from zoo.run.job import Job
from zoo.utils.errors import ZooError

PROBE = 4  # steps from which the time is estimated where no run has finished


@dataclass(frozen=True)
class Cost:
    """Of all runs of a variant, or of several.

    Attributes:
        runs: how many.
        steps: of all of them, as far as tuning lets them come.
        tokens: or what else the data counts.
        flops: of training and evaluating.
        left: share of `flops` that is still to be done.
        seconds: that this takes one worker.
    """

    runs: int
    steps: int
    tokens: int
    flops: float
    left: float
    seconds: float


def estimate(sweep: Sweep, workers: int) -> Group:
    """The costs of a sweep as a table.

    Args:
        sweep: from `load_sweep`.
        workers: runs at a time.

    Returns:
        A row per variant, and the sum. The time is in proportion to that of finished runs; without
        any, a few steps of the first variant are trained in a folder that is then deleted.

    Raises:
        ConfigError: see `zoo.ablate.execute`.
        ZooError: the steps cannot be trained.
    """
    planner = Planner(sweep)
    outcomes = {run: read_outcome(sweep.runs / run) for run in planner.ids}
    speed, source = _speed(sweep, planner, outcomes, workers)
    plan = planner.plan(outcomes)
    done = {c.name: [p for p in plan.runs if p.variant == c.name] for c in sweep.contenders}
    costs = {c.name: _cost(sweep, c, done[c.name], outcomes, speed) for c in sweep.contenders}
    unit = Job.of(sweep.contenders[0].configs[0]).data.unit
    table = Table(title=f"{sweep.name}: what it costs", title_justify="left", box=None, pad_edge=False)
    for column in ("variant", "runs", "steps", unit, "FLOPs", "left", "time left"):
        table.add_column(column, justify="left" if column == "variant" else "right")
    for name, cost in costs.items():
        table.add_row(name, *_cells(cost, 1))
    table.add_row("all", *_cells(_sum(list(costs.values())), workers), style="bold")
    return Group(
        table,
        f"Time: {source}, in proportion to the FLOPs; of a variant with one worker, of all with {workers}. "
        "Runs that are both tuned with and compared are counted once.",
    )


def _cells(cost: Cost, workers: int) -> list[str]:
    return [
        f"{cost.runs}",
        f"{cost.steps:,}",
        f"{cost.tokens:,}",
        f"{cost.flops:.2e}",
        f"{cost.left:.0%}",
        duration(cost.seconds / workers),
    ]


def _sum(costs: list[Cost]) -> Cost:
    flops = sum(cost.flops for cost in costs)
    return Cost(
        sum(cost.runs for cost in costs),
        sum(cost.steps for cost in costs),
        sum(cost.tokens for cost in costs),
        flops,
        sum(cost.left * cost.flops for cost in costs) / flops,
        sum(cost.seconds for cost in costs),
    )


def _cost(
    sweep: Sweep,
    contender: Contender,
    planned: list[Planned],
    outcomes: Mapping[str, Outcome],
    speed: float,
) -> Cost:
    runs, steps = _budget(sweep, contender)
    targets, per_step = _per_step(contender)
    # A run counts as far as it is, but not for what it did beyond what is wanted of it.
    done = sum(min(outcomes[run.id].step, run.until) for run in planned if run.id in outcomes)
    left = max(0.0, 1 - done / steps)
    return Cost(runs, steps, steps * targets, steps * per_step, left, left * steps * per_step * speed)


def _budget(sweep: Sweep, contender: Contender) -> tuple[int, int]:
    """Runs and steps of a variant: of the points that are still in the race, and of the comparison."""
    tune, final = sweep.tune, set(sweep.seeds)
    if tune is None:
        return len(final), len(final) * contender.steps
    alive, steps = len(contender.points), 0
    for before, rung in pairwise((0, *contender.rungs)):
        steps += alive * (rung - before) * len(tune.seeds)
        alive = math.ceil(alive * tune.halving.keep) if tune.halving else alive
    more = len(final - set(tune.seeds))
    return len(contender.points) * len(tune.seeds) + more, steps + more * contender.steps


def _per_step(contender: Contender) -> tuple[int, float]:
    """Targets of a step, and operations of a step with its share of the evaluations, if that is known."""
    job = Job.of(contender.configs[0])
    model = declare(recipe_of(job.config))
    *_, targets = model.example(1, job.data.length)
    forward, training = flops_per_target(model, job.data.length)
    batch = job.train.batch_size * targets.numel()
    evaluations = (job.train.eval_batches or 0) / job.train.eval_every
    return batch, batch * (training + forward * evaluations)


def _speed(
    sweep: Sweep, planner: Planner, outcomes: Mapping[str, Outcome], workers: int
) -> tuple[float, str]:
    """Seconds per operation, and where they come from."""
    ended = [run for run in planner.plan(outcomes).runs if outcomes[run.id].losses.get(run.steps) is not None]
    seconds = {run.id: read_run_metrics(sweep.runs / run.id).step_seconds for run in ended}
    known = [(value, run.variant) for run in ended if (value := seconds[run.id]) is not None]
    if known:
        flops = {c.name: _per_step(c)[1] for c in sweep.contenders}
        speed = sum(value for value, _ in known) / sum(flops[variant] for _, variant in known)
        return speed, f"that of {len(known)} finished runs"
    contender = sweep.contenders[0]
    return _probe(sweep, workers) / _per_step(contender)[1], f"that of {PROBE} steps of {contender.name}"


def _probe(sweep: Sweep, workers: int) -> float:
    """Seconds of a step of the first variant, in a worker as it will be."""
    with tempfile.TemporaryDirectory() as folder:
        own, first = replace(sweep, out=Path(folder)), sweep.contenders[0]
        train = Job.of(first.configs[0]).train.model_copy(update={"log_every": 1})
        probed = replace(first, configs=(first.configs[0].model_copy(update={"train": train}),))
        config = own.run(probed, 0, sweep.seeds[0])
        planned = Planned(config, first.name, first.points[0], first.steps, PROBE, ("final",))
        pool = Pool(workers, own.out, own.folder)
        pool.start(planned)
        while pool.running:
            for _, error in pool.ended(1.0):
                if error is not None:
                    raise ZooError(f"sweep: {first.name} cannot be trained: {error}")
        seconds = read_run_metrics(own.runs / planned.id).step_seconds
        assert seconds is not None
        return seconds
