"""Build the model, the optimizer and the data of a run, at the step where a session starts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.optim.lr_scheduler import LambdaLR

from zoo.checkpoint.model import load_model
from zoo.checkpoint.recipe import Prepare
from zoo.config.registry import require_instance
from zoo.data.dataset import BatchSpec, Dataset
from zoo.init import Registry, freeze, measure, spreads
from zoo.models import Model
from zoo.optim.clip import Clip
from zoo.optim.storage import store_in_bfloat16
from zoo.reparam import start_from_forward
from zoo.run.first_weights import InitialModel, initial_model, read_measured_etas, require_room
from zoo.run.job import Job
from zoo.run.limits import require_memory
from zoo.run.optimizer import build_optimizer
from zoo.run.trained import with_kept_tokenizer
from zoo.run.transfer import rates_of
from zoo.train.checkpoints import CLIP, check_same_data, explained_damage, load_progress
from zoo.train.compilation import compiled_loss
from zoo.train.distributed import World
from zoo.train.recompute import recompute
from zoo.train.source_checkpoint import check_tokenizer
from zoo.train.start import Start
from zoo.train.step import Loss, Stepper
from zoo.utils.errors import ConfigError
from zoo.utils.measures import Measure, find_measure, require_recorded
from zoo.utils.run_folder import CheckpointFolder


@dataclass(frozen=True)
class Parts:
    """A model with its optimizer and its data, at some step of a run.

    Attributes:
        dataset: the training and validation examples.
        model: the model, on its device, sharded if there are several ranks.
        registry: the model's parameters with their declarations.
        loss: the model's loss, compiled or not.
        optimizer: the optimizer, with the projection onto spheres attached.
        scheduler: the learning rate schedule. It is evaluated at a step and never advanced, so that a
            resumed run has nothing to restore.
        stepper: computes gradients and takes steps.
        initial: the model before the first step; None when resuming.
        measure: the measure that selects the best checkpoint.
    """

    dataset: Dataset
    model: Model
    registry: Registry
    loss: Loss
    optimizer: torch.optim.Optimizer
    scheduler: LambdaLR
    stepper: Stepper
    initial: InitialModel | None
    measure: Measure


def build(job: Job, start: Start, world: World) -> Parts:
    """Build the parts of a session and, when resuming, restore their state.

    The model is declared, frozen and sharded before it has memory: each rank draws or reads only its own
    rows, and any number of ranks starts from the same weights.

    Args:
        job: the run.
        start: where the session starts, from `choose_start`.
        world: the ranks.

    Raises:
        ZooError: The data, the sizes or the checkpoint cannot be used.
    """
    t, c = job.train, job.config
    # What the configuration alone tells is checked before any data is prepared.
    job.examples_at_once(world.size)
    job.schedule.check(t.steps)
    job.optimizer.require_trainable()
    job.check_processes(world.size)
    clip = t.build_clip()

    def prepare(model: Model) -> None:
        freeze(model, c.freeze)
        world.shard(model)

    initial, measured = None, None
    if start.checkpoint is None:
        _require_memory(job, world)
        initial, dataset = _begin(job, world, prepare, clip)
        model = initial.model
    else:
        model, dataset = _resume(job, start.checkpoint, world, prepare)
        clip.prepare(model)
    selecting = _selecting(c.metric, dataset)
    if c.eta == "measured":
        measured = read_measured_etas(job.folder) if initial is None else initial.measured_etas
    recompute(model, t.recompute)
    model.train()
    optimizer = build_optimizer(
        model,
        job.optimizer,
        eta_overrides=c.eta_overrides,
        layer_decay=c.layer_decay,
        measured=measured,
        transfer=c.transfer,
        steps=t.steps,
    )
    torch.manual_seed(seed_of_rank(c.seed, world.rank))
    if start.checkpoint is not None:
        with explained_damage(start.checkpoint):
            load_progress(start.checkpoint, optimizer, world)
        clip.load(start.checkpoint.read_state().get(CLIP, {}))
    if t.storage == "bf16":
        store_in_bfloat16(model, optimizer)
    rates = rates_of(model, c.transfer, c.optimizer, t.steps)
    registry = Registry(model, None, c.eta_overrides, c.layer_decay, measured, rates)
    unclipped = frozenset(entry.name for entry in registry if not entry.spec.clipped)
    loss = compiled_loss(model, t.compile)
    return Parts(
        dataset=dataset,
        model=model,
        registry=registry,
        loss=loss,
        optimizer=optimizer,
        scheduler=job.schedule.build(optimizer, t.steps),
        stepper=Stepper(
            model, loss, optimizer, world, t.accumulation, t.precision, clip, t.z_loss, unclipped
        ),
        initial=initial,
        measure=selecting,
    )


def _begin(job: Job, world: World, prepare: Prepare, clip: Clip) -> tuple[InitialModel, Dataset]:
    """Make the model of a new run, and prepare its clipping and its data.

    The data come last, so that errors about the model are raised before any text is tokenised.
    """
    c = job.config
    initial = initial_model(c, world.device, prepare)
    model = initial.model
    if c.checkpoint is not None:
        initial = replace(initial, measured_sigmas=spreads(model, initial.loaded))
    c.constraint.apply(model)
    clip.prepare(model)
    dataset = require_instance(type(job.data), "prepare", job.data.prepare(job.model), Dataset)
    if c.checkpoint is not None:
        check_tokenizer(c.checkpoint, dataset.tokenizer)
    # The first part of the first batch: the same examples with any number of ranks.
    size = job.train.batch_size // job.train.accumulation
    first = BatchSpec(c.seed, 0, size, world.rank, world.size)
    batch = [tensor.to(world.device) for tensor in dataset.train_batch(first)]
    start_from_forward(
        model,
        *batch[:-1],
        mask=model.padding_mask(*batch),
        loaded=initial.loaded,
        total=world.sum,
        reshard=world.reshard,
    )
    if c.eta == "measured":
        initial = replace(initial, measured_etas=measure(model, initial.loaded))
    return initial, dataset


def _resume(job: Job, checkpoint: CheckpointFolder, world: World, prepare: Prepare) -> tuple[Model, Dataset]:
    """Load the model of a run from a checkpoint, and prepare its data, which has to be the same."""
    dataset = with_kept_tokenizer(job.data, job.folder).prepare(job.model)
    check_same_data(checkpoint, dataset)
    with explained_damage(checkpoint):
        model = load_model(checkpoint.path, device=world.device, prepare=prepare)
    job.config.constraint.apply(model)
    return model, dataset


def _selecting(metric: str | None, dataset: Dataset) -> Measure:
    """The measure that selects the best checkpoint.

    Raises:
        ConfigError: The data does not have the measure that the configuration names.
    """
    measure = find_measure(metric or dataset.best_metric)
    if metric is not None:
        try:
            require_recorded(measure, dataset.measures)
        except ValueError as error:
            raise ConfigError(f"metric: {error}") from error
    return measure


def _require_memory(job: Job, world: World) -> None:
    """Refuse a model or a batch that does not fit into memory, before anything is built.

    Raises:
        ConfigError: The model or the batch needs more memory than there is.
    """
    t = job.train
    if job.config.checkpoint is None:
        require_room(job.config, world.device)
    # Token ids of inputs and targets, and the first activations of the examples computed at once.
    examples = t.batch_size // world.size
    width = getattr(job.model, "d_model", 1)
    needed = examples * job.data.length * (16 + 4 * width // t.accumulation)
    what = f"{examples} examples of {job.data.length} on each rank"
    require_memory("train.batch_size", t.batch_size, needed, what, world.device)


def seed_of_rank(seed: int, rank: int) -> int:
    """The seed of a rank's random numbers, such as those of dropout: on rank 0 the seed of the run.

    Those of other ranks are hashed, so that rank 1 does not draw the numbers of a run with the next seed.
    """
    if rank == 0:
        return seed
    return int(np.random.SeedSequence((seed, rank)).generate_state(1, np.uint64)[0] >> np.uint64(1))
