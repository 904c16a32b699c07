"""Branches of a trunk: the runs that would have been trained one by one, with the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_runs import assert_same, tiny

import zoo.ablate.trunk
from zoo.ablate.ladder import shared_steps
from zoo.ablate.trunk import train_with_branches
from zoo.ablate.worker import in_one_line
from zoo.run.config import RunConfig
from zoo.run.job import Job
from zoo.train.run import RunResult, train


def run(folder: Path, steps: int, runs: str = "runs") -> RunConfig:
    schedule = ["schedule.type=wsd", "schedule.warmup=2", "schedule.decay=0.5"]
    train = {"steps": steps, "checkpoint_every": 100, "eval_every": 3, "runs_dir": str(folder / runs)}
    return tiny(folder, f"name=steps-{steps}", *schedule, **train)


def test_a_branch_ends_as_if_it_had_been_trained_alone(tmp_path: Path) -> None:
    """Two branches of a trunk of twelve steps, one begun in a second session, and the trunk itself."""
    trunk, short, middle = (run(tmp_path, steps) for steps in (12, 5, 8))
    branches = [(config, shared_steps(config, Job.of(config).train.steps, 12)) for config in (middle, short)]
    assert [step for _, step in branches] == [5, 4]
    assert train_with_branches(trunk, branches[1:], 12)
    assert not Job.of(middle).folder.exists
    assert train_with_branches(trunk, branches, 12)
    for config in (short, middle, trunk):
        assert Job.of(config).folder.checkpoint() is not None
        done = train(config, resume=True).folder
        steps = Job.of(config).train.steps
        alone = train(run(tmp_path, steps, "alone")).folder
        assert_same(done, alone)


def test_a_trunk_that_fails_tells_what_becomes_of_its_branches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full between two branches: one has begun, and the other is trained by itself."""
    trunk, short, middle = (run(tmp_path, steps) for steps in (12, 5, 8))

    def full(config: RunConfig, resume: bool, until: int) -> RunResult:
        if until == 5:
            raise OSError(28, "No space left on device")
        return train(config, resume=resume, until=until)

    monkeypatch.setattr(zoo.ablate.trunk, "train", full)
    with pytest.raises(OSError) as failed:
        train_with_branches(trunk, [(middle, 5), (short, 4)], 12)
    assert in_one_line(failed.value) == (
        "OSError: [Errno 28] No space left on device; steps-8 had not branched off at step 5: it and longer "
        "branches are trained by themselves"
    )
    assert Job.of(short).folder.exists
    assert Job.of(middle).folder.is_vacant
    assert_same(train(middle).folder, train(run(tmp_path, 8, "alone")).folder)


@pytest.mark.parametrize(("short", "long", "expected"), [(100, 200, 80), (5, 5, 4)])
def test_shared_steps(tmp_path: Path, short: int, long: int, expected: int) -> None:
    """Without warm-up a fifth cools down, after 80 of 100 steps; one step at least is its own."""
    config = tiny(tmp_path, "schedule.type=wsd", "schedule.warmup=0", "schedule.decay=0.2")
    assert shared_steps(config, short, long) == pytest.approx(expected, abs=1)
