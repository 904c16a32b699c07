"""The names of classes: their order, and the file in which a run saves them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from zoo.data.files import read_object
from zoo.utils.atomic import write_text
from zoo.utils.errors import DataError
from zoo.utils.run_folder import ModelFolder


def sorted_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """The distinct labels in the order of class indices: sorted as numbers if possible, else as text."""
    names = set(labels)
    numbers = all(name.isdecimal() for name in names)
    return tuple(sorted(names, key=(lambda name: (int(name), name)) if numbers else None))


def write_labels(run: Path, names: Sequence[str]) -> None:
    """Write the names of the classes, in the order of their indices, into a run's folder."""
    text = json.dumps({"labels": list(names)}, ensure_ascii=False) + "\n"
    write_text(ModelFolder(run).labels, text)


def read_labels(folder: Path) -> list[str]:
    """Read the names of the classes, in the order of their indices, from a run's or checkpoint's folder.

    Raises:
        DataError: The folder has no such file, or the file has no list of labels.
    """
    path = ModelFolder(folder).labels
    labels = read_object(path).get("labels") if path.is_file() else None
    if not isinstance(labels, list):
        raise DataError(f"{path}: expected the names of classes in the folder of a run that learned them")
    return [str(label) for label in labels]
