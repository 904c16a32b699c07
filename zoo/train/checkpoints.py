"""Checkpoints of a run: the model, the optimizer's state by name, random states, and the step.

Every rank writes its own shards, in a thread, while the next gradient is computed. A checkpoint's folder
(`zoo.utils.run_folder`) appears complete or not at all, so a run that was killed at any moment can continue.
The run's configuration and tokenizer, which are needed to use the model, are linked into it: a copy of the
folder is enough.
"""

from __future__ import annotations

import logging
import math
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from types import TracebackType
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor

from zoo.checkpoint.format import metadata
from zoo.checkpoint.pieces import is_there
from zoo.checkpoint.safetensors import (
    Part,
    TensorFile,
    parts_of,
    read_tensors,
    write_piece,
    write_tensors,
)
from zoo.data.dataset import Dataset
from zoo.models import Model
from zoo.optim.averages import Averaging, evaluation_weights
from zoo.optim.state import flatten, load_state_by_name, state_by_name, state_bytes, unflatten
from zoo.train.distributed import World
from zoo.train.spikecontrol import Rollback
from zoo.utils.atomic import NewFolder, explained, flush
from zoo.utils.errors import CheckpointError, DivergenceError
from zoo.utils.measures import CROSS_ENTROPY, Measure
from zoo.utils.printable import readable_bytes
from zoo.utils.run_folder import CheckpointFolder, RunFolder, Which
from zoo.utils.sharded import Stored
from zoo.utils.untyped import JsonObject


@dataclass(frozen=True)
class _Content:
    """A checkpoint that is to be written: this rank's part of every file.

    Attributes:
        files: parts of tensors and metadata, by the property of `CheckpointFolder` that names their file.
        whole: the same for the files that only the main rank writes.
        state: the content of state.json.
        save: identifier shared by all pieces of this checkpoint.
        best: the values of the measure that are the best so far, by the name of the checkpoint.
    """

    files: Mapping[str, tuple[Mapping[str, Part], Mapping[str, str]]]
    whole: Mapping[str, Mapping[str, Tensor]]
    state: JsonObject
    save: str
    best: Mapping[Which, float]


log = logging.getLogger("zoo")

WRITER = "zoo: checkpoint"
"""Name of the thread that writes a checkpoint."""
CLIP = "clip"
"""Key of the clipping state in a checkpoint's state.json."""


class Checkpoints:
    """Writes a run's checkpoints, and keeps the last few and the best.

    It is a context manager, at whose end the last checkpoint is complete.

    Attributes:
        measure: the measure that selects the best checkpoints.
    """

    def __init__(
        self, run: RunFolder, world: World, keep_last: int, data: str, measure: Measure = CROSS_ENTROPY
    ) -> None:
        """Read the best values of an earlier session.

        Args:
            run: the run folder.
            world: the ranks; the main one writes.
            keep_last: number of checkpoints to keep besides the best.
            data: the fingerprint of the data.
            measure: the measure that selects the best checkpoints.
        """
        self._run, self._world, self._keep_last, self._data = run, world, keep_last, data
        self.measure = measure
        self._best: dict[Which, JsonObject] = {}
        for which in run.best_names():
            pointer = run.read_pointer(which) or {}
            value = pointer.get(measure.name)
            if isinstance(value, int | float) and not math.isnan(value):
                self._best[which] = pointer
            else:
                file = run.pointer_file(which)
                log.warning("%s: has no number '%s'; the next evaluation is the best", file, measure.name)
        # On a network file system the ranks may see different files; improvements are those of the main rank.
        self._best = world.gather(self._best)[0]
        self._group = world.new_group() if world.mesh is not None else None
        self._writer: Thread | None = None
        self._error: Exception | None = None
        self._read = Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or (kind is not None and issubclass(kind, DivergenceError | Rollback)):
            self.finish()
        elif isinstance(error, Exception) and self._group is None and self._writer is not None:
            self._writer.join()  # other ranks may have failed, and nobody should wait for them

    def require_room(self, model: Model, optimizer: torch.optim.Optimizer) -> None:
        """Refuse to go on if the disk has no room for a checkpoint. All ranks must call this method.

        Args:
            model: plain or sharded.
            optimizer: the optimizer of the model, which has taken a step and so has its state.

        Raises:
            CheckpointError: A checkpoint is larger than what is free.
        """
        weights = sum(t.numel() * t.element_size() for t in model.state_dict().values())
        needed = weights + state_bytes(optimizer)

        def compare() -> None:
            total, _, free = shutil.disk_usage(self._run.path)
            if total and free < needed:  # some network file systems do not tell their size
                raise CheckpointError(
                    f"{self._run}: a checkpoint of this run takes {readable_bytes(needed)}, and its disk has "
                    f"{readable_bytes(free)} left; make room, or train elsewhere (train.runs_dir=...)"
                )

        self._world.on_main(compare)

    def improvements(self, values: Mapping[Which, float]) -> dict[Which, float]:
        """The values of the measure, by the name of a best checkpoint, that are better than those so far."""
        cost = self.measure.cost
        best = {which: cost(float(pointer[self.measure.name])) for which, pointer in self._best.items()}
        return {which: value for which, value in values.items() if cost(value) < best.get(which, math.inf)}

    def save(
        self,
        step: int,
        model: Model,
        optimizer: torch.optim.Optimizer,
        best: Mapping[Which, float] | None = None,
        diagnosis: Mapping[str, Tensor] | None = None,
        notes: JsonObject | None = None,
    ) -> None:
        """Begin to write the state after `step` steps. All ranks must call this method.

        On a CPU the files are written from the tensors themselves: call `release` before they change. From
        another device they are copied to the CPU first.

        Args:
            step: number of optimizer steps done.
            model: plain or sharded.
            optimizer: the optimizer of the model.
            best: the values of the measure that are the best so far, by the name of the checkpoint.
            diagnosis: the state of a `Diagnosis`.
            notes: more entries of state.json.

        Raises:
            CheckpointError: The previous checkpoint could not be written; those before it are intact.
        """
        self.finish()
        name = self._run.checkpoint_after(step).path.name
        self._best |= {w: {"checkpoint": name, self.measure.name: value} for w, value in (best or {}).items()}
        rank, ranks = self._world.rank, self._world.size
        with evaluation_weights(optimizer, model):
            weights = parts_of(model.state_dict(), rank)
            fixed = set() if isinstance(optimizer, Averaging) else {n for n, _ in model.named_parameters()}
            weights = {name: _kept(part, copy=name not in fixed) for name, part in weights.items()}
        state, structure = flatten(state_by_name(optimizer))
        slots = {name: _kept(part) for name, part in parts_of(state, rank).items()}
        averages = {name: _kept(part) for name, part in parts_of(diagnosis or {}, rank).items()}
        files = {"model": (weights, metadata(model)), "optimizer": (slots, structure)}
        randoms = self._world.gather(random_state(self._world.device))
        content = _Content(
            files | ({"diagnosis": (averages, {})} if diagnosis else {}),
            {"random": {f"{r}/{name}": t for r, states in enumerate(randoms) for name, t in states.items()}},
            {"step": step, "ranks": ranks, "data": self._data, "best": None, **self._best, **(notes or {})},
            self._world.gather(uuid.uuid4().hex)[0],
            best or {},
        )
        self._read.clear()
        writer = Thread(target=self._write, args=(content,), name=WRITER, daemon=True)
        writer.start()  # raises if memory is short, and then there is no thread to wait for
        self._writer = writer

    def add_evaluation(self, step: int, best: Mapping[Which, float]) -> None:
        """Complete the checkpoint after `step` steps, which was saved before its evaluation.

        Args:
            step: the number of steps.
            best: the values of the measure that are the best so far, by the name of the checkpoint.

        Raises:
            CheckpointError: The checkpoint cannot be written.
        """
        checkpoint = self._run.checkpoint_after(step)
        pointers = {
            w: {"checkpoint": checkpoint.path.name, self.measure.name: value} for w, value in best.items()
        }
        self._best |= pointers

        def write() -> None:
            state = checkpoint.read_state()
            del state[CheckpointFolder.OWED]
            if best:
                state.pop(CheckpointFolder.EXTRA, None)
            checkpoint.write_state({**state, **pointers})
            for which, value in best.items():
                self._run.point(which, checkpoint, **{self.measure.name: value})
            self._run.prune(self._keep_last)

        self._world.on_main(write)

    @property
    def failed(self) -> bool:
        """Whether this rank has noticed that a checkpoint could not be written; `finish` then raises."""
        return self._error is not None

    def release(self) -> None:
        """Wait until the tensors of the last `save` may change."""
        if self._writer is not None:
            self._read.wait()

    def finish(self) -> None:
        """Wait until the last checkpoint is complete. All ranks must call this method.

        Raises:
            CheckpointError: A rank could not write its files; earlier checkpoints are intact.
        """
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _write(self, content: _Content) -> None:
        """Write a checkpoint together with the other ranks, in a thread; an error is kept for `finish`."""
        main, checkpoint = self._world.is_main, self._run.checkpoint_after(content.state["step"])
        new = NewFolder(checkpoint.path)
        try:
            self._together(new.create if main else None)
            self._together(lambda: self._fill(CheckpointFolder(new.partial), content))
            self._read.set()
            self._together((lambda: self._complete(new, content)) if main else None)
        except Exception as error:
            self._error = error
        finally:
            self._read.set()
            if main:
                new.discard()

    def _fill(self, folder: CheckpointFolder, content: _Content) -> None:
        """Write this rank's files."""
        with explained(self._run.checkpoint_after(content.state["step"]).path):
            for name, (parts, header) in content.files.items():
                path = getattr(folder, name)
                if self._group is None:
                    write_tensors(path, {key: part.tensor for key, part in parts.items()}, header)
                else:
                    rank, ranks = self._world.rank, self._world.size
                    flush(write_piece(path, parts, header, rank, ranks, content.save))

    def _complete(self, new: NewFolder, content: _Content) -> None:
        """Write the files of the main rank, and make the checkpoint the last one."""
        folder, checkpoint = CheckpointFolder(new.partial), self._run.checkpoint_after(content.state["step"])
        with explained(checkpoint.path):
            for name, tensors in content.whole.items():
                write_tensors(getattr(folder, name), tensors, {})
            folder.write_state(dict(content.state))
            self._run.describe(folder)
        new.complete()
        # The checkpoint counts from here on. A run that is killed before the next line finds its best
        # checkpoint in state.json.
        self._run.point("last", checkpoint)
        for which, value in content.best.items():
            self._run.point(which, checkpoint, **{self.measure.name: value})
        self._run.prune(self._keep_last)

    def _together(self, work: Callable[[], object] | None) -> None:
        """Do this rank's part of a task; a failure on any rank becomes one on all ranks."""
        error: Exception | None = None
        try:
            if work is not None:
                work()
        except (OSError, CheckpointError) as problem:
            error = problem
        if self._group is not None:
            problems: list[str | None] = [None] * self._world.size
            dist.all_gather_object(problems, None if error is None else str(error), group=self._group)
            error = error or next((CheckpointError(text) for text in problems if text), None)
        if error is not None:
            raise error


def _kept(part: Part, copy: bool = False) -> Part:
    """A part on the CPU for a thread to read; copied if it is on another device or `copy` is set."""
    tensor = part.tensor.clone() if copy and part.tensor.device.type == "cpu" else part.tensor.to("cpu")
    return Part(tensor, part.begins)


def check_same_data(checkpoint: CheckpointFolder, dataset: Dataset) -> None:
    """Refuse to continue with other data, which would make other batches than those of the run.

    Args:
        checkpoint: the checkpoint to resume from.
        dataset: the present data.

    Raises:
        CheckpointError: The data has changed since.
    """
    before = checkpoint.data
    if before not in (dataset.fingerprint, *dataset.former_fingerprints):
        raise CheckpointError(
            f"{checkpoint}: the run was trained on other data ({before}, now {dataset.fingerprint}): the "
            "files, the tokenizer or zoo's way of reading them (CHANGELOG.md) have changed. Restore them, or "
            "start a run of another name (name=...)"
        )


@contextmanager
def explained_damage(checkpoint: CheckpointFolder) -> Iterator[None]:
    """Name, in the error about a damaged checkpoint, another one from which the run can continue."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{error}{checkpoint.way_out()}") from error


def load_progress(checkpoint: CheckpointFolder, optimizer: torch.optim.Optimizer, world: World) -> None:
    """Restore the optimizer's state and this rank's random state; `load_model` restores the weights.

    A run may continue with another number of ranks; additional ranks keep the random state of their seed.

    Args:
        checkpoint: the checkpoint to resume from.
        optimizer: built for the model with its weights, plain or sharded; not yet stepped.
        world: the ranks.

    Raises:
        CheckpointError: A file is missing, is truncated, or belongs to another model or optimizer.
    """
    file = TensorFile.open(checkpoint.optimizer)
    try:
        load_state_by_name(optimizer, unflatten(file.stored(), file.metadata))
    except ValueError as error:
        raise CheckpointError(f"{checkpoint.optimizer}: {error}") from error
    random, _ = read_tensors(checkpoint.random)
    random_states = {
        name: random[key] for name in random_state(world.device) if (key := f"{world.rank}/{name}") in random
    }
    set_random_state(random_states, world.device)


def load_diagnosis(checkpoint: CheckpointFolder) -> dict[str, Stored]:
    """The state of the diagnosis in a checkpoint; empty if no window had begun.

    Raises:
        CheckpointError: The file is truncated.
    """
    with explained_damage(checkpoint):
        return TensorFile.open(checkpoint.diagnosis).stored() if is_there(checkpoint.diagnosis) else {}


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The states of the random number generators of torch that this process uses, as bytes on the CPU."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    if device.type == "mps":
        states["mps"] = torch.mps.get_rng_state()
    return states


def set_random_state(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Restore the `random_state` of the generators; a generator without a state is not changed."""
    if "cpu" in states:
        torch.set_rng_state(states["cpu"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
    if "mps" in states and device.type == "mps":
        torch.mps.set_rng_state(states["mps"])
