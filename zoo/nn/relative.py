"""Attention with a learned vector for each distance between a query and a key."""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

from zoo.nn.biased import BiasedAttention
from zoo.nn.linear import Linear
from zoo.spec import Module, ParamSpec, Role
from zoo.utils.untyped import Passed

RELATIVE_STD = 0.5
"""Standard deviation of a relative position embedding: close to the stream's 1, but smaller (Amos, A.4.1)."""


class DistanceAttention(BiasedAttention):
    """Attention with a key and a value for every distance between two positions.

        e_ij = q_i (k_j + k^rel_ij) / sqrt(h);  y_i = sum_j softmax_j(e_ij) (v_j + v^rel_ij)

    A subclass says where the vectors of the 2 r + 1 distances come from.
    """

    def distance_tables(self) -> tuple[Tensor, Tensor]:
        """Keys and values of the distances -r .. r, each (rows, h), or (heads, rows, h)."""
        raise NotImplementedError

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        """Softmax attention with distances.

        The product of a query with the 2 r + 1 vectors of the table is computed once, not for every pair of
        positions, and the probabilities of pairs with the same distance are summed before they multiply the
        table.

        Args:
            q: (batch, time, heads, h).
            k: the same shape.
            v: the same shape.
            bias: (batch, 1, 1, time) bool, False for padding; None: there is no padding.

        Returns:
            (batch, time, heads, h).
        """
        keys, values = self.distance_tables()
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        distance = distance_rows(q.shape[-2], keys.shape[-2], q.device).expand(*q.shape[:-1], -1)
        scores = (q @ k.mT + (q @ keys.to(q.dtype).mT).gather(-1, distance)) * self.scale
        if bias is not None:
            # The lowest number, because a text of padding alone would have a softmax over nothing: NaN.
            scores = scores.masked_fill(~bias, torch.finfo(scores.dtype).min)
        exact = torch.promote_types(scores.dtype, torch.float32)
        p = torch.softmax(scores, -1, dtype=exact)
        p = F.dropout(p, self.dropout, self.training)
        of_distance = p.new_zeros(*p.shape[:-1], values.shape[-2]).scatter_add(-1, distance, p)
        y = p.to(v.dtype) @ v + of_distance.to(v.dtype) @ values.to(v.dtype)
        return y.transpose(1, 2)


class RelativeAttention(DistanceAttention):
    """The Amos paper's RPE: the embedding of a distance is input to the key and value maps (A.4.1).

    "Similar to the hidden state", each layer has one table e of 2 r + 1 vectors as wide as the stream, and
    k^rel = W_K e (+ b_K), v^rel = W_V e (+ b_V). The released code adds the biases once more; the paper's
    text, x_j + e_ij through one map, adds them once.
    """

    def __init__(self, d_model: int, *sizes: int, distance: int, biases_twice: bool, **parts: Passed) -> None:
        """Create the maps and the table.

        Args:
            d_model: width of the stream.
            *sizes: numbers of query heads and of key heads, which are equal.
            distance: r, the distance from which on all distances share a vector.
            biases_twice: whether the biases of the maps count for the table as well.
            **parts: further arguments of `BiasedAttention`.
        """
        super().__init__(d_model, *sizes, **parts)
        self.biases_twice = biases_twice
        self.relative = DistanceTable(distance, ("embed", d_model))

    def distance_tables(self) -> tuple[Tensor, Tensor]:
        """The table through W_K and W_V: (heads, 2 r + 1, h) each."""
        table = self.relative.table()

        def mapped(linear: Linear) -> Tensor:
            y = linear(table) if self.biases_twice else linear.matmul(table)
            return rearrange(y, "r (n h) -> n r h", n=self.n_kv_heads)

        return mapped(self.k), mapped(self.v)


class ShawAttention(DistanceAttention):
    """Relative position representations (Shaw, Uszkoreit and Vaswani 2018, equations 3 and 4).

    The vectors a^K and a^V of a distance are added after the projections. Each layer has its own two
    tables, which all heads share (section 3.4).
    """

    def __init__(self, *args: Passed, distance: int, **kwargs: Passed) -> None:
        """Create the maps and the tables.

        Args:
            *args: the arguments of `BiasedAttention`.
            distance: r, the distance from which on all distances share a vector.
            **kwargs: the keyword arguments of `BiasedAttention`, with as many key heads as query heads.
        """
        super().__init__(*args, **kwargs)
        self.keys = DistanceTable(distance, ("head_size", self.head_size))
        self.values = DistanceTable(distance, ("head_size", self.head_size))

    def distance_tables(self) -> tuple[Tensor, Tensor]:
        """a^K and a^V, (2 r + 1, h) each."""
        return self.keys.table(), self.values.table()


class DistanceTable(Module):
    """A vector for each of the distances -r .. r."""

    def __init__(self, distance: int, width: tuple[str, int]) -> None:
        """Create the table.

        Args:
            distance: r.
            width: name and size of the vectors' axis.
        """
        super().__init__()
        self.param(
            "weight",
            ParamSpec(
                Role.POSITION,
                shape=(2 * distance + 1, width[1]),
                axes=("distance", width[0]),
                output_std=RELATIVE_STD,
            ),
        )

    def table(self) -> Tensor:
        """The vectors, (2 r + 1, width)."""
        return self.virtual("weight")


def distance_rows(time: int, rows: int, device: torch.device) -> Tensor:
    """The row of a table for every query i and key j, clip(j - i, -r, r) + r: (time, time) int64.

    Args:
        time: number of positions.
        rows: 2 r + 1.
        device: device of the result.
    """
    position, distance = torch.arange(time, device=device), rows // 2
    return (position - position[:, None]).clamp(-distance, distance) + distance
