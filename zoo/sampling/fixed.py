"""Generation with a step of fixed shapes and the position as a tensor, to be compiled or captured."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from zoo.models.language_model import Cache

Read = Callable[[Tensor], Tensor]
"""A function of the tokens that a model has not read yet: (batch, time) int64 -> logits (batch, vocab)."""

CAPACITY_MULTIPLE = 64
"""Divisor of a cache's capacity, so that texts of similar lengths share a compiled step."""


def fixed(read: Read, cache: Cache, step: Read) -> Read:
    """Make a function that reads the prompt by `read`, and every later token by `step`.

    Args:
        read: a function that reads tokens and extends `cache`.
        cache: an empty cache, whose shapes are fixed once the prompt is read.
        step: `read`, made faster for one token.

    Returns:
        A function with the results of `read`.
    """
    started = False

    def prompt_then_steps(tokens: Tensor) -> Tensor:
        nonlocal started
        if started:
            return step(tokens)
        logits = read(tokens)
        cache.fix_shapes()
        started = True
        return logits

    return prompt_then_steps
