"""Templates, which turn a conversation into tokens and a mask of the tokens with a loss."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal, NamedTuple

from pydantic import Field

from zoo.config.registry import TEMPLATES, Config, location, require_instance
from zoo.data.instructions.files import Message, Speaker
from zoo.data.tokenizers.base import Tokenizer
from zoo.utils.errors import ConfigError


class EncodedConversation(NamedTuple):
    """A conversation as tokens.

    Attributes:
        tokens: the start token, then the messages with the template's markers.
        loss_mask: whether the model is trained to predict each token: True for the assistant's messages and
            the end-of-document token after each of them.
    """

    tokens: list[int]
    loss_mask: list[bool]

    @property
    def input_length(self) -> int:
        """Number of tokens that the model reads; the last token is only a target."""
        return len(self.tokens) - 1


class Template(Config):
    """The base class of templates, which turn conversations into tokens."""

    def encode_checked(self, messages: Sequence[Message], tokenizer: Tokenizer) -> EncodedConversation:
        """What `encode` returns, which a plugin may have written, after a check of it.

        Raises:
            ConfigError: It is no `EncodedConversation`, or one whose mask has another length than its tokens.
            DataError: `encode` refuses the conversation.
        """
        made = require_instance(type(self), "encode", self.encode(messages, tokenizer), EncodedConversation)
        if len(made.tokens) != len(made.loss_mask):
            raise ConfigError(
                f"{location(type(self))}: encode returned {len(made.tokens)} tokens and a loss mask of "
                f"{len(made.loss_mask)}; expected one length"
            )
        return made

    @abstractmethod
    def encode(self, messages: Sequence[Message], tokenizer: Tokenizer) -> EncodedConversation:
        """Turn a conversation whose last message is the assistant's into tokens.

        Raises:
            DataError: The template cannot express the conversation, or the assistant's tokens cannot be
                identified.
        """

    @abstractmethod
    def encode_prompt(self, messages: Sequence[Message], tokenizer: Tokenizer) -> list[int]:
        """The tokens of a conversation whose last message is a user's, up to the first token of the answer.

        Raises:
            DataError: The template cannot express the conversation.
        """

    def identity(self, tokenizer: Tokenizer) -> object:
        """A JSON value of everything besides the tokenizer's `hash` that determines the tokens."""
        return self.model_dump(mode="json")

    def end_id(self, tokenizer: Tokenizer) -> int:
        """The id that ends an answer: the tokenizer's end-of-document id."""
        return tokenizer.eos_id


class MarkerTemplate(Template):
    """A template that puts a text before and after each message.

    Messages and markers are tokenised separately, so no token spans the border between them and a prompt on
    its own has the same tokens as in training. A conversation begins with `Tokenizer.start_id`; an answer
    ends with `Tokenizer.eos_id`.
    """

    @abstractmethod
    def before(self, role: Speaker) -> str:
        """The text before a message."""

    @abstractmethod
    def after(self, role: Speaker) -> str:
        """The text after a message; after the assistant's it follows the end-of-document token."""

    def encode(self, messages: Sequence[Message], tokenizer: Tokenizer) -> EncodedConversation:
        """Turn a conversation into tokens."""
        encoded = EncodedConversation([tokenizer.start_id], [False])

        def add(ids: list[int], learned: bool = False) -> None:
            encoded.tokens.extend(ids)
            encoded.loss_mask.extend([learned] * len(ids))

        for i, (role, content) in enumerate(messages, 1):
            is_answer = role == "assistant"
            add(self._markers("before", self.before(role), tokenizer))
            add(tokenizer.encode(content), is_answer)
            if is_answer:
                add([tokenizer.eos_id], learned=True)
            if not is_answer or i < len(messages):
                add(self._markers("after", self.after(role), tokenizer))
        return encoded

    def encode_prompt(self, messages: Sequence[Message], tokenizer: Tokenizer) -> list[int]:
        """The tokens of a conversation, up to the first token of the answer."""
        tokens = self.encode(messages, tokenizer).tokens
        return tokens + self._markers("before", self.before("assistant"), tokenizer)

    def _markers(self, method: str, marker: str, tokenizer: Tokenizer) -> list[int]:
        """The tokens of what a method returned, which a plugin may have written."""
        text = require_instance(type(self), method, marker, str)
        return tokenizer.encode_with_special_tokens(text) if text else []


@TEMPLATES.register
class PlainTemplate(MarkerTemplate):
    """The prompt, a separator, the response."""

    type: Literal["plain"] = "plain"
    separator: str = Field("\n", description="text after every message but the assistant's")

    def before(self, role: Speaker) -> str:
        """An empty string."""
        return ""

    def after(self, role: Speaker) -> str:
        """The separator, but nothing after an answer."""
        return "" if role == "assistant" else self.separator


@TEMPLATES.register
class ChatTemplate(MarkerTemplate):
    """A marker before every message; special tokens of the tokenizer count as such in markers."""

    type: Literal["chat"] = "chat"
    system: str = Field("<|system|>\n", description="before a message of the system")
    user: str = Field("<|user|>\n", description="before a message of the user")
    assistant: str = Field("<|assistant|>\n", description="before an answer")
    end: str = Field("\n", description="after a message of the system or the user")
    answered: str = Field("\n", description="after an answer, if the conversation continues")

    def before(self, role: Speaker) -> str:
        """The marker of the role."""
        return {"system": self.system, "user": self.user, "assistant": self.assistant}[role]

    def after(self, role: Speaker) -> str:
        """The marker that ends a message of the role."""
        return self.answered if role == "assistant" else self.end
