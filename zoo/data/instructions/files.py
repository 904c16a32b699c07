"""Instructions in files: JSON Lines of prompts and responses, or of conversations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, cast, get_args

from zoo.data.files import JsonObject
from zoo.data.json_lines import read_json_lines, text_field
from zoo.utils.errors import DataError, did_you_mean

Speaker = Literal["system", "user", "assistant"]
SPEAKERS: tuple[str, ...] = get_args(Speaker)
PROMPT_KEYS, MESSAGES_KEY = ("prompt", "response"), "messages"


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


def read_conversations(path: Path) -> list[Conversation]:
    """Read the conversations of a .jsonl file in their order; blank lines are skipped.

    A line is ``{"prompt": ..., "response": ...}``, which is a user's message and the assistant's, or
    ``{"messages": [{"role": ..., "content": ...}, ...]}``. Other keys are ignored.

    Raises:
        DataError: the file cannot be read, or a line is not a conversation.
    """
    places = ((f"{path}:{number}", row) for number, row in read_json_lines(path))
    return [Conversation(place, _messages(row, place)) for place, row in places]


def _messages(row: JsonObject, place: str) -> tuple[Message, ...]:
    prompt_keys = [key for key in PROMPT_KEYS if key in row]
    if MESSAGES_KEY not in row:
        if not prompt_keys:
            near = did_you_mean(next(iter(row), ""), [*PROMPT_KEYS, MESSAGES_KEY])
            raise DataError(f"{place}: expected the keys 'prompt' and 'response', or '{MESSAGES_KEY}'{near}")
        prompt, response = (text_field(row, key, place) for key in PROMPT_KEYS)
        return Message("user", prompt), Message("assistant", response)
    if prompt_keys:
        raise DataError(
            f"{place}: has '{MESSAGES_KEY}' and '{prompt_keys[0]}' as well; expected one or the other"
        )
    items = row[MESSAGES_KEY]
    if not isinstance(items, list) or not items:
        raise DataError(f"{place}: field '{MESSAGES_KEY}' must be a list of messages, found {_kind(items)}")
    messages = tuple(_message(item, f"{place}: {MESSAGES_KEY}[{i}]") for i, item in enumerate(items))
    if messages[-1].role != "assistant":
        raise DataError(
            f"{place}: the last of the {MESSAGES_KEY} is the {messages[-1].role}'s; expected the assistant's"
        )
    return messages


def _message(item: object, place: str) -> Message:
    if not isinstance(item, dict):
        raise DataError(f"{place}: expected an object with role and content, found {_kind(item)}")
    role = text_field(item, "role", place)
    if role not in SPEAKERS:
        raise DataError(f"{place}: role '{role}'; expected {', '.join(SPEAKERS)}")
    return Message(cast(Speaker, role), text_field(item, "content", place))


def _kind(value: object) -> str:
    return "an empty list" if value == [] else type(value).__name__
