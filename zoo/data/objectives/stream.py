"""Objective `stream`: text without gaps, for a model that carries its state from batch to batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch

from zoo.config.registry import OBJECTIVES
from zoo.data.dataset import Batch, Order
from zoo.data.objectives.base import Objective
from zoo.data.objectives.batches import successors, windows_per_epoch
from zoo.data.tokens import TokenFile
from zoo.utils.errors import DataError


@OBJECTIVES.register
class Stream(Objective):
    """Predict every token from all those before it: a row goes on where it was in the batch before.

    The text is a ring, and the rows are readers spread evenly over it, from a start that the seed
    decides. Each reads on for ever, so that an epoch has every token (almost) once and no row ever jumps.
    What stands before the first token is the last one, the end of a document.
    """

    type: Literal["stream"] = "stream"

    def training(self, tokens: TokenFile, order: Order, context: int, vocabulary: int) -> Batch:
        """Inputs and the tokens that follow them, (examples, context) int64.

        Raises:
            DataError: too few tokens, or several processes.
        """
        _check(tokens, order, context)
        length, rows = len(tokens), order.batch_size
        first = int(np.random.SeedSequence(order.seed).generate_state(1, np.uint64)[0]) % length
        starts = first + np.arange(rows, dtype=np.int64) * length // rows + order.step * context
        return successors(torch.from_numpy(tokens.windows(starts - 1, context + 1)))

    def validation(
        self, tokens: TokenFile, order: Order, context: int, vocabulary: int, batches: int | None
    ) -> Iterator[Batch]:
        """The text from its beginning as one row, (1, tokens), each token predicted once.

        That is how perplexities of word-level language models are counted (batch 1, state carried).
        With `batches` the row ends after as many tokens as so many training batches have.

        Raises:
            DataError: too few tokens, or several processes.
        """
        _check(tokens, order, context)
        wanted = len(tokens) if batches is None else batches * order.batch_size * context
        count = min(len(tokens), wanted)
        yield successors(torch.from_numpy(tokens.windows(np.array([-1]), count + 1)))


def _check(tokens: TokenFile, order: Order, context: int) -> None:
    windows_per_epoch(tokens, context, context + 1)
    if order.world > 1:
        raise DataError(
            f"data.objective stream: the state that goes from batch to batch is one process' own, "
            f"but there are {order.world}: train in one, or with objective causal"
        )
