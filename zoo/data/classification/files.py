"""Labelled texts in files: tab-separated values, with a header or without, JSON Lines or Parquet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from zoo.data.compression import content_suffix
from zoo.data.files import read_lines
from zoo.data.json_lines import read_json_lines, text_field
from zoo.data.parquet import TABLES, read_rows
from zoo.utils.errors import DataError, did_you_mean
from zoo.utils.untyped import JsonObject

TSV, JSONL = ".tsv", ".jsonl"


@dataclass(frozen=True)
class Columns:
    """The columns of a .tsv or .parquet file, or keys of JSON objects, that are read.

    Attributes:
        text: name of the column of the text.
        pair: name of the column of the second text; None: the examples are single texts.
        label: name of the column of the label; None: labels are not read.
        header: names of all columns of .tsv files without a header; None: the files have headers.
    """

    text: str
    pair: str | None
    label: str | None
    header: tuple[str, ...] | None = None

    @property
    def read(self) -> list[str]:
        """The names of the columns that are read, the text first."""
        return [column for column in (self.text, self.pair, self.label) if column is not None]


@dataclass(frozen=True)
class Example:
    """A text, or a pair of texts.

    Attributes:
        place: file and line, for messages.
        text: the text, without surrounding white space.
        pair: the second text, likewise, or None.
        label: name of the class, or None if labels were not read.
    """

    place: str
    text: str
    pair: str | None = None
    label: str | None = None


def read_examples(path: Path, columns: Columns) -> list[Example]:
    """Read the examples of a file in their order; blank lines are skipped.

    Args:
        path: a .tsv file without quoting, whose first line names the columns unless `columns` does; or a
            .jsonl file; or either of them compressed (.gz, .xz, .zst); or a .parquet file.
        columns: the columns to read.

    Raises:
        DataError: The suffix is none of these, the file cannot be read, has no example or lacks a column, or
            a text or label is empty or has another type.
    """
    kind = content_suffix(path)
    if kind not in (TSV, JSONL, *TABLES):
        raise DataError(f"{path}: expected a name that ends in {TSV}, {JSONL} or {' or '.join(TABLES)}")
    if kind in TABLES:
        examples = [_example(place, row, columns) for place, row in read_rows(path, columns.read)]
    else:
        lines = _read_tsv(path, columns) if kind == TSV else read_json_lines(path)
        examples = [_example(f"{path}:{number}", row, columns) for number, row in lines]
    if not examples:
        raise DataError(f"{path}: no example, only a header")
    return examples


def _read_tsv(path: Path, columns: Columns) -> Iterator[tuple[int, JsonObject]]:
    """Line number and fields of every line but the header."""
    header: Sequence[str] | None = columns.header
    for number, line in read_lines(path):
        fields, place = line.split("\t"), f"{path}:{number}"
        if header is None:
            header = fields
            _check_header(header, columns, place)
        elif len(fields) != len(header):
            named = f"the header has {len(header)}"
            if columns.header is not None:
                named = f"data.columns names {len(header)}: {', '.join(header)}"
            raise DataError(f"{place}: {len(fields)} columns, but {named}")
        elif columns.header is not None and fields == list(header):
            raise DataError(f"{place}: names the columns, as data.columns does; leave data.columns out")
        else:
            yield number, dict(zip(header, fields, strict=True))


def _check_header(header: Sequence[str], columns: Columns, place: str) -> None:
    for column in columns.read:
        if header.count(column) != 1:
            if column in header:
                raise DataError(f"{place}: there are {header.count(column)} columns called '{column}'")
            raise DataError(
                f"{place}: no column '{column}' in the header{did_you_mean(column, header)}; for a file "
                "without a header set data.columns"
            )


def _example(place: str, row: JsonObject, columns: Columns) -> Example:
    text, *pair = (text_field(row, c, place).strip() for c in (columns.text, columns.pair) if c is not None)
    label = None if columns.label is None else _label(place, row, columns.label)
    return Example(place, text, pair[0] if pair else None, label)


def _label(place: str, row: JsonObject, column: str) -> str:
    """The name of a class; in JSON a label may also be an integer."""
    value = row.get(column)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return text_field(row, column, place).strip()
