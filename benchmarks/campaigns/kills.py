"""SIGKILL or SIGTERM before every operation on a file, in every write, and before any batch of a run."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Sequence
from mmap import mmap
from pathlib import Path
from typing import Any, Literal

from benchmarks.campaigns.common import Case, Outcome, chance_of, in_child, quiet
from benchmarks.campaigns.faults import Fault, Operation, Watch, watched
from benchmarks.campaigns.scenarios import SCENARIOS, Scenario, Training
from benchmarks.campaigns.tiny import STEPS, difference, difference_in_common, finished
from zoo.commands.app import INTERRUPTED, STOPPED

REFUSED = 2
ENDED = (0, REFUSED, INTERRUPTED, STOPPED, 128 + signal.SIGTERM)
"""What a command that was asked to end may say."""
BATCHES = 8
"""Of so many kills of a training one is before a batch, at any moment of it, instead of an operation."""
TWICE, TORN, ASKED = 0.25, 0.3, 0.25
"""Shares of the cases with two kills, of the writes of which a half is done, and of SIGTERM."""


class Kills:
    """A command is killed once or twice; then the user does what comes next, until it has done its work.

    Each of the scenarios is killed before every one of its operations, in an order that follows from the
    seed, before one of them is met again.
    """

    name = "kills"
    seconds = 60.0
    size = 1

    def prepare(self, folder: Path) -> None:
        """Train a run in this process, so that its forks have imported what they need.

        A scenario is prepared when it is first drawn.
        """
        with quiet():
            finished(folder / "warm")
        self._folder = folder
        self._whole: dict[str, dict[str, Any]] = {}
        self._operations: dict[str, int] = {}

    def draw(self, seed: int, number: int, folder: Path) -> Sequence[Case]:
        """Choose the scenario, and which of its operations is the first that is not made."""
        tickets = [scenario for scenario in SCENARIOS for _ in range(scenario.weight)]
        turn, place = divmod(number, len(tickets))
        order = random.Random(f"{seed}").sample(range(len(tickets)), len(tickets))
        scenario = tickets[order[place]]
        visit = turn * scenario.weight + sum(tickets[ticket] is scenario for ticket in order[:place])
        return [lambda: self._attempt(scenario, seed, visit, folder)]

    def _attempt(self, scenario: Scenario, seed: int, visit: int, folder: Path) -> Outcome:
        """Kill one command, and do what a user would do next."""
        place = self._ready(scenario)
        scenario.begin(place, folder)
        chance = chance_of(f"{self.name} {scenario.name}", seed, visit)
        faults = [self._fault(scenario, seed, visit, chance)]
        if chance.random() < TWICE:
            faults.append(self._any_fault(scenario, chance))
        asked = any(fault.asked for fault in faults)
        case = ", ".join([scenario.name + (" with SIGTERM" if asked else ""), *map(str, faults)])
        for fault in faults:
            resume = (folder / "runs/tiny").exists()
            status = in_child(lambda: scenario.act(place, folder, resume, fault))  # noqa: B023
            allowed = ENDED if fault.asked else (0, REFUSED)
            if not os.WIFSIGNALED(status) and os.waitstatus_to_exitcode(status) not in allowed:
                return Outcome("traceback", case, f"ended with status {os.waitstatus_to_exitcode(status)}")
        for resume in (True, False):
            status = os.waitstatus_to_exitcode(in_child(lambda: scenario.act(place, folder, resume)))  # noqa: B023
            if status == 0:
                break
            if status != REFUSED:
                return Outcome("traceback" if status > 0 else "lost", case, f"ends with status {status}")
        compare = difference_in_common if asked else difference
        found = compare(self._whole[scenario.name], scenario.state(folder))
        if status and found:  # a command whose work was done when it was killed is refused, as it should be
            return Outcome("lost", case, "neither --resume nor the plain command goes on")
        return Outcome("changed", case, found) if found else Outcome("same", case)

    def _fault(self, scenario: Scenario, seed: int, visit: int, chance: random.Random) -> Fault:
        """The n-th first fault of a scenario: its operations one after the other, and batches between."""
        trains = isinstance(scenario, Training)
        if trains and visit % BATCHES == BATCHES - 1:
            return self._before_batch(scenario, chance)
        visit -= visit // BATCHES if trains else 0
        number = self._operations[scenario.name]
        order = random.Random(f"{scenario.name} {seed} {visit // number}").sample(range(number), number)
        return self._at_operation(scenario, order[visit % number], chance)

    def _any_fault(self, scenario: Scenario, chance: random.Random) -> Fault:
        if isinstance(scenario, Training) and chance.random() < 1 / BATCHES:
            return self._before_batch(scenario, chance)
        return self._at_operation(scenario, chance.randrange(self._operations[scenario.name]), chance)

    def _before_batch(self, scenario: Scenario, chance: random.Random) -> Fault:
        number, rank = chance.randrange(STEPS), chance.randrange(scenario.ranks)
        return Fault(number, "batch", rank, _asked(scenario, chance))

    def _at_operation(self, scenario: Scenario, number: int, chance: random.Random) -> Fault:
        kind: Literal["torn", "operation"] = "torn" if chance.random() < TORN else "operation"
        return Fault(number, kind, asked=_asked(scenario, chance))

    def _ready(self, scenario: Scenario) -> Path:
        """The place of a scenario, which has run undisturbed there, its operations counted."""
        place = self._folder / scenario.name.replace(" ", "-")
        if scenario.name in self._whole:
            return place
        shutil.rmtree(place, ignore_errors=True)  # of a process that did not survive
        whole = place / "whole"
        whole.mkdir(parents=True)
        scenario.prepare(place)
        scenario.begin(place, whole)
        resume = (whole / "runs/tiny").exists()
        counted = mmap(-1, 8)  # shared by the processes of the command; each counts its own

        def count(number: int, operation: Operation) -> None:
            most = max(number + 1, int.from_bytes(counted[:], "little"))
            counted[:] = most.to_bytes(8, "little")

        def undisturbed() -> int:
            with watched(Watch(whole, count)):
                return scenario.act(place, whole, resume)

        status = in_child(undisturbed)
        assert status == 0, f"{scenario.name}: the undisturbed command ends with {status}"
        self._operations[scenario.name] = int.from_bytes(counted[:], "little")
        self._whole[scenario.name] = scenario.state(whole)
        if scenario.name == "rollback":
            lines = self._whole[scenario.name]["metrics"]
            assert any(record.get("action") == "rollback" for record in lines), "there is no rollback"
        return place


def _asked(scenario: Scenario, chance: random.Random) -> int:
    """How often a command is asked to end; 0 for a kill."""
    return chance.choice((1, 2)) if scenario.stops and chance.random() < ASKED else 0
