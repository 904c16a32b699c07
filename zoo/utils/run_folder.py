"""The layout of a run on disk: its files, its checkpoints, and the JSON in them.

    RUN/config.yaml             the resolved configuration; a folder that has one is a run
    RUN/metrics.jsonl           one JSON object per line, see `zoo.train.metrics`
    RUN/environment.json        versions and machine, one entry per session
    RUN/loaded.json             of a run that starts from a checkpoint: report of loading
    RUN/tokenizer/, labels.json files that are needed to use the model
    RUN/plugins/                sources of the plugins that the run uses
    RUN/record.json             of a run in a sweep: how the run ended
    RUN/.lock, .RUN.lock        the process that trains the run, or is about to make its folder, see
                                `zoo.train.claim`
    RUN/sample.txt, perplexity.json, tasks.json, inspect/
                                output of `zoo generate`, `zoo eval` and `zoo inspect`
    RUN/checkpoints/last.json, best.json, best-NAME.json (NAME: of one of several validation files)
                                each names a checkpoint
    RUN/checkpoints/step-00000040/
        model.safetensors, optimizer.safetensors, random.safetensors, diagnosis.safetensors
        state.json              the step, the number of ranks, the fingerprint of the data, the best
                                checkpoint so far, loss spikes; with a checksum of itself
        run.yaml, tokenizer/, plugins/, labels.json
                                the run's own files, so that a copy of the checkpoint alone can be used

None of these files contains the path of the run, so that a run can be copied, renamed and moved.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeAlias

from zoo.utils.atomic import create_folder, is_abandoned, link, remove, write_text
from zoo.utils.checksum import checksum
from zoo.utils.errors import CheckpointError, ZooError
from zoo.utils.files import CONFIG_BYTES, METRICS_BYTES, open_regular, parse_json, read_bytes, read_json
from zoo.utils.measures import CROSS_ENTROPY
from zoo.utils.untyped import Json, JsonObject

log = logging.getLogger("zoo")

Which = str
"""The checkpoints of a run that have a name: `last`, `best`, and `best-NAME` of several validation files."""

Record: TypeAlias = JsonObject
"""A line of metrics.jsonl: `kind`, `step` (optimizer steps done) and the values of that kind."""

LOSS = CROSS_ENTROPY.name
TAIL = 8192
"""Number of bytes at the end of metrics.jsonl that contain the last few lines."""
STEP_FOLDER = re.compile(r"step-(\d{8,18})")
"""Pattern of the name of a checkpoint's folder."""
LOCK = ".lock"
RUNS = "runs"
"""The folder of run folders, unless a configuration names another."""
CHECKSUM = "checksum"
"""Key of the checksum in state.json."""


@dataclass(frozen=True)
class ModelFolder:
    """A folder with a model and the files that are needed to use it: a run, a checkpoint, an imported model.

    Attributes:
        path: the folder, which need not exist.
    """

    path: Path

    CONFIG: ClassVar[str] = "run.yaml"

    @property
    def config(self) -> Path:
        """The configuration by which the model was trained."""
        return self.path / self.CONFIG

    @property
    def tokenizer(self) -> Path:
        """The folder of the tokenizer."""
        return self.path / "tokenizer"

    @property
    def plugins(self) -> Path:
        """The folder with copies of the plugins' sources, from which nothing is ever imported."""
        return self.path / "plugins"

    @property
    def labels(self) -> Path:
        """The names of a classifier's classes."""
        return self.path / "labels.json"

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class CheckpointFolder(ModelFolder):
    """A checkpoint of a run, or a folder with only a model."""

    OWED: ClassVar[str] = "owes_evaluation"
    """The key that state.json has only if the run was stopped before an evaluation was complete."""
    EXTRA: ClassVar[str] = "extra"
    """The key that state.json has only if the checkpoint was written because the run was stopped."""

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
        """The averages of a `zoo.train.diagnosis.Diagnosis`; the file exists only within a window."""
        return self.path / "diagnosis.safetensors"

    @property
    def run(self) -> RunFolder | None:
        """The run of this checkpoint; None for a folder outside of a run."""
        return RunFolder(self.path.parent.parent) if self.path.parent.name == RunFolder.CHECKPOINTS else None

    @property
    def step(self) -> int:
        """The number of optimizer steps that led to the checkpoint."""
        return int(self.read_state()["step"])

    @property
    def has_state(self) -> bool:
        """Whether the folder is a checkpoint from which a run can be resumed, and not only a model."""
        return self._state.is_file()

    @property
    def owes_evaluation(self) -> bool:
        """Whether the run was stopped before the evaluation that follows the step was complete."""
        return bool(self.read_state().get(self.OWED))

    @property
    def is_extra(self) -> bool:
        """Whether the checkpoint exists only because the run was stopped; False if it cannot be read."""
        with suppress(CheckpointError):
            return bool(self.read_state().get(self.EXTRA))
        return False

    @property
    def named_step(self) -> int:
        """The step in the name of the folder; -1 for a folder that is no checkpoint of a run."""
        match = STEP_FOLDER.fullmatch(self.path.name)
        return int(match[1]) if match else -1

    @property
    def data(self) -> str:
        """The fingerprint of the data that the run was trained on."""
        return str(self.read_state()["data"])

    def read_state(self) -> JsonObject:
        """The content of state.json.

        Raises:
            CheckpointError: The file is missing, or was changed or damaged.
        """
        try:
            state = _read_json(self._state)
            if not isinstance(state, dict) or not _is_step(state.get("step")) or "data" not in state:
                raise CheckpointError(f'{self._state}: expected {{"step": ..., "data": ...}}')
            recorded = state.pop(CHECKSUM, None)  # Versions before 0.3 wrote none.
            if recorded is not None and recorded != checksum(_canonical(state)):
                raise CheckpointError(f"{self._state}: damaged: its checksum is another")
        except CheckpointError as error:
            raise CheckpointError(f"{error}{self.way_out()}") from error
        return state

    def write_state(self, state: JsonObject) -> None:
        """Replace state.json."""
        _write_json(self._state, {**state, CHECKSUM: checksum(_canonical(state))})

    def way_out(self) -> str:
        """A clause that names the last good checkpoint of the run, for the message about a damaged one."""
        if self.run is None:
            return ""
        for other in sorted(self.run.checkpoints(), key=lambda folder: -folder.named_step):
            try:
                if other == self or not _is_step(_read_json(other._state)["step"]):
                    continue
            except (CheckpointError, KeyError, TypeError):
                continue
            return (
                f". The last good checkpoint is {other}; to go on from it, delete {self.path.name} and "
                f"{self.run.pointer_file('last')}"
            )
        return ". There is no other checkpoint; to start the run again, delete its folder"

    @property
    def _state(self) -> Path:
        return self.path / "state.json"


@dataclass(frozen=True)
class RunFolder(ModelFolder):
    """A run folder; the folder that a user names is the run, even if its configuration records another."""

    CONFIG: ClassVar[str] = "config.yaml"
    CHECKPOINTS: ClassVar[str] = "checkpoints"

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.path.resolve().name

    @property
    def exists(self) -> bool:
        """Whether the folder is a run, that is, whether it has a configuration."""
        with suppress(OSError):  # a name that is too long for a file
            return self.config.is_file()
        return False

    def required(self) -> RunFolder:
        """Return the folder itself if it is a run.

        Raises:
            ZooError: The folder is not a run.
        """
        if not self.exists:
            raise ZooError(f"{self.config}: no such file; expected a run folder made by `zoo train`")
        return self

    @property
    def is_vacant(self) -> bool:
        """Whether a run can start here: there is no folder, or only remains of a killed start are in it."""
        if not self.path.exists():
            return True
        return self.path.is_dir() and all(
            entry.name == LOCK or is_abandoned(entry, of=self.CONFIG) for entry in self.path.iterdir()
        )

    @property
    def lock(self) -> Path:
        """The lock file of the process that trains the run."""
        return self.path / LOCK

    @property
    def starting(self) -> Path:
        """The lock file, beside the folder, of the process that is about to create the folder."""
        folder = self.path.resolve()
        return folder.with_name(f".{folder.name}{LOCK}")

    @property
    def metrics(self) -> Path:
        """The measurements during training."""
        return self.path / "metrics.jsonl"

    @property
    def sample(self) -> Path:
        """The last text that `zoo generate` wrote."""
        return self.path / "sample.txt"

    @property
    def perplexity(self) -> Path:
        """The output file of `zoo eval --perplexity`."""
        return self.path / "perplexity.json"

    @property
    def tasks(self) -> Path:
        """The output file of `zoo eval --tasks`."""
        return self.path / "tasks.json"

    @property
    def inspection(self) -> Path:
        """The output folder of `zoo inspect`."""
        return self.path / "inspect"

    @property
    def record(self) -> Path:
        """The record of how a run of a sweep ended, with the checksum of its metrics."""
        return self.path / "record.json"

    @property
    def environment(self) -> Path:
        """The versions and the machine of each session."""
        return self.path / "environment.json"

    @property
    def loaded(self) -> Path:
        """The report on the checkpoint that the run started from."""
        return self.path / "loaded.json"

    def write_config(self, text: str) -> None:
        """Create the run folder by one rename, or replace the configuration of the run.

        Raises:
            CheckpointError: The folder cannot be written, or another process has created the run in the
                meantime.
        """
        if self.exists:
            write_text(self.config, text)
            return
        if self.path.exists() and self.is_vacant:
            for left in self.path.iterdir():
                left.unlink()
        create_folder(self.path, lambda partial: write_text(partial / self.CONFIG, text))

    def read_sessions(self) -> list[JsonObject]:
        """The entries of environment.json, one per session; empty before the first.

        Raises:
            CheckpointError: The file was changed or damaged.
        """
        sessions: Json = _read_json(self.environment) if self.environment.exists() else []
        if not isinstance(sessions, list) or not all(isinstance(entry, dict) for entry in sessions):
            raise CheckpointError(f"{self.environment}: expected a list of objects, one for each session")
        return sessions

    def add_session(self, session: JsonObject) -> None:
        """Append an entry to environment.json; an unreadable file is replaced, with a warning."""
        try:
            earlier = self.read_sessions()
        except CheckpointError as error:
            log.warning("%s; it is begun anew with this session", error)
            earlier = []
        _write_json(self.environment, [*earlier, session], indent=2)

    def read_loaded(self) -> JsonObject:
        """The content of loaded.json.

        Raises:
            CheckpointError: The file is missing, or was changed or damaged.
        """
        loaded: JsonObject = _read_json(self.loaded)
        return loaded

    def write_loaded(self, loaded: JsonObject) -> None:
        """Write loaded.json."""
        _write_json(self.loaded, loaded, indent=1)

    def read_metrics(self, mended_after: int | None = None) -> list[Record]:
        """All lines of metrics.jsonl, without an incomplete last line of a run that was killed.

        Args:
            mended_after: a step; damaged lines are left out, with a warning, if every line after them belongs
                to a later step, because the run writes those lines again. None: damaged lines are an error.

        Raises:
            ZooError: The file is missing, or has a line that zoo did not write.
        """
        path = self.metrics
        if not path.is_file():
            raise ZooError(f"{path}: no such file; expected a run folder made by `zoo train`")
        lines = read_bytes(path, METRICS_BYTES, ZooError).split(b"\n")
        records: list[Record] = []
        damaged: ZooError | None = None
        for number, line in enumerate(lines[:-1], 1):
            record = _metrics_record(line)
            if record is None:
                expected = f'{{"kind": ..., "step": ...}}, of a validation with a number "{LOSS}"'
                mistake = f"{path}:{number}: expected {expected}, got {line[:60]!r}"
                damaged = damaged or ZooError(mistake)
                if mended_after is None:
                    raise damaged
            elif damaged is None:
                records.append(record)
            elif mended_after is not None and record["step"] <= mended_after:
                raise damaged
        if damaged is not None:
            log.warning("%s; this line and those behind it are left out, the run writes them again", damaged)
        return records

    def read_last_metrics(self) -> list[Record]:
        """The last few lines of metrics.jsonl, without reading the whole file; empty if there are none."""
        try:
            with open_regular(self.metrics, ZooError) as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
                lines = file.read(2 * TAIL).split(b"\n")[:-1]
        except ZooError:
            return []
        # The first line may be incomplete.
        return [record for line in lines if (record := _metrics_record(line)) is not None]

    def checkpoint(self, which: Which = "last") -> CheckpointFolder | None:
        """The last or a best checkpoint; None if there is none yet. Without last.json, it is the latest.

        Raises:
            CheckpointError: The file that names the checkpoint was changed or damaged.
        """
        pointer = self.read_pointer(which)
        if pointer is not None:
            return self._folder(pointer["checkpoint"])
        # The run was killed between writing its first checkpoint and the pointer to it.
        return max(self.checkpoints(), key=lambda f: f.named_step, default=None) if which == "last" else None

    def checkpoint_after(self, step: int) -> CheckpointFolder:
        """The folder of the checkpoint after `step` steps, whether it exists or not."""
        return self._folder(f"step-{step:08d}")

    def checkpoints(self) -> Iterator[CheckpointFolder]:
        """The checkpoints in the run's folder, in the order of their steps."""
        folders = map(CheckpointFolder, (self.path / self.CHECKPOINTS).glob("step-*"))
        yield from sorted((f for f in folders if f.named_step >= 0), key=lambda folder: folder.named_step)

    def read_pointer(self, which: Which) -> JsonObject | None:
        """The content of last.json or best.json, ``checkpoint`` and its measures; None if there is none.

        Raises:
            CheckpointError: The file was changed or damaged, or names a checkpoint that does not exist.
        """
        path = self.pointer_file(which)
        if not path.exists():
            return None
        try:
            pointer = _read_json(path)
            if not isinstance(pointer, dict) or not STEP_FOLDER.fullmatch(str(pointer.get("checkpoint"))):
                raise CheckpointError(f'{path}: expected {{"checkpoint": "step-..."}}')
            name = pointer["checkpoint"]
            if not self._folder(name).path.is_dir():
                if _read_json(path) != pointer:  # The run is being trained and has deleted that checkpoint.
                    return self.read_pointer(which)
                raise CheckpointError(f"{path}: names {name}, which does not exist")
        except CheckpointError as error:
            latest = max(self.checkpoints(), key=lambda folder: folder.named_step, default=None)
            hint = f"; the last good checkpoint is {latest}: delete {path} to use it" if latest else ""
            raise CheckpointError(f"{error}{hint}") from error
        return pointer

    def point(self, which: Which, checkpoint: CheckpointFolder, **measured: float) -> None:
        """Make a checkpoint the last or the best one.

        Args:
            which: the pointer to replace.
            checkpoint: a checkpoint of the run.
            **measured: the measures of the checkpoint.
        """
        _write_json(self.pointer_file(which), {"checkpoint": checkpoint.path.name, **measured})

    def trim_to_last_checkpoint(self) -> None:
        """Make the folder agree with the last checkpoint, after a session that was killed or rolled back.

        Only last.json defines the progress of the run. Later checkpoints are deleted, best.json is restored
        from the last checkpoint, and unfinished files are removed.

        Raises:
            CheckpointError: The last checkpoint cannot be read.
        """
        checkpoints = self.path / self.CHECKPOINTS
        unfinished = (*checkpoints.glob(".*.partial"), *self.path.glob(".*.partial"))
        for hidden in checkpoints.glob(".step-*"):
            _delete(hidden)
        remove(*filter(is_abandoned, unfinished))
        last = self.checkpoint("last")
        if last is None:
            return
        remove(*(folder.path for folder in self.checkpoints() if folder.named_step > last.named_step))
        if not self.pointer_file("last").exists():
            self.point("last", last)
        state = last.read_state()
        for which in {"best", *self.best_names(), *(key for key in state if key.startswith("best-"))}:
            is_former = which == "best" and "best" not in state
            best = self._former_best(last) if is_former else state.get(which)
            if best is None or not self._folder(best["checkpoint"]).path.is_dir():
                self.pointer_file(which).unlink(missing_ok=True)
            else:
                measured = {key: value for key, value in best.items() if key != "checkpoint"}
                self.point(which, self._folder(best["checkpoint"]), **measured)

    def _former_best(self, last: CheckpointFolder) -> JsonObject | None:
        """The best checkpoint of a run whose checkpoints do not record which one it is (before 0.3)."""
        try:
            best = self.read_pointer("best")
        except CheckpointError as error:
            log.warning("%s; the next evaluation is the best one so far", error)
            return None
        return best if best and self._folder(best["checkpoint"]).named_step <= last.named_step else None

    def prune(self, keep_last: int) -> None:
        """Delete all checkpoints but the last few and those that a pointer names.

        What was written only because the run was stopped does not count, so that a run which went on has the
        same checkpoints as one that was never stopped.
        """
        named = [self.checkpoint("last")]
        for which in self.best_names():
            with suppress(CheckpointError):  # best.json or its checkpoint was deleted in the meantime
                named.append(self.checkpoint(which))
        every = [*self.checkpoints()]
        kept = [folder for folder in every if not folder.is_extra][-keep_last:] + named
        for folder in every:
            if folder not in kept:
                _discard(folder.path)

    def describe(self, checkpoint: ModelFolder) -> None:
        """Link the files that are needed to use the run's model into the folder of a checkpoint."""
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

    def best_names(self) -> list[Which]:
        """The names of the best checkpoints that exist."""
        return [path.stem for path in sorted((self.path / self.CHECKPOINTS).glob("best*.json"))]

    def pointer_file(self, which: Which) -> Path:
        """The file that names the last or the best checkpoint."""
        return self.path / self.CHECKPOINTS / f"{which}.json"


def model_folder(path: Path) -> ModelFolder:
    """The folder that describes the model at a path.

    Args:
        path: a run, a checkpoint, the folder of any other model, or a file in one of these.

    Returns:
        The run or the checkpoint; for a checkpoint of an older version of zoo, which does not describe its
        model itself, its run.
    """
    folder = path if path.is_dir() else path.parent
    if RunFolder(folder).exists:
        return RunFolder(folder)
    checkpoint = CheckpointFolder(folder)
    return checkpoint if checkpoint.config.is_file() else checkpoint.run or checkpoint


def _is_step(value: object) -> bool:
    return type(value) is int and value >= 0


def _metrics_record(line: bytes) -> Record | None:
    """A line of metrics.jsonl; None if zoo did not write it."""
    try:
        record = parse_json(line, "", ZooError)
    except ZooError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        return None
    is_measured = record["kind"] != "validation" or type(record.get(LOSS)) in (int, float)
    return record if is_measured and _is_step(record.get("step")) else None


def _read_json(path: Path) -> Json:
    """The content of a JSON file that zoo wrote.

    Raises:
        CheckpointError: The file is missing or is not JSON.
    """
    place = f"{path}: "

    def mistake(message: str) -> CheckpointError:
        return CheckpointError(f"{place}not a JSON file that zoo wrote: {message.removeprefix(place)}")

    return read_json(path, CONFIG_BYTES, mistake)


def _canonical(content: object) -> bytes:
    """The bytes whose checksum is computed, the same before and after a value is written to a file."""
    return json.dumps(json.loads(json.dumps(content)), sort_keys=True).encode()


def _write_json(path: Path, content: object, indent: int | None = None) -> None:
    write_text(path, json.dumps(content, indent=indent) + "\n")


def _discard(checkpoint: Path) -> None:
    """Delete a checkpoint; a warning says if it cannot be deleted.

    It gets another name first, so that what a killed process leaves of it is no checkpoint.
    """
    hidden = checkpoint.with_name(f".{checkpoint.name}.old")
    _delete(hidden)
    try:
        checkpoint.rename(hidden)
    except OSError as error:
        log.warning("%s: cannot be deleted: %s", checkpoint, error)
        return
    whole = set(hidden.rglob("*"))
    _delete(hidden)
    if hidden.exists() and set(hidden.rglob("*")) == whole:
        hidden.rename(checkpoint)  # its files are protected: it stays


def _delete(path: Path) -> None:
    """Delete a file or folder; a warning says if it cannot be deleted."""
    try:
        remove(path)
    except OSError as error:
        log.warning("%s: cannot be deleted: %s", path, error)
