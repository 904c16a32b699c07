"""The scores of questions in a verdict across scale, as text and as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from zoo.ablate.scale.items import ItemDifference
from zoo.ablate.scale.verdict import ScaleVerdict
from zoo.ablate.statistics import LEVEL, format_level
from zoo.ablate.table import Column, Table


def difference_column(title: str) -> Column:
    """A column of differences with their intervals."""
    return Column(title, difference_text, parts=(title, f"{title}, low", f"{title}, high"))


def with_interval(items: ItemDifference) -> tuple[float, float, float]:
    """The difference of the scores with the ends of its interval."""
    half = items.half_width()
    return items.difference, items.difference - half, items.difference + half


def difference_text(value: tuple[float, float, float]) -> str:
    """A difference with its interval as text: +0.293 (+0.256 to +0.330)."""
    return f"{value[0]:+.3f} ({value[1]:+.3f} to {value[2]:+.3f})"


def items_table(verdicts: Mapping[str, ScaleVerdict], baseline: str) -> Table:
    """A table with one row per variant and outcome, and with the accuracy beside the scores."""
    several = any(len(verdict.measured.outcomes) > 1 for verdict in verdicts.values())
    columns = [
        Column("variant", align_right=False),
        Column("outcome", align_right=False),
        Column("judged", align_right=False),
        difference_column("difference"),
        Column("questions"),
        Column("clusters"),
        *(
            Column(f"accuracy, {who}", _spread_text, parts=(f"accuracy, {who}", f"accuracy, {who}, sd"))
            for who in ("baseline", "variant")
        ),
    ]
    note = (
        f"Scores at the largest size and the longest common budget, variant less {baseline}, with "
        f"{format_level(LEVEL)} intervals over new seeds and new questions (new clusters, where questions "
        "have clusters). Accuracy: the mean over seeds ± their standard deviation, where the scores are "
        "log-probabilities and the samples have it; it is shown, not judged."
    )
    if several:
        note += (
            " The first outcome that the table names is judged, in the chain of claims before seconds; "
            "others are description, and none takes the place of the first one."
        )
    return Table("items", "Items", columns, [row for v in verdicts.values() for row in _rows(v)], note)


def _rows(verdict: ScaleVerdict) -> Iterator[list[object]]:
    judged = verdict.measured.judged_outcome
    for outcome in verdict.measured.outcomes.values():
        if outcome is not None:
            accuracy = outcome.accuracy or (None, None)
            yield [
                verdict.name,
                outcome.name,
                "yes" if outcome is judged else "no: description",
                with_interval(outcome.difference),
                outcome.questions,
                outcome.clusters,
                *(side and (side.mean, side.sd) for side in accuracy),
            ]


def _spread_text(value: tuple[float, float]) -> str:
    return f"{value[0]:.3f} ± {value[1]:.3f}"
