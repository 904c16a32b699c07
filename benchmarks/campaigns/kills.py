"""SIGKILL before every operation on a file, in the middle of every write, and at random moments."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.campaigns.common import Outcome, command, in_child
from benchmarks.campaigns.faults import Watch, killing, watched
from benchmarks.campaigns.tiny import difference, fields, state_of
from zoo.data.text.dataset import TextDataset
from zoo.run.config import dump_config, load_config
from zoo.utils.run_folder import RunFolder

ROLLBACK: dict[str, Any] = {
    "lr": 0.05,
    "steps": 30,
    "eval_every": 10,
    "checkpoint_every": 10,
    "monitor_every": None,
    "spikes": {"action": "rollback", "window": 20, "cool_steps": 2, "threshold": 3.0},
}
BAD_STEP = 25


def spoiled() -> None:
    """Make the batch of one step bad, so that the run goes back; the same in every process."""
    right = TextDataset.train_batch

    def batch(self: TextDataset, spec: Any) -> Any:
        inputs, targets = right(self, spec)
        noise = torch.randint(0, 256, targets.shape, generator=torch.Generator().manual_seed(1))
        return inputs, noise if spec.step == BAD_STEP else targets

    TextDataset.train_batch = batch  # type: ignore[method-assign]  # in a forked process


@dataclass(frozen=True)
class Scenario:
    """A command that is killed.

    Attributes:
        name: its name.
        settings: of the run.
        before: the step at which an earlier session was stopped.
        setup: called in every process of the scenario.
    """

    name: str
    settings: dict[str, Any]
    before: int | None = None
    setup: Callable[[], None] = lambda: None


SCENARIOS = (
    Scenario("run", {}),
    Scenario("resumed run", {"keep_last": 1}, before=5),
    Scenario("rollback", ROLLBACK, setup=spoiled),
)


class Kills:
    """One process is killed once or twice; then the user does what comes next, until the run is finished."""

    name = "kills"
    seconds = 180.0
    size = 1

    def prepare(self, folder: Path) -> None:
        """Run every scenario undisturbed, and count its operations."""
        self._folder, self._whole, self._operations = folder, {}, {}
        for scenario in SCENARIOS:
            place = folder / scenario.name.replace(" ", "-")
            self._begin(scenario, place)
            self._config(scenario, place)
            counted = place / "count"

            def count(scenario: Scenario = scenario, place: Path = place, counted: Path = counted) -> int:
                watch = Watch(place / "runs", lambda number, operation: None)
                with watched(watch):
                    status = self._train(scenario, place)
                counted.write_text(str(watch.count))
                return status

            if scenario.before:
                shutil.copytree(place / "runs", place / "begun")
            assert in_child(count) == 0
            self._operations[scenario.name] = int(counted.read_text())
            self._whole[scenario.name] = state_of(place / "runs/tiny")
        rollbacks = [r for r in self._whole["rollback"]["metrics"] if r.get("action") == "rollback"]
        assert rollbacks, "the scenario has no rollback"

    @property
    def points(self) -> int:
        """The number of operations of all scenarios."""
        return sum(self._operations.values())

    def attempt(self, chance: random.Random, folder: Path) -> list[Outcome]:
        """Kill one command, and do what a user would do next."""
        scenario = chance.choice(SCENARIOS)
        place = self._folder / scenario.name.replace(" ", "-")
        if scenario.before:
            shutil.copytree(place / "begun", folder / "runs")
        case = scenario.name
        for _ in range(chance.choice((1, 1, 1, 2))):
            number, torn = chance.randrange(self._operations[scenario.name]), chance.random() < 0.3
            case += f", {'torn' if torn else 'killed'} at operation {number}"
            act = killing(number, torn, folder / "runs")

            def killed(act: Callable[..., None] = act) -> int:
                with watched(Watch(folder / "runs", act)):
                    return self._train(scenario, place, folder, resume=(folder / "runs/tiny").exists())

            status = in_child(killed)
            if not os.WIFSIGNALED(status) and os.waitstatus_to_exitcode(status) not in (0, 2):
                return [Outcome("traceback", case, f"ended with status {status}")]
        for resume in (True, False):
            status = os.waitstatus_to_exitcode(in_child(lambda: self._train(scenario, place, folder, resume)))  # noqa: B023
            if status == 0:
                break
            if status != 2:
                return [Outcome("traceback" if status > 0 else "lost", case, f"ends with status {status}")]
        if status:
            return [Outcome("lost", case, "neither --resume nor the plain command goes on")]
        found = difference(self._whole[scenario.name], state_of(folder / "runs/tiny"))
        return [Outcome("changed", case, found) if found else Outcome("same", case)]

    def _begin(self, scenario: Scenario, place: Path) -> None:
        place.mkdir(parents=True)
        if scenario.before:
            settings = fields(place, **scenario.settings)

            def begin() -> None:
                from zoo.train.run import train

                train(load_config(settings), until=scenario.before)

            assert in_child(begin) == 0

    def _config(self, scenario: Scenario, place: Path) -> None:
        text = dump_config(load_config(fields(place, **scenario.settings)))
        (place / "tiny.yaml").write_text(text)

    def _train(
        self, scenario: Scenario, place: Path, folder: Path | None = None, resume: bool = False
    ) -> int:
        """`zoo train`, in this process."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        scenario.setup()
        resumed = ["--resume"] if resume or (folder is None and scenario.before) else []
        return command(
            "train", str(place / "tiny.yaml"), f"train.runs_dir={(folder or place) / 'runs'}", *resumed
        )


def last_step(run: Path) -> int:
    """The step of a run's last checkpoint; 0 before the first."""
    checkpoint = RunFolder(run).checkpoint()
    return 0 if checkpoint is None else checkpoint.step
