"""Parquet: tables of texts and conversations, read by pyarrow (the extra `data`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from zoo.data.compression import require_pyarrow
from zoo.data.files import JsonObject
from zoo.utils.errors import DataError, did_you_mean
from zoo.utils.files import open_regular

PARQUET = ".parquet"
BATCH = 1024
"""Rows that become Python objects at a time."""


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, JsonObject]]:
    """Stream the rows of a file.

    Args:
        path: a Parquet file.
        columns: names of the columns to read, of which one or more are in the table.

    Yields:
        File and number of the row from 1, for messages; and the row, whose lists and structs are lists and
        dictionaries.

    Raises:
        DataError: the file cannot be read, is not Parquet, has no row or none of the columns, or has
            values that Python cannot hold.
    """
    pyarrow = require_pyarrow(path)
    from pyarrow import parquet  # a package of an extra

    number = 0
    with open_regular(path, DataError) as stream:
        try:
            file = parquet.ParquetFile(stream)
            names = file.schema_arrow.names
            there = [column for column in columns if column in names]
            if not there:
                wanted = " or ".join(f"'{column}'" for column in columns)
                near = did_you_mean(columns[0], names)
                raise DataError(f"{path}: no column {wanted}{near}")
            for batch in file.iter_batches(BATCH, columns=there):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}: row {number}", row
        except DataError:
            raise
        except (pyarrow.ArrowException, OSError, OverflowError, ValueError) as error:
            raise DataError(f"{path}: cannot be read as Parquet: {error}") from error
    if not number:
        raise DataError(f"{path}: the table has no rows; leave it out")
