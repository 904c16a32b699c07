"""Commands that are killed: what stands before them, what is typed, and what they are to leave behind."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from benchmarks.campaigns.common import command, forked, in_child, quiet, status_of
from benchmarks.campaigns.faults import Fault
from benchmarks.campaigns.tiny import fields, finished, state_of
from zoo.ablate.execute import execute
from zoo.ablate.manifest import read_manifest, run_folder
from zoo.ablate.sweep import load_sweep
from zoo.data.text.dataset import TextDataset
from zoo.run.config import dump_config, load_config
from zoo.run.job import Job

BAD_STEP = 25
KILLED = 2
"""The status of a command of several processes, one of which was killed while the others ended in order."""


@dataclass(frozen=True)
class Scenario(ABC):
    """A command that is killed at a random moment, and then given again.

    Attributes:
        name: the name of the scenario.
        weight: how often the scenario is tried, in proportion to others.
        ranks: the number of the command's processes that train.
        stops: whether the command has the same result if it is asked to end and is then started again. (A run
            that returns to its last checkpoint returns to the one written at the stop, if that is later.)
    """

    name: str
    weight: int = 1
    ranks: int = 1
    stops: bool = True

    @abstractmethod
    def prepare(self, place: Path) -> None:
        """Make what the command needs in an empty folder, once."""

    def begin(self, place: Path, folder: Path) -> None:  # noqa: B027 - most need nothing
        """Put into an empty folder what stands there before the command; `place` is that of `prepare`."""

    @abstractmethod
    def act(self, place: Path, folder: Path, resume: bool, fault: Fault | None = None) -> int:
        """Give the command in this process, or in some of its children; returns its status.

        Args:
            place: the folder that `prepare` has filled.
            folder: the folder that the command writes into.
            resume: whether the command is asked to continue, where it has such an option.
            fault: the fault that ends the command; None: nothing ends it.
        """

    @abstractmethod
    def state(self, folder: Path) -> dict[str, Any]:
        """What the command has left behind, without times."""


def spoiled() -> None:
    """Make the batch of one step bad, so that the run goes back; the same in every process."""
    right = TextDataset.train_batch

    def batch(self: TextDataset, spec: Any) -> Any:
        inputs, targets = right(self, spec)
        noise = torch.randint(0, 256, targets.shape, generator=torch.Generator().manual_seed(1))
        return inputs, noise if spec.step == BAD_STEP else targets

    TextDataset.train_batch = batch  # type: ignore[method-assign]  # in a forked process


@dataclass(frozen=True)
class Training(Scenario):
    """The command `zoo train`.

    Attributes:
        settings: the settings of the run.
        before: the step at which an earlier session was stopped.
        setup: a function that is called in every process of the scenario.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    before: int | None = None
    setup: Callable[[], None] = lambda: None

    def prepare(self, place: Path) -> None:
        """Write the configuration; train and keep what stands before."""
        settings = fields(place, **self.settings)
        (place / "tiny.yaml").write_text(dump_config(load_config(settings)))
        if self.before:
            _trained(place, until=self.before, **self.settings)
            (place / "runs").rename(place / "begun")

    def begin(self, place: Path, folder: Path) -> None:
        """Copy the run that stands before."""
        if self.before:
            shutil.copytree(place / "begun", folder / "runs")

    def act(self, place: Path, folder: Path, resume: bool, fault: Fault | None = None) -> int:
        """Train on one rank here, on several in children."""
        (folder / "runs").mkdir(exist_ok=True)
        if self.ranks == 1:
            return self._train(place, folder, resume, fault)
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = str(free.getsockname()[1])
        victim = fault.rank if fault else -1

        def rank(number: int) -> int:
            world = {"RANK": str(number), "WORLD_SIZE": str(self.ranks), "MASTER_PORT": port}
            local = {"LOCAL_RANK": str(number), "LOCAL_WORLD_SIZE": str(self.ranks)}
            os.environ |= {**world, **local, "MASTER_ADDR": "localhost"}
            return self._train(place, folder, resume, fault if number == victim else None)

        pids = [forked(lambda r=r: rank(r)) for r in range(self.ranks)]  # type: ignore[misc]  # mypy and defaults
        statuses = [status_of(pid) for pid in pids]
        killed = [status for status in statuses if status < 0]
        return KILLED if killed and set(statuses) - set(killed) <= {0, 1, 2, 75} else max(map(abs, statuses))

    def _train(self, place: Path, folder: Path, resume: bool, fault: Fault | None) -> int:
        self.setup()
        more = ["--resume"] if resume else []
        arguments = ["train", str(place / "tiny.yaml"), f"train.runs_dir={folder / 'runs'}", *more]
        if fault is None:
            return command(*arguments)
        with fault.armed(folder):
            return command(*arguments)

    def state(self, folder: Path) -> dict[str, Any]:
        """Metrics, pointers and tensors."""
        return state_of(folder / "runs/tiny")


@dataclass(frozen=True)
class Sweeping(Scenario):
    """`zoo sweep` with two workers, all of which are killed at once."""

    def prepare(self, place: Path) -> None:
        """Write the sweep."""
        base = fields(place, steps=4)
        del base["name"], base["train"]["runs_dir"]
        axes = {"init": ["he", "small"]}
        content = {"base": base, "axes": axes, "seeds": [0, 1], "out": str(place / "unused")}
        (place / "tiny.yaml").write_text(json.dumps(content))

    def act(self, place: Path, folder: Path, resume: bool, fault: Fault | None = None) -> int:
        """Sweep in a group of processes that are forks of this one."""
        os.setpgid(0, 0)
        context = multiprocessing.get_context("fork")
        multiprocessing.get_context = lambda method=None: context  # type: ignore[assignment]  # in a child
        sweep = load_sweep(place / "tiny.yaml", out=folder / "sweeps")
        if fault is None:
            return not execute(sweep, workers=2).finished
        with fault.armed(folder, group=True):
            return not execute(sweep, workers=2).finished

    def state(self, folder: Path) -> dict[str, Any]:
        """The manifest, and what every run has left."""
        sweep = folder / "sweeps/tiny"
        manifest = read_manifest(sweep)
        found: dict[str, Any] = {"manifest": repr(manifest)}
        for run in manifest.runs:
            state = state_of(run_folder(sweep, run))
            found |= {f"{run.id} {key}": value for key, value in state.items() if key != "left"}
        return found


@dataclass(frozen=True)
class Writing(Scenario):
    """A command that writes a folder.

    Attributes:
        arguments: the words of the command; {run} is a trained run, {hub} a folder of the hub, {out} what is
            written.
    """

    arguments: tuple[str, ...] = ()

    def prepare(self, place: Path) -> None:
        """Train a run, and export it."""
        run = place / "runs/tiny"
        _trained(place)
        with quiet():  # in this process, so that its children need not import again what that needs
            assert command("export", run, place / "hub") == 0

    def act(self, place: Path, folder: Path, resume: bool, fault: Fault | None = None) -> int:
        """Type the command."""
        names = {"run": place / "runs/tiny", "hub": place / "hub", "out": folder / "out"}
        typed = [text.format(**names) for text in self.arguments]
        if fault is None:
            return command(*typed)
        with fault.armed(folder):
            return command(*typed)

    def state(self, folder: Path) -> dict[str, Any]:
        """The contents of all files."""
        return contents(folder)


@dataclass(frozen=True)
class Tokenising(Scenario):
    """The preparation of a corpus, which `zoo train` begins with."""

    def prepare(self, place: Path) -> None:
        """Write the text."""
        fields(place)

    def act(self, place: Path, folder: Path, resume: bool, fault: Fault | None = None) -> int:
        """Tokenise into a cache of its own."""
        settings = fields(place)
        settings["data"]["cache_dir"] = str(folder / "cache")
        job = Job.of(load_config(settings))
        if fault is None:
            job.data.prepare(job.model)
        else:
            with fault.armed(folder):
                job.data.prepare(job.model)
        return 0

    def state(self, folder: Path) -> dict[str, Any]:
        """The contents of all files."""
        return contents(folder)


def _trained(place: Path, until: int | None = None, **settings: Any) -> None:
    """Train a run in a child."""

    def act() -> None:
        finished(place, until=until, **settings)

    assert in_child(act) == 0


def contents(folder: Path) -> dict[str, Any]:
    """The hash of every file below a folder, by its relative path; locks are left out."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".lock")
    return {str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest() for path in files}


ROLLBACK: dict[str, Any] = {
    "lr": 0.05,
    "steps": 30,
    "eval_every": 10,
    "checkpoint_every": 10,
    "monitor_every": None,
    "spikes": {"action": "rollback", "window": 20, "cool_steps": 2, "threshold": 3.0},
}
SCENARIOS: tuple[Scenario, ...] = (
    Training("run", weight=6),
    Training("resumed run", weight=4, settings={"keep_last": 1}, before=5),
    Training("rollback", weight=6, settings=ROLLBACK, setup=spoiled, stops=False),
    Training("two ranks", weight=2, settings={"parallel": {"timeout": 20}}, ranks=2),
    Sweeping("sweep", weight=4, stops=False),
    Tokenising("prepare"),
    Writing("export", arguments=("export", "{run}", "{out}")),
    Writing("import", arguments=("import", "{hub}", "{out}")),
    Writing("convert", arguments=("convert", "{run}", "{out}", "--to", "wesar")),
)
"""All scenarios; those of one process that trains have the most operations, two ranks take the longest."""
