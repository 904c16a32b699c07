"""Recomputation of activations, which saves memory at the cost of a second forward pass of the blocks."""

from __future__ import annotations

from functools import partial

from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from zoo.kernels.products import PRODUCTS
from zoo.models import Model
from zoo.run.train_config import Recompute
from zoo.utils.errors import ConfigError
from zoo.utils.untyped import Kwargs


def recompute(model: Model, what: Recompute) -> None:
    """Have the backward pass compute activations again; losses and gradients do not change.

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
    options: Kwargs = {"use_reentrant": False}
    if what == "selective":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, PRODUCTS)
    for block in model.fsdp_units:
        # Inside the block: FSDP gathers its weights before either forward pass.
        block.forward = partial(checkpoint, block.forward, **options)
