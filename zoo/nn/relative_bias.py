"""T5's positions: a learned number per head and bucket of distances, added to the scores."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zoo.nn.positions import CachePosition
from zoo.spec import Module, ParamSpec, Role

BIAS_STD = 0.5
"""Range of the bias: close to the scores' 1 without dominating them (Amos, A.4.2)."""


class RelativeBias(Module):
    """b[n, i, j] = table[bucket(j - i), n] (Raffel et al. 2020, section 2.1).

    One table serves all layers of a stack. Half of the buckets are single distances, the other half
    widen logarithmically up to a largest distance, beyond which all are the same. In both directions
    half of the buckets are for the keys that follow; in one direction these share the bucket of
    distance 0, and a causal mask hides them.
    """

    def __init__(self, n_heads: int, buckets: int, max_distance: int, *, both_directions: bool) -> None:
        """Declare the table.

        Args:
            n_heads: number of heads.
            buckets: number of buckets; a multiple of 4 in both directions, else of 2.
            max_distance: from here on all distances are in the last bucket.
            both_directions: whether queries look at keys that follow.
        """
        super().__init__()
        self.buckets, self.max_distance, self.both_directions = buckets, max_distance, both_directions
        self.param(
            "weight",
            ParamSpec(Role.POSITION, shape=(buckets, n_heads), axes=("bucket", "heads"), output_std=BIAS_STD),
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
        # Looked up once per distance, not once per pair: the backward pass then adds up diagonals.
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
