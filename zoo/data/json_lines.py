"""JSON Lines: files with one JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from zoo.data.files import read_lines
from zoo.utils.errors import DataError, did_you_mean
from zoo.utils.untyped import Json, JsonObject


def read_json_lines(path: Path, *, blank: bool = False) -> Iterator[tuple[int, JsonObject]]:
    """Stream the objects of a file.

    Args:
        path: the file.
        blank: whether the whole file may be blank.

    Yields:
        Line number from 1, and the object. Blank lines are skipped.

    Raises:
        DataError: The file cannot be read, is blank and may not be, or a line is not a JSON object.
    """
    for number, line in read_lines(path, blank=blank):
        yield number, parse_object(line, f"{path}:{number}")


def parse_object(line: str, place: str) -> JsonObject:
    """Parse a line that holds one JSON object.

    Args:
        line: the line.
        place: file and number of the line, for messages.

    Raises:
        DataError: The line is not a JSON object.
    """
    try:
        value: Json = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{place}: not JSON: {error.msg} at column {error.colno}") from error
    except (ValueError, RecursionError) as error:  # too long numbers or too deep brackets
        raise DataError(f"{place}: JSON beyond Python's limits: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{place}: expected a JSON object, found {type(value).__name__}")
    return value


def text_field(value: JsonObject, field: str, place: str, *, blank: bool = False) -> str:
    """The text under a key of an object.

    Args:
        value: the object.
        field: the key.
        place: file and line of the object, for messages.
        blank: whether the text may be blank, or null, which counts as blank.

    Raises:
        DataError: The key is missing, or its value is not a string, is not valid Unicode, or is blank and may
            not be.
    """
    if field not in value:
        raise DataError(f"{place}: no field '{field}'{did_you_mean(field, value)}")
    text = value[field]
    if text is None and blank:
        return ""
    if not isinstance(text, str):
        raise DataError(f"{place}: field '{field}' must be a string, found {type(text).__name__}")
    if not text.strip() and not blank:
        raise DataError(f"{place}: field '{field}' is empty")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{place}: field '{field}' has half a surrogate pair (\\u{ord(text[error.start]):04x}) "
            f"at character {error.start}, which no UTF-8 text can hold"
        ) from error
    return text
