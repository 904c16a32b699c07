"""Instructions in files: JSON Lines of prompts and responses, or of conversations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from zoo.data.corpora.jsonl import json_object, text_field
from zoo.data.files import read_lines
from zoo.utils.errors import DataError, did_you_mean

Role = Literal["system", "user", "assistant"]
ROLES: tuple[str, ...] = get_args(Role)
SINGLE, MANY = ("prompt", "response"), "messages"


class Message(NamedTuple):
    """What somebody said."""

    role: Role
    content: str


@dataclass(frozen=True)
class Conversation:
    """What was said; the assistant has the last word.

    Attributes:
        place: file and line, for messages.
        messages: at least one, one after the other.
    """

    place: str
    messages: tuple[Message, ...]


def read_conversations(path: Path) -> list[Conversation]:
    """Read a file.

    A line is ``{"prompt": ..., "response": ...}``, which is a user's message and the assistant's, or
    ``{"messages": [{"role": ..., "content": ...}, ...]}``. Other keys do not matter.

    Args:
        path: a .jsonl file.

    Returns:
        The conversations in the order of the file; blank lines are none.

    Raises:
        DataError: a file that cannot be read, or a line that is no conversation; with line and key.
    """
    found = []
    for number, line in read_lines(path):
        place = f"{path}:{number}"
        found.append(Conversation(place, _messages(json_object(line, place), place)))
    return found


def _messages(row: dict[str, Any], place: str) -> tuple[Message, ...]:
    single = [key for key in SINGLE if key in row]
    if MANY not in row:
        if not single:
            near = did_you_mean(next(iter(row), ""), [*SINGLE, MANY])
            raise DataError(f"{place}: expected the keys 'prompt' and 'response', or '{MANY}'{near}")
        prompt, response = (text_field(row, key, place) for key in SINGLE)
        return Message("user", prompt), Message("assistant", response)
    if single:
        raise DataError(f"{place}: has '{MANY}' and '{single[0]}' as well; expected one or the other")
    listed = row[MANY]
    if not isinstance(listed, list) or not listed:
        raise DataError(f"{place}: field '{MANY}' must be a list of messages, found {_told(listed)}")
    messages = tuple(_message(item, f"{place}: {MANY}[{i}]") for i, item in enumerate(listed))
    if messages[-1].role != "assistant":
        raise DataError(
            f"{place}: the last of the {MANY} is the {messages[-1].role}'s; expected the assistant's"
        )
    return messages


def _message(item: Any, place: str) -> Message:
    if not isinstance(item, dict):
        raise DataError(f"{place}: expected an object with role and content, found {_told(item)}")
    role = text_field(item, "role", place)
    if role not in ROLES:
        raise DataError(f"{place}: role '{role}'; expected {', '.join(ROLES)}")
    return Message(role, text_field(item, "content", place))  # type: ignore[arg-type]


def _told(value: Any) -> str:
    return "an empty list" if value == [] else type(value).__name__
