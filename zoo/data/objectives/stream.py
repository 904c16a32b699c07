"""Objective `stream`: text without gaps, for a model that carries its state from batch to batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from zoo.config.registry import OBJECTIVES
from zoo.data.dataset import Batch, BatchSpec
from zoo.data.objectives.base import Objective
from zoo.data.objectives.batches import inputs_and_targets, windows_per_epoch
from zoo.data.tokens import TokenFile
from zoo.utils.errors import DataError


@OBJECTIVES.register
class Stream(Objective):
    """Predict every token from all those before it; each row continues that of the previous batch.

    The text is treated as a ring, and the rows start at equally spaced positions of it, from an offset that
    depends on the seed. Every row reads on without a jump, so that the rows together read (almost) every
    token once per epoch. The token before the first one is the last one, the end of a document.
    """

    predicts_every_token: ClassVar[bool] = True

    type: Literal["stream"] = "stream"

    def examples(self, windows: Tensor, seed: int, first: int, vocab_size: int) -> Batch:
        """Inputs and the tokens that follow them, of windows by themselves: (n, context) int64."""
        return inputs_and_targets(windows)

    def train_batch(self, tokens: TokenFile, spec: BatchSpec, context: int, vocab_size: int) -> Batch:
        """Inputs and the tokens that follow them, (examples, context) int64.

        Raises:
            DataError: The text is shorter than one example, or there are several processes.
        """
        _check(tokens, spec, context)
        length, rows = len(tokens), spec.batch_size
        offset = int(np.random.SeedSequence(spec.seed).generate_state(1, np.uint64)[0]) % length
        starts = offset + np.arange(rows, dtype=np.int64) * length // rows + spec.step * context
        return inputs_and_targets(torch.from_numpy(tokens.windows(starts - 1, context + 1)))

    def validation_batches(
        self, tokens: TokenFile, spec: BatchSpec, context: int, vocab_size: int, max_batches: int | None
    ) -> Iterator[Batch]:
        """The text from its beginning as one row, (1, tokens), each token predicted once.

        Word-level perplexities are measured in this way in the literature (batch 1, state carried). With
        `max_batches` the row has as many tokens as that number of training batches.

        Raises:
            DataError: The text is shorter than one example, or there are several processes.
        """
        _check(tokens, spec, context)
        limit = len(tokens) if max_batches is None else max_batches * spec.batch_size * context
        count = min(len(tokens), limit)
        yield inputs_and_targets(torch.from_numpy(tokens.windows(np.array([-1]), count + 1)))


def _check(tokens: TokenFile, spec: BatchSpec, context: int) -> None:
    windows_per_epoch(tokens, context, context + 1)
    if spec.world_size > 1:
        raise DataError(
            f"data.objective stream: the state that goes from batch to batch is one process' own, "
            f"but there are {spec.world_size}: train in one, or with objective causal"
        )
