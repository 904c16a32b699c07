"""From a configuration to what a training step needs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.optim.lr_scheduler import LambdaLR

from zoo.checkpoint.model import load_model
from zoo.data import Dataset
from zoo.init import Registry, freeze, measure
from zoo.models import Model
from zoo.run.factory import build_optimizer
from zoo.run.first_weights import Beginning, begin
from zoo.run.job import Job
from zoo.run.trained import with_kept_tokenizer
from zoo.train.checkpoints import check_same_data, load_progress
from zoo.train.distributed import World
from zoo.train.origin import check_tokenizer, read_measured
from zoo.train.start import Start
from zoo.train.step import Loss, Stepper
from zoo.utils.errors import ConfigError


@dataclass(frozen=True)
class Parts:
    """A model with its optimizer and its data, at some step of a run.

    Attributes:
        dataset: what it is trained and evaluated on.
        model: on its device, sharded if there are several ranks.
        registry: what is known of its parameters.
        loss: the model's loss, compiled or not.
        optimizer: with the projection attached.
        scheduler: torch's, asked for the rate of a step rather than advanced, so that there is
            nothing to restore when a run resumes.
        stepper: takes a step.
        beginning: how the weights came about; None when resuming.
    """

    dataset: Dataset
    model: Model
    registry: Registry
    loss: Loss
    optimizer: torch.optim.Optimizer
    scheduler: LambdaLR
    stepper: Stepper
    beginning: Beginning | None


def build(job: Job, start: Start, world: World) -> Parts:
    """Build everything and, when resuming, put it where it was.

    The model is initialised (or loaded) whole and then sharded, so that any number of ranks starts
    from the same weights.

    Args:
        job: what to train.
        start: from `choose_start`.
        world: the ranks.

    Raises:
        ZooError: data, sizes or checkpoint that cannot be used.
    """
    t = job.train
    if t.batch_size % (world.size * t.accumulation):
        raise ConfigError(
            f"train.batch_size {t.batch_size} does not divide among {world.size} processes "
            f"with train.accumulation {t.accumulation}"
        )
    c = job.config
    beginning = None
    if start.checkpoint is not None:
        dataset = with_kept_tokenizer(job.data, job.folder).prepare(job.model)
        check_same_data(start.checkpoint, dataset)
        model = load_model(start.checkpoint.path, device=world.device)
    else:
        dataset = job.data.prepare(job.model)
        if c.checkpoint is not None:
            check_tokenizer(c.checkpoint, dataset.tokenizer)
        beginning = begin(c, world.device)
        model = beginning.model
    freeze(model, c.freeze)
    measured = None
    if c.eta == "measured":
        if beginning is None:
            measured = read_measured(job.folder)
        else:
            measured = world.gather(measure(model, beginning.taken))[0]
            beginning = replace(beginning, measured=measured)
    world.shard(model)
    model.train()
    optimizer = build_optimizer(
        model, job.optimizer, eta_overrides=c.eta_overrides, layer_decay=c.layer_decay, measured=measured
    )
    torch.manual_seed(c.seed + world.rank)
    if start.checkpoint is not None:
        load_progress(start.checkpoint, optimizer, world)
    loss: Loss = torch.compile(model.loss) if t.compile else model.loss
    return Parts(
        dataset,
        model,
        Registry(model, None, c.eta_overrides, c.layer_decay, measured),
        loss,
        optimizer,
        job.schedule.build(optimizer, t.steps),
        Stepper(model, loss, optimizer, world, t.accumulation, t.precision, t.clip_norm, t.z_loss),
        beginning,
    )
