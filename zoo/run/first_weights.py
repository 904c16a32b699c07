"""The first weights of a run: initialised at random, or loaded from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch

from zoo.checkpoint.formats import OpenedCheckpoint
from zoo.checkpoint.model import open_checkpoint
from zoo.checkpoint.recipe import Prepare, Recipe, assemble, build, declare, materialise
from zoo.checkpoint.report import LoadReport
from zoo.checkpoint.trunk import opened_for
from zoo.config.registry import INITS, type_of
from zoo.init import initialise, measure, spreads
from zoo.init.schemes import RANDOM, Init
from zoo.init.transfer import NoTransfer
from zoo.models import Model, ModelConfig
from zoo.reparam import Conversion, NoReparam
from zoo.run.config import RunConfig
from zoo.run.conversion import merge, split
from zoo.run.from_checkpoint import TOKENIZER, CheckpointConfig, start_init
from zoo.run.limits import require_memory
from zoo.run.transfer import check_optimizer, rates_of, under_rule
from zoo.spec import Module, declared
from zoo.utils.errors import CheckpointError, ConfigError
from zoo.utils.run_folder import RunFolder

ETAS = "measured_eta"
"""The key of loaded.json under which a run keeps its measured etas."""
SIGMAS = "measured_sigma"
"""The key of loaded.json under which a run keeps the standard deviations of the weights that it loaded."""


@dataclass(frozen=True)
class InitialModel:
    """A model before its first step.

    Attributes:
        model: the model.
        loaded: names of the parameters whose values come from a checkpoint.
        report: the report on the tensors of the checkpoint; None if there is no checkpoint.
        conversion: the change from the checkpoint's reparameterisation to another; None if there is none.
        measured_etas: etas measured on the weights, by the names of the parameters; None if the declared ones
            are used.
        measured_sigmas: standard deviations of the weights that come from a checkpoint, by the names of the
            parameters; None: they were not measured.
        init: the scheme by which the model was initialised if it differs from that of its recipe, because of
            a transfer rule; None: it is that of the recipe.
    """

    model: Model
    loaded: frozenset[str] = frozenset()
    report: LoadReport | None = None
    conversion: Conversion | None = None
    measured_etas: Mapping[str, float] | None = None
    measured_sigmas: Mapping[str, float] | None = None
    init: Init | None = None


def recipe_of(config: RunConfig) -> Recipe:
    """The recipe of a run's model; its init is the architecture's own if the configuration names none.

    Raises:
        ConfigError: The configuration describes no model.
    """
    if config.model is None:
        raise ConfigError("model: missing; expected `model: {type: ..., ...}`")
    model: ModelConfig = config.model
    return Recipe(model=model, init=config.init or INITS[model.default_init](), reparam=config.reparam)


def initial_model(
    config: RunConfig,
    device: str | torch.device = "cpu",
    prepare: Prepare | None = None,
    stored_dtype: bool = False,
) -> InitialModel:
    """Make a run's model in its state before the first step.

    The tensors of a checkpoint are copied into the model one after the other, so that only the model, or a
    rank's part of it, and one tensor are in memory. Tensors that the checkpoint lacks are initialised at
    random. If the configuration names another reparameterisation than the checkpoint's, all weights are
    merged, and then split according to the configuration.

    Args:
        config: the configuration of the run.
        device: where the parameters live.
        prepare: a function that is called with the declared model before it is allocated (with the allocated
            model if its reparameterisation is converted), see `zoo.checkpoint.recipe.assemble`.
        stored_dtype: whether the model keeps the dtype of a folder of the hub, whose files are then mapped
            into memory instead of copied, provided that its reparameterisation stays; otherwise it is
            float32.

    Raises:
        ConfigError: The configuration describes no model, its init is not the checkpoint's, or its
            reparameterisation finds no tensor of the model.
        CheckpointError: The checkpoint cannot be read, or its tensors differ from the model's and
            `checkpoint.allow` does not allow it.
        ZooError: The reparameterisation cannot keep existing weights, or the device does not exist.
    """
    recipe = recipe_of(config)
    if config.checkpoint is None:
        return _under_rule(
            config, recipe, partial(assemble, seed=config.seed, device=device, prepare=prepare)
        )
    opened = _open(config.checkpoint, recipe)
    _check(config, opened)
    model = declare(opened.recipe.model_copy(update={"model": recipe.model}))
    converts = config.reparam != opened.recipe.reparam
    early = None if converts else prepare
    if stored_dtype and not converts:
        model.to(getattr(torch, opened.published.get("dtype", "float32")))
    report, filled = _fill(model, config.checkpoint, opened, config.seed, torch.device(device), early)
    before = {p.name for p in declared(model)}
    conversion = _convert(model, config) if converts else None
    if converts and prepare is not None:
        prepare(model)
    added = [p for p in declared(model) if p.name not in before]
    # Gates, for example, are computed from the weights; LoRA's matrices are random.
    computed = {p.name for p in added if p.spec.role not in RANDOM}
    names = {p.name for p in declared(model)}
    return InitialModel(model, frozenset(names & (filled | computed)), report, conversion)


def _under_rule(config: RunConfig, recipe: Recipe, make: Callable[..., Model]) -> InitialModel:
    """Make a model that is initialised by the transfer rule and has the recipe for checkpoints."""
    rule = under_rule(recipe, config.transfer)
    built = build(rule.start.model) if rule.built is None else rule.built
    recipe.reparam.require_tensors(list(declared(built)), type_of(recipe.model))
    model = make(rule.start, built=built)
    model.recipe = rule.recorded
    return InitialModel(model, init=rule.start.init)


def require_room(config: RunConfig, device: torch.device) -> None:
    """Refuse a model that cannot be trained in the available memory, before it is built.

    Args:
        config: the configuration of a run that starts from no checkpoint.
        device: the device of the parameters.

    Raises:
        ConfigError: The parameters and their gradients need more memory than is available.
    """
    model = declared_model(config).model
    kind = type_of(model.recipe.model)
    numbers = sum(p.numel() for p in model.parameters())
    what = f"{numbers:,} parameters and their gradients"
    require_memory("model.type", kind, 8 * numbers, what, device)


def check_transfer(config: RunConfig) -> None:
    """Refuse a run to which its transfer rule does not apply, from its declarations alone.

    A run that starts from a checkpoint is checked when the checkpoint is opened.

    Raises:
        ConfigError: The rule does not apply to the model or the optimizer, or its base size does not fit the
            model.
    """
    if isinstance(config.transfer, NoTransfer) or config.checkpoint is not None or config.optimizer is None:
        return
    check_optimizer(config.transfer, config.optimizer)
    model = declared_model(config).model
    steps = None if config.train is None else config.train.steps
    rates = rates_of(model, config.transfer, config.optimizer, steps)
    assert rates is not None  # there is a rule
    for parameter in declared(model):
        rates(parameter)


def declared_model(config: RunConfig, run: RunFolder | None = None) -> InitialModel:
    """Declare a run's model on the meta device, without reading the weights of its checkpoint.

    If declarations depend on the weights (measured etas, converted reparameterisations), and the run has no
    checkpoint of its own yet, the result is that of `initial_model`.

    Args:
        config: the configuration of the run.
        run: the run folder, if there is one; its own checkpoint replaces the one that the run started from,
            which may have been deleted.

    Raises:
        ZooError: The model cannot be made, see `initial_model`, or the etas that the run measured cannot be
            read.
    """
    recipe = recipe_of(config)
    if config.checkpoint is None:
        return _under_rule(config, recipe, declare)
    if run is not None and (last := run.checkpoint()) is not None:
        checkpoint = open_checkpoint(last.path)
        if (checkpoint.recipe.model, checkpoint.recipe.reparam) == (recipe.model, recipe.reparam):
            model = declare(checkpoint.recipe)
            checkpoint.restore(model)
            etas = read_measured_etas(run) if config.eta == "measured" else None
            return InitialModel(model, measured_etas=etas)
    opened = _open(config.checkpoint, recipe)
    if config.eta == "measured" or config.reparam != opened.recipe.reparam:
        initial = initial_model(config)
        etas = measure(initial.model, initial.loaded) if config.eta == "measured" else None
        return replace(initial, measured_etas=etas)
    model = declare(recipe)
    opened.restore(part_of(model, config.checkpoint.part))
    return InitialModel(model)


def measured_model(config: RunConfig, run: RunFolder | None = None) -> InitialModel:
    """`declared_model`, with the standard deviations of the weights that come from a checkpoint.

    They are measured on the weights, or read from the run folder. A run of an older version, which did not
    record them, is described without.
    """
    initial = declared_model(config, run)
    if config.checkpoint is None:
        return initial
    if run is not None and run.checkpoint() is not None:
        noted = run.loaded.is_file() and SIGMAS in run.read_loaded()
        return replace(initial, measured_sigmas=_read_measured(run, SIGMAS)) if noted else initial
    if initial.report is None:
        etas = initial.measured_etas
        initial = replace(initial_model(config, stored_dtype=True), measured_etas=etas)
    return replace(initial, measured_sigmas=spreads(initial.model, initial.loaded))


def read_measured_etas(run: RunFolder) -> dict[str, float]:
    """Read the measured etas of a run from its loaded.json, by the names of the parameters.

    Raises:
        CheckpointError: The file is missing, or does not have the etas.
    """
    return _read_measured(run, ETAS)


def _read_measured(run: RunFolder, key: str) -> dict[str, float]:
    """A measurement of a run's parameters, by their names."""
    try:
        numbers: dict[str, float] = run.read_loaded()[key]
        return {str(name): float(number) for name, number in numbers.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{run.loaded}: {key}: expected what was measured when the run began"
        ) from error


def part_of(model: Model, part: str) -> Model:
    """The submodule that a checkpoint fills, by its name; "" is the model itself.

    Raises:
        ConfigError: The model has no such submodule, or the submodule is no zoo model.
    """
    module = dict(model.named_modules()).get(part)
    if not isinstance(module, Model):
        raise ConfigError(f"checkpoint.part: value '{part}': the model has no such part")
    return module


def _open(source: CheckpointConfig, recipe: Recipe) -> OpenedCheckpoint:
    """Open the checkpoint of a resolved configuration, which may have been deleted since it was written."""
    kind = type_of(recipe.model)
    try:
        return opened_for(open_checkpoint(source.path), source.part, kind)
    except CheckpointError as error:
        raise CheckpointError(f"checkpoint.path: {error}; it is needed until the run has begun") from error


def _check(config: RunConfig, opened: OpenedCheckpoint) -> None:
    """Refuse an impossible conversion before any weights are read."""
    kept = config.reparam == opened.recipe.reparam
    expected = start_init(opened.recipe, kept)
    if config.init is not None and config.init != expected:
        made_with = expected.model_dump(mode="json")
        raise ConfigError(f"init: the model starts from a checkpoint made with {made_with}; leave init out")
    if not kept and not config.reparam.preserves_outputs:
        kind = type_of(config.reparam)
        raise ConfigError(f"reparam: '{kind}' cannot take over a checkpoint's weights; expected another")


def _fill(
    model: Model,
    source: CheckpointConfig,
    opened: OpenedCheckpoint,
    seed: int,
    device: torch.device,
    prepare: Prepare | None,
) -> tuple[LoadReport, set[str]]:
    """Allocate a declared model and load the checkpoint; return the report and the loaded names."""
    part = part_of(model, source.part)
    opened.restore(part)
    whole = _component(model.recipe.model, source.part)
    complete = declare(model.recipe.model_copy(update={"model": whole}))
    opened.restore(complete)
    origin = complete if whole == opened.recipe.model else declare(opened.recipe)
    learnt, of_run = _divided(complete)[0], _divided(origin)[1]  # the latter has the sizes of the other run
    expected = learnt | of_run
    allow = [pattern for pattern in source.allow if pattern != TOKENIZER]
    plan = opened.plan(expected, _divided(part)[0], allow)
    prefix = f"{source.part}." if source.part else ""
    places = {prefix + name for name in expected}
    filled = {prefix + name for name in plan.fills}
    if prepare is not None:
        prepare(model)
    materialise(model, device)
    names = list(model.state_dict())
    plan.fill(part.state_dict())
    model.published = opened.published
    initialise(model, model.recipe.init, seed, set(names) - filled)
    return replace(plan.report, new=tuple(name for name in names if name not in places)), filled


def _divided(model: Model) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The state dict in two: what the model has learnt, and what belongs to a run (an LSTM's state)."""
    names = {
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        if isinstance(module, Module)
        for name in module.run_buffers
    }
    state = model.state_dict()
    return {n: t for n, t in state.items() if n not in names}, {n: state[n] for n in state if n in names}


def _component(model: ModelConfig, part: str) -> ModelConfig:
    """The configuration of a submodule."""
    for key in part.split(".") if part else ():
        model = getattr(model, key)
    return model


def _convert(model: Model, config: RunConfig) -> Conversion:
    """Replace the checkpoint's reparameterisation by the configuration's."""
    merged = merge(model)
    if isinstance(config.reparam, NoReparam):
        return merged
    done = split(model, config.reparam, seed=config.seed)
    return replace(done, max_difference=max(merged.max_difference, done.max_difference))
