"""The statistics of a verdict against scipy, textbook tables and sums done by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from zoo.ablate.curve import Curve
from zoo.ablate.statistics import (
    POWER,
    detectable_shift,
    holm,
    paired_t_test,
    power,
    summarise,
    welch_t_test,
)

RANDOM = np.random.default_rng(20261121)
SAMPLES = [(RANDOM.normal(3.0, 0.1, n).tolist(), RANDOM.normal(3.05, 0.2, n).tolist()) for n in (2, 3, 5, 30)]


@pytest.mark.parametrize(("ours", "theirs"), SAMPLES)
def test_paired_t(ours: list[float], theirs: list[float]) -> None:
    found, oracle = paired_t_test(ours, theirs, 0.05), stats.ttest_rel(ours, theirs)
    assert found.p == pytest.approx(oracle.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(oracle.confidence_interval(0.95)))
    assert (found.test, found.n) == ("paired t", len(ours))
    assert found.difference == pytest.approx(np.mean(ours) - np.mean(theirs))


@pytest.mark.parametrize(("ours", "theirs"), SAMPLES)
def test_welch(ours: list[float], theirs: list[float]) -> None:
    theirs = [*theirs, 3.1]  # the sides need not be of one length
    found, oracle = welch_t_test(ours, theirs, 0.05), stats.ttest_ind(ours, theirs, equal_var=False)
    assert found.p == pytest.approx(oracle.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(oracle.confidence_interval(0.95)))


@pytest.mark.parametrize(("ours", "theirs"), SAMPLES)
def test_summary(ours: list[float], theirs: list[float]) -> None:
    found = summarise(ours)
    error = float(stats.sem(ours))
    assert (found.low, found.high) == pytest.approx(
        stats.t.interval(0.95, len(ours) - 1, np.mean(ours), error)
    )
    assert found.sd == pytest.approx(np.std(ours, ddof=1))


def test_one_value_has_no_spread() -> None:
    found = summarise([3.0])
    assert (found.n, found.mean, found.sd, found.low, found.high) == (1, 3.0, None, None, None)


def test_holm_by_hand() -> None:
    # Sorted: 0.005 x 4, 0.01 x 3, 0.03 x 2, 0.04 x 1; the last is raised to the one before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([0.03]) == [0.03]
    assert holm([]) == []


@pytest.mark.parametrize(("effect", "pairs", "per_side"), [(0.5, 34, 64), (0.8, 15, 26), (1.0, 10, 17)])
def test_seeds_needed_are_those_of_cohens_tables(effect: float, pairs: int, per_side: int) -> None:
    """Power 0.8 at two-sided 0.05 (Cohen 1988, tables 2.4.1; the pairs as in the manual of G*Power)."""
    ours, theirs = [effect + 0.5**0.5, effect - 0.5**0.5], [0.5**0.5, -(0.5**0.5)]  # both of deviation 1
    assert paired_t_test(ours, [0.0, 0.0], 0.05).seeds == pairs
    assert welch_t_test(ours, theirs, 0.05).seeds == per_side


def test_detectable_is_found_with_probability_08() -> None:
    """Checked by drawing: 4000 experiments whose true difference is the detectable one."""
    deviation, n = 0.3, 6
    pattern = np.array([1, -1, 1, -1, 1, -1]) * deviation * np.sqrt(5 / 6)
    assert np.std(pattern, ddof=1) == pytest.approx(deviation)
    detectable = paired_t_test(pattern.tolist(), [0.0] * n, 0.05).detectable
    draws = np.random.default_rng(0).normal(detectable, deviation, (4000, n))
    found = np.mean(stats.ttest_1samp(draws, 0, axis=1).pvalue < 0.05)
    assert found == pytest.approx(0.8, abs=0.02)
    assert power(0.0, 5, 0.05) == pytest.approx(0.025)


def test_without_scatter() -> None:
    """What rounds to no scatter at all is neither an error nor a warning."""
    same = paired_t_test([3.0, 3.5], [2.75, 3.25], 0.05)
    assert (same.p, same.low, same.high, same.detectable) == (0.0, 0.25, 0.25, 0.0)
    assert welch_t_test([3.0, 3.0], [2.0, 2.0], 0.05).p == 0.0
    assert paired_t_test([3.0, 3.5], [3.0, 3.5], 0.05).p == 1.0


def test_differences_beyond_any_number_of_seeds() -> None:
    assert paired_t_test([3.0, 3.0001, 2.9998], [3.1, 2.9, 3.0], 0.05).seeds is None


def curve(losses: list[float]) -> Curve:
    steps = 10.0 * np.arange(len(losses))
    return Curve(steps, 64 * steps, 6400 * steps, 0.5 * steps, np.array(losses))


def test_reaching_a_loss_by_hand() -> None:
    """Half way from 4 at step 10 to 3 at step 20; the rise after it changes nothing."""
    found = curve([6.0, 4.0, 3.0, 3.8, 2.0]).reach(3.5)
    assert found == {"steps": 15.0, "tokens": 960.0, "flops": 96000.0, "seconds": 7.5}


@pytest.mark.parametrize(
    ("losses", "loss", "steps"),
    [
        ([6.0, 4.0, 3.0], 3.0, 20.0),  # exactly at a point
        ([6.0, 4.0, 3.0], 2.999, None),  # never extrapolated
        ([2.0, 1.0], 2.5, 0.0),  # there before the first step
        ([6.0, 4.0, 4.0, 4.0], 4.0, 10.0),  # the first time
    ],
)
def test_reaching_a_loss_at_the_ends(losses: list[float], loss: float, steps: float | None) -> None:
    found = curve(losses).reach(loss)
    assert (None if found is None else found["steps"]) == steps


@pytest.mark.parametrize(("dof", "alpha"), [(1, 1e-3), (1, 1e-4), (1, 1e-9), (1.3, 1e-6), (2, 1e-8)])
def test_differences_that_a_strict_test_of_two_seeds_detects(dof: float, alpha: float) -> None:
    """SciPy's noncentral t takes minutes there. Here: the mean over the noise z of the difference."""
    shift, critical = detectable_shift(dof, alpha), stats.t.isf(alpha / 2, dof)
    z, width = np.linspace(-10, 10, 4001, retstep=True)
    found = stats.norm.pdf(z) @ stats.chi2.cdf(dof * ((shift + z) / critical) ** 2, dof) * width
    assert found == pytest.approx(POWER, abs=1e-6)
