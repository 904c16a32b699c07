"""Labelled texts in files: tab-separated values with a header, or JSON Lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.data.corpora.jsonl import json_object, text_field
from zoo.data.files import read_lines
from zoo.data.split import divide
from zoo.utils.errors import DataError, did_you_mean

TSV, JSONL = ".tsv", ".jsonl"


@dataclass(frozen=True)
class Columns:
    """What the parts of an example are called in a file.

    Attributes:
        text: of the text.
        pair: of the second text, where there are pairs.
        label: of the name of the class; None: labels are not read.
    """

    text: str
    pair: str | None
    label: str | None


@dataclass(frozen=True)
class Example:
    """A text, or a pair of texts.

    Attributes:
        place: file and line, for messages.
        text: without white space around it.
        pair: the second text, likewise.
        label: the name of its class, if it was read.
    """

    place: str
    text: str
    pair: str | None = None
    label: str | None = None


def read_examples(path: Path, columns: Columns) -> list[Example]:
    """Read a file.

    Args:
        path: a .tsv file, whose first line names the columns, without quoting; or a .jsonl file.
        columns: what to read.

    Returns:
        The examples in the order of the file; blank lines are none.

    Raises:
        DataError: another kind of file, one that cannot be read, has no example or lacks a column, or a
            text or label that is empty or of another type; with the line and the column.
    """
    if path.suffix not in (TSV, JSONL):
        raise DataError(f"{path}: expected a name that ends in {TSV} (with a header) or {JSONL}")
    rows = _tsv(path, columns) if path.suffix == TSV else _jsonl(path)
    examples = [_example(place, row, columns) for place, row in rows]
    if not examples:
        raise DataError(f"{path}: no example, only a header")
    return examples


def divided(examples: Sequence[Example], share: float) -> tuple[list[Example], list[Example]]:
    """Hold a share of the examples out, by the hash of their texts, so that equal texts stay together.

    Args:
        examples: of at least two different texts.
        share: the part to hold out, above 0 and below 1.

    Returns:
        The examples to train on, and those that are held out.

    Raises:
        DataError: all texts are equal.
    """
    keys = [f"{example.text}\t{example.pair or ''}" for example in examples]
    return divide(examples, keys, share)


def _tsv(path: Path, columns: Columns) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place and fields of every line behind the header."""
    names: Sequence[str] | None = None
    for number, line in read_lines(path):
        fields, place = line.split("\t"), f"{path}:{number}"
        if names is None:
            names = fields
            _check_header(names, columns, place)
        elif len(fields) != len(names):
            raise DataError(f"{place}: {len(fields)} columns, but the header has {len(names)}")
        else:
            yield place, dict(zip(names, fields, strict=True))


def _check_header(names: Sequence[str], columns: Columns, place: str) -> None:
    for column in (columns.text, columns.pair, columns.label):
        if column is not None and names.count(column) != 1:
            if column in names:
                raise DataError(f"{place}: there are {names.count(column)} columns called '{column}'")
            raise DataError(f"{place}: no column '{column}' in the header{did_you_mean(column, names)}")


def _jsonl(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place and object of every line."""
    for number, line in read_lines(path):
        place = f"{path}:{number}"
        yield place, json_object(line, place)


def _example(place: str, row: dict[str, Any], columns: Columns) -> Example:
    text, *pair = (text_field(row, c, place).strip() for c in (columns.text, columns.pair) if c is not None)
    label = None if columns.label is None else _label(place, row, columns.label)
    return Example(place, text, pair[0] if pair else None, label)


def _label(place: str, row: dict[str, Any], column: str) -> str:
    """The name of a class; one that is a whole number may be written as such in JSON."""
    value = row.get(column)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return text_field(row, column, place).strip()
