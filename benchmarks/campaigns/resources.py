"""What runs out or is not there: disk, descriptors, home folder, time, locale; and many readers."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.campaigns.common import Outcome, command, in_child
from benchmarks.campaigns.faults import Operation, Watch, watched
from benchmarks.campaigns.tiny import difference, fields, finished, state_of
from zoo.checkpoint.model import load_model
from zoo.run.config import dump_config, load_config


class Resources:
    """A run meets a shortage: it ends in one clear error or as if nothing had been, and can go on."""

    name = "resources"
    seconds = 120.0
    size = 1

    def prepare(self, folder: Path) -> None:
        """Train the undisturbed run."""
        self._folder = folder
        self._whole = state_of(finished(folder))
        (folder / "tiny.yaml").write_text(dump_config(load_config(fields(folder))))

    def attempt(self, chance: random.Random, folder: Path) -> list[Outcome]:
        """Choose a shortage."""
        kinds = ("disk", "disk", "disk", "file_size", "descriptors", "clock", "environment", "readers")
        return [getattr(self, f"_{chance.choice(kinds)}")(chance, folder)]

    def _disk(self, chance: random.Random, folder: Path) -> Outcome:
        """The disk is full from some operation on."""
        number = chance.randrange(250)

        def act(at: int, operation: Operation) -> None:
            if at >= number and operation.kind in ("write", "create", "mkdir", "append"):
                raise OSError(28, "No space left on device")

        def limited() -> int:
            with watched(Watch(folder / "runs", act)):
                return self._train(folder)

        return self._then(f"disk full from operation {number}", limited, folder)

    def _file_size(self, chance: random.Random, folder: Path) -> Outcome:
        size = chance.randrange(1, 30_000)

        def limited() -> int:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            return self._train(folder)

        return self._then(f"files of at most {size} bytes", limited, folder)

    def _descriptors(self, chance: random.Random, folder: Path) -> Outcome:
        number = chance.randrange(4, 40)

        def limited() -> int:
            resource.setrlimit(resource.RLIMIT_NOFILE, (number, 4096))
            return self._train(folder)

        return self._then(f"{number} descriptors", limited, folder)

    def _clock(self, chance: random.Random, folder: Path) -> Outcome:
        jump, real, begun = chance.uniform(-1e6, 1e6), time.time, time.monotonic()

        def shifted() -> int:
            time.time = lambda: real() + (jump if time.monotonic() - begun > 0.2 else 0)
            return self._train(folder)

        return self._then(f"the clock jumps by {jump:.0f} s", shifted, folder)

    def _environment(self, chance: random.Random, folder: Path) -> Outcome:
        changes = chance.choice(
            [
                {"LC_ALL": "C"},
                {"PYTHONOPTIMIZE": "2"},
                {"HOME": "/nonexistent"},
                {"PYTHONUTF8": "0", "LANG": "POSIX"},
            ]
        )

        def limited() -> int:
            line = [sys.executable, "-m", "zoo", "train", str(self._folder / "tiny.yaml")]
            line += [f"train.runs_dir={folder / 'runs'}"]
            environment = {**os.environ, **changes, "PYTHONPATH": str(Path(__file__).parents[2])}
            return subprocess.run(line, env=environment, check=False).returncode

        return self._then(str(changes), limited, folder)

    def _readers(self, chance: random.Random, folder: Path) -> Outcome:
        """Many readers open the run while it writes."""
        number = 8
        pids = []
        for _ in range(number):
            if (pid := os.fork()) == 0:
                os._exit(_read(folder / "runs/tiny"))
            pids.append(pid)
        outcome = self._then(f"{number} readers", lambda: self._train(folder), folder)
        bad = [status for pid in pids if (status := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))]
        return Outcome("traceback", outcome.case, f"readers ended with {bad}") if bad else outcome

    def _then(self, case: str, limited: Callable[[], int], folder: Path) -> Outcome:
        """Run with a shortage, and go on without."""
        (folder / "runs").mkdir(exist_ok=True)
        first = os.waitstatus_to_exitcode(in_child(limited))
        if first not in (0, 2):
            return Outcome("traceback", case, f"ends with status {first}")
        status = 0
        for resume in (True, False):
            status = os.waitstatus_to_exitcode(in_child(lambda: self._train(folder, resume)))  # noqa: B023
            if status == 0:
                break
        if status:
            return Outcome("lost", case, "neither --resume nor the plain command goes on")
        found = difference(self._whole, state_of(folder / "runs/tiny"))
        return Outcome("changed", case, found) if found else Outcome("same", case)

    def _train(self, folder: Path, resume: bool = False) -> int:
        more = ["--resume"] if resume else []
        return command("train", str(self._folder / "tiny.yaml"), f"train.runs_dir={folder / 'runs'}", *more)


def _read(run: Path) -> int:
    """Load the model of a run again and again; returns the status of the process."""
    end = time.monotonic() + 2
    try:
        while time.monotonic() < end:
            if (run / "checkpoints/last.json").exists():
                load_model(run)
    except BaseException:
        return 1
    return 0
