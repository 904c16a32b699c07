"""Multi-head attention, and what can be done to queries and keys before they meet."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

from zoo.kernels.blockwise import LONGEST, blockwise_attention
from zoo.nn.linear import Linear, matrix
from zoo.nn.norm import RMSNorm, unit
from zoo.nn.positions import CachePosition, positions, visible
from zoo.nn.rope import rotate
from zoo.nn.scaling import Scaling, ScalingConfig
from zoo.spec import Module
from zoo.utils.errors import DataError

Rope = tuple[Tensor, Tensor]


@dataclass
class LayerCache:
    """Keys and values of the tokens seen so far, (batch, kv heads, capacity, h) each.

    A head's keys lie side by side, as a step reads them.

    Attributes:
        keys: of every position; what lies behind the stored ones has no meaning.
        values: likewise.
        padding: (batch,) int64, the positions in front of each text that hold none of it; None: none.
    """

    keys: Tensor
    values: Tensor
    padding: Tensor | None = None

    def extend(self, k: Tensor, v: Tensor, position: CachePosition) -> tuple[Tensor, Tensor]:
        """Store (batch, time, kv heads, h) at `position`; return everything up to there.

        Where the position is a tensor, everything that there is room for.
        """
        time = k.shape[1]
        k, v = (t.transpose(1, 2).to(self.keys.dtype) for t in (k, v))
        if isinstance(position, Tensor):
            where = positions(position, time, k.device)
            keys, values = self.keys.index_copy_(2, where, k), self.values.index_copy_(2, where, v)
        else:
            end = position + time
            self.keys[:, :, position:end] = k
            self.values[:, :, position:end] = v
            keys, values = self.keys[:, :, :end], self.values[:, :, :end]
        return keys.transpose(1, 2), values.transpose(1, 2)


class KVCache:
    """The keys and values of every layer, for decoding token by token.

    Attributes:
        layers: one `LayerCache` per layer.
        position: number of tokens stored; the model advances it. A tensor after `fix_shapes`.
        capacity: number of tokens that fit.
        padding: (batch,) int64, the tokens in front of each text that are none of it; None: none.
    """

    def __init__(
        self,
        n_layers: int,
        shape: tuple[int, int, int, int],
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        padding: Tensor | None = None,
    ) -> None:
        """Allocate for `shape` = (batch, capacity, kv heads, head size)."""
        batch, self.capacity, heads, size = shape
        empty = partial(torch.zeros, (batch, heads, self.capacity, size), device=device, dtype=dtype)
        self.layers = [LayerCache(empty(), empty(), padding) for _ in range(n_layers)]
        self.padding = padding
        self.position: CachePosition = 0

    def check_room(self, time: int) -> None:
        """Check that `time` further tokens fit, unless the shapes are fixed.

        Raises:
            DataError: they do not.
        """
        if isinstance(self.position, int) and self.position + time > self.capacity:
            raise DataError(
                f"tokens: {time} more do not fit the cache: "
                f"{self.position} of {self.capacity} positions are used"
            )

    def fix_shapes(self) -> None:
        """Make shapes independent of the position, so that one compiled step serves every token.

        From now on attention goes over all positions of the cache, and `check_room` checks nothing: the
        position is a tensor, whose value a compiled step must not read.
        """
        self.position = torch.tensor(self.position, device=self.layers[0].keys.device)

    def reach(self, time: int) -> int:
        """Number of keys that `time` further tokens go over."""
        return self.capacity if isinstance(self.position, Tensor) else self.position + time


class AsTheyAre(Module):
    """q, k <- q, k: positions are told elsewhere."""

    def forward(self, q: Tensor, k: Tensor, rope: Rope | None) -> tuple[Tensor, Tensor]:
        """(batch, time, heads, h) each -> the same."""
        return q, k


class Rotary(Module):
    """q, k <- RoPE(q), RoPE(k)."""

    def forward(self, q: Tensor, k: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
        """(batch, time, heads, h) each -> the same."""
        return rotate(q, rope), rotate(k, rope)


class NormThenRotary(Module):
    """QK-norm: q, k <- RoPE(RMSNorm(q)), RoPE(RMSNorm(k)), one scale of h entries each."""

    def __init__(self, head_size: int, eps: float) -> None:
        super().__init__()
        self.q_norm = RMSNorm(("head_size", head_size), eps)
        self.k_norm = RMSNorm(("head_size", head_size), eps)

    def forward(self, q: Tensor, k: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
        """(batch, time, heads, h) each -> the same."""
        return rotate(self.q_norm(q), rope), rotate(self.k_norm(k), rope)


class RotaryThenScaledNorm(Module):
    """nGPT: q, k <- Norm(RoPE(q)) s_qk, Norm(RoPE(k)) s_qk (equations 15 and 16).

    s_qk has h entries per head and is shared by queries and keys; with grouped queries, by a
    group. Only q . k counts, so the queries take s_qk^2 and the keys stay as they are. Without
    `normalise` (Table 6) the scaling remains; without positions (cross-attention) the rotation goes.
    """

    def __init__(
        self, n_kv_heads: int, head_size: int, d_model: int, s_qk: ScalingConfig, normalise: bool = True
    ) -> None:
        super().__init__()
        self.normalise = normalise
        self.s_qk = Scaling((("kv_heads", n_kv_heads), ("head_size", head_size)), s_qk, d_model**-0.5)

    def forward(self, q: Tensor, k: Tensor, rope: Rope | None) -> tuple[Tensor, Tensor]:
        """(batch, time, heads, h) each -> the same."""
        s = self.s_qk()
        group = q.shape[-2] // k.shape[-2]
        if isinstance(s, Tensor) and s.dim() == 2 and group > 1:
            s = s.repeat_interleave(group, 0)
        if rope is not None:
            q, k = rotate(q, rope), rotate(k, rope)
        if self.normalise:
            return unit(q, s * s), unit(k)
        return (q * (s * s)).to(q.dtype), k


class Attention(Module):
    """W_o softmax(q k^T * scale) v, causal, with grouped queries if there are fewer kv heads.

    The block around it decides what the stream is: `input_std` and `sphere` are declared through
    to the matrices.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        n_kv_heads: int,
        *,
        qk: Module,
        scale: float,
        residual_branches: int,
        head_size: int | None = None,
        query_std: float | None = None,
        input_std: float = 1.0,
        sphere: str | None = None,
        normalised: tuple[bool, bool] = (False, False),
        bias: bool = False,
        qkv_bias: bool = False,
    ) -> None:
        """Create the four matrices.

        Args:
            d_model: width of the stream.
            n_heads: number of query heads; without `head_size` a divisor of `d_model`.
            n_kv_heads: number of key and value heads, a divisor of `n_heads`.
            qk: module (q, k, rope) -> (q, k) applied to (batch, time, heads, h).
            scale: factor of the scores before the softmax.
            residual_branches: 2N, for W_o.
            head_size: entries per head, h; None: d_model / n_heads.
            query_std: standard deviation the queries should have, 1 / sqrt(h) where no `scale` takes its
                place; None: that of every other linear map.
            input_std: standard deviation of the stream's entries.
            sphere: "embed" to keep the matrices on nGPT's sphere.
            normalised: whether q and k, and whether the output, are normalised next.
            bias: add one to each of the four maps.
            qkv_bias: add one to queries, keys and values, though not to the output.
        """
        super().__init__()
        self.head_size = head_size or d_model // n_heads
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.scale = scale
        embed, heads = ("embed", d_model), ("heads", n_heads * self.head_size)
        kv = ("kv_heads", n_kv_heads * self.head_size)
        stream: dict[str, Any] = {"input_std": input_std, "sphere": sphere}
        qk_normalised, o_normalised = normalised
        query = matrix(heads, embed, output_std=query_std, normalised=qk_normalised, **stream)
        self.q = Linear(query, bias or qkv_bias)
        self.k = Linear(matrix(kv, embed, normalised=qk_normalised, **stream), bias or qkv_bias)
        self.v = Linear(matrix(kv, embed, **stream), bias or qkv_bias)
        self.qk = qk
        self.o = Linear(
            matrix(
                embed,
                heads,
                residual_branches=residual_branches,
                normalised=o_normalised,
                **stream,
            ),
            bias,
        )

    def forward(
        self, x: Tensor, rope: Rope, cache: LayerCache | None = None, position: CachePosition = 0
    ) -> Tensor:
        """Attend to the tokens of `x` and to those in the cache.

        Args:
            x: (batch, time, d).
            rope: cosines and sines (time, h / 2) of these tokens' positions, or (batch, time, h / 2).
            cache: keys and values so far; extended in place.
            position: number of tokens in the cache.

        Returns:
            (batch, time, d).
        """
        q, k, v = self.project(x)
        q, k = self.qk(q, k, rope)
        padding = None
        if cache is not None:
            k, v = cache.extend(k, v, position)
            k, v = k.to(q.dtype), v.to(q.dtype)
            padding = cache.padding
        return self.join(causal_attention(q, k, v, self.scale, position, padding))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(batch, time, d) -> queries, keys and values, (batch, time, their heads, h)."""
        return self.queries(x), *self.keys_values(x)

    def queries(self, x: Tensor) -> Tensor:
        """(batch, time, d) -> (batch, time, heads, h)."""
        q: Tensor = rearrange(self.q(x), "b t (n h) -> b t n h", n=self.n_heads)
        return q

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, time, d) -> (batch, time, kv heads, h) each."""
        k, v = (rearrange(m(x), "b t (n h) -> b t n h", n=self.n_kv_heads) for m in (self.k, self.v))
        return k, v

    def join(self, y: Tensor) -> Tensor:
        """What the heads found, (batch, time, heads, h) -> (batch, time, d)."""
        out: Tensor = self.o(rearrange(y, "b t n h -> b t (n h)"))
        return out


def causal_attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, position: CachePosition = 0, padding: Tensor | None = None
) -> Tensor:
    """Causal softmax attention.

    Whole short sequences on a CPU take the blockwise form (in evaluation too, so that it gives the
    numbers of training), everything else torch's kernels.

    Args:
        q: (batch, time, heads, h).
        k: (batch, keys, kv heads, h), keys >= time.
        v: like `k`.
        scale: factor of the scores.
        position: place of the first query among the keys. Where it is a number, the queries are the last
            of them; where it is a tensor, what follows them is not seen.
        padding: (batch,) int64, keys in front that no text sees; None: none.

    Returns:
        (batch, time, heads, h).
    """
    time, keys = q.shape[1], k.shape[1]
    if q.device.type == "cpu" and 1 < time == keys <= LONGEST and padding is None:
        group = q.shape[2] // k.shape[2]
        if group > 1:
            k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
        return blockwise_attention(q, k, v, scale)
    mask = None
    if 1 < time < keys or isinstance(position, Tensor) or padding is not None:
        mask = visible(position, time, keys, q.device)
        if padding is not None:
            padded, own = (
                positions(start, count, q.device) < padding[:, None]
                for start, count in ((0, keys), (position, time))
            )
            # Padding sees padding, for a softmax over nothing would not be a number.
            mask = (mask & (own[:, :, None] == padded[:, None]))[:, None]
    if mask is not None and isinstance(position, Tensor) and time == 1 and q.device.type == "cpu":
        return _one_query(q, k, v, scale, mask)
    y = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=mask,
        is_causal=mask is None and time > 1,
        scale=scale,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return y.transpose(1, 2)


def _one_query(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor) -> Tensor:
    """`causal_attention` written out for the one query of a compiled step, which inductor makes loops of.

    torch's kernel has a thread per block of queries, and here there is one. As there, scores and softmax
    are float32.
    """
    batch, _, heads, size = q.shape
    exact = torch.promote_types(q.dtype, torch.float32)
    grouped = q.view(batch, k.shape[2], -1, size).to(exact) * scale
    scores = grouped @ k.permute(0, 2, 3, 1).to(exact)
    probabilities = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return (probabilities.to(v.dtype) @ v.transpose(1, 2)).view(batch, 1, heads, size)
