"""The differences of the largest runs on a second text, of which the training text has nothing.

A method that gains on the held-out part of the training text may have learned what only that text has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from benchmarks.scale.questions import SECOND, Question
from benchmarks.scale.scores import all_scores, scored_lines
from zoo.ablate.progress import LadderProgress
from zoo.ablate.scale.runs import format_count
from zoo.ablate.statistics import Comparison, welch_t_test
from zoo.ablate.table import Column, Table

ALPHA = 0.05
Losses = Mapping[tuple[float, str], Sequence[tuple[float, float]]]
"""The losses of the runs by size and variant: of the validation set, and of the second text."""


@dataclass(frozen=True)
class Beside:
    """A variant's differences from the baseline at a size, in nats per token.

    Attributes:
        size: number of parameters.
        variant: name of the variant.
        runs: number of runs of both sides.
        here: the difference on the validation set.
        there: the difference on the second text.
    """

    size: float
    variant: str
    runs: int
    here: Comparison
    there: Comparison

    @property
    def turned(self) -> bool:
        """Whether both intervals exclude 0, on different sides of it."""
        return _sign(self.here) * _sign(self.there) < 0


def second_text(question: Question, state: LadderProgress) -> list[Beside]:
    """What is known of the second text: sizes at which both sides have two scored runs or more."""
    losses, baseline = _losses(question, state), state.sweep.baseline
    found = []
    for size, variant in losses:
        ours, theirs = losses[size, variant], losses.get((size, baseline), ())
        if variant == baseline or min(len(ours), len(theirs)) < 2:
            continue
        here, there = (
            welch_t_test([run[text] for run in ours], [run[text] for run in theirs], ALPHA) for text in (0, 1)
        )
        found.append(Beside(size, variant, len(ours) + len(theirs), here, there))
    return found


def second_text_table(found: Sequence[Beside]) -> Table:
    """The differences as a table."""
    columns = [
        Column("variant", align_right=False),
        Column("size", format_count),
        Column("runs"),
        Column("on the validation set", _interval),
        Column("on the second text", _interval),
        Column("turns around", lambda turned: "yes" if turned else "no"),
    ]
    rows = [[row.variant, row.size, row.runs, row.here, row.there, row.turned] for row in found]
    note = (
        "Difference from the baseline in nats per token, of the runs of the longest budget at the two "
        "largest sizes, with Welch's 95 % interval over seeds; negative: the variant is better. The second "
        "text is Botchan, a novel, of which the training text has nothing. A difference turns around if both "
        "intervals exclude 0 and have different signs. These are descriptions: the words are about the "
        "validation set."
    )
    return Table("second-text", "On a second text", columns, rows, note)


def _losses(question: Question, state: LadderProgress) -> Losses:
    scores = all_scores(question, state.sweep)
    found: dict[tuple[float, str], list[tuple[float, float]]] = defaultdict(list)
    for line in scored_lines(state.sweep, state.lines):
        if (score := scores.get(line.name)) is not None:
            found[line.run.size, line.run.variant].append((line.run.loss, score[SECOND]))
    sizes = sorted({size for size, _ in found})
    variants = dict.fromkeys(variant for _, variant in found)
    return {key: found[key] for key in product(sizes, variants) if key in found}


def _sign(difference: Comparison) -> int:
    return (difference.low > 0) - (difference.high < 0)


def _interval(difference: Comparison) -> str:
    return f"{difference.difference:+.4f} ({difference.low:+.4f} to {difference.high:+.4f})"
