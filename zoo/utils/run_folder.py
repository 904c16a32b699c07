"""The layout of a run on disk: its files, its checkpoints, and the JSON in them.

    RUN/config.yaml             the resolved configuration; a folder that has one is a run
    RUN/metrics.jsonl           one JSON object per line, see `zoo.train.metrics`
    RUN/environment.json        versions and machine, one entry per session
    RUN/loaded.json             of a run that starts from a checkpoint: what was loaded
    RUN/tokenizer/, labels.json what the model cannot be used without
    RUN/plugins/                sources of the plugins that the run uses
    RUN/record.json             of a sweep: how the run ended
    RUN/sample.txt, perplexity.json, tasks.json, inspect/
                                what `zoo generate`, `zoo eval` and `zoo inspect` write
    RUN/checkpoints/last.json, best.json
                                each names a checkpoint
    RUN/checkpoints/step-00000040/
        model.safetensors, optimizer.safetensors, random.safetensors, diagnosis.safetensors
        state.json              the step, the number of ranks, the fingerprint of the data, loss spikes
        run.yaml, tokenizer/, plugins/, labels.json
                                the run's own files, so that a copy of the checkpoint alone can be used

Nothing in these files says where the run lies, so a run can be copied, renamed and moved.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from zoo.utils.atomic import link, remove, write_text
from zoo.utils.errors import CheckpointError, ConfigError, ZooError

Which = Literal["last", "best"]
"""The checkpoints of a run that have a name."""

TAIL = 8192
"""Bytes at the end of metrics.jsonl that hold the last few lines."""


@dataclass(frozen=True)
class ModelFolder:
    """A folder with a model and what it takes to use it: a run, a checkpoint, an imported model.

    Attributes:
        path: the folder, which need not exist.
    """

    path: Path

    CONFIG: ClassVar[str] = "run.yaml"

    @property
    def config(self) -> Path:
        """The configuration that the model was trained with."""
        return self.path / self.CONFIG

    @property
    def tokenizer(self) -> Path:
        """The folder of the tokenizer."""
        return self.path / "tokenizer"

    @property
    def plugins(self) -> Path:
        """The folder with copies of the plugins' sources, for the record: nothing is imported from it."""
        return self.path / "plugins"

    @property
    def labels(self) -> Path:
        """The names of a classifier's classes."""
        return self.path / "labels.json"

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class CheckpointFolder(ModelFolder):
    """A checkpoint of a run, or a folder that only holds a model."""

    @property
    def model(self) -> Path:
        """The weights, in the format of `zoo.checkpoint.format`."""
        return self.path / "model.safetensors"

    @property
    def optimizer(self) -> Path:
        """The optimizer's state by the names of parameters."""
        return self.path / "optimizer.safetensors"

    @property
    def random(self) -> Path:
        """The states of the random number generators of all ranks."""
        return self.path / "random.safetensors"

    @property
    def diagnosis(self) -> Path:
        """The averages of a `zoo.train.diagnosis.Diagnosis`; exists only while there are any."""
        return self.path / "diagnosis.safetensors"

    @property
    def run(self) -> RunFolder | None:
        """The run whose checkpoint this is; None for a folder that lies elsewhere."""
        return RunFolder(self.path.parent.parent) if self.path.parent.name == RunFolder.CHECKPOINTS else None

    @property
    def step(self) -> int:
        """The number of optimizer steps that led to the checkpoint."""
        return int(self.read_state()["step"])

    @property
    def data(self) -> str:
        """The fingerprint of the data that the run was trained on."""
        return str(self.read_state()["data"])

    def read_state(self) -> dict[str, Any]:
        """The content of state.json.

        Raises:
            CheckpointError: the file is missing, or is not as it was written.
        """
        state = _read_json(self._state)
        if not isinstance(state, dict) or not isinstance(state.get("step"), int) or "data" not in state:
            raise CheckpointError(f'{self._state}: expected {{"step": ..., "data": ...}}')
        return state

    def write_state(self, state: dict[str, Any]) -> None:
        """Replace state.json."""
        _write_json(self._state, state)

    @property
    def _state(self) -> Path:
        return self.path / "state.json"


@dataclass(frozen=True)
class RunFolder(ModelFolder):
    """A run folder. The folder that a user names is the run that is meant, whatever its config says."""

    CONFIG: ClassVar[str] = "config.yaml"
    CHECKPOINTS: ClassVar[str] = "checkpoints"

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.path.resolve().name

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for one session; it is created if necessary, and free again when the process ends.

        File systems without locks, and Windows, let every session pass.

        Raises:
            ConfigError: another session trains in the folder.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            import fcntl
        except ImportError:
            yield
            return
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise ConfigError(
                f"{self}: another process trains this run; wait for its end, or give another name (name=...)"
            ) from error
        except OSError:  # this file system has no locks
            pass
        try:
            yield
        finally:
            os.close(descriptor)

    @property
    def exists(self) -> bool:
        """Whether the folder is a run: whether it has a configuration."""
        return self.config.is_file()

    def required(self) -> RunFolder:
        """The folder itself.

        Raises:
            ZooError: the folder is not a run.
        """
        if not self.exists:
            raise ZooError(f"{self.config}: no such file; expected a run folder made by `zoo train`")
        return self

    @property
    def metrics(self) -> Path:
        """What was measured while the run trained."""
        return self.path / "metrics.jsonl"

    @property
    def sample(self) -> Path:
        """Text that `zoo generate` left."""
        return self.path / "sample.txt"

    @property
    def perplexity(self) -> Path:
        """What `zoo eval --perplexity` writes."""
        return self.path / "perplexity.json"

    @property
    def tasks(self) -> Path:
        """What `zoo eval --tasks` writes."""
        return self.path / "tasks.json"

    @property
    def inspection(self) -> Path:
        """The folder that `zoo inspect` writes."""
        return self.path / "inspect"

    @property
    def record(self) -> Path:
        """How a run of a sweep ended, and the checksum of its metrics."""
        return self.path / "record.json"

    @property
    def environment(self) -> Path:
        """What the run was trained with, by session."""
        return self.path / "environment.json"

    @property
    def loaded(self) -> Path:
        """What the run took over from the checkpoint that it started from."""
        return self.path / "loaded.json"

    def write_config(self, text: str) -> None:
        """Make the folder a run, or replace its configuration."""
        write_text(self.config, text)

    def read_sessions(self) -> list[dict[str, Any]]:
        """The entries of environment.json, one per session; empty before the first."""
        sessions: list[dict[str, Any]] = _read_json(self.environment) if self.environment.exists() else []
        return sessions

    def add_session(self, session: dict[str, Any]) -> None:
        """Append an entry to environment.json."""
        _write_json(self.environment, [*self.read_sessions(), session], indent=2)

    def read_loaded(self) -> dict[str, Any]:
        """The content of loaded.json.

        Raises:
            CheckpointError: the file is missing or not as it was written.
        """
        loaded: dict[str, Any] = _read_json(self.loaded)
        return loaded

    def write_loaded(self, loaded: dict[str, Any]) -> None:
        """Write loaded.json."""
        _write_json(self.loaded, loaded, indent=1)

    def read_metrics(self) -> list[dict[str, Any]]:
        """All lines of metrics.jsonl; a last line that was being written when the run was killed is left out.

        Raises:
            ZooError: the file is missing, or has a line that zoo did not write.
        """
        path = self.metrics
        if not path.is_file():
            raise ZooError(f"{path}: no such file; expected a run folder made by `zoo train`")
        lines = path.read_text(encoding="utf-8").split("\n")
        records = []
        for number, line in enumerate(lines[:-1], 1):
            try:
                record = json.loads(line)
                record["kind"], record["step"]
            except (ValueError, KeyError, TypeError) as error:
                raise ZooError(
                    f'{path}:{number}: expected {{"kind": ..., "step": ...}}, got {line[:60]!r}'
                ) from error
            records.append(record)
        return records

    def read_last_metrics(self) -> list[dict[str, Any]]:
        """The last few lines of metrics.jsonl, quickly; empty where there are none."""
        try:
            with self.metrics.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
                lines = file.read().split(b"\n")[:-1]
        except OSError:
            return []
        records = []
        for line in lines:
            try:
                records.append(json.loads(line))
            except ValueError:  # the first one may be cut
                continue
        return records

    def checkpoint(self, which: Which = "last") -> CheckpointFolder | None:
        """The last or the best checkpoint; None if there is none yet.

        Raises:
            CheckpointError: the file that names it is not as it was written.
        """
        pointer = self.read_pointer(which)
        return None if pointer is None else self._folder(str(pointer["checkpoint"]))

    def checkpoint_after(self, step: int) -> CheckpointFolder:
        """The folder of the checkpoint after so many steps, whether it exists or not."""
        return self._folder(f"step-{step:08d}")

    def checkpoints(self) -> Iterator[CheckpointFolder]:
        """The checkpoints that the run keeps, in the order of their steps."""
        return map(CheckpointFolder, sorted((self.path / self.CHECKPOINTS).glob("step-*")))

    def read_pointer(self, which: Which) -> dict[str, Any] | None:
        """The content of last.json or best.json: ``checkpoint`` and what it measured; None if there is none.

        Raises:
            CheckpointError: the file is not as it was written.
        """
        path = self._pointer(which)
        if not path.exists():
            return None
        pointer = _read_json(path)
        if not isinstance(pointer, dict) or "checkpoint" not in pointer:
            raise CheckpointError(f'{path}: expected {{"checkpoint": "step-..."}}')
        return pointer

    def point(self, which: Which, checkpoint: CheckpointFolder, **measured: float) -> None:
        """Make a checkpoint the last or the best one.

        Args:
            which: the pointer to replace.
            checkpoint: a checkpoint of the run.
            **measured: what made it the best one.
        """
        _write_json(self._pointer(which), {"checkpoint": checkpoint.path.name, **measured})

    def prune(self, keep_last: int) -> None:
        """Delete all checkpoints but the last few and the best, and what killed processes left unfinished."""
        best = self.checkpoint("best")
        old = [folder.path for folder in [*self.checkpoints()][:-keep_last] if folder != best]
        remove(*(self.path / self.CHECKPOINTS).glob(".step-*"), *old)

    def forget_after(self, target: CheckpointFolder) -> None:
        """Make a checkpoint the last one and delete those after it; the best may be one of them."""
        self.point("last", target)
        later = [folder for folder in self.checkpoints() if folder.path.name > target.path.name]
        if self.checkpoint("best") in later:
            self._pointer("best").unlink()
        remove(*(folder.path for folder in later))

    def describe(self, checkpoint: ModelFolder) -> None:
        """Link what it takes to use the run's model into the folder of one of its checkpoints."""
        pairs = [(self.config, checkpoint.config), (self.labels, checkpoint.labels)]
        folders = [(self.tokenizer, checkpoint.tokenizer), (self.plugins, checkpoint.plugins)]
        for folder, copy in folders:
            pairs += [(file, copy / file.relative_to(folder)) for file in folder.rglob("*")]
        for there, here in pairs:
            if there.is_file():
                here.parent.mkdir(parents=True, exist_ok=True)
                link(there, here)

    def _folder(self, name: str) -> CheckpointFolder:
        return CheckpointFolder(self.path / self.CHECKPOINTS / name)

    def _pointer(self, which: Which) -> Path:
        return self.path / self.CHECKPOINTS / f"{which}.json"


def model_folder(path: Path) -> ModelFolder:
    """The folder that describes the model at a path.

    Args:
        path: a run, a checkpoint, the folder of any other model, or a file in one of these.

    Returns:
        The run or the checkpoint; the run of a checkpoint that an older version of zoo wrote, which does
        not describe its model itself.
    """
    folder = path if path.is_dir() else path.parent
    if RunFolder(folder).exists:
        return RunFolder(folder)
    checkpoint = CheckpointFolder(folder)
    return checkpoint if checkpoint.config.is_file() else checkpoint.run or checkpoint


def _read_json(path: Path) -> Any:
    """The content of a JSON file that zoo wrote.

    Raises:
        CheckpointError: the file is missing or is no JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not a JSON file that zoo wrote: {error}") from error


def _write_json(path: Path, content: Any, indent: int | None = None) -> None:
    write_text(path, json.dumps(content, indent=indent) + "\n")
