"""Reparameterise an existing model, or merge its reparameterisation, and update its recipe."""

from __future__ import annotations

from zoo.models import Model
from zoo.reparam import Conversion, NoReparam, Reparam, convert
from zoo.run.config import load_config
from zoo.utils.untyped import JsonObject


def merge(model: Model) -> Conversion:
    """Merge the reparameterisation into the weights, in place; the plain model computes the same function.

    Args:
        model: a zoo model.

    Returns:
        The number of merged tensors and the largest difference of a logit.
    """
    result = convert.merge(model)
    recipe = model.recipe
    model.recipe = recipe.model_copy(
        update={"reparam": NoReparam(), "init": recipe.init.folded(tied=recipe.model.ties_embedding)}
    )
    return result


def split(model: Model, reparam: str | JsonObject | Reparam = "wesar", *, seed: int = 0) -> Conversion:
    """Turn a plain model into a reparameterised one that computes the same function, in place.

    Args:
        model: a zoo model that is not reparameterised.
        reparam: `wesar`, `weight_norm`, `lora`, `residual` or `multipliers`, or the fields of one as a dict.
        seed: seed of the tensors that are initialised at random (LoRA's A).

    Returns:
        The number of split tensors and the largest difference of a logit.

    Raises:
        ZooError: The method cannot keep existing weights, the model is reparameterised already, or a matrix
            is zero.
    """
    if not isinstance(reparam, Reparam):
        reparam = load_config({"reparam": reparam}).reparam
    result = convert.split(model, reparam, model.recipe.init, seed)
    model.recipe = model.recipe.model_copy(update={"reparam": reparam})
    return result
