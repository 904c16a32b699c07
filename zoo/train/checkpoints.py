"""Checkpoints of a run: the model, the optimizer's state by name, random states, and the step.

A checkpoint's folder (`zoo.utils.run_folder`) appears complete or not at all, so a run that was killed at
any moment can go on. What it takes to use the model, the run's configuration and tokenizer, is linked into
it: a copy of the folder is enough.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo.checkpoint.format import metadata
from zoo.checkpoint.safetensors import read_tensors, write_tensors
from zoo.data.dataset import Dataset, Metric
from zoo.models import Model
from zoo.optim.averages import evaluation_weights
from zoo.optim.state import flatten, load_state_by_name, state_by_name, unflatten
from zoo.train.distributed import World
from zoo.utils.atomic import write_folder
from zoo.utils.errors import CheckpointError
from zoo.utils.run_folder import CheckpointFolder, RunFolder
from zoo.utils.sharded import gathered

CLIP = "clip"
"""Key of the state of clipping in a checkpoint's state.json."""


class Checkpoints:
    """Writes a run's checkpoints, and keeps the last few and the best.

    Attributes:
        metric: the metric that selects the best checkpoint.
        best: the best value of the metric so far; the worst possible one before the first checkpoint.
    """

    def __init__(
        self, run: RunFolder, world: World, keep_last: int, data: str, metric: Metric = "cross_entropy"
    ) -> None:
        """Read the best value of an earlier session.

        Args:
            run: the run folder.
            world: the ranks; the main one writes.
            keep_last: number of checkpoints to keep besides the best.
            data: the fingerprint of the data.
            metric: the metric that selects the best checkpoint.
        """
        self._run, self._world, self._keep_last, self._data = run, world, keep_last, data
        self.metric = metric
        pointer = run.read_pointer("best")
        worst = math.inf if metric == "cross_entropy" else -math.inf
        self.best = worst if pointer is None else float(pointer[metric])

    def improves(self, value: float) -> bool:
        """Whether a value of the metric is better than the best so far."""
        return value < self.best if self.metric == "cross_entropy" else value > self.best

    def save(
        self,
        step: int,
        model: Model,
        optimizer: torch.optim.Optimizer,
        best: float | None = None,
        diagnosis: Mapping[str, Tensor] | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the state after `step` steps. All ranks must call this.

        Args:
            step: number of steps done.
            model: plain or sharded.
            optimizer: the optimizer of the model.
            best: the value of the metric on the validation examples if it is the best so far, else None.
            diagnosis: the state of a `Diagnosis`.
            notes: more entries of state.json.

        Raises:
            CheckpointError: the files cannot be written; earlier checkpoints are intact.
        """
        main = self._world.is_main
        self.best = self.best if best is None else best
        with evaluation_weights(optimizer, model):
            weights = gathered(model.state_dict(), main)
        state, structure = flatten(state_by_name(optimizer))
        slots = gathered(state, main)
        averages = gathered(diagnosis or {}, main)
        random = self._world.gather(random_state(self._world.device))
        if main:
            randoms = {
                f"{rank}/{name}": t for rank, states in enumerate(random) for name, t in states.items()
            }
            header = metadata(model)

            content = {"step": step, "ranks": self._world.size, "data": self._data, **(notes or {})}

            def fill(partial: Path) -> None:
                folder = CheckpointFolder(partial)
                write_tensors(folder.model, weights, header)
                write_tensors(folder.optimizer, slots, structure)
                write_tensors(folder.random, randoms, {})
                if averages:
                    write_tensors(folder.diagnosis, averages, {})
                folder.write_state(content)
                self._run.describe(folder)

            checkpoint = self._run.checkpoint_after(step)
            write_folder(checkpoint.path, fill)
            if best is not None:
                self._run.point("best", checkpoint, **{self.metric: best})
            self._run.point("last", checkpoint)
            self._run.prune(self._keep_last)
        self._world.wait()


def check_same_data(checkpoint: CheckpointFolder, dataset: Dataset) -> None:
    """Refuse to continue with other data, whose batches would not be those of the run.

    Args:
        checkpoint: the checkpoint to resume from.
        dataset: the data as it is now.

    Raises:
        CheckpointError: the data has changed since.
    """
    before = checkpoint.data
    if before not in (dataset.fingerprint, dataset.former_fingerprint):
        raise CheckpointError(
            f"{checkpoint}: the run was trained on other data ({before}, now {dataset.fingerprint}): the "
            "files or the tokenizer have changed. Restore them, or start a run of another name (name=...)"
        )


def load_progress(checkpoint: CheckpointFolder, optimizer: torch.optim.Optimizer, world: World) -> None:
    """Restore the optimizer's state and this rank's random state; `load_model` restores the weights.

    A run may continue with another number of ranks; additional ranks keep the random state of their seed.

    Args:
        checkpoint: the checkpoint to resume from.
        optimizer: built for the model with its weights, plain or sharded; not yet stepped.
        world: the ranks.

    Raises:
        CheckpointError: a file is missing, is truncated, or belongs to another model or optimizer.
    """
    slots, structure = read_tensors(checkpoint.optimizer)
    try:
        load_state_by_name(optimizer, unflatten(slots, structure))
    except ValueError as error:
        raise CheckpointError(f"{checkpoint.optimizer}: {error}") from error
    random, _ = read_tensors(checkpoint.random)
    own = {
        name: random[key] for name in random_state(world.device) if (key := f"{world.rank}/{name}") in random
    }
    set_random_state(own, world.device)


def load_diagnosis(checkpoint: CheckpointFolder) -> dict[str, Tensor]:
    """The state of the diagnosis in a checkpoint; empty if no window had begun.

    Raises:
        CheckpointError: the file is truncated.
    """
    return read_tensors(checkpoint.diagnosis)[0] if checkpoint.diagnosis.is_file() else {}


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The states of the random number generators of torch that this process uses, as bytes on the CPU."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random_state(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Restore the `random_state` of the generators; a generator without a state is not changed."""
    if "cpu" in states:
        torch.set_rng_state(states["cpu"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
