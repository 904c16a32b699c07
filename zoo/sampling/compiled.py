"""The step of generation compiled once: fixed shapes, the position a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from zoo.utils.errors import DataError, ZooError

Read = Callable[[Tensor], Tensor]
"""Tokens a model has not seen yet, (batch, time) -> the logits of the one that follows, (batch, vocab)."""

ROOM = 64
"""The room of a cache is a multiple of it, so that texts of similar lengths share a compiled step."""


class Fixable(Protocol):
    """A cache whose shapes can be made independent of what it holds."""

    def fix(self) -> None:
        """Do so, from now on."""


def roomy(length: int, max_seq_len: int | None = None) -> int:
    """The room for `length` tokens, the last of which is not read.

    Args:
        length: prompt, padding included, and continuation.
        max_seq_len: tokens that the model has positions for; None: any number.

    Raises:
        DataError: it has not enough.
    """
    if max_seq_len is not None and length - 1 > max_seq_len:
        raise DataError(f"generate: {length - 1} tokens are read, but there are {max_seq_len} positions")
    return -(-length // ROOM) * ROOM


def compiled(read: Read, cache: Fixable) -> Read:
    """Read the prompt as it is, and every token after it by one compiled step.

    Args:
        read: brings `cache` forward.
        cache: empty; it is fixed behind the prompt.

    Returns:
        The same, faster from the third call on: the second one compiles.

    Raises:
        ZooError: when called, if the compiler does not work here.
    """
    step = torch.compile(read, fullgraph=True, dynamic=False)
    started = False

    def prompt_then_steps(tokens: Tensor) -> Tensor:
        nonlocal started
        if started:
            return _run(step, tokens)
        logits = read(tokens)
        cache.fix()
        started = True
        return logits

    return prompt_then_steps


def _run(step: Read, tokens: Tensor) -> Tensor:
    """A compiled step; what goes wrong in the compiler is told in a line."""
    from torch._dynamo.exc import TorchDynamoException

    try:
        return step(tokens)
    except TorchDynamoException as error:
        reason = " ".join(str(error).split("\n")[:2])
        raise ZooError(f"generate: the step cannot be compiled here, leave compile out: {reason}") from error
