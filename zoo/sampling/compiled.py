"""Generation with a compiled step, which has fixed shapes and the position as a tensor."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from zoo.models.language_model import Cache
from zoo.utils.errors import ZooError

Read = Callable[[Tensor], Tensor]
"""Tokens that a model has not read yet, (batch, time) int64 -> logits of the next token, (batch, vocab)."""

CAPACITY_MULTIPLE = 64
"""The capacity of a cache is a multiple of this, so that texts of similar lengths share a compiled step."""


def compiled(read: Read, cache: Cache) -> Read:
    """Read the prompt without compilation, and every token after it by one compiled step.

    Args:
        read: reads tokens and extends `cache`.
        cache: an empty cache, whose shapes are fixed once the prompt is read.

    Returns:
        A function with the results of `read`. Its second call compiles; later calls are faster. A call
        raises a ZooError if the compiler does not work on this machine.
    """
    step = torch.compile(read, fullgraph=True, dynamic=False)
    started = False

    def prompt_then_steps(tokens: Tensor) -> Tensor:
        nonlocal started
        if started:
            return _run(step, tokens)
        logits = read(tokens)
        cache.fix_shapes()
        started = True
        return logits

    return prompt_then_steps


def _run(step: Read, tokens: Tensor) -> Tensor:
    """Run the compiled step; an error of the compiler becomes a ZooError of one line."""
    from torch._dynamo.exc import TorchDynamoException

    try:
        return step(tokens)
    except TorchDynamoException as error:
        reason = " ".join(str(error).split("\n")[:2])
        raise ZooError(f"generate: the step cannot be compiled here, leave compile out: {reason}") from error
