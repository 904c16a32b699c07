"""Objectives: what is asked of a model that reads text, as examples cut from a stream of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from zoo.config.registry import OBJECTIVES, Config
from zoo.data.dataset import Batch, Order
from zoo.data.objectives.batches import successors, training_windows, validation_windows
from zoo.data.prompting import readable
from zoo.data.tokenizers.base import Tokenizer
from zoo.data.tokens import TokenFile


class Objective(Config):
    """How a window of tokens becomes inputs and targets."""

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Names of the ids that it needs behind those of the tokenizer, in their order: masks, sentinels."""
        return ()

    def reads(self, context: int) -> int:
        """Tokens that one example is made from."""
        return context + 1

    def training(self, tokens: TokenFile, order: Order, context: int, vocabulary: int) -> Batch:
        """This rank's part of a training batch.

        Args:
            tokens: to read from.
            order: which batch.
            context: tokens that the model sees in an example.
            vocabulary: size of the tokenizer's vocabulary, the first id that is free.

        Returns:
            The model's inputs and the targets, on the CPU.

        Raises:
            DataError: too few tokens.
        """
        raise NotImplementedError

    def validation(
        self, tokens: TokenFile, order: Order, context: int, vocabulary: int, batches: int | None
    ) -> Iterator[Batch]:
        """This rank's parts of at most `batches` batches to evaluate on, the same at every call."""
        raise NotImplementedError

    @property
    def start(self) -> int | None:
        """What an answer to a prompt starts with; None: a prompt is not answered but continued."""
        return None

    @property
    def echoes(self) -> bool:
        """Whether the prompt is part of the text that comes out."""
        return self.start is None

    def end(self, tokenizer: Tokenizer) -> int:
        """The id that ends what a model generates."""
        return tokenizer.eos_id

    def encode(self, text: str, tokenizer: Tokenizer) -> list[int]:
        """The tokens of a prompt, as the model is given them."""
        return tokenizer.encode(text)

    def decode(self, ids: Iterable[int], tokenizer: Tokenizer) -> str:
        """What a model generated, as text."""
        return readable(ids, tokenizer)


@OBJECTIVES.register
class Causal(Objective):
    """Predict every token from those before it."""

    type: Literal["causal"] = "causal"

    def training(self, tokens: TokenFile, order: Order, context: int, vocabulary: int) -> Batch:
        """Inputs and the tokens that follow them, (examples, context) int64."""
        return successors(training_windows(tokens, order, context, context + 1))

    def validation(
        self, tokens: TokenFile, order: Order, context: int, vocabulary: int, batches: int | None
    ) -> Iterator[Batch]:
        """Windows spread evenly over the text."""
        rows = validation_windows(tokens, order, context, context + 1, batches)
        return (successors(windows) for _, windows in rows)
