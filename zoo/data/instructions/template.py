"""Templates: how a conversation becomes one text, and which of its tokens a model learns to write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from pydantic import Field

from zoo.config.registry import TEMPLATES, Config
from zoo.data.instructions.files import Message, Role
from zoo.data.tokenizers.base import Tokenizer


class Laid(NamedTuple):
    """A conversation as tokens.

    Attributes:
        tokens: what opens a text, then the messages with what stands around them.
        learned: which of them the model learns to write: what the assistant says, and its ends.
    """

    tokens: list[int]
    learned: list[bool]


class Template(Config):
    """What stands before and behind a message.

    Messages and what stands around them are turned into tokens apart, so that no token spans a border and
    a prompt alone has the tokens that it has in training. What opens a text (`Tokenizer.start_id`) comes
    first; an answer ends as a document does.
    """

    def opens(self, role: Role) -> str:
        """The text before a message."""
        raise NotImplementedError

    def closes(self, role: Role) -> str:
        """The text behind a message: of the assistant's, behind the end of the answer."""
        raise NotImplementedError

    def lay(self, messages: Sequence[Message], tokenizer: Tokenizer) -> Laid:
        """Turn a conversation into tokens."""
        laid = Laid([tokenizer.start_id], [False])

        def add(ids: list[int], learned: bool = False) -> None:
            laid.tokens.extend(ids)
            laid.learned.extend([learned] * len(ids))

        for i, (role, content) in enumerate(messages, 1):
            answer = role == "assistant"
            add(_markers(self.opens(role), tokenizer))
            add(tokenizer.encode(content), answer)
            if answer:
                add([tokenizer.eos_id], learned=True)
            if not answer or i < len(messages):
                add(_markers(self.closes(role), tokenizer))
        return laid

    def ask(self, prompt: str, tokenizer: Tokenizer) -> list[int]:
        """The tokens of a user's message, up to where the answer begins."""
        asked = self.lay([Message("user", prompt)], tokenizer).tokens
        return asked + _markers(self.opens("assistant"), tokenizer)


def _markers(text: str, tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode_markers(text) if text else []


@TEMPLATES.register
class PlainTemplate(Template):
    """The prompt, a separator, the response."""

    type: Literal["plain"] = "plain"
    separator: str = Field("\n", description="stands behind every message that is not the assistant's")

    def opens(self, role: Role) -> str:
        """Nothing."""
        return ""

    def closes(self, role: Role) -> str:
        """The separator; an answer has its end."""
        return "" if role == "assistant" else self.separator


@TEMPLATES.register
class ChatTemplate(Template):
    """A marker before every message; special tokens of the tokenizer count as such in markers."""

    type: Literal["chat"] = "chat"
    system: str = Field("<|system|>\n", description="before a message of the system")
    user: str = Field("<|user|>\n", description="before a message of the user")
    assistant: str = Field("<|assistant|>\n", description="before an answer")
    end: str = Field("\n", description="behind a message of the system or the user")
    answered: str = Field("\n", description="behind the end of an answer, if the conversation goes on")

    def opens(self, role: Role) -> str:
        """The marker of the role."""
        marker: str = getattr(self, role)
        return marker

    def closes(self, role: Role) -> str:
        """What ends a message."""
        return self.answered if role == "assistant" else self.end
