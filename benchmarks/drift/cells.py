"""The cells of the drift table: models, optimizers and rules at the sizes of an axis, as configurations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from zoo.ablate.identity import run_id
from zoo.run.config import RunConfig, load_config
from zoo.run.first_weights import initial_model
from zoo.spec import declared

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
        sides: the sides, which are rows of the table.
        axes: the axes to measure; a side has only those that its rule covers.
        seeds: the number of seeds.
        sizes: the number of sizes of an axis, from the smallest on.
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


def every_side() -> tuple[Side, ...]:
    """All rows that the table can have."""
    return tuple(sides_of(MODELS, OPTIMIZERS, ()))


def sides_of(models: Sequence[str], optimizers: Sequence[str], rules: Sequence[str]) -> Iterator[Side]:
    for model, optimizer in product(models, optimizers):
        yield from (Side(model, optimizer, r) for r in rules_of(model, optimizer) if not rules or r in rules)
