"""Recomputation of activations, which saves memory at the cost of a second forward pass of the blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts, noop_context_fn

from zoo.kernels.products import PRODUCTS
from zoo.models import Model
from zoo.nn.batchnorm import statistics_kept
from zoo.run.train_config import Recompute
from zoo.utils.errors import ConfigError

Contexts = Callable[[], tuple[AbstractContextManager[None], AbstractContextManager[None]]]
"""What surrounds the forward pass of a block, and its second one."""


def recompute(model: Model, what: Recompute) -> None:
    """Have the backward pass compute activations again.

    Losses, gradients and the running statistics of batch normalisation do not change.

    A block keeps its input and, with `selective`, the outputs of its `PRODUCTS`.

    Args:
        model: plain or sharded, before it is compiled.
        what: the activations that are not kept.

    Raises:
        ConfigError: The model has no blocks.
    """
    if what == "none":
        return
    if not model.fsdp_units:
        kind = model.recipe.model.type
        raise ConfigError(f"train.recompute: '{what}' needs a model of blocks, and '{kind}' has none")
    contexts: Contexts | None = None
    if what == "selective":
        contexts = partial(create_selective_checkpoint_contexts, PRODUCTS)
    for block in model.fsdp_units:
        # Inside the block: FSDP gathers its weights before either forward pass.
        block.forward = _recomputed(block, contexts)


def _recomputed(block: nn.Module, contexts: Contexts | None) -> Callable[..., object]:
    """The forward pass of a block that runs once more in the backward pass."""
    compiled = partial(checkpoint, block.forward, use_reentrant=False)
    if contexts is not None:
        compiled = partial(compiled, context_fn=contexts)
    eager = partial(compiled, context_fn=partial(_without_updates, block, contexts or noop_context_fn))

    def forward(*args: object, **kwargs: object) -> object:
        # Compiled, what a block changes is no part of what is computed again; eagerly all of it is.
        return (compiled if torch.compiler.is_compiling() else eager)(*args, **kwargs)

    return forward


def _without_updates(
    block: nn.Module, contexts: Contexts
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Contexts whose second one keeps the running statistics of a block."""
    first, second = contexts()

    @contextmanager
    def kept() -> Iterator[None]:
        with second, statistics_kept(block):
            yield

    return first, kept()
