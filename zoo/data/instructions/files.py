"""Conversations in files: JSON and tables in the common layouts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from zoo.data.compression import content_suffix
from zoo.data.files import read_lines, read_text
from zoo.data.json_lines import parse_object, text_field
from zoo.data.parquet import TABLES, read_rows
from zoo.utils.errors import DataError, did_you_mean
from zoo.utils.files import parse_json
from zoo.utils.untyped import JsonObject

JSON = ".json"
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
        messages: the messages in their order, at least one.
    """

    place: str
    messages: tuple[Message, ...]


def read_conversations(path: Path, skipped: list[DataError] | None = None) -> list[Conversation]:
    """Read the conversations of a file in their order; blank lines are skipped.

    A line or row has one of the layouts in `LAYOUTS`; its other keys or columns are ignored.

    Args:
        path: a file of lines of JSON, or a list of objects if its name ends in .json, compressed or not; or
            a table.
        skipped: a list that receives the errors of lines or rows that are no conversations and that are left
            out; None: such an error is raised.

    Raises:
        DataError: The file cannot be read, or a line or row is not a conversation.
    """
    conversations = []
    for place, content in _items(path):
        try:
            row = parse_object(content, place) if isinstance(content, str) else content
            if not isinstance(row, dict):
                raise DataError(f"{place}: expected an object, found {_kind(row)}")
            # Rows of tables with several layouts, and lines made from them, have nulls under the other keys.
            given = {key: value for key, value in row.items() if value is not None}
            conversations.append(Conversation(place, _messages(given, place)))
        except DataError as error:
            if skipped is None:
                raise
            skipped.append(error)
    if not conversations:
        first = f"; the first error is: {skipped[0]}" if skipped else ""
        raise DataError(f"{path}: nothing here is a conversation{first}")
    return conversations


def _items(path: Path) -> Iterable[tuple[str, object]]:
    """The candidates for conversations, each with its place: lines of JSON, or objects."""
    if path.suffix in TABLES:
        return read_rows(path, COLUMNS)
    objects = _list(path) if content_suffix(path) == JSON else None
    return _lines(path) if objects is None else objects


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    return ((f"{path}:{number}", line) for number, line in read_lines(path))


def _list(path: Path) -> list[tuple[str, object]] | None:
    """The items of a .json file that is one list, like the published Alpaca; None if it has lines.

    Raises:
        DataError: The file is a single object over several lines, which are no JSON by themselves.
    """
    text = read_text(path)
    if not text.lstrip().startswith("["):
        if "\n" in text.strip() and _is_json(text):
            raise DataError(f"{path}: one object; expected a list of objects, or an object on each line")
        return None
    items = parse_json(text, path, DataError)
    return [(f"{path}: item {number}", item) for number, item in enumerate(items, 1)]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _question_and_answer(row: JsonObject, place: str, answer: str) -> tuple[Message, ...]:
    prompt, response = (text_field(row, key, place) for key in ("prompt", answer))
    return Message("user", prompt), Message("assistant", response)


def _alpaca(row: JsonObject, place: str) -> tuple[Message, ...]:
    instruction, output = (text_field(row, key, place) for key in ("instruction", "output"))
    given = text_field(row, "input", place, blank=True) if "input" in row else ""
    question = f"{instruction}\n\n{given}" if given.strip() else instruction
    return Message("user", question), Message("assistant", output)


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


class LineLayout(NamedTuple):
    """A layout of the lines of a JSONL file with conversations.

    Attributes:
        keys: the keys of a line of this layout.
        read: a function that turns a line and its place into messages.
    """

    keys: tuple[str, ...]
    read: Callable[[JsonObject, str], tuple[Message, ...]]


LAYOUTS = (
    LineLayout(("messages",), _openai),
    LineLayout(("conversations",), _sharegpt),
    LineLayout(("prompt", "response"), partial(_question_and_answer, answer="response")),
    LineLayout(("prompt", "completion"), partial(_question_and_answer, answer="completion")),
    LineLayout(("instruction", "output"), _alpaca),
)
"""The layouts of lines by their keys:

* ``{"messages": [{"role": ..., "content": ...}, ...]}``,
* ShareGPT's ``{"conversations": [{"from": "human" or "gpt" or "system", "value": ...}, ...]}``,
* ``{"prompt": ..., "response": ...}`` or ``"completion"``: a user's message and the assistant's,
* Alpaca's ``{"instruction": ..., "input": ..., "output": ...}``: the user's message is the instruction and,
  after a blank line, the input, which may be missing or blank.

Each of them may have a key ``system`` as well, the text of a system message in front.
"""

SYSTEM: Literal["system"] = "system"
COLUMNS = (*dict.fromkeys(key for layout in LAYOUTS for key in layout.keys), "input", SYSTEM)
"""The columns of a table that are read."""


def _messages(row: JsonObject, place: str) -> tuple[Message, ...]:
    """The messages of a row, with that of its key ``system`` in front."""
    messages = _layout(row, place).read(row, place)
    if not row.get(SYSTEM):
        return messages
    if messages[0].role == SYSTEM:
        raise DataError(f"{place}: has '{SYSTEM}' and a message of the system; expected one or the other")
    return (Message(SYSTEM, text_field(row, SYSTEM, place)), *messages)


def _layout(row: JsonObject, place: str) -> LineLayout:
    """The layout whose keys a row has completely, or else partly.

    Raises:
        DataError: The row has keys of no layout, or of several.
    """
    whole = [layout for layout in LAYOUTS if all(key in row for key in layout.keys)]
    layouts = whole or [layout for layout in LAYOUTS if any(key in row for key in layout.keys)]
    if not layouts:
        near = did_you_mean(next(iter(row), ""), COLUMNS)
        hint = near if "did you mean" in near or not row else f"; found {', '.join(row)}"
        raise DataError(
            f"{place}: expected the keys 'prompt' and 'response' or 'completion', 'messages', "
            f"'conversations', or 'instruction' and 'output'{hint}"
        )
    named = {next(k for k in reversed(each.keys) if k in row): each for each in reversed(layouts)}
    if len(named) > 1:
        keys = " and ".join(f"'{key}'" for key in reversed(named))
        raise DataError(f"{place}: has {keys}; expected one or the other")
    return layouts[0]


def _list_of_messages(
    row: JsonObject, place: str, key: str, role: str, content: str, speakers: Mapping[str, Speaker]
) -> tuple[Message, ...]:
    """The messages under a key, given a layout's names of their fields and speakers."""
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
