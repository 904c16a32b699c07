"""The entropy of every attention head on given examples.

The output of attention is affine in its values. With unit vectors instead of the values, the output is the
attention probabilities themselves, whatever is added to the scores and whichever kernel computes them.
Therefore the measurement needs only the `attend` of an attention, and training is not slowed down by it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from zoo.models import Model
from zoo.nn.attention import MultiHeadAttention
from zoo.utils.untyped import Passed


@dataclass(frozen=True)
class AttentionEntropy:
    """The entropy of the heads of one attention.

    Attributes:
        layer: number of the layer, as in `zoo.diagnose.locations.ParameterLocation`.
        label: the attention's name within its layer.
        heads: mean over the queries of all examples of -sum p log p, in nats: (heads,) float64. Padding is no
            query.
        uniform: the entropy of a head that attends equally to all keys it can see, mean of log(keys seen).
    """

    layer: int
    label: str
    heads: Tensor
    uniform: float


@torch.no_grad()
def attention_entropy(model: Model, *inputs: Tensor, mask: Tensor | None = None) -> list[AttentionEntropy]:
    """Measure the entropy of all heads in one forward pass.

    The `attend` of each attention is called another keys / h times.

    Args:
        model: a model in evaluation mode, not sharded.
        *inputs: a training batch without its targets.
        mask: (batch, time) bool, False for padding, see `Model.padding_mask`; None: there is no padding.

    Returns:
        One element for each attention, in the order in which they compute; empty for a model without a
        `zoo.nn.attention.MultiHeadAttention`.
    """
    places = {m: (0, path) for path, m in model.named_modules()}
    for i, block in enumerate(model.fsdp_units, 1):
        places |= {m: (i, path) for path, m in block.named_modules()}
    entropies: list[AttentionEntropy] = []

    def measured(attention: MultiHeadAttention, attend: Callable[..., Tensor], *args: Passed) -> Tensor:
        p = probabilities(attend, *args).transpose(1, 2)
        p = p.flatten(0, 1) if mask is None else p[mask]  # (all queries, heads, keys)
        seen = (p > 0).any(1)  # by any head, because the probability of a single head may underflow
        uniform = seen.sum(-1).double().log().mean().item()
        entropies.append(AttentionEntropy(*places[attention], entropy(p).mean(0).cpu(), uniform))
        return attend(*args)

    attentions = [m for m in model.modules() if isinstance(m, MultiHeadAttention)]
    try:
        for attention in attentions:
            attention.__dict__["attend"] = partial(measured, attention, attention.attend)
        model.predict(*inputs)
    finally:
        for attention in attentions:
            attention.__dict__.pop("attend", None)
    return entropies


def entropy(p: Tensor) -> Tensor:
    """-sum p log p along the last dimension, in nats and float64, with 0 log 0 = 0."""
    terms: Tensor = torch.special.entr(p.double())
    return terms.sum(-1)


def probabilities(attend: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, *args: object) -> Tensor:
    """The probabilities that weight the values of an attention.

    Args:
        attend: `MultiHeadAttention.attend` of an attention without dropout.
        q: the first argument of `attend`, (batch, queries, heads, h).
        k: the second argument, (batch, keys, kv heads, h).
        v: the third argument, shaped like `k`; its values are not used.
        *args: the other arguments of `attend`.

    Returns:
        (batch, heads, queries, keys), in the dtype of q.
    """
    keys, h = v.shape[1], v.shape[3]
    zeros = torch.zeros_like(v)
    offset = attend(q, k, zeros, *args)  # terms added to the values, such as vectors of distances
    columns = []
    for first in range(0, keys, h):
        units = zeros.clone()
        part = units[:, first : first + h]
        part += torch.eye(part.shape[1], h, dtype=v.dtype, device=v.device)[:, None]
        columns.append(attend(q, k, units, *args) - offset)
    return torch.cat(columns, -1)[..., :keys].transpose(1, 2).clamp_min(0)
