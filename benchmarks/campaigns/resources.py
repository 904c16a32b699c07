"""What runs out or is not there: disk, descriptors, home folder, time, locale; and many readers."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.campaigns.common import Case, Outcome, chance_of, command, forked, in_child, quiet, status_of
from benchmarks.campaigns.faults import Operation, Watch, watched
from benchmarks.campaigns.tiny import difference, fields, finished, state_of
from zoo.ablate.run_metrics import read_run_metrics
from zoo.checkpoint.model import load_model
from zoo.run.config import dump_config, load_config

READERS, THREADS = 200, 20
"""Readers at a time, and how many of them are threads of one process, whose memory they share."""
TIMES, PATIENCE = 3, 60.0
"""How often a reader opens the run, and the seconds within which it can."""
DISK, FILE_SIZES = 290, 30
"""Operations of the run before each of which the disk is full once; limits of the size of files."""
MEGABYTES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
ENVIRONMENTS = (
    {"LC_ALL": "C"},
    {"PYTHONOPTIMIZE": "2"},
    {"HOME": "/nonexistent"},
    {"PYTHONUTF8": "0", "LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0"},
)
NOBODY = 65534
"""The number of a user who may only what everyone may."""


Shortage = Callable[[random.Random, Path], Outcome]


class Resources:
    """A run meets a shortage: it ends in one clear error or as if nothing had been, and can go on.

    All shortages are met once, in an order that follows from the seed, before one is met again.
    """

    name = "resources"
    seconds = 60.0
    size = 1

    def prepare(self, folder: Path) -> None:
        """Train the undisturbed run."""
        self._folder = folder
        self._half = folder / "half"
        (folder / "tiny.yaml").write_text(dump_config(load_config(fields(folder))))
        with quiet():
            self._whole = state_of(finished(folder))
            finished(self._half, until=4)
        self._shortages: tuple[Shortage, ...] = (
            *(partial(self._disk, operation) for operation in range(DISK)),
            *(self._file_size for _ in range(FILE_SIZES)),
            *(partial(self._descriptors, number) for number in range(4, 40)),
            *(partial(self._memory, megabytes) for megabytes in MEGABYTES),
            *(partial(self._clock, seconds) for seconds in (-1e6, -3600, -1, 1e6)),
            *(partial(self._environment, changes) for changes in ENVIRONMENTS),
            *(partial(self._read_only, which) for which in ("runs", "run", "cache", "finished")),
            *(self._readers for _ in range(2)),
        )

    def draw(self, seed: int, number: int, folder: Path) -> Sequence[Case]:
        """Choose a shortage."""
        turn, place = divmod(number, len(self._shortages))
        order = random.Random(f"{seed} {turn}").sample(self._shortages, len(self._shortages))
        return [lambda: order[place](chance_of(self.name, seed, number), folder)]

    def _disk(self, number: int, chance: random.Random, folder: Path) -> Outcome:
        """The disk is full from some operation on."""

        def act(at: int, operation: Operation) -> None:
            if at >= number and operation.kind in ("write", "create", "mkdir", "append"):
                raise OSError(28, "No space left on device")

        def limited() -> int:
            with watched(Watch(folder / "runs", act)):
                return self._train(folder)

        return self._then(f"full disk: from operation {number}", limited, folder)

    def _file_size(self, chance: random.Random, folder: Path) -> Outcome:
        size = chance.randrange(1, 30_000)

        def limited() -> int:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            return self._train(folder)

        return self._then(f"size of files: at most {size} bytes", limited, folder)

    def _descriptors(self, number: int, chance: random.Random, folder: Path) -> Outcome:
        def limited() -> int:
            resource.setrlimit(resource.RLIMIT_NOFILE, (number, 4096))
            return self._train(folder)

        return self._then(f"descriptors: {number}", limited, folder)

    def _memory(self, megabytes: int, chance: random.Random, folder: Path) -> Outcome:
        """The process may take so much more memory than it begins with."""

        def limited() -> int:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + (megabytes << 20), resource.RLIM_INFINITY))
            return self._train(folder)

        return self._then(f"memory: {megabytes} MiB more", limited, folder)

    def _clock(self, jump: float, chance: random.Random, folder: Path) -> Outcome:
        real, begun = time.time, time.monotonic()

        def shifted() -> int:
            time.time = lambda: real() + (jump if time.monotonic() - begun > 0.2 else 0)
            return self._train(folder)

        return self._then(f"clock: jumps by {jump:.0f} s", shifted, folder)

    def _environment(self, changes: dict[str, str], chance: random.Random, folder: Path) -> Outcome:
        """A process of its own, since Python reads these when it starts."""

        def limited() -> int:
            line = [sys.executable, "-m", "zoo", "train", str(self._folder / "tiny.yaml")]
            line += [f"train.runs_dir={folder / 'runs'}"]
            environment = {**os.environ, **changes, "PYTHONPATH": str(Path(__file__).parents[2])}
            return subprocess.run(line, env=environment, check=False).returncode

        return self._then(f"environment: {changes}", limited, folder)

    def _readers(self, chance: random.Random, folder: Path) -> Outcome:
        """Many readers open the run while it writes and deletes checkpoints."""
        run, said = folder / "runs/tiny", folder / "said"
        said.mkdir()
        pids = [forked(lambda n=n: _read(run, said / str(n))) for n in range(READERS // THREADS)]  # type: ignore[misc]
        outcome = self._then(f"readers: {READERS}", lambda: self._train(folder), folder)
        bad = [status for pid in pids if (status := status_of(pid))]
        texts = [file.read_text() for file in sorted(said.iterdir())]
        if bad or texts:
            return Outcome("traceback", outcome.case, f"readers ended with {bad}: {texts[:2]}")
        return outcome

    def _read_only(self, which: str, chance: random.Random, folder: Path) -> Outcome:
        """A folder cannot be written to: what has to write is refused, what only reads works."""
        runs, more, resume = folder / "runs", [], False
        runs.mkdir()
        if which in ("run", "finished"):
            source = self._half if which == "run" else self._folder
            shutil.copytree(source / "runs/tiny", runs / "tiny")
            resume = True
        elif which == "cache":
            (folder / "cache").mkdir()
            more = [f"data.cache_dir={folder / 'cache'}"]
        closed = folder / "cache" if which == "cache" else runs
        folder.parent.chmod(0o755)  # a temporary folder, which only its owner may enter
        everyone(folder)
        for path in (closed, *closed.rglob("*")):
            path.chmod(path.stat().st_mode & ~0o222)

        def limited() -> int:
            if os.geteuid() == 0:
                os.seteuid(NOBODY)  # nothing is read-only for root
            if which == "finished":
                load_model(runs / "tiny")
                read_run_metrics(runs / "tiny")
            return self._train(folder, resume, *more)

        outcome = self._then(f"read-only: {which}", limited, folder, (0,) if which == "finished" else (2,))
        everyone(folder)
        return outcome

    def _then(
        self, case: str, limited: Callable[[], int], folder: Path, expected: tuple[int, ...] = (0, 2)
    ) -> Outcome:
        """Run with a shortage, and go on without."""
        (folder / "runs").mkdir(exist_ok=True)
        first = os.waitstatus_to_exitcode(in_child(limited))
        if first not in expected:
            return Outcome("traceback", case, f"ends with status {first}")
        everyone(folder)
        status = 0
        for resume in (True, False):
            status = os.waitstatus_to_exitcode(in_child(lambda: self._train(folder, resume)))  # noqa: B023
            if status == 0:
                break
        if status:
            return Outcome("lost", case, "neither --resume nor the plain command goes on")
        found = difference(self._whole, state_of(folder / "runs/tiny"))
        return Outcome("changed", case, found) if found else Outcome("same", case)

    def _train(self, folder: Path, resume: bool = False, *more: str) -> int:
        arguments = ["train", str(self._folder / "tiny.yaml"), f"train.runs_dir={folder / 'runs'}", *more]
        return command(*arguments, *(["--resume"] if resume else []))


def everyone(folder: Path) -> None:
    """Let every user read and write everything in a folder."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o777 if path.is_dir() else 0o666)


def _read(run: Path, said: Path) -> int:
    """Open a run again and again in some threads; what fails is written to a file."""

    def read() -> None:
        done, end = 0, time.monotonic() + PATIENCE
        while done < TIMES and time.monotonic() < end:
            if (run / "checkpoints/last.json").exists():
                load_model(run)
                read_run_metrics(run)
                done += 1
            time.sleep(0.05)
        assert done == TIMES, f"opened {done} times"

    with ThreadPoolExecutor(THREADS) as threads:
        readers = [threads.submit(read) for _ in range(THREADS)]
    for reader in readers:
        if (error := reader.exception()) is not None:
            said.write_text("".join(traceback.format_exception(error))[-500:])
    return 0
