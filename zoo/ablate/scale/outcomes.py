"""What two sides are compared by beside tokens, at the longest budget that both have: scores of questions."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

from zoo.ablate.scale.items import Accuracy, ItemDifference, ItemScores, compare_items
from zoo.ablate.scale.runs import FinishedRun

SAME_BUDGET = 0.01
"""Relative difference below which budgets of two sides count as equal."""


@dataclass(frozen=True)
class ItemOutcome:
    """The scores of both sides on the same questions.

    Attributes:
        name: the column of the table.
        difference: variant less baseline.
        questions: number of questions.
        clusters: number of clusters of the questions; None: they are taken as independent.
        accuracy: the accuracies of the baseline and of the variant, where the scores are log-probabilities
            and all runs have it; it is shown, not judged.
    """

    name: str
    difference: ItemDifference
    questions: int
    clusters: int | None = None
    accuracy: tuple[Accuracy, Accuracy] | None = None

    @property
    def title(self) -> str:
        """The name in sentences: Items, or Items (arc) of the column items:arc."""
        _, _, name = self.name.partition(":")
        return f"Items ({name})" if name else "Items"


def compare_outcome(
    name: str, baseline: Sequence[FinishedRun], variant: Sequence[FinishedRun]
) -> ItemOutcome | None:
    """Compare the scores of questions at the longest common budget.

    Args:
        name: the name of the outcome.
        baseline: the runs of the baseline at one size.
        variant: the runs of the variant at that size.

    Returns:
        The outcome; None with one seed, one question or one cluster, or if the sides have no common budget.
    """
    sides = (baseline, variant)
    tokens = common_budget(*({run.tokens for run in side if run.outcomes.get(name)} for side in sides))
    if tokens is None:
        return None
    ours, theirs = (_scores(name, side, budget) for side, budget in zip(sides, tokens, strict=True))
    questions, clusters = len(ours[0].values), len(set(ours[0].clusters))
    if min(len(ours), len(theirs)) < 2 or (clusters or questions) < 2:
        return None
    values = [np.array([scores.values for scores in side]) for side in (ours, theirs)]
    difference = compare_items(values[0], values[1], ours[0].clusters)
    own, other = _accuracy(ours), _accuracy(theirs)
    accuracy = None if own is None or other is None else (own, other)
    return ItemOutcome(name, difference, questions, clusters or None, accuracy)


def _accuracy(side: Sequence[ItemScores]) -> Accuracy | None:
    """The accuracy over the seeds of one side; None if not all runs have it."""
    known = [scores.accuracy for scores in side if scores.accuracy is not None]
    return Accuracy(fmean(known), stdev(known)) if len(known) == len(side) else None


def common_budget(ours: AbstractSet[float], theirs: AbstractSet[float]) -> tuple[float, float] | None:
    """The longest budget that both sides have, equal to a hundredth, as the number of each side."""
    pairs = [(a, b) for a in ours for b in theirs if abs(b / a - 1) < SAME_BUDGET]
    return max(pairs, default=None)


def _scores(name: str, runs: Sequence[FinishedRun], tokens: float) -> list[ItemScores]:
    found = [run.outcomes.get(name) for run in runs if run.tokens == tokens]
    return [scores for scores in found if scores is not None]
