"""Instructions: what a decoder learns to answer with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from zoo.data.byte import ByteConfig
from zoo.data.config import AnyTokenizer
from zoo.data.dataset import DataConfig, Reader
from zoo.data.prompting import readable
from zoo.data.template import TEMPLATES, PlainTemplate, Template
from zoo.data.tokenizer import Tokenizer
from zoo.schema import DATASETS, choice

if TYPE_CHECKING:
    from zoo.data.instruction_dataset import Instructions

    AnyTemplate = Template
else:
    AnyTemplate = choice(TEMPLATES)


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
        from zoo.data.instruction_dataset import Instructions

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
