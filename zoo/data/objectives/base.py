"""Objectives: how windows of a token file become the inputs and targets of a text model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import ClassVar, Literal

import torch
from torch import Tensor

from zoo.config.registry import OBJECTIVES, Config, location
from zoo.data.dataset import Batch, BatchSpec
from zoo.data.objectives.batches import inputs_and_targets, training_windows, validation_windows
from zoo.data.prompting import decode_in_vocabulary
from zoo.data.tokenizers.base import Tokenizer
from zoo.data.tokens import TokenFile
from zoo.nn.loss import IGNORE_INDEX
from zoo.utils.errors import ConfigError
from zoo.utils.printable import dtype_name


def _shown(part: object) -> str:
    """The shape and the dtype of a part of a batch, or its class if it is no tensor."""
    if isinstance(part, Tensor):
        return f"{tuple(part.shape)} {dtype_name(part.dtype)}"
    return type(part).__name__


class Objective(Config):
    """Turns windows of tokens into inputs and targets, and defines how a trained model is prompted.

    An objective defines `examples`; one that needs windows of another length or stride also defines
    `tokens_per_example`, `disjoint_windows` or `stride`, and one that uses special tokens of the tokenizer
    `for_tokenizer`.

    Attributes:
        trains_like: name of the objective whose models can be trained with this one; None: models have to
            name this one.
        predicts_every_token: whether every token of the text is predicted from those before it, so that the
            loss is that of the text and `zoo eval` can measure other texts in the same way.
        disjoint_windows: whether no token is in two windows; otherwise a window moves on by the context, and
            the last target of one may be the first input of the next.
        token_key: name of the field by which tokens of the tokenizer replace `special_tokens`; None: there is
            no such field.
    """

    disjoint_windows: ClassVar[bool] = False
    token_key: ClassVar[str | None] = None
    trains_like: ClassVar[str | None] = None
    predicts_every_token: ClassVar[bool] = False

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Names of the ids (masks, sentinels) that are needed after the tokenizer's vocabulary, in order."""
        return ()

    def for_tokenizer(self, tokenizer: Tokenizer) -> Objective:
        """The objective for texts of a tokenizer; it is this one unless it uses special tokens of tokenizers.

        Raises:
            DataError: The tokenizer does not have the tokens.
        """
        return self

    def required_vocab_size(self, tokenizer: Tokenizer) -> int:
        """The vocabulary that a model needs for the examples."""
        n_special = len(self.special_tokens)
        return tokenizer.vocab_size + n_special if n_special else tokenizer.needed_size

    def tokens_per_example(self, context: int) -> int:
        """Number of tokens of a window, from which one example is made."""
        return context + 1

    def stride(self, context: int) -> int:
        """Number of tokens from one window to the next."""
        return self.tokens_per_example(context) if self.disjoint_windows else context

    @abstractmethod
    def examples(self, windows: Tensor, seed: int, first: int, vocab_size: int) -> Batch:
        """Make one example from each window.

        Random numbers must depend on `seed` and the number of the window alone, so that an example does not
        change with the number of ranks.

        Args:
            windows: (n, tokens_per_example) int64.
            seed: seed of the run; 0 for validation.
            first: number of the first window, counted from the start of training or validation.
            vocab_size: size of the tokenizer's vocabulary, which is the id of the first special token.

        Returns:
            The model's inputs and the targets, on the CPU.
        """
        raise NotImplementedError

    def checked_examples(self, windows: Tensor, seed: int, first: int, vocab_size: int) -> Batch:
        """The `examples` of windows, which a plugin may have written.

        Raises:
            ConfigError: They are no inputs and targets of these windows; the message names the class.
        """
        batch = self.examples(windows, seed, first, vocab_size)
        n = len(windows)
        is_tuple = isinstance(batch, tuple) and len(batch) > 1
        if not is_tuple or not all(isinstance(part, Tensor) and part.shape[:1] == (n,) for part in batch):
            expected = f"a tuple of the inputs and the targets, tensors ({n}, time)"
        elif batch[-1].dtype != torch.int64 or batch[-1].dim() != 2:
            expected = f"targets ({n}, time) int64"
        elif self.trains_like is not None and batch[-1].shape != batch[-2].shape:
            expected = "inputs and targets of one shape"
        else:
            return batch
        found = ", ".join(map(_shown, batch)) if isinstance(batch, tuple) else _shown(batch)
        raise ConfigError(f"{location(type(self))}: examples returned {found}; expected {expected}")

    def train_batch(self, tokens: TokenFile, spec: BatchSpec, context: int, vocab_size: int) -> Batch:
        """This rank's part of a training batch.

        Args:
            tokens: the training text.
            spec: the specification of the batch.
            context: number of tokens that the model sees in an example.
            vocab_size: size of the tokenizer's vocabulary.

        Raises:
            DataError: The text is shorter than one example.
        """
        windows = training_windows(tokens, spec, self.stride(context), self.tokens_per_example(context))
        return self.checked_examples(windows, spec.seed, spec.first_example, vocab_size)

    def validation_batches(
        self, tokens: TokenFile, spec: BatchSpec, context: int, vocab_size: int, max_batches: int | None
    ) -> Iterator[Batch]:
        """This rank's parts of at most `max_batches` batches, the same at every call.

        The windows are spread evenly over the text; the other arguments are those of `train_batch`. If the
        ranks do not divide the windows, the last batch is filled up with windows whose targets are ignored.
        """
        length = self.tokens_per_example(context)
        batches = validation_windows(tokens, spec, self.stride(context), length, max_batches)
        for first, windows, fills_up in batches:
            *inputs, targets = self.checked_examples(windows, 0, first, vocab_size)
            # Not in place: the targets may be a part of the inputs' memory.
            yield *inputs, targets.masked_fill(fills_up[:, None], IGNORE_INDEX)

    @property
    def decoder_start_id(self) -> int | None:
        """First token of an encoder-decoder's target; None for a decoder, which continues its prompt."""
        return None

    @property
    def continues_prompt(self) -> bool:
        """Whether the output text begins with the prompt."""
        return self.decoder_start_id is None

    def eos_id(self, tokenizer: Tokenizer) -> int:
        """The id at which generation stops."""
        return tokenizer.eos_id

    def encode(self, text: str, tokenizer: Tokenizer) -> list[int]:
        """The token ids of a prompt as input of the model."""
        return tokenizer.encode(text)

    def decode(self, ids: Iterable[int], tokenizer: Tokenizer) -> str:
        """Text of the generated ids."""
        return decode_in_vocabulary(ids, tokenizer)


@OBJECTIVES.register
class Causal(Objective):
    """Predict every token from those before it."""

    predicts_every_token: ClassVar[bool] = True

    type: Literal["causal"] = "causal"

    def examples(self, windows: Tensor, seed: int, first: int, vocab_size: int) -> Batch:
        """Inputs and the tokens that follow them, (n, context) int64."""
        return inputs_and_targets(windows)
