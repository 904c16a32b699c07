"""Conversations in files: JSON Lines and Parquet in the layouts that people use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from zoo.data.files import JsonObject, read_lines
from zoo.data.json_lines import parse_object, text_field
from zoo.data.parquet import TABLES, read_rows
from zoo.utils.errors import DataError, did_you_mean

Speaker = Literal["system", "user", "assistant"]


class Message(NamedTuple):
    """One message of a conversation."""

    role: Speaker
    content: str


@dataclass(frozen=True)
class Conversation:
    """A conversation, the last message of which is the assistant's.

    Attributes:
        place: file and line, for error messages.
        messages: at least one, in their order.
    """

    place: str
    messages: tuple[Message, ...]


def read_conversations(path: Path, skipped: list[DataError] | None = None) -> list[Conversation]:
    """Read the conversations of a .jsonl or .parquet file in their order; blank lines are skipped.

    A line or row has one of the layouts in `LAYOUTS`; its other keys or columns are ignored.

    Args:
        path: the file.
        skipped: receives the errors of lines or rows that are not conversations, which are left out; None:
            such a line is an error.

    Raises:
        DataError: the file cannot be read, or a line or row is not a conversation.
    """
    conversations = []
    for place, content in _rows(path) if path.suffix in TABLES else _lines(path):
        try:
            row = parse_object(content, place) if isinstance(content, str) else content
            conversations.append(Conversation(place, _messages(row, place)))
        except DataError as error:
            if skipped is None:
                raise
            skipped.append(error)
    if not conversations:
        raise DataError(
            f"{path}: nothing here is a conversation; the first error is: {skipped and skipped[0]}"
        )
    return conversations


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    return ((f"{path}:{number}", line) for number, line in read_lines(path))


def _rows(path: Path) -> Iterator[tuple[str, JsonObject]]:
    """The rows without the columns that are null in them: tables with several layouts have nulls."""
    return (
        (place, {column: value for column, value in row.items() if value is not None})
        for place, row in read_rows(path, COLUMNS)
    )


def _prompt_and_response(row: JsonObject, place: str) -> tuple[Message, ...]:
    prompt, response = (text_field(row, key, place) for key in ("prompt", "response"))
    return Message("user", prompt), Message("assistant", response)


def _alpaca(row: JsonObject, place: str) -> tuple[Message, ...]:
    instruction, output = (text_field(row, key, place) for key in ("instruction", "output"))
    given = text_field(row, "input", place) if row.get("input") else None
    return Message("user", f"{instruction}\n\n{given}" if given else instruction), Message(
        "assistant", output
    )


def _openai(row: JsonObject, place: str) -> tuple[Message, ...]:
    speakers = {speaker: speaker for speaker in get_args(Speaker)}
    return _list_of_messages(row, place, "messages", "role", "content", speakers)


def _sharegpt(row: JsonObject, place: str) -> tuple[Message, ...]:
    return _list_of_messages(row, place, "conversations", "from", "value", SHAREGPT_SPEAKERS)


SHAREGPT_SPEAKERS: dict[str, Speaker] = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
}
LAYOUTS: dict[str, Callable[[JsonObject, str], tuple[Message, ...]]] = {
    "messages": _openai,
    "conversations": _sharegpt,
    "prompt": _prompt_and_response,
    "response": _prompt_and_response,
    "instruction": _alpaca,
}
"""How a line is read, by the key that tells its layout:

* ``{"messages": [{"role": ..., "content": ...}, ...]}``,
* ShareGPT's ``{"conversations": [{"from": "human" or "gpt" or "system", "value": ...}, ...]}``,
* ``{"prompt": ..., "response": ...}``: a user's message and the assistant's,
* Alpaca's ``{"instruction": ..., "input": ..., "output": ...}``: the user's message is the instruction and,
  after a blank line, the input, which may be missing or empty.
"""

COLUMNS = (*LAYOUTS, "input", "output")
"""The columns of a table that are read."""


def _messages(row: JsonObject, place: str) -> tuple[Message, ...]:
    layouts = {LAYOUTS[key]: key for key in LAYOUTS if key in row}
    if not layouts:
        near = did_you_mean(next(iter(row), ""), LAYOUTS)
        raise DataError(
            f"{place}: expected the keys 'prompt' and 'response', 'messages', 'conversations', or "
            f"'instruction' and 'output'{near}"
        )
    if len(layouts) > 1:
        keys = " and ".join(f"'{key}'" for key in layouts.values())
        raise DataError(f"{place}: has {keys}; expected one or the other")
    [read] = layouts
    return read(row, place)


def _list_of_messages(
    row: JsonObject, place: str, key: str, role: str, content: str, speakers: Mapping[str, Speaker]
) -> tuple[Message, ...]:
    """The messages under a key, with the names that a layout gives to their fields and speakers."""
    items = row[key]
    if not isinstance(items, list) or not items:
        raise DataError(f"{place}: field '{key}' must be a list of messages, found {_kind(items)}")
    messages = []
    for i, item in enumerate(items):
        at = f"{place}: {key}[{i}]"
        if not isinstance(item, dict):
            raise DataError(f"{at}: expected an object with {role} and {content}, found {_kind(item)}")
        name = text_field(item, role, at)
        if name not in speakers:
            raise DataError(f"{at}: {role} '{name}'; expected {', '.join(speakers)}")
        messages.append(Message(speakers[name], text_field(item, content, at)))
    if messages[-1].role != "assistant":
        raise DataError(
            f"{place}: the last of the {key} is the {messages[-1].role}'s; expected the assistant's"
        )
    return tuple(messages)


def _kind(value: object) -> str:
    return "an empty list" if value == [] else type(value).__name__
