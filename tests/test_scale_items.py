"""Scores of questions in the verdict across scale: claims at one size, looks, clusters, accuracy and order."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from zoo.ablate.scale.document import document
from zoo.ablate.scale.looks import spent_p
from zoo.ablate.scale.presentation import sentences
from zoo.ablate.scale.runs import FinishedRun, RunTable
from zoo.ablate.scale.verdict import Looks, judge


def one_size(
    factor: float, items: Callable[[FinishedRun], tuple[float, ...]], seeds: int = 6
) -> list[FinishedRun]:
    """Runs of a and b at 1M parameters and three budgets; b needs `factor` x fewer tokens."""
    runs = []
    for name, c in (("a", 1.0), ("b", factor)):
        for tokens in (5e6, 10e6, 20e6):
            for seed in range(seeds):
                noise = 0.004 * math.sin(2.1 * seed + 1.3 * tokens / 1e6 + c)
                loss = 0.7 + 2 * (c * tokens / 1e6) ** -0.3 + noise
                run = FinishedRun(name, 1e6, tokens, seed, loss, seconds=tokens)
                runs.append(replace(run, items=items(run)))
    return runs


def noisy(better: float) -> Callable[[FinishedRun], tuple[float, ...]]:
    """Scores of 40 questions, `better` higher for b."""

    def items(run: FinishedRun) -> tuple[float, ...]:
        side = run.variant == "b"
        return tuple(better * side + math.sin(5 * run.seed + 7 * i + 2 * side) / 3 for i in range(40))

    return items


def test_items_at_one_size_are_claimed_after_the_tokens() -> None:
    """The chain is largest, items, seconds: without the first nothing further is claimed."""
    judged = judge(RunTable(tuple(one_size(1.5, noisy(0.5)))), "a")
    assert judged["b"].claims == ("largest", "items", "seconds")
    assert judged["b"].directions == dict.fromkeys(("largest", "items", "seconds"), "better")
    (sentence,) = sentences(judged, "a", None)
    assert " Seconds: " in sentence and " Items: +0.5" in sentence and sentence.endswith(" at 1M.")
    assert judge(RunTable(tuple(one_size(1.0, noisy(0.5)))), "a")["b"].claims == ()
    without = judge(RunTable(tuple(one_size(1.5, noisy(0.0)))), "a")["b"]
    assert without.claims == ("largest",), "seconds come after items"
    worse = judge(RunTable(tuple(one_size(1.5, noisy(-0.5)))), "a")
    assert worse["b"].directions["items"] == "worse"
    assert sentences(worse, "a", None)[0].endswith(" at 1M, worse.")


def test_seconds_at_one_size_must_exceed_what_tuning_makes() -> None:
    """As for tokens: three standard deviations of the error that all seeds share."""
    losses = (2.20, 2.15, 2.13, 2.15, 2.20)
    runs = []
    for name, c in (("a", 1.0), ("b", 1.5)):
        runs += [FinishedRun(name, 1e6, 5e6, 9, loss, 1e-3 * 2**k) for k, loss in enumerate(losses)]
        cost = 1.0 if name == "a" else 1.47
        of_side = [run for run in one_size(1.5, noisy(0.5)) if run.variant == name]
        runs += [replace(run, rate=4.1e-3, seconds=run.tokens * cost) for run in of_side]
    found = judge(RunTable(tuple(runs)), "a")["b"]
    gap, (seconds,) = found.measured.gap, found.measured.costs
    assert gap is not None
    assert 0 < abs(seconds.ln_c) <= 3 * gap
    assert found.claims == ("largest", "items")


def test_items_at_looks_over_seeds_share_the_error() -> None:
    """After six of at most ten seeds items have 11 / 100 of the error, without a maximum 1 / 20."""
    parts = [1 / spent_p(1e-9, look, 3, None) for look in range(3, 1003)]
    assert sum(parts) * 1e-9 == pytest.approx(1 - 1 / 1001)
    assert spent_p(0.01, 6, 3, 10) == pytest.approx(0.01 * 100 / 11)
    table = RunTable(tuple(one_size(1.5, noisy(0.06))))
    once = judge(table, "a")["b"]
    assert once.measured.items is not None
    assert 0.05 * 11 / 100 < once.measured.items.p_value < 0.05
    assert once.claims == ("largest", "items", "seconds")
    clear = RunTable(tuple(one_size(1.5, noisy(0.5))))
    for looks in (Looks(max_seeds=10), Looks(anytime=True)):
        assert judge(table, "a", looks=looks)["b"].claims == ("largest",)
        assert judge(clear, "a", looks=looks)["b"].claims == ("largest", "items", "seconds")
    early = RunTable(tuple(run for run in clear.runs if run.seed < 2))
    assert judge(early, "a", looks=Looks(max_seeds=10))["b"].claims == ()


def test_the_level_of_items_at_one_size_is_told() -> None:
    judged = judge(RunTable(tuple(one_size(1.5, noisy(0.5)))), "a", alpha=0.2, looks=Looks(max_seeds=6))
    (sentence,) = sentences(judged, "a", None)
    assert sentence.endswith(" Intervals: 80 %, that of items 95 %.")
    assert document(judged, "a", margin=None, alpha=0.2).variants["b"].items is not None
