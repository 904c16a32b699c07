"""Checkpoints of a run: the model, the optimizer's state by name, random states, the position.

``checkpoints/step-00000040/`` holds model.safetensors (which `load_model` opens),
optimizer.safetensors, random.safetensors, state.json and, inside the window of a diagnosis, its
averages in diagnosis.safetensors; ``last.json`` and ``best.json`` name one.
A folder appears complete or not at all, so a run killed at any moment can go on. What it takes to use
the model, the run's configuration and tokenizer, is linked into it: a copy of the folder is enough.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo.checkpoint.format import metadata
from zoo.checkpoint.model import CHECKPOINTS, MODEL_FILE, RUN_CONFIG, Which, pointer_file
from zoo.checkpoint.safetensors import read_tensors, write_tensors
from zoo.data.classification.class_names import LABELS_FILE
from zoo.data.dataset import Metric
from zoo.data.tokenizers.base import FOLDER as TOKENIZER
from zoo.models import Model
from zoo.optim.averages import evaluation_weights
from zoo.optim.state import flatten, load_state_by_name, state_by_name, unflatten
from zoo.run.trained import RUN_COPY
from zoo.train.distributed import World
from zoo.train.folder import STATE, Start
from zoo.utils.atomic import link, remove, write_file, write_folder
from zoo.utils.errors import CheckpointError
from zoo.utils.sharded import gathered

OPTIMIZER_FILE = "optimizer.safetensors"
RANDOM_FILE = "random.safetensors"
DIAGNOSIS_FILE = "diagnosis.safetensors"


class Checkpoints:
    """Writes a run's checkpoints and keeps the last few and the best.

    Attributes:
        measure: by which the best checkpoint is chosen, see `zoo.data.dataset.Metric`.
        best: its best value of a checkpoint so far; infinite, on the side that loses, before the first.
    """

    def __init__(
        self, run: Path, world: World, keep_last: int, data: str, measure: Metric = "cross_entropy"
    ) -> None:
        """Find the best value of an earlier session; nothing is written yet.

        Args:
            run: the run folder.
            world: the ranks; the main one writes.
            keep_last: how many to keep besides the best.
            data: the fingerprint of what the run is trained on.
            measure: by which the best checkpoint is chosen.
        """
        self._run, self._world, self._keep_last, self._data = run, world, keep_last, data
        self.measure = measure
        pointer = _read(self._run, "best")
        worst = math.inf if measure == "cross_entropy" else -math.inf
        self.best = worst if pointer is None else float(pointer[measure])

    def improves(self, value: float) -> bool:
        """Whether a value of the measure is better than the best."""
        return value < self.best if self.measure == "cross_entropy" else value > self.best

    def save(
        self,
        step: int,
        model: Model,
        optimizer: torch.optim.Optimizer,
        best: float | None = None,
        diagnosis: Mapping[str, Tensor] | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the state after `step` steps; all ranks must call it.

        Args:
            step: steps done.
            model: plain or sharded.
            optimizer: its optimizer.
            best: the measure on the validation examples, if it is the best so far.
            diagnosis: the state of a `Diagnosis`; None or empty: there is nothing to keep.
            notes: more for state.json.

        Raises:
            CheckpointError: the system refuses; earlier checkpoints are intact.
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

            def fill(folder: Path) -> None:
                write_tensors(folder / MODEL_FILE, weights, header)
                write_tensors(folder / OPTIMIZER_FILE, slots, structure)
                write_tensors(folder / RANDOM_FILE, randoms, {})
                if averages:
                    write_tensors(folder / DIAGNOSIS_FILE, averages, {})
                state = {"step": step, "ranks": self._world.size, "data": self._data, **(notes or {})}
                (folder / STATE).write_text(json.dumps(state) + "\n", encoding="utf-8")
                self._describe(folder)

            folder = self._run / CHECKPOINTS / f"step-{step:08d}"
            write_folder(folder, fill)
            if best is not None:
                _point(self._run, "best", {"checkpoint": folder.name, self.measure: best})
            _point(self._run, "last", {"checkpoint": folder.name})
            self._prune()
        self._world.wait()

    def _describe(self, checkpoint: Path) -> None:
        """Link what a model of the run needs into a checkpoint, where the run has it."""
        pairs = [(self._run / RUN_CONFIG, checkpoint / RUN_COPY)]
        pairs += [(self._run / LABELS_FILE, checkpoint / LABELS_FILE)]
        if (tokenizer := self._run / TOKENIZER).is_dir():
            (checkpoint / TOKENIZER).mkdir()
            pairs += [(file, checkpoint / TOKENIZER / file.name) for file in tokenizer.iterdir()]
        for there, here in pairs:
            if there.is_file():
                link(there, here)

    def _prune(self) -> None:
        parent = self._run / CHECKPOINTS
        best = _read(self._run, "best")
        old = sorted(parent.glob("step-*"))[: -self._keep_last]
        abandoned = parent.glob(".step-*")  # by a process that was killed while it wrote
        remove(*abandoned, *(folder for folder in old if best is None or folder.name != best["checkpoint"]))


def saved(run: Path) -> list[Start]:
    """The checkpoints that a run keeps, in the order of their steps."""
    folders = sorted((run / CHECKPOINTS).glob("step-*"))
    states = [json.loads((folder / STATE).read_text(encoding="utf-8")) for folder in folders]
    return [Start(int(state["step"]), folder) for state, folder in zip(states, folders, strict=True)]


def forget_after(run: Path, target: Start) -> None:
    """Make a checkpoint the last one of a run; the best of those left is found anew.

    Args:
        run: the run folder.
        target: one of `saved`.
    """
    assert target.checkpoint is not None
    _point(run, "last", {"checkpoint": target.checkpoint.name})
    later = [start.checkpoint for start in saved(run) if start.checkpoint and start.step > target.step]
    best = _read(run, "best")
    if best is not None and best["checkpoint"] in [folder.name for folder in later]:
        pointer_file(run, "best").unlink()
    remove(*later)


def _point(run: Path, which: Which, content: dict[str, Any]) -> None:
    text = json.dumps(content) + "\n"
    write_file(pointer_file(run, which), lambda partial: partial.write_text(text, encoding="utf-8"))


def _read(run: Path, which: Which) -> dict[str, Any] | None:
    path = pointer_file(run, which)
    if not path.exists():
        return None
    pointer: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return pointer


def check_same_data(checkpoint: Path, data: str) -> None:
    """Refuse to go on with other data: the batches to come would not be those of the run.

    Args:
        checkpoint: the checkpoint's folder.
        data: the fingerprint of what there is now.

    Raises:
        CheckpointError: it has changed since.
    """
    before = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))["data"]
    if before != data:
        raise CheckpointError(
            f"{checkpoint}: the run was trained on other data ({before}, now {data}): the files or the "
            "tokenizer have changed. Restore them, or start a run of another name (name=...)"
        )


def load_progress(checkpoint: Path, optimizer: torch.optim.Optimizer, world: World) -> None:
    """Restore the optimizer's state and this rank's random state; the weights are `load_model`'s.

    A run may go on with another number of ranks; those that are new keep the state of their seed.

    Args:
        checkpoint: the checkpoint's folder.
        optimizer: built for the model with its weights, plain or sharded; not yet stepped.
        world: the ranks.

    Raises:
        CheckpointError: a file is missing, truncated, or belongs to another model or optimizer.
    """
    path = checkpoint / OPTIMIZER_FILE
    slots, structure = read_tensors(path)
    try:
        load_state_by_name(optimizer, unflatten(slots, structure))
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
    random, _ = read_tensors(checkpoint / RANDOM_FILE)
    own = {
        name: random[key] for name in random_state(world.device) if (key := f"{world.rank}/{name}") in random
    }
    set_random_state(own, world.device)


def load_diagnosis(checkpoint: Path) -> dict[str, Tensor]:
    """The state of the diagnosis in a checkpoint's folder; empty if none was under way.

    Raises:
        CheckpointError: the file is truncated.
    """
    path = checkpoint / DIAGNOSIS_FILE
    return read_tensors(path)[0] if path.is_file() else {}


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The states of torch's generators that this process uses: bytes, on the CPU."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random_state(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Undo what happened since `random_state`; generators without a state are left alone."""
    if "cpu" in states:
        torch.set_rng_state(states["cpu"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
