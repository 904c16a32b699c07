"""`zoo explain`: a row for each parameter of a configuration's model, and totals."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Group
from rich.text import Text
from torch import nn

from zoo.checkpoint.recipe import Recipe, declare
from zoo.data.dataset import Units
from zoo.init import Registry, freeze, spreads
from zoo.init.registry import Entry
from zoo.models import Model
from zoo.optim.base import FLOAT32, OptimizerConfig
from zoo.run.config import RunConfig, load_config
from zoo.run.described import load_described
from zoo.run.first_weights import InitialModel, measured_model, recipe_of
from zoo.run.flops import model_flops, training_example, update_flops
from zoo.run.located import located
from zoo.run.optimizer import optimizer_of
from zoo.run.reach import unreached
from zoo.run.redundancy import notes
from zoo.run.transfer import check_optimizer, rates_of
from zoo.spec import Declared, Module, ParamSpec, declared
from zoo.utils.errors import ConfigError
from zoo.utils.fitting import FittingTable
from zoo.utils.printable import first_few, readable_bytes, with_wildcards
from zoo.utils.run_folder import RunFolder
from zoo.utils.untyped import JsonObject

COLUMNS = (
    *("parameter", "role", "shape", "axes", "depth", "sigma", "eta"),
    *("lr x", "gate", "slot", "sphere", "decay", "state"),
)
NUMBERS = ("depth", "sigma", "eta", "lr x", "gate", "state")
"""The columns that are right-aligned."""
LEFT_OUT = ("axes", "state", "depth", "decay", "sphere", "slot", "role", "lr x", "shape")
"""The columns that a narrow terminal leaves out, in this order; sigma, eta and gate are always shown."""

NO_OPTIMIZER = "none"
"""The optimizer's name in the totals if a configuration has none."""

USUAL_LENGTH = 1024
"""The length of the example for which FLOPs are counted, if the configuration has no data."""


@dataclass(frozen=True)
class Row:
    """One parameter; a field that does not apply to it is None.

    Attributes:
        name: The name in the model.
        role, shape, axes, sphere: From the declaration; `sphere` is the axis along which the norm is 1.
        depth: The number of the block that contains the parameter; 0 is in front of the blocks.
        fan_in: The number of inputs that are summed over.
        sigma: The initial standard deviation of the entries, measured on weights that were loaded, and
            otherwise that of the initialisation; None for constants.
        eta: Amos' expected scale.
        lr: The factor on the learning rate; None: the parameter is frozen.
        gate: The gate's start, if the parameter is reparameterised.
        slot: The shape of the optimizer's smallest slot.
        decays: Whether the optimizer's weight decay, if it has one, acts on the parameter.
        state_bytes: The bytes of the optimizer's slots; None: they cannot be known before training.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    depth: int
    fan_in: int
    sigma: float | None
    eta: float | None
    lr: float | None
    gate: float | None
    slot: tuple[int, ...] | None
    sphere: str | None
    decays: bool
    state_bytes: int | None


@dataclass(frozen=True)
class Totals:
    """The sums over a model that `zoo explain` prints.

    Attributes:
        parameters: The number of entries of all parameters, gates and frozen ones included.
        gates: The number of entries of gates.
        frozen: The number of entries that are not trained.
        optimizer: The name of the optimizer whose state is counted.
        optimizer_bytes: The bytes of its slots; None: they cannot be known before training.
        adamw_bytes: The bytes of AdamW's two moments, for comparison.
        length: The length of the example for which FLOPs are counted: tokens of a sequence, side of an image.
        unit: The unit of which FLOPs are counted: a token, an image, or a target of any kind.
        forward_flops: The floating point operations of the forward pass per unit.
        training_flops: The floating point operations of the forward and the backward pass per unit.
        update_flops: The floating point operations of the optimizer's matrix products per step.
    """

    parameters: int
    gates: int
    frozen: int
    optimizer: str
    optimizer_bytes: int | None
    adamw_bytes: int
    length: int
    unit: str
    forward_flops: int
    training_flops: int
    update_flops: float


@dataclass(frozen=True)
class Explanation:
    """The registry of a model as a table: the output of `zoo explain`.

    Attributes:
        model: model, init and reparameterisation.
        rows: the parameters.
        totals: sums over them.
        warnings: sentences on scalings that cannot reach their target, see `zoo.run.reach`.
        notes: lines on factors that can drift and on norms that nothing can change (`zoo.run.redundancy`).
        measured: the origin, in words, of the weights whose sigma was measured; "": none was.
    """

    model: str
    rows: Sequence[Row]
    totals: Totals
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()
    measured: str = ""

    def to_json(self) -> str:
        """The rows and totals as JSON."""
        return json.dumps(asdict(self), indent=1)

    def table(self, fold: bool = False) -> Group:
        """The rows and totals as tables for the terminal.

        Args:
            fold: Whether blocks that repeat are shown once, with their number.
        """
        groups = _folded(self.rows, bool(self.measured)) if fold else [(row.name, [row]) for row in self.rows]
        rows = [
            (
                name if len(group) == 1 else f"{name} (x {len(group)})",
                row.role,
                _shape(row.shape),
                " ".join(row.axes),
                str(row.depth) if len(group) == 1 else "",
                _range([row.sigma for row in group]),
                _range([row.eta for row in group]),
                "frozen" if row.lr is None else _number(row.lr),
                _number(row.gate),
                "" if row.slot is None else _shape(row.slot),
                row.sphere or "",
                "yes" if row.decays else "",
                readable_bytes(row.state_bytes),
            )
            for name, group in groups
            for row in group[:1]
        ]
        table = FittingTable(self.model, COLUMNS, rows, LEFT_OUT, NUMBERS)
        t = self.totals
        state = f": {readable_bytes(t.optimizer_bytes)}" if t.optimizer != NO_OPTIMIZER else ""
        if state and t.optimizer_bytes is not None and t.adamw_bytes:
            state += f" ({t.optimizer_bytes / t.adamw_bytes:.1%} of AdamW's)"
        if t.update_flops:
            state += f", {t.update_flops:.3e} FLOPs a step"
        lines = [
            f"parameters      {t.parameters:,} ({t.parameters / 1e6:,.1f} M)"
            + (f", of which {t.gates:,} gates" if t.gates else "")
            + (f", of which {t.frozen:,} frozen" if t.frozen else ""),
            f"optimizer       {t.optimizer}{state}",
            f"FLOPs per {t.unit} {t.forward_flops:.3e} forward, {t.training_flops:.3e} training, "
            f"at length {t.length}",
            *([f"sigma           measured on {self.measured}"] if self.measured else []),
            *(f"warning: {warning}" for warning in self.warnings),
            *_folded_notes(self.notes),
        ]
        return Group(table, Text("\n".join(lines)))


def explain(config: RunConfig | Model | str | Path | JsonObject, run: RunFolder | None = None) -> Explanation:
    """Describe a config without allocating its weights; those of a checkpoint, or of a model, are measured.

    Args:
        config: A configuration with a model, a source of `load_described` (a file, the name of a shipped
            configuration, a run, a checkpoint, a folder as on the hub), a dict, or a zoo model.
        run: The run folder that the configuration comes from, if any; a fine-tuned run is then described
            without the checkpoint that it started from.

    Returns:
        One row per parameter, and totals.

    Raises:
        ConfigError: The config has no model, or a setting that has no effect; or a zoo model is a part of
            another one, or lacks modules that its own configuration has.
    """
    if isinstance(config, Model):
        if not hasattr(config, "recipe"):
            raise ConfigError(
                f"explain: {type(config).__name__} is a part of a model, or was not made by build_model or "
                "load_model, so that its configuration is not known; expected the model that was made"
            )
        parts = {part: getattr(config.recipe, part) for part in ("model", "init", "reparam")}
        names = {p.name for p in declared(config) if not p.parameter.is_meta}
        measured = spreads(config, names) or None
        initial = InitialModel(_declared_like(config), measured_sigmas=measured)
        return _explained(RunConfig(**parts), initial, "the weights of the model")
    if isinstance(config, dict):
        config = load_config(config)
    elif not isinstance(config, RunConfig):
        config = load_described(config)
    with located(config):
        place = "" if config.checkpoint is None else f"the weights of {config.checkpoint.path}"
        return _explained(config, measured_model(config, run), place)


def _declared_like(model: Model) -> Model:
    """A copy of a model on the meta device, with the declarations that the model has now.

    They are not those of its recipe after `split`, whose gates start at the scales of the weights, under a
    constraint, or where parameters were frozen.

    Raises:
        ConfigError: Modules of the recipe's model were removed, so that it has no loss whose FLOPs count.
    """
    copy = declare(model.recipe)
    present = {path for path, _ in model.named_modules()}
    if removed := [path for path, _ in copy.named_modules() if path not in present]:
        raise ConfigError(
            f"explain: the model lacks {first_few(removed)}, which its configuration has; expected the whole "
            "model, or its configuration"
        )
    for path, module in copy.named_modules():
        like = model.get_submodule(path)
        if isinstance(module, Module) and isinstance(like, Module):
            module.reparameterised = dict(like.reparameterised)
            for name, spec in like.specs.items():
                with torch.device("meta"):
                    module.param(name, spec)
                module.freeze(name, spec.frozen)
    return copy


def _explained(config: RunConfig, initial: InitialModel, place: str) -> Explanation:
    """`explain`, with errors that do not name the places of their keys."""
    model, recipe = initial.model, initial.model.recipe
    freeze(model, config.freeze)
    config.constraint.apply(model)
    if config.train is not None:
        config.schedule.check(config.train.steps)
        config.train.build_clip().prepare(model)
    if config.optimizer is not None:
        check_optimizer(config.transfer, config.optimizer)
    steps = None if config.train is None else config.train.steps
    rates = rates_of(model, config.transfer, config.optimizer, steps)
    registry = Registry(
        model,
        initial.init or recipe_of(config).init,
        config.eta_overrides,
        config.layer_decay,
        initial.measured_etas,
        rates,
    )
    if config.optimizer is not None:
        # What is explained is what can be trained: the optimizer itself is not needed.
        optimizer_of(config.optimizer, registry, config.eta_overrides, initial.measured_etas)
    entries = {entry.name: entry for entry in registry}
    sigmas = initial.measured_sigmas
    rows = [
        _row(p, entries.get(p.name), config.optimizer, (sigmas or {}).get(p.name)) for p in declared(model)
    ]
    length = USUAL_LENGTH if config.data is None else config.data.length
    example = model.example(1, length) if config.data is None else training_example(model, config.data)
    units = Units(example[-1].numel(), "targets") if config.data is None else config.data.units
    flops = model_flops(model.to("meta"), example)
    trained = sum(entry.spec.numel for entry in registry)
    frozen = sum(p.spec.numel for p in registry.frozen)
    totals = Totals(
        parameters=trained + frozen,
        gates=sum(math.prod(row.shape) for row in rows if row.role == "gate"),
        frozen=frozen,
        optimizer=getattr(config.optimizer, "type", NO_OPTIMIZER),
        optimizer_bytes=_total([row.state_bytes for row in rows]),
        adamw_bytes=2 * FLOAT32 * trained,
        length=length,
        unit=units.noun.removesuffix("s"),
        forward_flops=flops.forward // units.number,
        training_flops=flops.training // units.number,
        update_flops=0.0 if config.optimizer is None else update_flops(model, config.optimizer),
    )
    reach = unreached(registry, config.reach)
    measured = "" if sigmas is None else place
    return Explanation(_title(recipe), rows, totals, reach, notes(model), measured)


def _row(p: Declared, entry: Entry | None, optimizer: OptimizerConfig | None, spread: float | None) -> Row:
    """The row of a parameter; one without an entry is frozen, and has neither eta nor slots.

    `spread` is the standard deviation of the parameter, if it was measured.
    """
    sigma = entry.sigma if entry else None
    if spread or (spread is not None and sigma is not None):
        sigma = spread
    slots = optimizer.slots(entry) if entry and optimizer else None
    return Row(
        name=p.name,
        role=str(p.spec.role),
        shape=p.spec.shape,
        axes=p.spec.axes,
        depth=p.depth,
        fan_in=p.spec.fan_in_size,
        sigma=sigma,
        eta=entry.eta if entry else None,
        lr=entry.lr_factor if entry else None,
        gate=_gate(p.module, p.local, p.spec),
        slot=min(slots.values(), key=math.prod) if slots else None,
        sphere=p.spec.sphere,
        decays=entry is not None and (entry.decays if optimizer is None else optimizer.decays_on(entry)),
        state_bytes=optimizer.state_bytes(entry) if entry and optimizer else 0,
    )


def _gate(owner: nn.Module, local: str, spec: ParamSpec) -> float | None:
    gated = isinstance(owner, Module) and local in owner.reparameterised
    return spec.scale if gated else None


def _title(recipe: Recipe) -> str:
    parts = (recipe.model, recipe.init, recipe.reparam)
    model, init, reparam = (getattr(part, "type", "") for part in parts)
    return f"{model}, init {init}, reparam {reparam}"


def _folded(rows: Sequence[Row], measured: bool) -> list[tuple[str, list[Row]]]:
    """Named groups of rows that differ only in the number of the block, or in measured values."""
    groups: dict[tuple[str, *tuple[object, ...]], list[Row]] = {}
    for row in rows:
        name = with_wildcards(row.name)
        scales = () if measured else (row.sigma, row.eta)
        groups.setdefault((name, row.shape, *scales, row.lr, row.gate), []).append(row)
    return [(key[0] if len(group) > 1 else group[0].name, group) for key, group in groups.items()]


def _folded_notes(lines: Sequence[str]) -> list[str]:
    """The lines, of which those that differ only in the number of the block become one with a count."""
    counts = Counter(re.sub(r"\.\d+\.", ".*.", line) for line in lines)
    return [line if n == 1 else f"{line} (x {n})" for line, n in counts.items()]


def _shape(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def _range(values: Sequence[float | None]) -> str:
    """A number, or the smallest and the largest of several."""
    known = [value for value in values if value is not None]
    ends = [_number(end(known)) for end in (min, max)] if known else []
    return "..".join(dict.fromkeys(ends))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
