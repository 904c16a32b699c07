"""Instructions: prompts and conversations that a decoder learns to answer."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator

from zoo.config.registry import DATASETS, TEMPLATES
from zoo.data.classification.layout import WIDTHS
from zoo.data.dataset import Batch, DataConfig, Reader
from zoo.data.files import sha256, sha256_file
from zoo.data.instructions.examples import Examples, fitting
from zoo.data.instructions.files import Conversation, read_conversations
from zoo.data.instructions.template import PlainTemplate, Template
from zoo.data.listed import Listed
from zoo.data.prompting import readable
from zoo.data.split import divide
from zoo.data.tokenizers import AnyTokenizer, ByteConfig, Tokenizer
from zoo.data.tokenizers.base import check_vocabulary
from zoo.nn.loss import IGNORED

AnyTemplate = Annotated[Template, TEMPLATES]


@DATASETS.register
class InstructionData(DataConfig):
    """Prompts and responses, or conversations, in JSON Lines; only what the assistant says is learned."""

    unit: ClassVar[str] = "examples"

    type: Literal["instructions"] = "instructions"
    train: str = Field(description="a .jsonl file of {prompt, response} or {messages}")
    validation: str | float | None = Field(
        0.05, description="another file, or the share of the examples of `train` to hold out; null: none"
    )
    template: AnyTemplate = Field(default=PlainTemplate(), description="how a conversation becomes a text")
    tokenizer: AnyTokenizer = Field(default=ByteConfig(), description="how text becomes tokens")
    context: int = Field(
        256,
        gt=1,
        description="tokens of an example at most; longer ones lose their beginnings, counted",
    )

    @model_validator(mode="after")
    def _share_divides(self) -> Self:
        if isinstance(self.validation, float) and not 0 < self.validation < 1:
            raise ValueError(
                f"validation is {self.validation:g}; expected a file, a share between 0 and 1, or null"
            )
        return self

    @property
    def objective_name(self) -> str:
        """The next token, though not of every token."""
        return "causal"

    @property
    def length(self) -> int:
        """Tokens of an example at most."""
        return self.context

    @property
    def prompting(self) -> Answering:
        """As in the training: by the template."""
        return Answering(self.template)

    def prepare(self, model: Reader) -> Instructions:
        """Read and tokenise the examples.

        Raises:
            DataError: files or sizes that cannot be used, or not by this model.
        """
        self.check_reader(model)
        return Instructions(self, model.vocab_size)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Answering:
    """A prompt is a user's message in a template, and the assistant's comes back.

    Attributes:
        template: of the training.
    """

    template: Template
    start: ClassVar[None] = None
    echoes: ClassVar[bool] = False
    special_tokens: ClassVar[tuple[str, ...]] = ()

    def end(self, tokenizer: Tokenizer) -> int:
        """An answer ends as a document does."""
        return tokenizer.eos_id

    def encode(self, text: str, tokenizer: Tokenizer) -> list[int]:
        """The prompt in the template, up to where the answer begins."""
        return self.template.ask(text, tokenizer) if text else []

    def decode(self, ids: Iterable[int], tokenizer: Tokenizer) -> str:
        """The answer."""
        return readable(ids, tokenizer)


class Instructions(Listed[Examples]):
    """Conversations, shuffled in every epoch; a batch is as long as its longest example."""

    what = "examples"
    unit = InstructionData.unit

    def __init__(self, data: InstructionData, vocab_size: int) -> None:
        """Read and tokenise the files.

        Args:
            data: where they are.
            vocab_size: of the model that will read them.

        Raises:
            DataError: a file or tokenizer that cannot be used, or no example that fits.
        """
        train, held_out = _divided(data)
        tokenizer = data.tokenizer.build(lambda: (m.content for c in train for m in c.messages))
        check_vocabulary(tokenizer, vocab_size)
        self.train = fitting(train, data.template, tokenizer, data.context, "training")
        self.held_out = (
            fitting(held_out, data.template, tokenizer, data.context, "validation") if held_out else None
        )
        self.tokenizer, self.fingerprint = tokenizer, _fingerprint(data, tokenizer.hash)
        self._context, self._padding = data.context, tokenizer.eos_id

    def batch(self, part: Examples, indices: NDArray[np.int64]) -> Batch:
        """Tokens and targets, (examples, time) int64; what is not learned is -1.

        Padding stands behind an example, where no token of a decoder that counts can see it.
        """
        laid = [part.laid[i] for i in indices]
        longest = max(len(each.tokens) for each in laid) - 1
        shape = (len(laid), min(self._context, -(-longest // WIDTHS) * WIDTHS))
        tokens = np.full(shape, self._padding, dtype=np.int64)
        targets = np.full(shape, IGNORED, dtype=np.int64)
        for i, each in enumerate(laid):
            tokens[i, : len(each.tokens) - 1] = each.tokens[:-1]
            targets[i, : len(each.tokens) - 1] = np.where(each.learned[1:], each.tokens[1:], IGNORED)
        return torch.from_numpy(tokens), torch.from_numpy(targets)


def _divided(data: InstructionData) -> tuple[list[Conversation], list[Conversation]]:
    """The conversations to train on, and those to evaluate on.

    By the hash of what comes before the last answer one is held out, so that all answers to the same are
    on one side.
    """
    conversations = read_conversations(Path(data.train).expanduser())
    if data.validation is None:
        return conversations, []
    if isinstance(data.validation, str):
        return conversations, read_conversations(Path(data.validation).expanduser())
    return divide(conversations, [_question(c) for c in conversations], data.validation)


def _question(conversation: Conversation) -> str:
    return json.dumps(conversation.messages[:-1])


def _fingerprint(data: InstructionData, tokenizer: str) -> str:
    files = [data.train, *([data.validation] if isinstance(data.validation, str) else [])]
    share = data.validation if isinstance(data.validation, float) else None
    settings = [share, data.template.model_dump(mode="json"), data.context, tokenizer]
    parts = [sha256_file(Path(file).expanduser()) for file in files]
    return sha256(json.dumps([*parts, *settings]).encode())
