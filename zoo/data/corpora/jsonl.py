"""Corpus `jsonl`: one JSON object per line, the text in one of its fields."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from zoo.config.registry import CORPORA
from zoo.data.corpora.base import Document, FileCorpus, Strings
from zoo.data.files import read_lines
from zoo.utils.errors import DataError, did_you_mean


@CORPORA.register
class JsonlCorpus(FileCorpus):
    """JSON Lines files, directories and globs; every object is a document."""

    type: Literal["jsonl"] = "jsonl"
    suffixes: Strings = Field(default=[".jsonl"], description="what the files taken from a directory end in")
    field: str = Field(default="text", description="the key of the text in each object")

    def documents(self) -> Iterator[Document]:
        """Yield one document per line that is not blank."""
        for source in self.sources():
            for number, line in read_lines(source.path):
                place = f"{source.path}:{number}"
                text = text_field(json_object(line, place), self.field, place)
                yield Document(f"{source.name}:{number}", text)


def json_object(line: str, place: str) -> dict[str, Any]:
    """Read a line.

    Args:
        line: of a JSON Lines file.
        place: where it is, for messages.

    Raises:
        DataError: it is no JSON object.
    """
    try:
        value: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{place}: not JSON: {error.msg} at column {error.colno}") from error
    except (ValueError, RecursionError) as error:  # numbers too long, brackets too deep for Python
        raise DataError(f"{place}: JSON beyond Python's limits: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{place}: expected a JSON object, found {type(value).__name__}")
    return value


def text_field(value: dict[str, Any], field: str, place: str) -> str:
    """A text in an object.

    Args:
        value: the object.
        field: the key of the text.
        place: where the object is, for messages.

    Raises:
        DataError: no such key, or no text that can be used.
    """
    if field not in value:
        raise DataError(f"{place}: no field '{field}'{did_you_mean(field, value)}")
    text = value[field]
    if not isinstance(text, str):
        raise DataError(f"{place}: field '{field}' must be a string, found {type(text).__name__}")
    if not text.strip():
        raise DataError(f"{place}: field '{field}' is empty")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{place}: field '{field}' has half a surrogate pair (\\u{ord(text[error.start]):04x}) "
            f"at character {error.start}, which no UTF-8 text can hold"
        ) from error
    return text
