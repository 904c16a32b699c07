"""A sample of every campaign of `make campaign`: nothing may break, be lost or change in silence."""

from __future__ import annotations

import os
import time
from itertools import product
from pathlib import Path

import pytest

from benchmarks.campaigns.__main__ import CAMPAIGNS
from benchmarks.campaigns.common import Case, Outcome, Tally, run
from benchmarks.campaigns.exactness import TINY, Exactness
from benchmarks.campaigns.files import divide
from benchmarks.campaigns.tiny import difference, fields, finished, state_of
from zoo.config.registry import MODELS, OPTIMIZERS
from zoo.run.config import load_config
from zoo.train.run import train
from zoo.utils.run_folder import RunFolder

SAMPLE = {"kills": 4, "power": 8, "configurations": 50, "files": 40, "resources": 2, "exactness": 3}


def tried(name: str, count: int, results: Path | None = None) -> Tally:
    kind, _ = CAMPAIGNS[name]
    return run(kind(), count, seed=0, results=results)


def test_every_campaign_has_a_sample() -> None:
    assert SAMPLE.keys() == CAMPAIGNS.keys()


def test_every_model_meets_every_optimizer() -> None:
    """A seed covers the whole product: what is registered is tried."""
    assert TINY.keys() == MODELS.choices.keys()
    pairs = len(MODELS.choices) * len(OPTIMIZERS.choices)
    assert pairs <= CAMPAIGNS["exactness"][1]
    campaign = Exactness()
    drawn = {campaign.pair(7, number) for number in range(pairs)}
    assert drawn == {*product(MODELS.choices, OPTIMIZERS.choices)}


@pytest.mark.parametrize("name", SAMPLE)
def test_sample(name: str) -> None:
    tally = tried(name, SAMPLE[name])
    assert sum(tally.counts.values()) >= SAMPLE[name]
    assert not tally.bad


def test_pieces_of_ranks_are_a_checkpoint(tmp_path: Path) -> None:
    """What the campaign damages is read as it should be while it is whole."""
    whole = state_of(finished(tmp_path / "whole"))
    half = RunFolder(finished(tmp_path / "half", until=6))
    divide(half)
    assert len([*half.path.glob("checkpoints/step-00000006/shard-*")]) == 4
    part = train(load_config(fields(tmp_path / "half")), resume=True).folder
    assert difference(whole, state_of(part)) is None


class Counting:
    """A campaign that attacks nothing: it hangs, dies or fails where the case says so."""

    name, seconds, size = "counting", 0.1, 1

    def __init__(self, kinds: list[str]) -> None:
        self.kinds = kinds

    def prepare(self, folder: Path) -> None:
        self.calls = folder / "calls"
        self.calls.touch()

    def draw(self, seed: int, number: int, folder: Path) -> list[Case]:
        return [self.attempt]

    def attempt(self) -> Outcome:
        number = len(self.calls.read_text())
        self.calls.write_text("x" * (number + 1))
        kind = self.kinds[number]
        if kind == "hang":
            time.sleep(60)
        elif kind == "dies":
            os._exit(1)
        elif kind == "traceback":
            raise KeyError(kind)
        elif kind == "memory":
            bytearray(1 << 33)
        return Outcome("same", kind)


def test_what_is_bad_is_counted_and_what_was_tried_is_not_tried_again(tmp_path: Path) -> None:
    """A campaign that could not see a hang, a death or a lack of memory would prove nothing."""
    results = tmp_path / "counting.jsonl"
    first = run(Counting(["same", "hang", "dies", "traceback", "memory", "same"]), 6, 0, results)
    assert first.counts == {"same": 2, "hang": 1, "traceback": 2, "memory": 1}
    again = run(Counting(["same"]), 7, 0, results)
    assert again.counts == {"same": 3, "hang": 1, "traceback": 2, "memory": 1}
