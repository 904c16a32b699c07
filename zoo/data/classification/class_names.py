"""The names of classes: their order, and the file that keeps them with a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from zoo.data.files import read_object
from zoo.utils.atomic import write_file
from zoo.utils.errors import DataError

LABELS_FILE = "labels.json"
"""Its name in the folder of a run and of a checkpoint."""


def in_order(labels: Iterable[str]) -> tuple[str, ...]:
    """All different labels: in the order of numbers if all are numbers, otherwise of the alphabet."""
    names = set(labels)
    numbers = all(name.isdecimal() for name in names)
    return tuple(sorted(names, key=(lambda name: (int(name), name)) if numbers else None))


def write_labels(run: Path, names: Sequence[str]) -> None:
    """Keep the names of classes, in the order of their numbers, in a run's folder."""
    text = json.dumps({"labels": list(names)}, ensure_ascii=False) + "\n"
    write_file(run / LABELS_FILE, lambda partial: partial.write_text(text, encoding="utf-8"))


def read_labels(folder: Path) -> list[str]:
    """The names of classes in the folder of a run or a checkpoint, in the order of their numbers.

    Raises:
        DataError: there are none.
    """
    path = folder / LABELS_FILE
    labels = read_object(path).get("labels") if path.is_file() else None
    if not isinstance(labels, list):
        raise DataError(f"{path}: expected the names of classes in the folder of a run that learned them")
    return [str(label) for label in labels]
