"""How far the best learning rate drifts over widths, depths and horizons, in octaves.

    python -m benchmarks.drift --dry-run                        what it costs, in core-hours
    python -m benchmarks.drift --sizes 3                        to width 256, 8 blocks, four times the steps
    python -m benchmarks.drift --optimizers adamw --axes width  a part of it
    python -m benchmarks.drift --report                         the table again, without a run

At every size the rate is searched on its own: a grid with steps of 2 at the base size, three rates about the
best one so far at the next sizes, more while the best lies at a border, and the vertex of the parabola. Every
seed is a search of its own. Cheap runs come first. Each finished run is appended to the CSV, and no run
that is there is trained again, so the command may be stopped and repeated with other parts at any time. A
line has the hash of its settings; one whose settings are no longer those of this file is an error.

With Muon, AdamW trains embeddings, read-out and vectors at a fifth of the rate.
A cell is a size of one axis; at the base size all rules are the same, and are trained once.
"""

from __future__ import annotations

import argparse
import csv
import math
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from itertools import product
from pathlib import Path
from statistics import mean, median
from typing import Any, get_type_hints

import numpy as np
import torch
from scipy import stats

from benchmarks.harness import ROOT
from zoo import build_optimizer
from zoo.ablate.identity import run_id
from zoo.ablate.lines import config_hash
from zoo.ablate.outcome import read_outcome
from zoo.ablate.plan import PlannedRun
from zoo.ablate.pool import Pool
from zoo.ablate.rate_search import search
from zoo.ablate.run_metrics import read_run_metrics
from zoo.run.config import RunConfig, load_config
from zoo.run.first_weights import initial_model
from zoo.run.job import Job
from zoo.spec import declared
from zoo.utils.cores import cores

RESULTS = ROOT / "docs/results/drift.csv"
MODELS, OPTIMIZERS, AXES = ("gpt", "ngpt", "wesar"), ("adamw", "amos", "muon"), ("width", "depth", "horizon")
SIZES = {"width": (64, 128, 256, 512), "depth": (2, 4, 8, 16), "horizon": (1, 2, 4, 8)}
RULES: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {
    ("gpt", "adamw"): {"none": AXES, "mup": ("width",), "completep": ("width", "depth")},
    ("wesar", "adamw"): {"none": AXES, "mup": ("width",), "completep": ("width", "depth")},
    ("ngpt", "adamw"): {"none": AXES, "nugpt": AXES},
    ("gpt", "muon"): {"none": AXES, "spectral": ("width",)},
    ("wesar", "muon"): {"none": AXES, "spectral": ("width",)},
}
"""The axes that each rule speaks of; other pairs of model and optimizer have no rule."""

STEPS, BATCH, CONTEXT, HEAD = 120, 16, 128, 16
"""Of the base size: 120 steps of 2,048 bytes; heads of 16."""
MIDDLE = {"adamw": 4e-3, "amos": 2e-2, "muon": 1e-2}
"""The middle of the grid at the base size."""
GRID = tuple(2.0**k for k in range(-2, 3))
NEAR = GRID[1:4]


@dataclass(frozen=True, order=True)
class Cell:
    """One setting whose rate is searched: a model of one size, trained for one horizon under a rule."""

    model: str
    optimizer: str
    rule: str
    width: int
    layers: int
    horizon: int
    seed: int

    @classmethod
    def at(cls, side: Side, axis: str, size: int, seed: int) -> Cell:
        """The cell of an axis; its rule is "none" at the base size, where every rule is the identity."""
        sizes = {name: SIZES[name][0] for name in AXES} | {axis: size}
        rule = side.rule if size != SIZES[axis][0] else "none"
        width, layers, horizon = (sizes[name] for name in AXES)
        return cls(side.model, side.optimizer, rule, width, layers, horizon, seed)

    @property
    def steps(self) -> int:
        return STEPS * self.horizon


@dataclass(frozen=True, order=True)
class Side:
    """What a row of the table is about."""

    model: str
    optimizer: str
    rule: str

    @property
    def axes(self) -> tuple[str, ...]:
        return rules_of(self.model, self.optimizer)[self.rule]


@dataclass(frozen=True)
class Part:
    """The part of the table that is asked for.

    Attributes:
        sides: rows of the table.
        axes: of the sides, as far as their rules speak of them.
        seeds: how many.
        sizes: how many of the smallest sizes of an axis.
    """

    sides: tuple[Side, ...]
    axes: tuple[str, ...] = AXES
    seeds: int = 2
    sizes: int = 4

    def __iter__(self) -> Iterator[tuple[Side, str, Sequence[int]]]:
        """Each side with each axis and its sizes."""
        for side, axis in product(self.sides, self.axes):
            if axis in side.axes:
                yield side, axis, SIZES[axis][: self.sizes]


@dataclass(frozen=True)
class Line:
    """A line of the CSV: a finished run; the loss of one that diverged is infinite.

    Attributes:
        seconds: of its steps.
        config: a hash of all its settings, the same on every machine.
        commit: of zoo; empty: it is not known.
    """

    model: str
    optimizer: str
    rule: str
    width: int
    layers: int
    horizon: int
    seed: int
    rate: float
    loss: float
    seconds: float
    config: str = ""
    commit: str = ""

    @property
    def cell(self) -> Cell:
        return Cell(*(getattr(self, field.name) for field in fields(Cell)))


def rules_of(model: str, optimizer: str) -> Mapping[str, tuple[str, ...]]:
    return RULES.get((model, optimizer), {"none": AXES})


def configuration(cell: Cell, rate: float, out: Path) -> RunConfig:
    """The run of a cell at a rate."""
    kind = "ngpt" if cell.model == "ngpt" else "gpt"
    model: dict[str, Any] = {"type": kind, "vocab_size": 256, "d_model": cell.width}
    model |= {"n_layers": cell.layers, "n_heads": cell.width // HEAD}
    if kind == "ngpt":  # the starts that are best at the base size (docs/results/ngpt-starts.md)
        model |= {"alpha": {"init": 1 / SIZES["depth"][0]}, "s_z": {"init": math.sqrt(SIZES["width"][0])}}
    decay = 0.0 if kind == "ngpt" else 0.1
    optimizers: dict[str, dict[str, Any]] = {
        "adamw": {"type": "adamw", "weight_decay": decay},
        "amos": {"type": "amos", "beta": 0.95, "momentum": 0.9},
        "muon": {
            "type": "muon",
            "adjust": "shape",
            "weight_decay": decay,
            "rest": {"type": "adamw", "lr": rate / 5, "weight_decay": decay},
        },
    }
    horizonless = {"type": "constant", "warmup": 20}  # Amos has its own decay
    given: dict[str, Any] = {
        "model": model,
        "init": {"gpt": "small", "wesar": "he", "ngpt": "ngpt"}[cell.model],
        "reparam": "wesar" if cell.model == "wesar" else "none",
        "optimizer": optimizers[cell.optimizer] | {"lr": rate},
        "schedule": horizonless if cell.optimizer == "amos" else {"type": "cosine", "warmup": 20},
        "data": {"corpus": "python-docs", "tokenizer": "byte", "context": CONTEXT},
        "seed": cell.seed,
        "train": {
            "steps": cell.steps,
            "batch_size": BATCH,
            "device": "cpu",
            "eval_every": 10_000,
            "eval_batches": 32,
            "monitor_every": None,
            "diagnose_every": None,
            "checkpoint_every": 10_000,
            "keep_last": 1,
            "runs_dir": str(out / "runs"),
        },
    }
    if cell.rule != "none":
        given["transfer"] = {"type": cell.rule, "base": base_sizes(cell.model, cell.rule)}
    config = load_config(given)
    return config.model_copy(update={"name": run_id(config)})


@cache
def base_sizes(model: str, rule: str) -> dict[str, int]:
    """`transfer.base`: the axes of the base model that grow, and what the rule needs besides."""
    smallest = Cell.at(Side(model, "adamw", "none"), "width", SIZES["width"][0], 0)
    base = initial_model(configuration(smallest, 1e-3, Path()), "meta").model
    found = {axis: n for p in declared(base) for axis, n in zip(p.spec.axes, p.spec.shape, strict=True)}
    grow = ("embed",) if rule == "nugpt" else ("embed", "heads", "kv_heads", "mlp")
    sizes = {axis: found[axis] for axis in grow if axis in found}
    layers = {"layers": SIZES["depth"][0]} if rule in ("completep", "nugpt") else {}
    return sizes | layers | ({"steps": STEPS} if rule == "nugpt" else {})


def check_settings(table: Table, part: Part) -> None:
    """Refuse lines whose settings are no longer those of this file.

    Raises:
        SystemExit: there is such a line; the message names it.
    """
    sides = set(part.sides)
    for line in table.lines:
        if Side(line.model, line.optimizer, line.rule) not in sides:
            continue
        expected = config_hash(configuration(line.cell, line.rate, Path()))
        if line.config != expected:
            raise SystemExit(
                f"{line.cell} at {line.rate:g}: trained with settings {line.config or 'unknown'}, this file "
                f"has {expected}; expected lines of one study: remove the line, or name another --csv"
            )


class Table:
    """The finished runs, and what follows from them."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines = list(lines)
        self._losses = {(line.cell, line.rate): line.loss for line in lines}

    @classmethod
    def read(cls, file: Path) -> Table:
        if not file.exists():
            return cls([])
        kinds = get_type_hints(Line)
        with file.open(encoding="utf-8", newline="") as rows:
            return cls([Line(**{k: kinds[k](v) for k, v in row.items()}) for row in csv.DictReader(rows)])

    def append(self, file: Path, line: Line) -> None:
        """Add a finished run, to the file as well."""
        file.parent.mkdir(parents=True, exist_ok=True)
        begun = file.exists()
        with file.open("a", encoding="utf-8", newline="") as rows:
            writer = csv.DictWriter(rows, [field.name for field in fields(Line)], lineterminator="\n")
            if not begun:
                writer.writeheader()
            writer.writerow(asdict(line))
        self.lines.append(line)
        self._losses[line.cell, line.rate] = line.loss

    def search(self, cell: Cell, middle: float, grid: Sequence[float]) -> tuple[list[float], float | None]:
        """The rates that are still to be trained, and the best one once none is; inf at a border."""
        found = search([rounded(middle * factor) for factor in grid], lambda rate: self.loss(cell, rate))
        missing = [rate for rate in found.rates if self.loss(cell, rate) is None]
        if missing:
            return missing, None
        return [], math.inf if found.ln_best is None else math.exp(found.ln_best)

    def loss(self, cell: Cell, rate: float) -> float | None:
        return self._losses.get((cell, rate))

    def row(
        self, side: Side, axis: str, sizes: Sequence[int], seed: int
    ) -> tuple[list[tuple[Cell, float]], list[float | None]]:
        """What is to be trained now of the sizes of an axis, and the best rates as far as they are known."""
        best: list[float | None] = []
        middle, grid = MIDDLE[side.optimizer], GRID
        for size in sizes:
            cell = Cell.at(side, axis, size, seed)
            missing, found = self.search(cell, middle, grid)
            if found is None:
                return [(cell, rate) for rate in missing], best
            best.append(None if math.isinf(found) else found)
            middle, grid = (middle if math.isinf(found) else found), NEAR
        return [], best


def rounded(rate: float) -> float:
    return float(f"{rate:.3g}")


@dataclass(frozen=True)
class Drift:
    """How far the best rate moves from the smallest to the largest size of an axis, in octaves.

    Attributes:
        octaves: by a line of log2 rate over log2 size; negative if the rate falls.
        half: half the 95 % interval, the wider of those by the scatter of the sizes about the line and by the
            seeds; None with fewer than three sizes and a single seed.
    """

    octaves: float
    half: float | None

    def __str__(self) -> str:
        if self.half is None:
            return f"{self.octaves:+.2f}"
        return f"{self.octaves:+.2f} ({self.octaves - self.half:+.2f} to {self.octaves + self.half:+.2f})"


def drift(sizes: Sequence[float], rates: Sequence[Sequence[float]]) -> Drift:
    """The drift over sizes.

    Args:
        sizes: of the axis.
        rates: for each seed the best rate of every size.
    """
    x, y = np.log2(sizes), np.log2(np.asarray(rates, dtype=np.float64))
    span = float(x[-1] - x[0])
    slopes = ((y - y.mean(1, keepdims=True)) @ (x - x.mean())) / ((x - x.mean()) ** 2).sum()
    halves = []
    if len(x) > 2:
        fitted = stats.linregress(x, y.mean(0))
        halves.append(float(stats.t.ppf(0.975, len(x) - 2)) * float(fitted.stderr))
    if len(y) > 1:
        se = float(slopes.std(ddof=1)) / math.sqrt(len(y))
        halves.append(float(stats.t.ppf(0.975, len(y) - 1)) * se)
    return Drift(float(slopes.mean()) * span, max(halves) * span if halves else None)


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


@dataclass(frozen=True)
class Row:
    """A row of the drift table.

    Attributes:
        side: what it is about.
        axis: over which the rate drifts.
        sizes: at which all seeds have a best rate inside their grids.
        border: sizes at which a best rate lies at the border.
        rates: the geometric means over the seeds.
        drift: None with fewer than two sizes.
        seeds: how many.
    """

    side: Side
    axis: str
    sizes: tuple[int, ...]
    border: tuple[int, ...]
    rates: tuple[float, ...]
    drift: Drift | None
    seeds: int

    @property
    def name(self) -> str:
        """Model, optimizer, rule and axis."""
        rule = "" if self.side.rule == "none" else f", {self.side.rule}"
        return f"{self.side.model} {self.side.optimizer}{rule}: {self.axis}"

    def __str__(self) -> str:
        """The row in Markdown."""
        side = self.side
        border = f" (at the border: {_listed(self.border)})" if self.border else ""
        octaves = "one size" if self.drift is None else str(self.drift)
        plural = "s" * (self.seeds > 1)
        return (
            f"| {side.model} | {side.optimizer} | {side.rule} | {self.axis} | {_listed(self.sizes)}{border} "
            f"| {_listed(f'{rate:.2g}' for rate in self.rates)} | {octaves}, {self.seeds} seed{plural} |"
        )


def report(table: Table, part: Part) -> str:
    """The drift table, of the sizes at which all seeds have a best rate."""
    head = [
        "| model | optimizer | rule | axis | sizes | best rates | octaves from the smallest to the largest |",
        "|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *map(str, rows(table, part))])


def rows(table: Table, part: Part) -> Iterator[Row]:
    """The rows of the table that have a best rate."""
    for side, axis, sizes in part:
        found = [best for seed in range(part.seeds) if (best := table.row(side, axis, sizes, seed)[1])]
        if not found:
            continue
        reached = range(min(map(len, found)))
        inside = [i for i in reached if all(best[i] is not None for best in found)]
        rates = [[rate for i in inside if (rate := best[i]) is not None] for best in found]
        means = [math.exp(mean(math.log(rate) for rate in of_size)) for of_size in zip(*rates, strict=True)]
        yield Row(
            side,
            axis,
            tuple(sizes[i] for i in inside),
            tuple(sizes[i] for i in reached if i not in inside),
            tuple(means),
            drift([sizes[i] for i in inside], rates) if len(inside) > 1 else None,
            len(found),
        )


def _listed(values: Iterable[object]) -> str:
    return " ".join(map(str, values))


def every_side() -> tuple[Side, ...]:
    """All rows that the table can have."""
    return tuple(sides_of(MODELS, OPTIMIZERS, ()))


def sides_of(models: Sequence[str], optimizers: Sequence[str], rules: Sequence[str]) -> Iterator[Side]:
    for model, optimizer in product(models, optimizers):
        yield from (Side(model, optimizer, r) for r in rules_of(model, optimizer) if not rules or r in rules)


def main() -> None:
    """Train, or say what it costs, or what is known."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    every = sorted({rule for rules in RULES.values() for rule in rules})
    options.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    options.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=OPTIMIZERS)
    options.add_argument("--rules", nargs="+", choices=every, default=[], help="default: all that apply")
    options.add_argument("--axes", nargs="+", choices=AXES, default=AXES)
    options.add_argument("--sizes", type=int, default=4, help="so many of the smallest sizes of each axis")
    options.add_argument("--seeds", type=int, default=2)
    options.add_argument("--workers", type=int, default=cores())
    options.add_argument("--csv", type=Path, default=RESULTS)
    options.add_argument("--dry-run", action="store_true")
    options.add_argument("--report", action="store_true")
    given = options.parse_args()
    sides = tuple(sides_of(given.models, given.optimizers, given.rules))
    part, table = Part(sides, tuple(given.axes), given.seeds, given.sizes), Table.read(given.csv)
    if given.dry_run:
        print(costs(table, part))
        return
    check_settings(table, part)
    if not given.report:
        train(table, given.csv, part, given.workers)
    print(report(table, part))


if __name__ == "__main__":
    main()
