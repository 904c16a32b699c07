"""The axes along which a coordinate check compares models: width and depth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn

from zoo.config.registry import type_of
from zoo.models import Model, ModelConfig
from zoo.utils.errors import ConfigError


@dataclass(frozen=True)
class Axis:
    """A dimension in which models grow.

    Attributes:
        name: name of the axis.
        fields: fields of a model's configuration that grow in proportion; the first one is set to the size.
        adds_branches: whether a larger model has more branches, each of which may then add less. Otherwise
            only the logits may shrink, because the head starts near 0.
    """

    name: Literal["width", "depth"]
    fields: tuple[str, ...]
    adds_branches: bool

    def resized(self, model: ModelConfig, size: int) -> ModelConfig:
        """A model of another size.

        Raises:
            ConfigError: The model has no such axis, or one of its sizes would be no integer.
        """
        present = {name: getattr(model, name, None) for name in self.fields}
        given = present[self.fields[0]]
        if given is None:
            kind = type_of(model)
            raise ConfigError(
                f"coord-check: {self.name}s are those of model.{self.fields[0]}, which '{kind}' does not have"
            )
        multiple = math.lcm(*(given // math.gcd(given, n) for n in present.values() if n is not None))
        changes = {}
        for name, value in present.items():
            if value is None:
                continue
            scaled, rest = divmod(value * size, given)
            if rest or scaled < 1:
                raise ConfigError(
                    f"coord-check: {self.name} {size}: model.{name} would be {value * size / given:g}; "
                    f"expected a multiple of {multiple}"
                )
            changes[name] = scaled
        return type(model).model_validate(model.model_dump() | changes)


WIDTH = Axis("width", ("d_model", "n_heads", "n_kv_heads", "d_mlp", "d_memory"), adds_branches=False)
"""The width grows by more heads of the same size; d_memory is that of an LSTM's memory."""
DEPTH = Axis("depth", ("n_layers", "n_decoder_layers"), adds_branches=True)


def block_names(model: Model) -> list[str]:
    """The names of the blocks of a model, in their order."""
    names = {module: name for name, module in model.named_modules()}
    return [names[layer] for layer in model.layers]


def names_at(model: Model, blocks: Sequence[str]) -> dict[str, nn.Module]:
    """The modules of a model that have a counterpart in one with fewer blocks, by the counterpart's name.

    A block is compared with the one that ends at the same share of the depth: with 2 blocks and 8, the
    first with the fourth and the second with the eighth.

    Args:
        model: the model.
        blocks: names of the blocks of the smaller model; at most as many as the model has.
    """
    layers = list(model.layers)
    inside = {module for layer in layers for module in layer.modules()}
    modules = {name: module for name, module in model.named_modules() if name and module not in inside}
    for i, name in enumerate(blocks, 1):
        counterpart = layers[round(i * len(layers) / len(blocks)) - 1]
        modules |= dict(counterpart.named_modules(prefix=name))
    return modules
