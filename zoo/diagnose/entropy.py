"""The entropy of every attention head on given examples.

Attention is linear in its values: with unit vectors in their place it gives its probabilities, whatever
is added to its scores and whichever kernel computes it. So nothing is measured, or slowed, until asked.
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
    """How widely the heads of one attention look.

    Attributes:
        layer: as in `zoo.diagnose.places.Place`.
        label: the attention's name within its layer.
        heads: mean over examples and queries of -sum p log p, in nats: (heads,) float64.
        uniform: the same for a head that looks at all it sees alike, log(number of keys seen).
    """

    layer: int
    label: str
    heads: Tensor
    uniform: float


@torch.no_grad()
def attention_entropy(model: Model, *inputs: Tensor) -> list[AttentionEntropy]:
    """Run a model once, and each of its attentions keys / h times more.

    Args:
        model: in evaluation mode, not sharded.
        *inputs: as `forward` takes them.

    Returns:
        In the order in which the attentions compute; empty for a model without any.
    """
    layers = {block: i for i, block in enumerate(model.fsdp_units, 1)}
    places = {m: (i, path) for block, i in layers.items() for path, m in block.named_modules()}
    found: list[AttentionEntropy] = []

    def measure(attention: Any, args: tuple[Any, ...], kwargs: dict[str, Any], _: Tensor) -> None:
        p = probabilities(attention, args, kwargs)
        seen = (p > 0).any(1)  # by some head: a single one's may vanish
        uniform = seen.sum(-1).double().log().mean().item()
        found.append(AttentionEntropy(*places[attention], entropy(p).mean((0, 2)).cpu(), uniform))

    attentions = [m for m in model.modules() if isinstance(m, Attention)]
    hooks = [a.register_forward_hook(measure, with_kwargs=True) for a in attentions]
    try:
        model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def entropy(p: Tensor) -> Tensor:
    """-sum p log p along the last dimension, in nats and float64; 0 log 0 is 0."""
    terms: Tensor = torch.special.entr(p.double())
    return terms.sum(-1)


def probabilities(attention: Attention, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """What an attention's values are weighted with.

    Args:
        attention: any kind; without dropout.
        args: of its forward pass, without a cache.
        kwargs: likewise.

    Returns:
        (batch, heads, queries, keys) float32.
    """
    h = attention.head_size
    with _replaced(attention) as values:
        attention.forward(*args, **kwargs)
        nothing, keys = values.outcome, values.keys
        columns = []
        for first in range(0, keys, h):
            values.first = first
            attention.forward(*args, **kwargs)
            found = values.outcome - nothing
            columns.append(found.view(*found.shape[:2], attention.n_heads, h))
    p = torch.cat(columns, -1)[..., :keys]
    return p.transpose(1, 2).clamp_min(0)


class _Values:
    """What stands in the place of an attention's values, and what its heads make of it.

    Attributes:
        first: the key whose value is the first unit vector, the next one's the second; None: all are 0.
        keys: how many there were.
        outcome: of the last forward pass, (batch, queries, heads h).
    """

    outcome: Tensor

    def __init__(self, attention: Attention) -> None:
        self.shape = attention.n_kv_heads, attention.head_size
        self.first: int | None = None
        self.keys = 0

    def replace(self, _: Any, args: Any, values: Tensor) -> Tensor:
        """A hook behind the map that makes values."""
        self.keys = values.shape[1]
        unit = values.new_zeros(*values.shape[:2], *self.shape)
        if self.first is not None:
            part = unit[:, self.first : self.first + self.shape[1]]
            part += torch.eye(part.shape[1], self.shape[1], dtype=unit.dtype, device=unit.device)[:, None]
        return unit.flatten(-2)

    def catch(self, _: Any, args: tuple[Tensor]) -> None:
        """A hook before the map that joins the heads."""
        (self.outcome,) = args


@contextmanager
def _replaced(attention: Attention) -> Iterator[_Values]:
    """Put others in the place of an attention's values for a while."""
    values = _Values(attention)
    hooks = [
        attention.v.register_forward_hook(values.replace),
        attention.o.register_forward_pre_hook(values.catch),
    ]
    try:
        yield values
    finally:
        for hook in hooks:
            hook.remove()
