"""Cases, their outcomes, and the processes in which they are tried, with limits of time and memory."""

from __future__ import annotations

import gc
import json
import os
import random
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import NamedTuple, Protocol, Self

import torch

from zoo.commands.cli import main
from zoo.utils.errors import DivergenceError, ZooError

GOOD = ("same", "refused")
"""The result of an undisturbed run, or one clear error."""
BAD = ("traceback", "hang", "memory", "lost", "changed")
"""Another exception; no answer in time; too much memory; a run that cannot go on; another result."""
OUTCOMES = (*GOOD, *BAD)
DRAWING = 60.0
"""Seconds of processor time in which cases are drawn."""
PATIENCE = 10
"""Seconds for each second of processor time, on a machine with other work."""


class Outcome(NamedTuple):
    """How a case ended: one of `OUTCOMES`, what was done, and what came of it."""

    kind: str
    case: str
    detail: str = ""


Case = Callable[[], Outcome]
"""A case that is tried when it is called."""


class Campaign(Protocol):
    """A kind of attack on zoo, of which cases are drawn at random.

    Attributes:
        name: the name on the command line.
        seconds: the limit of a case: of processor time, and of time `PATIENCE` times as much.
        size: the number of cases that are drawn by one call of `draw`.
    """

    name: str
    seconds: float
    size: int

    def prepare(self, folder: Path) -> None:
        """Make what all cases begin with, in an empty folder."""

    def draw(self, seed: int, number: int, folder: Path) -> Sequence[Case]:
        """Draw the n-th `size` cases of a seed, which follow from both alone.

        Args:
            seed: the seed of the campaign.
            number: n, from 0.
            folder: an empty folder, which is deleted later.
        """
        ...


def chance_of(name: str, seed: int, number: int) -> random.Random:
    """What the n-th case of a campaign is drawn with."""
    return random.Random(f"{name} {seed} {number}")


class OneByOne(ABC):
    """A campaign whose cases are drawn one at a time, independently of each other."""

    name: str
    seconds: float
    size: int = 1

    def draw(self, seed: int, number: int, folder: Path) -> Sequence[Case]:
        """One case."""
        return [lambda: self.attempt(chance_of(self.name, seed, number), folder)]

    @abstractmethod
    def attempt(self, chance: random.Random, folder: Path) -> Outcome:
        """Try a case that follows from `chance` alone, in an empty folder."""


@dataclass(frozen=True)
class Tally:
    """What a campaign has come to: the number of cases of each outcome, and those that are bad.

    The kind of a case is what stands before the first comma or colon of its description.
    """

    name: str
    seed: int
    counts: Counter[str]
    by_kind: dict[str, Counter[str]]
    bad: tuple[Outcome, ...]
    seconds: float

    @property
    def rows(self) -> list[str]:
        """Rows of the table: of the campaign, and of each of its kinds of cases if there are several."""
        kinds = [f"{self.name}: {kind}" for kind in self.by_kind]
        parts = list(zip(kinds, self.by_kind.values(), strict=True)) if len(kinds) > 1 else []
        return [self._row(name, counts) for name, counts in [(self.name, self.counts), *parts]]

    def _row(self, name: str, counts: Counter[str]) -> str:
        numbers = " | ".join(str(counts[kind]) for kind in OUTCOMES)
        return f"| {name} | {self.seed} | {sum(counts.values())} | {numbers} | {self.seconds:.0f} s |"


HEAD = f"| campaign | seed | tried | {' | '.join(OUTCOMES)} | time |\n|{' --- |' * (4 + len(OUTCOMES))}"


def run(
    campaign: Campaign, count: int, seed: int, results: Path | None = None, memory: int = 1 << 30
) -> Tally:
    """Try cases, in a process that is started again whenever one ends or hangs it.

    Args:
        campaign: the attack.
        count: the number of cases at least.
        seed: the n-th case follows from the campaign, `seed` and n.
        results: a JSON Lines file that outcomes are appended to; cases in it are not tried again.
        memory: bytes that a case may allocate.
    """
    torch.set_num_threads(1)
    done: dict[int, list[Outcome]] = {}
    if results is not None and results.exists():
        for line in results.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if record["seed"] == seed:
                done[record["number"]] = [Outcome(*outcome) for outcome in record["outcomes"]]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"zoo-{campaign.name}-") as scratch:
        folder = Path(scratch, "prepared")
        folder.mkdir()
        campaign.prepare(folder)
        with _Worker(campaign, Path(scratch), memory) as worker:
            for number in range(-(-count // campaign.size)):
                if number in done:
                    continue
                done[number] = worker.attempt(seed, number)
                if results is not None:
                    results.parent.mkdir(parents=True, exist_ok=True)
                    with results.open("a", encoding="utf-8") as file:
                        record = {"seed": seed, "number": number, "outcomes": done[number]}
                        file.write(json.dumps(record) + "\n")
    outcomes = [outcome for number in sorted(done) for outcome in done[number]]
    counts = Counter(outcome.kind for outcome in outcomes)
    by_kind: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        by_kind.setdefault(re.split("[,:]", outcome.case)[0], Counter())[outcome.kind] += 1
    bad = tuple(outcome for outcome in outcomes if outcome.kind in BAD)
    return Tally(campaign.name, seed, counts, dict(sorted(by_kind.items())), bad, time.monotonic() - began)


class _Worker:
    """A forked process that tries cases one after the other."""

    def __init__(self, campaign: Campaign, scratch: Path, memory: int) -> None:
        self._campaign, self._scratch, self._memory = campaign, scratch, memory
        self._pid = 0
        self._ask = self._answer = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def attempt(self, seed: int, number: int) -> list[Outcome]:
        """Try one batch of cases; after a bad one the process is another."""
        outcomes: list[Outcome] = []
        asked = False
        while len(outcomes) < self._campaign.size:
            if not self._pid:
                self._start()
                asked = False
            if not asked:
                os.write(self._ask, f"{seed} {number} {len(outcomes)}\n".encode())
                self._line(DRAWING)
                asked = True
            line = self._line(self._campaign.seconds)
            if line:
                outcomes.append(Outcome(*json.loads(line)))
            else:
                case = f"{self._campaign.name} {seed}/{number}, case {len(outcomes)}"
                late = f"no answer in {self._campaign.seconds} s"
                outcomes.append(
                    Outcome("hang", case, late)
                    if line is None
                    else Outcome("traceback", case, "the process died")
                )
            if outcomes[-1].kind in BAD:
                self._end()
        return outcomes

    def _line(self, limit: float) -> bytes | None:
        """A line of the process; empty if it has ended, None if there is none within the limit."""
        answer, used, end = b"", self._used(), time.monotonic() + PATIENCE * limit
        while not answer.endswith(b"\n"):
            # What has been answered counts, also where this process itself was stopped for a while.
            left = end - time.monotonic()
            if select.select([self._answer], [], [], max(0.0, min(left, limit / 4)))[0]:
                piece = os.read(self._answer, 1)
                if not piece:
                    return b""
                answer += piece
            elif left < 0 or self._used() - used > limit:
                return None
        return answer

    def _used(self) -> float:
        """Seconds of processor time that the process has used."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    def _start(self) -> None:
        ask, self._ask = os.pipe()
        self._answer, answer = os.pipe()
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._ask)
            os.close(self._answer)
            try:
                self._serve(ask, answer)
            finally:
                os._exit(0)
        os.close(ask)
        os.close(answer)

    def _serve(self, ask: int, answer: int) -> None:
        os.setpgid(0, 0)
        gc.freeze()  # what was imported stays; its pages need not be copied into forks
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + self._memory, resource.RLIM_INFINITY))
        with os.fdopen(ask) as questions:
            for question in questions:
                seed, number, begin = question.split()
                folder = self._scratch / "case"
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                cases = self._campaign.draw(int(seed), int(number), folder)
                os.write(answer, b"drawn\n")
                for case in cases[int(begin) :]:
                    try:
                        outcome = case()
                    except BaseException as error:
                        outcome = outcome_of(error, f"{self._campaign.name} {seed}/{number}")
                    os.write(answer, json.dumps(outcome).encode() + b"\n")

    def _end(self) -> None:
        if self._pid:
            with suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            os.close(self._ask)
            os.close(self._answer)
            self._pid = 0


def outcome_of(error: BaseException, case: str) -> Outcome:
    """Return the outcome of a case that has raised an exception."""
    if isinstance(error, ZooError | DivergenceError):
        return Outcome("refused", case, str(error)[:300])
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return Outcome("memory", case, repr(error)[:300])
    where = traceback.extract_tb(error.__traceback__)[-1]
    return Outcome("traceback", case, f"{where.filename}:{where.lineno}: {error!r}"[:400])


def attempt(case: str, act: Callable[[], Outcome | None]) -> Outcome:
    """Do something quietly; `act` returns None if the result is what it should be."""
    try:
        with quiet():
            return act() or Outcome("same", case)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        return outcome_of(error, case)


@contextmanager
def quiet() -> Iterator[StringIO]:
    """Keep what is printed."""
    text = StringIO()
    with redirect_stdout(text), redirect_stderr(text):
        yield text


def command(*arguments: str | Path) -> int:
    """Type a command of zoo in this process; returns its status."""
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


def in_child(act: Callable[[], int | None]) -> int:
    """Do something that returns a status in a forked process; returns its wait status."""
    return os.waitpid(forked(act), 0)[1]


def status_of(pid: int) -> int:
    """The status of a `forked` process when it has ended; negative for one that a signal ended."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def forked(act: Callable[[], int | None]) -> int:
    """Do something that returns a status in a forked process that says nothing; returns its number."""
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
            status = act() or 0
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        finally:
            os._exit(status)
    return pid
