"""Looks at a study while seeds or sizes are added: words, intervals and notes that agree with each other."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from test_verdict_worlds import several

from zoo.ablate.scale.line import Estimate, Line
from zoo.ablate.scale.looks import (
    Looks,
    anytime_p,
    anytime_p_so_far,
    anytime_value,
    critical_values_of_sizes,
    saturation,
)
from zoo.ablate.scale.runs import FinishedRun, RunTable
from zoo.ablate.scale.speedup import SizeSpeedup
from zoo.ablate.scale.verdict import ScaleVerdict, judge

RATES = (1e-3, 2e-3, 4e-3, 8e-3, 16e-3)


def runs(
    name: str, gains: list[float], *, bend: float = 0.24, tuned: bool = False, size: float = 1e6
) -> list[FinishedRun]:
    """Three budgets per seed, of which seed i is worth `gains[i]` ln tokens; a tuning if there is a bend."""

    def loss(tokens: float, ln_tokens: float) -> float:
        return float(0.7 + 0.8 * (tokens / 1e6 * math.exp(ln_tokens)) ** -0.3)

    compared = [
        FinishedRun(name, size, tokens, seed, loss(tokens, gain), 4e-3 if tuned else None)
        for seed, gain in enumerate(gains)
        for tokens in (5e6, 10e6, 20e6)
    ]
    tuning = [
        FinishedRun(name, size, 10e6, 100, loss(10e6, -bend * math.log(rate / 4e-3) ** 2), rate)
        for rate in RATES
    ]
    return compared + tuning * tuned


def verdict(
    differences: list[float], looks: Looks, margin: float | None = None, **fields: float
) -> ScaleVerdict:
    """The verdict on a variant whose seed i is `differences[i]` ln tokens better than the baseline's."""
    bend = fields.get("bend", 0.24)
    tuned = bool(fields)
    ours = [0.05 * math.sin(3 * seed) for seed in range(len(differences))]  # what a seed does to both sides
    table = runs("a", ours, bend=bend, tuned=tuned)
    table += runs("b", [a + b for a, b in zip(ours, differences, strict=True)], bend=bend, tuned=tuned)
    return judge(RunTable(tuple(table)), "a", margin=margin, looks=looks)["b"]


@pytest.mark.parametrize("seeds", (0.02, 0.08, 0.3))
@pytest.mark.parametrize("critical", (None, 3.15, 7.71))
def test_a_line_is_called_faster_exactly_if_its_interval_excludes_1(
    seeds: float, critical: float | None
) -> None:
    """Whether the scatter of the sizes decides or, with many degrees of freedom, the noise of the seeds."""
    for estimate in np.linspace(0.01, 2, 100):
        value = Estimate(float(estimate), 0.05, 2, seeds, 12.0, critical)
        assert (value.p_over_looks(0.05) <= 0.05) == (value.half95 <= estimate)


def test_looks_at_a_line_keep_their_error_if_the_noise_of_the_seeds_decides() -> None:
    """Sizes differ by their seeds alone, so that both intervals are about equally wide."""
    random, sizes = np.random.default_rng(0), [0.1e6 * 2**k for k in range(7)]
    ln_params = tuple(round(math.log(size / sizes[0]), 3) for size in sizes)
    values = critical_values_of_sizes(ln_params, studies=200_000)
    alarms = 0
    for _ in range(400):
        found = random.normal(0, 0.07, (7, 3))
        every = [
            SizeSpeedup(size, of.mean(), of.std(ddof=1) / math.sqrt(3), 0.0, 3, (-9, 9), (1.0, 1.0), 0.0)
            for size, of in zip(sizes, found, strict=True)
        ]
        lines = [Line(every[:k]).looked_at(critical) for k, critical in enumerate(values, 4)]
        alarms += any(abs(line.middle.estimate) > line.middle.half95 for line in lines)
    assert alarms / 400 <= 0.05 + 3.3 * math.sqrt(0.05 * 0.95 / 400)


def test_the_largest_e_so_far_keeps_the_error_over_all_looks() -> None:
    """2,000 studies without a difference, looked at after 2, 3, ..., 30 seeds."""
    random, studies = np.random.default_rng(0), 2000
    alarms, at_present = 0, 0
    for _ in range(studies):
        draws = random.standard_normal(30)
        ts = {n: float(draws[:n].mean() / draws[:n].std(ddof=1) * math.sqrt(n)) for n in range(2, 31)}
        p, seeds = anytime_p_so_far(ts)
        assert p == min(anytime_p(t, n) for n, t in ts.items() if t * ts[30] > 0)
        assert p == anytime_p(ts[seeds], seeds)
        alarms += p <= 0.05
        at_present += anytime_p(ts[30], 30) <= 0.05
    assert at_present < alarms <= (0.05 + 3.3 * math.sqrt(0.05 * 0.95 / studies)) * studies


def test_a_word_that_was_shown_before_stays_and_says_so() -> None:
    """After six seeds e is above 20; two further seeds widen the interval, which then contains 1."""
    clear = [0.2, 0.21, 0.19, 0.22, 0.18, 0.2]
    before, later = (verdict(seeds, Looks(anytime=True)) for seeds in (clear, [*clear, 0.6, -0.3]))
    assert before.word == later.word == "faster"
    half = later.measured.half_alone()
    assert half is not None and half > later.measured.usable[-1].ln_c
    assert "the word was shown after 6 seeds, where e was largest, and stays" in later.warnings[0]
    assert "the present 8 seeds, and contains 1" in later.warnings[0]
    assert not any("where e was largest" in warning for warning in before.warnings)
    assert verdict([*clear, -0.9, -1.2], Looks(anytime=True)).word == "undecided"  # the sign has changed


def test_too_few_seeds_for_several_variants_without_a_maximum() -> None:
    """No data are evidence enough for alpha / m at first; the number of seeds follows from the limit of e."""
    gains = [0.001 * math.sin(seed) for seed in range(4)]
    table = runs("a", gains)
    for number in range(20):
        table += runs(
            f"v{number}", [gain + 0.5 + 0.001 * math.cos(3 * seed) for seed, gain in enumerate(gains)]
        )
    found = judge(RunTable(tuple(table)), "a", looks=Looks(anytime=True))["v0"]
    first = next(
        n for n in range(2, 30) if (1 + 4 * n) ** ((n - 1) / 2) > 20 / 0.05
    )  # the limit of e as t grows
    assert found.word == "undecided" and found.detectable is None
    assert (
        "4 seeds: no data reach the level 0.0025, the share of each of 20 variants, before "
        f"{first} seeds: no claim is possible yet"
    ) in found.warnings
    assert anytime_value(first, 0.0025) < math.inf == anytime_value(first - 1, 0.0025)
    alone = judge(RunTable(tuple(runs("a", gains) + runs("b", [gain + 0.5 for gain in gains]))), "a")["b"]
    assert not any("no data reach" in warning for warning in alone.warnings)


def test_seeds_beyond_the_error_of_tuning_are_futile() -> None:
    """The number of seeds is n = (sd of a pair / sd of tuning)^2; the best point of a grid tunes badly."""
    assert saturation(0.06, 0.02) == pytest.approx(9)
    noise = [0.03 * math.sin(5 * seed) for seed in range(6)]
    found = verdict(noise, Looks(max_seeds=10), bend=0.02)
    size, gap = found.measured.usable[-1], found.measured.gap
    assert size.se is not None and gap is not None
    assert size.se <= gap  # the same as 6 >= n
    (told,) = [
        warning for warning in found.warnings if "further seeds only sharpen the error of tuning" in warning
    ]
    assert (
        f"6 seeds: from {max(2, math.ceil((size.se / gap) ** 2 * 6))} on, (standard deviation of a pair"
        in told
    )
    assert "a stop for futility, which leaves the error of claims as it is" in told
    assert found.futile and not found.is_open
    # Without a declared maximum it is no stop; within a margin, or by a clear difference, a word is in sight.
    fixed = verdict(noise, Looks(), bend=0.02)
    assert not fixed.futile and any("further seeds only sharpen" in warning for warning in fixed.warnings)
    three = [0.3 * value for value in noise[:3]]
    assert verdict(three, Looks(max_seeds=10), bend=0.02).futile
    near = verdict(three, Looks(max_seeds=10), margin=1.05, bend=0.02)
    assert near.word == "undecided" and near.is_open
    clear = verdict([0.04 + value for value in three], Looks(max_seeds=10), bend=0.02)
    assert clear.word == "undecided" and clear.is_open
    assert any("further seeds only sharpen" in warning for warning in clear.warnings)
    sharp = verdict([6 * value for value in noise], Looks(max_seeds=10), bend=0.05)
    assert not sharp.futile and not any("further seeds" in warning for warning in sharp.warnings)


def test_why_an_interval_with_the_error_of_tuning_contains_1() -> None:
    noise = [0.04 * math.sin(5 * seed) for seed in range(4)]
    gap = verdict(noise, Looks(), bend=0.1).measured.gap
    assert gap is not None
    found = verdict([3.3 * gap + 0.1 * value for value in noise], Looks(max_seeds=10), bend=0.1)
    assert found.word == "faster"
    half = found.measured.half_alone()
    assert half is not None and half > found.measured.usable[-1].ln_c
    assert "contains 1 because it includes the error of tuning" in found.warnings[0]


def test_seconds_without_a_maximum_have_the_share_of_their_variant() -> None:
    """Four seeds, two variants: t of the seconds is above the value of .05 and below that of .025."""
    assert anytime_value(4, 0.05) < 10.5 < anytime_value(4, 0.025)

    def judged(t: float) -> ScaleVerdict:
        """Seconds of b at a multiple of the standard error; of c at 0, so that its share stays its own."""
        table = several([1.5], "c", tau=0.01, seeds=4, sizes=[1e6])
        sizes = {name: found.measured.usable[0] for name, found in judge(table, "a").items()}
        aims = {"b": t * (sizes["b"].se or 0.0), "c": 0.0}
        cost = {name: math.exp(sizes[name].ln_c - aim) for name, aim in aims.items()} | {"a": 1.0}
        timed = RunTable(tuple(replace(run, seconds=run.tokens * cost[run.variant]) for run in table.runs))
        return judge(timed, "a", looks=Looks(anytime=True))["b"]

    assert judged(10.5).claims == ("largest",)
    found = judged(1.01 * anytime_value(4, 0.025))
    assert found.claims == ("largest", "seconds")
    (seconds,) = found.measured.costs
    assert seconds.ln_c == pytest.approx(
        1.01 * anytime_value(4, 0.025) * (found.measured.usable[0].se or 0.0)
    )
