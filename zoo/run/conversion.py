"""Reparameterise a model that is there, or fold what it has, and say so in its recipe."""

from __future__ import annotations

from typing import Any

from zoo.models import Model
from zoo.reparam import Conversion, NoReparam, Reparam, convert
from zoo.run.config import load_config


def merge(model: Model) -> Conversion:
    """Fold the reparameterisation into the weights, in place: a plain model that computes the same.

    Args:
        model: a zoo model.

    Returns:
        How many tensors were folded and the largest difference of a logit.
    """
    result = convert.merge(model)
    recipe = model.recipe
    model.recipe = recipe.model_copy(
        update={"reparam": NoReparam(), "init": recipe.init.folded(tied=recipe.model.ties_embedding)}
    )
    return result


def split(model: Model, reparam: str | dict[str, Any] | Reparam = "wesar", *, seed: int = 0) -> Conversion:
    """Turn a plain model into a reparameterised one that computes the same, in place.

    Args:
        model: a zoo model that is not reparameterised.
        reparam: `wesar`, `weight_norm`, `lora` or `residual`, or their fields as a dict.
        seed: seed of what is drawn (LoRA's A).

    Returns:
        How many tensors were split and the largest difference of a logit.

    Raises:
        ZooError: another method, a model that is reparameterised already, or a matrix of zeros.
    """
    if not isinstance(reparam, Reparam):
        reparam = load_config({"reparam": reparam}).reparam
    result = convert.split(model, reparam, model.recipe.init, seed)
    model.recipe = model.recipe.model_copy(update={"reparam": reparam})
    return result
