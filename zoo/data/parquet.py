"""Parquet and Arrow tables of texts and conversations, read by pyarrow (the extra `data`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias

from zoo.data.compression import require_pyarrow
from zoo.utils.errors import DataError, did_you_mean
from zoo.utils.files import open_regular
from zoo.utils.untyped import JsonObject

PARQUET, ARROW = ".parquet", ".arrow"
TABLES = (PARQUET, ARROW)
"""Suffixes of files that `read_rows` reads."""
BATCH = 1024
"""Number of rows that are converted to Python objects at a time."""
ArrowObject: TypeAlias = Any
"""A schema or a record batch. Any: pyarrow has no types, and need not be installed."""
Batches = Callable[[list[str]], Iterator[ArrowObject]]
"""A function from names of columns to record batches with these columns."""
FEATURES = b"huggingface"
"""The key in the metadata of a table's schema under which `datasets` describes the columns."""


def read_rows(path: Path, columns: Sequence[str], *, blank: bool = False) -> Iterator[tuple[str, JsonObject]]:
    """Stream the rows of a file.

    Args:
        path: a Parquet file, or a stream of Arrow's record batches, as `datasets` saves them.
        columns: names of the columns to read; the table has at least one of them.
        blank: whether the table may be without rows.

    Yields:
        File and number of the row from 1, for messages; and the row, whose lists and structs are lists and
        dictionaries, and whose class labels of `datasets` are the names of the classes.

    Raises:
        DataError: The file cannot be read, does not have the format of its suffix, has none of the columns,
            has no row and has to have some, or has values that Python cannot represent.
    """
    if path.suffix not in TABLES:
        raise DataError(f"{path}: expected a table, whose name ends in {' or '.join(TABLES)}")
    pyarrow = require_pyarrow(path)
    number = 0
    with open_regular(path, DataError) as stream:
        try:
            schema, batches = _parquet(stream) if path.suffix == PARQUET else _arrow(stream)
            names, classes = schema.names, _class_names(schema)
            there = [column for column in columns if column in names]
            if not there:
                wanted = " or ".join(f"'{column}'" for column in columns)
                near = did_you_mean(columns[0], names)
                raise DataError(f"{path}: no column {wanted}{near}")
            for batch in batches(there):
                for row in batch.to_pylist():
                    number += 1
                    named = {name: _named(row[name], classes[name]) for name in classes if name in row}
                    yield f"{path}: row {number}", {**row, **named} if named else row
        except DataError:
            raise
        except (pyarrow.ArrowException, OSError, OverflowError, ValueError) as error:
            raise DataError(f"{path}: cannot be read as {path.suffix[1:].capitalize()}: {error}") from error
    if not number and not blank:
        raise DataError(f"{path}: the table has no rows; leave it out")


def _class_names(schema: ArrowObject) -> dict[str, Sequence[str]]:
    """The names of the classes by column, for columns that `datasets` has saved as class numbers."""
    try:
        features = json.loads((schema.metadata or {})[FEATURES])["info"]["features"]
        return {name: tuple(map(str, f["names"])) for name, f in features.items() if "names" in f}
    except (KeyError, TypeError, ValueError, AttributeError):  # written by another program or another version
        return {}


def _named(value: object, names: Sequence[str]) -> object:
    """The name of a class label; any other value unchanged."""
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else value


def _parquet(stream: IO[bytes]) -> tuple[ArrowObject, Batches]:
    """The schema of a Parquet file, and a function that reads its rows."""
    from pyarrow import parquet  # an optional package

    file = parquet.ParquetFile(stream)
    return file.schema_arrow, lambda columns: file.iter_batches(BATCH, columns=columns)


def _arrow(stream: IO[bytes]) -> tuple[ArrowObject, Batches]:
    """The schema of a stream of Arrow's record batches, and a function that reads its rows."""
    from pyarrow import ipc  # an optional package

    reader = ipc.open_stream(stream)
    return reader.schema, lambda columns: (batch.select(columns) for batch in reader)
