"""The first weights of a run: drawn, or taken over from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from zoo.checkpoint.formats import OpenedCheckpoint
from zoo.checkpoint.model import open_checkpoint
from zoo.checkpoint.recipe import Recipe, assemble, declare, materialise
from zoo.checkpoint.report import Report
from zoo.config.registry import INITS
from zoo.init import initialise
from zoo.init.schemes import RANDOM
from zoo.models import Model, ModelConfig
from zoo.reparam import Conversion, NoReparam
from zoo.run.config import RunConfig
from zoo.run.conversion import merge, split
from zoo.run.from_checkpoint import TOKENIZER, CheckpointConfig, start_init
from zoo.spec import declared
from zoo.utils.errors import CheckpointError, ConfigError


@dataclass(frozen=True)
class Beginning:
    """A model before its first step.

    Attributes:
        model: whole, on its device.
        taken: names of the parameters whose values a checkpoint decided.
        report: what became of the checkpoint's tensors; None without one.
        conversion: from the checkpoint's reparameterisation to another; None where it was kept.
        measured: etas taken from the weights, by the names of the parameters; None where they are declared.
    """

    model: Model
    taken: frozenset[str] = frozenset()
    report: Report | None = None
    conversion: Conversion | None = None
    measured: Mapping[str, float] | None = None


def recipe_of(config: RunConfig) -> Recipe:
    """The model's part of a run's config, with the architecture's own init where none is named.

    Raises:
        ConfigError: the config describes no model.
    """
    if config.model is None:
        raise ConfigError("model: missing; expected `model: {type: ..., ...}`")
    model: ModelConfig = config.model
    return Recipe(model=model, init=config.init or INITS[model.default_init](), reparam=config.reparam)


def begin(config: RunConfig, device: str | torch.device = "cpu") -> Beginning:
    """Make a run's model as it is before the first step.

    A checkpoint's tensors are copied one after the other into the model, which is whole: memory stays
    within the model plus one file. What the checkpoint does not have is drawn. Where the config names
    another reparameterisation, the checkpoint's is merged, and then the other one split off.

    Args:
        config: with a model.
        device: where the parameters live.

    Raises:
        ConfigError: no model, or an init that is not the checkpoint's.
        CheckpointError: a checkpoint that cannot be read, or does not fit and is not allowed to.
        ZooError: a reparameterisation that cannot take over weights, or a device that is not there.
    """
    recipe = recipe_of(config)
    if config.checkpoint is None:
        return Beginning(assemble(recipe, config.seed, device))
    origin = _open(config.checkpoint)
    _check(config, origin)
    model = declare(origin.recipe.model_copy(update={"model": recipe.model}))
    report, filled = _fill(model, config.checkpoint, origin, config.seed, torch.device(device))
    before = {p.name for p in declared(model)}
    conversion = _convert(model, config, origin)
    added = [p for p in declared(model) if p.name not in before]
    computed = {p.name for p in added if p.spec.role not in RANDOM}  # a gate; LoRA's matrices are drawn
    names = {p.name for p in declared(model)}
    return Beginning(model, frozenset(names & (filled | computed)), report, conversion)


def outline(config: RunConfig) -> Beginning:
    """`begin` with as little reading as possible: on the meta device, unless the weights decide something.

    They decide measured etas, and what a conversion puts in front of them.

    Raises:
        ZooError: see `begin`.
    """
    recipe = recipe_of(config)
    if config.checkpoint is None:
        return Beginning(declare(recipe))
    origin = _open(config.checkpoint)
    if config.eta == "measured" or config.reparam != origin.recipe.reparam:
        return begin(config)
    model = declare(recipe)
    origin.restore(part_of(model, config.checkpoint.part))
    return Beginning(model)


def part_of(model: Model, part: str) -> Model:
    """The part of a model that a checkpoint fills; "" is all of it.

    Raises:
        ConfigError: it has no such part.
    """
    found = dict(model.named_modules()).get(part)
    if not isinstance(found, Model):
        raise ConfigError(f"checkpoint.part: value '{part}': the model has no such part")
    return found


def _open(source: CheckpointConfig) -> OpenedCheckpoint:
    """The checkpoint of a configuration that was written out, perhaps long ago."""
    try:
        return open_checkpoint(source.path)
    except CheckpointError as error:
        raise CheckpointError(f"checkpoint.path: {error}; it is needed until the run has begun") from error


def _check(config: RunConfig, origin: OpenedCheckpoint) -> None:
    """Refuse what cannot be done before anything is read."""
    kept = config.reparam == origin.recipe.reparam
    expected = start_init(origin.recipe, kept)
    if config.init is not None and config.init != expected:
        made_with = expected.model_dump(mode="json")
        raise ConfigError(f"init: the model starts from a checkpoint made with {made_with}; leave init out")
    if not kept and not config.reparam.preserves_outputs:
        kind = type(config.reparam).model_fields["type"].default
        raise ConfigError(f"reparam: '{kind}' cannot take over a checkpoint's weights; expected another")


def _fill(
    model: Model, source: CheckpointConfig, origin: OpenedCheckpoint, seed: int, device: torch.device
) -> tuple[Report, set[str]]:
    """Allocate a declared model and fill it; what became of the tensors, and the names of those filled."""
    part = part_of(model, source.part)
    origin.restore(part)
    whole = _component(model.recipe.model, source.part)
    expected = declare(model.recipe.model_copy(update={"model": whole})).state_dict()
    allow = [pattern for pattern in source.allow if pattern != TOKENIZER]
    plan = origin.plan(expected, part.state_dict(), allow)
    prefix = f"{source.part}." if source.part else ""
    places = {prefix + name for name in expected}
    filled = {prefix + name for name in plan.fills}
    materialise(model, device)
    names = list(model.state_dict())
    plan.fill(part.state_dict())
    initialise(model, model.recipe.init, seed, set(names) - filled)
    return replace(plan.report, new=tuple(name for name in names if name not in places)), filled


def _component(model: ModelConfig, part: str) -> ModelConfig:
    """The configuration of a part."""
    for key in part.split(".") if part else ():
        model = getattr(model, key)
    return model


def _convert(model: Model, config: RunConfig, origin: OpenedCheckpoint) -> Conversion | None:
    """Exchange the checkpoint's reparameterisation for the config's."""
    if config.reparam == origin.recipe.reparam:
        return None
    merged = merge(model)
    if isinstance(config.reparam, NoReparam):
        return merged
    done = split(model, config.reparam, seed=config.seed)
    return replace(done, max_difference=max(merged.max_difference, done.max_difference))
