"""The paired t test of a sweep at one size that adds seeds until every word is decided.

Exact critical values account for the looks after 3, 4, ... pairs, see `zoo.ablate.scale.looks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

from zoo.ablate.scale.looks import FIRST_LOOK, Looks, adjusted_p
from zoo.ablate.statistics import Comparison, detectable_shift, paired_t_test


def compare_pairs(
    ours: Sequence[float], theirs: Sequence[float], most: int, alpha: float, share: float
) -> Comparison:
    """Compare pairs of runs by a t test at one of several declared looks.

    Args:
        ours: one value per seed, as many as a look needs (`Looks.too_early`).
        theirs: the values of the same seeds in the same order.
        most: the declared maximum of seeds.
        alpha: the probability of a false alarm over all looks.
        share: the part of `alpha` that `detectable` and `seeds` refer to.

    Returns:
        The comparison. Its p value can be compared with `alpha`, and the intervals of all looks hold
        together with 1 - alpha.
    """
    found = paired_t_test(ours, theirs, share)
    looks, pairs = Looks(max_seeds=most), found.n
    critical = looks.critical_value(pairs, alpha)

    def level(count: int) -> float:
        """The level of a single test that has the share of a look."""
        return looks.error_of_look(count, alpha) * share / alpha

    def suffices(count: int) -> bool:
        error = found.error * sqrt(pairs / count)
        return abs(found.difference) >= error * detectable_shift(count - 1, level(count))

    possible = [n for n in range(FIRST_LOOK, most + 1) if level(n) > 0]
    return replace(
        found,
        low=found.difference - critical * found.error,
        high=found.difference + critical * found.error,
        p=adjusted_p(found.p, critical, pairs - 1, alpha),
        detectable=found.error * detectable_shift(pairs - 1, level(pairs)),
        seeds=next((n for n in possible if suffices(n)), None) if found.difference else None,
        most_seeds=most,
    )
