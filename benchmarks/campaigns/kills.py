"""SIGKILL before every operation on a file, in the middle of every write, and before any batch of a run."""

from __future__ import annotations

import os
import random
import shutil
from mmap import mmap
from pathlib import Path
from typing import Any

from benchmarks.campaigns.common import OneByOne, Outcome, in_child
from benchmarks.campaigns.faults import Fault, Operation, Watch, watched
from benchmarks.campaigns.scenarios import SCENARIOS, Scenario, Training
from benchmarks.campaigns.tiny import STEPS, difference

REFUSED = 2


class Kills(OneByOne):
    """A command is killed once or twice; then the user does what comes next, until it has done its work."""

    name = "kills"
    seconds = 60.0

    def prepare(self, folder: Path) -> None:
        """Nothing yet: a scenario is prepared when it is first drawn."""
        self._folder = folder
        self._whole: dict[str, dict[str, Any]] = {}
        self._operations: dict[str, int] = {}

    def attempt(self, chance: random.Random, folder: Path) -> Outcome:
        """Kill one command, and do what a user would do next."""
        scenario = chance.choices(SCENARIOS, [scenario.weight for scenario in SCENARIOS])[0]
        place = self._ready(scenario)
        scenario.begin(place, folder)
        case = scenario.name
        for _ in range(chance.choice((1, 1, 1, 2))):
            fault = self._fault(scenario, chance)
            case += f", {fault}"
            resume = (folder / "runs/tiny").exists()
            status = in_child(lambda: scenario.act(place, folder, resume, fault))  # noqa: B023
            if not os.WIFSIGNALED(status) and os.waitstatus_to_exitcode(status) not in (0, REFUSED):
                return Outcome("traceback", case, f"ended with status {status}")
        for resume in (True, False):
            status = os.waitstatus_to_exitcode(in_child(lambda: scenario.act(place, folder, resume)))  # noqa: B023
            if status == 0:
                break
            if status != REFUSED:
                return Outcome("traceback" if status > 0 else "lost", case, f"ends with status {status}")
        if status:
            return Outcome("lost", case, "neither --resume nor the plain command goes on")
        found = difference(self._whole[scenario.name], scenario.state(folder))
        return Outcome("changed", case, found) if found else Outcome("same", case)

    def _fault(self, scenario: Scenario, chance: random.Random) -> Fault:
        number = chance.randrange(self._operations[scenario.name])
        torn, batch = chance.random() < 0.3, isinstance(scenario, Training) and chance.random() < 0.2
        if batch or (isinstance(scenario, Training) and scenario.ranks > 1 and number % 2):
            return Fault(chance.randrange(STEPS), kind="batch")  # only the first rank has many operations
        return Fault(number, kind="torn" if torn else "operation")

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
