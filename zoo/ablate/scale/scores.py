"""The scores of questions in a table of runs: the columns `items` and `clusters`.

A table may name several outcomes, such as ``items:arc`` and ``items:piqa``. They count in the order of its
columns.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from zoo.ablate.scale.items import ItemScores
from zoo.ablate.scale.samples import SUFFIX, numbered, read_samples
from zoo.utils.errors import DataError

ITEMS = "items"
CLUSTERS = "clusters"


def outcome_columns(names: Iterable[str]) -> list[str]:
    """The columns with scores, in their order: ``items``, or ``items:NAME`` where there are several."""
    return [name for name in names if re.fullmatch(f"{ITEMS}(:.+)?", name)]


def cluster_column(outcome: str) -> str:
    """The column with the clusters of an outcome's questions."""
    return CLUSTERS + outcome.removeprefix(ITEMS)


def read_outcomes(
    place: str, row: Mapping[str, str], folder: Path, cluster: str | None
) -> dict[str, ItemScores | None]:
    """The scores of one run by outcome, in the order of the columns; None where a field is empty.

    Args:
        place: place of the row.
        row: text by column.
        folder: the folder that names of files are relative to.
        cluster: the field of the questions in files of samples that names their cluster.

    Raises:
        DataError: A score is no number, or above 1, a file of samples cannot be read, or clusters are not one
            per question.
    """
    return {name: _read(place, name, row, folder, cluster) for name in outcome_columns(row)}


def _read(
    place: str, name: str, row: Mapping[str, str], folder: Path, cluster: str | None
) -> ItemScores | None:
    text, clusters = (row.get(column, "").strip() for column in (name, cluster_column(name)))
    file, _, metric = text.partition("#")
    scores: ItemScores | None
    if file.endswith(SUFFIX):
        try:
            scores = read_samples(folder / file, metric or None, cluster)
        except DataError as error:
            raise DataError(f"{place}: {name}: {error}") from error
    else:
        scores = _scores(place, name, text)
    if scores is not None and max(scores.values) > 1:
        raise DataError(
            f"{place}: {name}: value {max(scores.values):g}: expected scores of at most 1, such as "
            "log-probabilities, or 0 and 1 for wrong and right"
        )
    return _clustered(place, cluster_column(name), clusters, scores)


def _scores(place: str, name: str, text: str) -> ItemScores | None:
    try:
        values = tuple(float(score) for score in text.split())
    except ValueError as error:
        raise DataError(
            f"{place}: {name}: {error}; expected numbers separated by blanks, or a file of samples ({SUFFIX})"
        ) from error
    if not all(map(math.isfinite, values)):
        raise DataError(f"{place}: {name}: not all scores are finite; expected a number per question")
    return ItemScores(values) if values else None


def _clustered(place: str, column: str, text: str, scores: ItemScores | None) -> ItemScores | None:
    """The scores with the clusters that a table names."""
    names = text.split()
    if not names:
        return scores
    if scores is None or len(names) != len(scores.values):
        found = 0 if scores is None else len(scores.values)
        raise DataError(
            f"{place}: {column}: {len(names)} names of clusters, and {found} scores of questions; expected "
            "the cluster of each question, separated by blanks"
        )
    if scores.questions:
        raise DataError(
            f"{place}: {column}: scores come from a file of samples; expected --item-cluster FIELD, the "
            "field of a question that names its cluster"
        )
    return replace(scores, clusters=numbered(names))


def check_outcomes(name: str, scores: Sequence[tuple[str, ItemScores]]) -> None:
    """Refuse scores of one outcome that are not those of the same questions in all runs.

    Args:
        name: the column of the outcome.
        scores: the place of each run with its scores.

    Raises:
        DataError: The numbers of scores, the questions or their clusters differ.
    """
    counts = {len(found.values): place for place, found in scores}
    if len(counts) > 1:
        places = ", ".join(f"{count} at {place}" for count, place in counts.items())
        raise DataError(
            f"{name}: different numbers of scores ({places}); expected the same items in each run"
        )
    asked = {found.questions: place for place, found in scores}
    if len(asked) > 1:
        raise DataError(
            f"{name}: other questions at {' than at '.join(asked.values())}; expected the same in each run"
        )
    grouped = {found.clusters: place for place, found in scores}
    if len(grouped) > 1:
        raise DataError(
            f"{cluster_column(name)}: other clusters of the questions at {' than at '.join(grouped.values())}"
            "; expected the same in each run"
        )
