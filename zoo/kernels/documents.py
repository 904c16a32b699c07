"""Causal attention within documents: several documents in a row, which do not see each other.

On a GPU torch's FlexAttention is used, which skips masked blocks. On a CPU `short_attention` with a mask
is used and, for sequences that are too long for it, `scaled_dot_product_attention`. The tests compare all
three with each document alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.kernels.causal import causal_mask
from zoo.kernels.graph_cache import keep_every_graph
from zoo.kernels.short_attention import LONGEST, short_attention

FlexAttention: TypeAlias = Callable[..., Any]
"""`flex_attention`, which torch imports slowly. Any: what it returns depends on its arguments."""

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

SMALLEST_HEAD = 16
"""Smallest head size that FlexAttention's matrix products on a GPU support."""


@dataclass(frozen=True)
class Documents:
    """The documents of a batch, prepared once for the attentions of all layers.

    Attributes:
        numbers: (batch, time) int64, the number of each token's document; a document is one run of tokens.
        masks: the keys that each query sees, by the window of the attention: bool (batch, time, time), or a
            mask of FlexAttention.
    """

    numbers: Tensor
    masks: Mapping[int | None, Tensor | BlockMask]

    @classmethod
    def of(
        cls, numbers: Tensor, head_size: int, dtype: torch.dtype, windows: Iterable[int | None] = (None,)
    ) -> Documents:
        """Prepare the attention masks that separate the documents of a batch.

        Args:
            numbers: (batch, time) int64.
            head_size: entries per head of the attentions that will use it.
            dtype: dtype of the stream; FlexAttention has no float64.
            windows: windows of these attentions: the number of keys that a query sees, its own included;
                None: all up to its own.
        """
        flex = takes_flex_attention(numbers.device, head_size, dtype)
        make: Callable[..., Tensor | BlockMask] = block_mask if flex else dense_mask
        return cls(numbers, {window: make(numbers, window) for window in windows})


def takes_flex_attention(device: torch.device, head_size: int, dtype: torch.dtype) -> bool:
    """Whether attention on a device uses FlexAttention; the arguments are those of `Documents.of`."""
    return device.type == "cuda" and head_size >= SMALLEST_HEAD and dtype != torch.float64


def dense_mask(numbers: Tensor, window: int | None = None) -> Tensor:
    """Which keys each query sees: those of its own document and window, up to its own.

    Args:
        numbers: (batch, time) int64, the number of each token's document.
        window: how many keys a query sees, its own included; None: all up to its own.

    Returns:
        (batch, time, time) bool.
    """
    causal = causal_mask(numbers.shape[1], window, numbers.device)
    return (numbers[:, :, None] == numbers[:, None]) & causal


def block_mask(numbers: Tensor, window: int | None = None) -> BlockMask:
    """The mask of `dense_mask` in the form of FlexAttention."""
    from torch.nn.attention.flex_attention import create_block_mask

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        near = (key <= query) if window is None else (key <= query) & (key > query - window)
        return (numbers[batch, query] == numbers[batch, key]) & near

    batch, time = numbers.shape
    return create_block_mask(seen, batch, None, time, time, device=numbers.device)


def document_attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, documents: Documents, window: int | None = None
) -> Tensor:
    """Causal softmax attention within each document.

    Args:
        q: (batch, time, heads, h).
        k: (batch, time, kv heads, h).
        v: the same shape as `k`.
        scale: factor of the scores.
        documents: the documents of the tokens.
        window: how many keys a query sees, its own included; None: all up to its own. `documents` must have a
            mask for it.

    Returns:
        (batch, time, heads, h), in the dtype of `q`.
    """
    mask, grouped = documents.masks[window], q.shape[2] != k.shape[2]
    if isinstance(mask, Tensor) and q.device.type == "cpu" and q.shape[1] <= LONGEST:
        if grouped:
            group = q.shape[2] // k.shape[2]
            k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
        return short_attention(q, k, v, scale, window, mask)
    q, k, v = (t.transpose(1, 2).to(q.dtype) for t in (q, k, v))
    if isinstance(mask, Tensor):
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None], scale=scale, enable_gqa=grouped)
    else:
        y = _flex_attention(q.is_cuda)(q, k, v, block_mask=mask, scale=scale, enable_gqa=grouped)
    return y.transpose(1, 2)


def _flex_attention(compiled: bool) -> FlexAttention:
    """FlexAttention; the uncompiled form computes the same result from all scores at once."""
    if compiled and not torch.compiler.is_compiling():
        return _compiled_flex_attention()
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention


@functools.cache
def _compiled_flex_attention() -> FlexAttention:
    from torch.nn.attention.flex_attention import flex_attention

    keep_every_graph()
    compiled: FlexAttention = torch.compile(flex_attention, dynamic=False)
    return compiled
