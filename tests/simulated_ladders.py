"""Ladders that are not trained: their losses follow a law with an optimal rate and weight decay."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from zoo.ablate.execute import planner_of
from zoo.ablate.lines import tuned_values
from zoo.ablate.outcome import Outcome
from zoo.ablate.plan import PlannedRun
from zoo.ablate.scale.runs import FinishedRun, RunTable
from zoo.ablate.sweep import Sweep, load_sweep
from zoo.config.yaml import dump_yaml
from zoo.run.job import Job

ROOT = Path(__file__).parents[1]


def load(folder: Path, **changes: Any) -> Sweep:
    """The shipped check, in a folder of its own."""
    file = folder / "ladder.yaml"
    file.write_text(dump_yaml({"extends": str(ROOT / "configs/sweeps/ladder-check.yaml"), **changes}))
    return load_sweep(file, out=folder / "sweeps")


def best_rate(params: float) -> float:
    return float(5e-3 * (params / 1e5) ** -0.25)


def best_decay(params: float) -> float:
    return float(0.1 * (params / 1e5) ** 0.1)


def true_loss(sweep: Sweep, run: PlannedRun, decay: float = 0.0) -> float:
    """A law with an optimal rate that falls as N^-.25; its noise follows from the run's id.

    Args:
        sweep: the ladder.
        run: one of its runs.
        decay: curvature over ln of the weight decay, whose optimum moves with the rate as well.
    """
    job, second = Job.of(run.config), tuned_values(run.point)[1]
    (size,) = [size for size in sweep.ladder if size.params == run.params]
    tokens = float(run.steps * size.sides[0].per_step)
    off = math.log(job.optimizer.lr / best_rate(run.params))
    noise = 0.02 * np.random.default_rng(list(run.id.encode())).standard_normal()
    lost = 0.24 * off**2
    if second is not None:
        far = math.log(second / best_decay(run.params))
        lost += decay * (far + 0.2 * off) ** 2
    tokens *= math.exp(noise - lost)
    return float(0.45 + 0.25 * (run.params / 1e6) ** -0.3 + 0.8 * (tokens / 1e6) ** -0.3)


def trained(
    sweep: Sweep, most: int = 100_000, decay: float = 0.0
) -> tuple[list[PlannedRun], dict[str, Outcome]]:
    """All runs in the order in which they are due, and their outcomes."""
    planner = planner_of(sweep)
    outcomes: dict[str, Outcome] = {}
    order: list[PlannedRun] = []
    while len(order) < most:
        plan = planner.plan(outcomes)
        due = [run for run in plan.runs if run.id not in outcomes][: most - len(order)]
        if not due:
            break
        for run in due:
            outcomes[run.id] = Outcome(run.steps, {run.steps: true_loss(sweep, run, decay)}, ended=True)
        order += due
    return order, outcomes


def table(order: list[PlannedRun], outcomes: dict[str, Outcome], **fields: Any) -> RunTable:
    """The runs as a verdict reads them."""
    rows = []
    for run in order:
        rate, second = tuned_values(run.point)
        loss = outcomes[run.id].losses[run.steps]
        row = FinishedRun(run.variant, run.params, run.tokens, run.config.seed, loss, rate, second_key=second)
        rows.append(row if not fields else FinishedRun(**(vars(row) | fields)))
    return RunTable(tuple(rows))
