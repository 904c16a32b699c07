"""The paired t test of a sweep at one size that adds seeds until every word is decided.

Exact critical values account for the looks after 3, 4, ... pairs, see `zoo.ablate.scale.looks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

from zoo.ablate.scale.looks import FIRST_LOOK, Looks, adjusted_p
from zoo.ablate.statistics import Comparison, detectable_difference, paired_t_test


def compare_pairs(
    ours: Sequence[float], theirs: Sequence[float], most: int, alpha: float, share: float, least: float = 0.0
) -> Comparison:
    """Compare pairs of runs by a t test at one of several declared looks.

    Args:
        ours: one value per seed, as many as a look needs (`Looks.too_early`).
        theirs: the values of the same seeds in the same order.
        most: the declared maximum of seeds.
        alpha: the probability of a false alarm over all looks.
        share: the part of `alpha` that `detectable` and `seeds` refer to.
        least: the difference that a claim must exceed whatever the test says.

    Returns:
        The comparison. Its p value can be compared with `alpha`, and the intervals of all looks hold
        together with 1 - alpha.
    """
    found = paired_t_test(ours, theirs, share, least)
    looks, pairs = Looks(max_seeds=most), found.n
    critical = looks.critical_value(pairs, alpha)

    def level(count: int) -> float:
        """The level of a single test that has the share of a look."""
        return looks.error_of_look(count, alpha) * share / alpha

    def suffices(count: int) -> bool:
        return found.shows(found.difference, found.error * sqrt(pairs / count), count - 1, level(count))

    might_show = found.difference and not found.is_within_least
    possible = [n for n in range(FIRST_LOOK, most + 1) if level(n) > 0]
    return replace(
        found,
        low=found.difference - critical * found.error,
        high=found.difference + critical * found.error,
        p=adjusted_p(found.p, critical, pairs - 1, alpha),
        detectable=detectable_difference(found.error, pairs - 1, level(pairs), least),
        seeds=next(filter(suffices, possible), None) if might_show else None,
        most_seeds=most,
    )
