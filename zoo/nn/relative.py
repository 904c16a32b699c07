"""Relative position representations (Shaw, Uszkoreit and Vaswani 2018)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.nn.biased import BiasedAttention
from zoo.spec import Module, ParamSpec, Role

RELATIVE_STD = 0.5
"""Range of a relative position embedding: close to the stream's 1 without dominating it (Amos, A.4.1)."""


class RelativeAttention(BiasedAttention):
    """Attention that adds a learned vector of the distance to every key and every value.

        e_ij = q_i (k_j + a^K_ij) / sqrt(h);  y_i = sum_j softmax_j(e_ij) (v_j + a^V_ij)

    (equations 3 and 4), where a_ij = w_clip(j - i, -r, r). Each layer has its own two tables w, which
    all heads share (section 3.4).
    """

    def __init__(self, *args: Any, distance: int, **parts: Any) -> None:
        """Create the maps and the tables.

        Args:
            *args: as for `Attention`.
            distance: r, from which on all distances are the same.
            **parts: as for `BiasedAttention`; as many key as query heads.
        """
        super().__init__(*args, **parts)
        self.keys = DistanceTable(distance, self.head_size)
        self.values = DistanceTable(distance, self.head_size)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        """Softmax attention with distances.

        A query meets the 2 r + 1 vectors of a table once, not those of every pair of positions; the
        probabilities of the pairs of one distance are added up before they meet the table.

        Args:
            q: (batch, time, heads, h).
            k: the same shape.
            v: the same shape.
            bias: (batch, 1, 1, time) bool, False for what must not be seen; None: everything is seen.

        Returns:
            (batch, time, heads, h).
        """
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        distance = self.keys.distances(q.shape[-2], q.device).expand(*q.shape[:-1], -1)
        scores = (q @ k.mT + (q @ self.keys.table().mT).gather(-1, distance)) * self.scale
        if bias is not None:
            scores = scores.masked_fill(~bias, -torch.inf)
        exact = torch.promote_types(scores.dtype, torch.float32)
        p = torch.softmax(scores, -1, dtype=exact)
        p = F.dropout(p, self.dropout, self.training)
        of_distance = p.new_zeros(*p.shape[:-1], self.values.rows).scatter_add(-1, distance, p)
        y = p.to(v.dtype) @ v + of_distance.to(v.dtype) @ self.values.table().to(v.dtype)
        return y.transpose(1, 2)


class DistanceTable(Module):
    """A vector for each of the distances -r .. r."""

    def __init__(self, distance: int, head_size: int) -> None:
        super().__init__()
        self.distance, self.rows = distance, 2 * distance + 1
        self.param(
            "weight",
            ParamSpec(
                Role.POSITION,
                shape=(self.rows, head_size),
                axes=("distance", "head_size"),
                output_std=RELATIVE_STD,
            ),
        )

    def table(self) -> Tensor:
        """w, (2 r + 1, h)."""
        return self.virtual("weight")

    def distances(self, time: int, device: torch.device) -> Tensor:
        """The row of w for every query i and key j, clip(j - i, -r, r) + r: (time, time) int64."""
        position = torch.arange(time, device=device)
        return (position - position[:, None]).clamp(-self.distance, self.distance) + self.distance
