"""Training what the drift table lacks, the cheapest runs first, and what that costs."""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from statistics import median

import torch

from benchmarks.drift.cells import BATCH, CONTEXT, MIDDLE, Cell, Part, configuration
from benchmarks.drift.lines import GRID, NEAR, Line, Table
from zoo import build_optimizer
from zoo.ablate.lines import config_hash
from zoo.ablate.outcome import read_outcome
from zoo.ablate.plan import PlannedRun
from zoo.ablate.pool import Pool
from zoo.ablate.run_metrics import read_run_metrics
from zoo.run.first_weights import initial_model
from zoo.run.job import Job


def due(table: Table, part: Part) -> list[tuple[Cell, float]]:
    """The runs that can be trained now, each once, the cheapest first."""
    wanted = [
        run
        for side, axis, sizes in part
        for seed in range(part.seeds)
        for run in table.row(side, axis, sizes, seed)[0]
    ]
    return sorted(dict.fromkeys(wanted), key=lambda run: (cost(run[0]), run))


def cost(cell: Cell) -> float:
    """Operations of a run, up to a factor."""
    return float(cell.width * (12 * cell.width * cell.layers + 512) * cell.steps)


def train(table: Table, file: Path, part: Part, workers: int) -> None:
    """Train what is missing; a run that is interrupted is resumed by the next call."""
    out = file.with_suffix("")
    pool = Pool(workers, out, out / "errors")
    running: dict[str, tuple[Cell, float]] = {}
    try:
        while True:
            waiting = [run for run in due(table, part) if run not in running.values()]
            for cell, rate in waiting[: pool.free]:
                config = configuration(cell, rate, out)
                running[config.name] = (cell, rate)
                pool.start(PlannedRun(config, cell.model, {}, cell.steps, cell.steps, ("tune",)))
            if not running:
                return
            for run, error in pool.ended(1.0):
                cell, rate = running.pop(run.id)
                if error is not None:
                    raise SystemExit(f"{cell} at {rate:g}: {error}")
                table.append(file, finished(out / "runs" / run.id, cell, rate))
                shutil.rmtree(out / "runs" / run.id)
                print(
                    f"{len(table.lines)} runs; {cell} at {rate:g}: {table.loss(cell, rate):.4f}", flush=True
                )
    finally:
        pool.stop()


def finished(folder: Path, cell: Cell, rate: float) -> Line:
    """The line of a run that has ended."""
    loss, metrics = read_outcome(folder).loss(cell.steps), read_run_metrics(folder)
    seconds = metrics.step_seconds
    return Line(
        **asdict(cell),
        rate=rate,
        loss=math.inf if loss is None else round(loss, 6),
        seconds=math.nan if seconds is None else round(seconds * cell.steps, 2),
        config=config_hash(metrics.config),
        commit=metrics.environment.get("git_commit") or "",
    )


def costs(table: Table, part: Part) -> str:
    """What is left to do: runs and core-hours, without the points that borders add."""
    known: dict[tuple[int, int], list[float]] = {}
    for line in table.lines:
        if math.isfinite(line.seconds):
            known.setdefault((line.width, line.layers), []).append(line.seconds / line.cell.steps)
    rows = ["| model | optimizer | rule | axis | runs left | core-hours left |", "|---|---|---|---|---|---|"]
    counted: set[Cell] = set()
    total_runs, total_hours = 0, 0.0
    for side, axis, sizes in part:
        runs, hours = 0, 0.0
        for size, seed in product(sizes, range(part.seeds)):
            cell = Cell.at(side, axis, size, seed)
            rates = len(GRID) if size == sizes[0] else len(NEAR)
            left = 0 if cell in counted else max(0, rates - sum(line.cell == cell for line in table.lines))
            counted.add(cell)
            shape = (cell.width, cell.layers)
            if left and shape not in known:
                known[shape] = [step_seconds(cell)]
            runs += left
            hours += left * cell.steps * median(known[shape]) / 3600 if left else 0.0
        rows.append(f"| {side.model} | {side.optimizer} | {side.rule} | {axis} | {runs} | {hours:.2f} |")
        total_runs, total_hours = total_runs + runs, total_hours + hours
    note = "Seconds of a step: of finished runs of a shape, else the processor's in two steps on one thread."
    return "\n".join([*rows, f"| all | | | | {total_runs} | {total_hours:.2f} |", "", note])


def step_seconds(cell: Cell) -> float:
    """Processor seconds of a step on one thread, eager: the faster of two after a first one."""
    torch.set_num_threads(1)
    config = configuration(replace(cell, rule="none"), MIDDLE[cell.optimizer], Path())
    model = initial_model(config).model
    optimizer = build_optimizer(model, Job.of(config).optimizer)
    batch = torch.randint(256, (BATCH, CONTEXT + 1))
    seconds = []
    for _ in range(3):
        begun = time.process_time()
        model.loss(batch[:, :-1], batch[:, 1:]).total.backward()  # type: ignore[no-untyped-call]  # torch
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.process_time() - begun)
    return min(seconds[1:])
