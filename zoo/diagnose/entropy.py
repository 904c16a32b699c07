"""The entropy of every attention head on given examples.

The output of attention is linear in its values. If unit vectors take the place of the values, the output is
the attention probabilities themselves, whatever is added to the scores and whichever kernel computes them.
So the measurement needs no support from the attention, which is not slowed down otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zoo.models import Model
from zoo.nn.attention import Attention


@dataclass(frozen=True)
class AttentionEntropy:
    """The entropy of the heads of one attention.

    Attributes:
        layer: as in `zoo.diagnose.locations.ParameterLocation`.
        label: the attention's name within its layer.
        heads: mean over examples and queries of -sum p log p, in nats: (heads,) float64.
        uniform: the entropy of a head that attends equally to all keys it can see, mean of log(keys seen).
    """

    layer: int
    label: str
    heads: Tensor
    uniform: float


@torch.no_grad()
def attention_entropy(model: Model, *inputs: Tensor) -> list[AttentionEntropy]:
    """Run a model once, and each of its attentions keys / head_size + 1 times more.

    Args:
        model: in evaluation mode, not sharded.
        *inputs: as `forward` takes them.

    Returns:
        In the order in which the attentions compute; empty for a model without any.
    """
    layers = {block: i for i, block in enumerate(model.fsdp_units, 1)}
    locations = {m: (i, path) for block, i in layers.items() for path, m in block.named_modules()}
    entropies: list[AttentionEntropy] = []

    def measure(attention: Any, args: tuple[Any, ...], kwargs: dict[str, Any], _: Tensor) -> None:
        p = probabilities(attention, args, kwargs)
        seen = (p > 0).any(1)  # by some head: the probability of a single one may underflow
        uniform = seen.sum(-1).double().log().mean().item()
        entropies.append(AttentionEntropy(*locations[attention], entropy(p).mean((0, 2)).cpu(), uniform))

    attentions = [m for m in model.modules() if isinstance(m, Attention)]
    hooks = [a.register_forward_hook(measure, with_kwargs=True) for a in attentions]
    try:
        model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return entropies


def entropy(p: Tensor) -> Tensor:
    """-sum p log p along the last dimension, in nats and float64, with 0 log 0 = 0."""
    terms: Tensor = torch.special.entr(p.double())
    return terms.sum(-1)


def probabilities(attention: Attention, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The attention probabilities, with which the values are weighted.

    Args:
        attention: any kind, without dropout.
        args: the arguments of its forward pass, without a cache.
        kwargs: its keyword arguments.

    Returns:
        (batch, heads, queries, keys) float32.
    """
    h = attention.head_size
    with _replaced_values(attention) as values:
        attention.forward(*args, **kwargs)
        constant, keys = values.output, values.keys  # what does not depend on the values
        columns = []
        for first in range(0, keys, h):
            values.first = first
            attention.forward(*args, **kwargs)
            weights = values.output - constant
            columns.append(weights.view(*weights.shape[:2], attention.n_heads, h))
    p = torch.cat(columns, -1)[..., :keys]
    return p.transpose(1, 2).clamp_min(0)


class _UnitValues:
    """Replaces an attention's values by unit vectors, and records the output of its heads.

    Attributes:
        first: the key that gets the first unit vector; the keys after it get the others, all other keys
            zeros. None: all values are zeros.
        keys: the number of keys in the last forward pass.
        output: of the heads in the last forward pass, (batch, queries, heads head_size).
    """

    output: Tensor

    def __init__(self, attention: Attention) -> None:
        self.shape = attention.n_kv_heads, attention.head_size
        self.first: int | None = None
        self.keys = 0

    def replace(self, _: Any, args: Any, values: Tensor) -> Tensor:
        """A forward hook of the layer that makes the values."""
        self.keys = values.shape[1]
        unit = values.new_zeros(*values.shape[:2], *self.shape)
        if self.first is not None:
            part = unit[:, self.first : self.first + self.shape[1]]
            part += torch.eye(part.shape[1], self.shape[1], dtype=unit.dtype, device=unit.device)[:, None]
        return unit.flatten(-2)

    def record(self, _: Any, args: tuple[Tensor]) -> None:
        """A forward pre-hook of the layer that joins the heads."""
        (self.output,) = args


@contextmanager
def _replaced_values(attention: Attention) -> Iterator[_UnitValues]:
    """Replace an attention's values within a `with` block."""
    values = _UnitValues(attention)
    hooks = [
        attention.v.register_forward_hook(values.replace),
        attention.o.register_forward_pre_hook(values.record),
    ]
    try:
        yield values
    finally:
        for hook in hooks:
            hook.remove()
