"""T5's relative positions: a learned bias of the scores for each head and bucket of distances."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zoo.nn.positions import CachePosition
from zoo.spec import Module, ParamSpec, Role

BIAS_STD = 0.5
"""Standard deviation of the bias: close to the scores' 1, but smaller (Amos, A.4.2)."""


class RelativeBias(Module):
    """b[n, i, j] = table[bucket(j - i), n] (Raffel et al. 2020, section 2.1).

    All layers of a stack share one table. Half of the buckets hold a single distance each; the widths of the
    others grow logarithmically up to a largest distance, beyond which all distances share a bucket. With both
    directions, half of the buckets are for keys after the query. With one direction, keys after the query
    share the bucket of distance 0, and a causal mask hides them.
    """

    def __init__(self, n_heads: int, buckets: int, max_distance: int, *, both_directions: bool) -> None:
        """Declare the table.

        Args:
            n_heads: number of heads.
            buckets: number of buckets, a multiple of 4 with both directions, otherwise of 2.
            max_distance: the distance from which on all distances share the last bucket.
            both_directions: whether queries see keys after them.
        """
        super().__init__()
        self.buckets, self.max_distance, self.both_directions = buckets, max_distance, both_directions
        self.param(
            "weight",
            ParamSpec(Role.POSITION, shape=(buckets, n_heads), axes=("bucket", "head"), output_std=BIAS_STD),
        )

    def forward(self, first: CachePosition, queries: int, keys: int, device: torch.device) -> Tensor:
        """The bias of queries at positions `first`, first + 1, ... and of keys at 0, 1, ...

        Args:
            first: position of the first query.
            queries: number of queries.
            keys: number of keys.
            device: where the model lives.

        Returns:
            (heads, queries, keys).
        """
        # One look-up for each distance instead of each pair; the backward pass then sums diagonals.
        distances = torch.arange(-queries + 1, keys, device=device) - first
        of_distance = self.virtual_rows("weight", self.bucket(distances)).T
        return of_distance.unfold(-1, keys, 1).flip(1)

    def bucket(self, distance: Tensor) -> Tensor:
        """The bucket of each j - i: any shape, int64 -> the same."""
        buckets, offset = self.buckets, torch.zeros_like(distance)
        if self.both_directions:
            buckets //= 2
            offset = torch.where(distance > 0, buckets, 0)
            back = distance.abs()
        else:
            back = (-distance).clamp_min(0)
        single = buckets // 2
        growth = torch.log(back.clamp_min(1) / single) / math.log(self.max_distance / single)
        wide = single + (growth * (buckets - single)).to(torch.int64)
        return offset + torch.where(back < single, back, wide.clamp_max(buckets - 1))
