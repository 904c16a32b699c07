"""The cache of keys and values, which makes decoding token by token linear in the number of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from zoo.nn.positions import CachePosition, positions
from zoo.utils.errors import DataError


@dataclass
class LayerCache:
    """Keys and values of one layer for the tokens read so far, (batch, kv heads, capacity, h) each.

    The keys of one head are contiguous, as a decoding step reads them.

    Attributes:
        keys: the keys of every position; entries after the stored ones have no meaning.
        values: the values, in the same layout.
        padding: (batch,) int64, number of padding tokens in front of each text; None: there is no padding.
    """

    keys: Tensor
    values: Tensor
    padding: Tensor | None = None

    def extend(self, k: Tensor, v: Tensor, position: CachePosition) -> tuple[Tensor, Tensor]:
        """Store the keys and values of further tokens.

        Args:
            k: (batch, time, kv heads, h).
            v: the same shape.
            position: number of tokens stored before.

        Returns:
            Keys and values (batch, keys, kv heads, h) of all tokens up to the new ones; if `position` is a
            tensor, those of the whole capacity.
        """
        time = k.shape[1]
        k, v = (t.transpose(1, 2).to(self.keys.dtype) for t in (k, v))
        if isinstance(position, Tensor):
            position_ids = positions(position, time, k.device)
            keys = self.keys.index_copy_(2, position_ids, k)
            values = self.values.index_copy_(2, position_ids, v)
        else:
            end = position + time
            self.keys[:, :, position:end] = k
            self.values[:, :, position:end] = v
            keys, values = self.keys[:, :, :end], self.values[:, :, :end]
        return keys.transpose(1, 2), values.transpose(1, 2)


def rounded_up(length: int, multiple_of: int) -> int:
    """The smallest multiple of a number that is not below `length`."""
    return -(-length // multiple_of) * multiple_of


class KVCache:
    """The keys and values of every layer, for decoding token by token.

    Attributes:
        layers: one `LayerCache` for each layer.
        position: number of tokens stored; the model advances it. A tensor after `fix_shapes`.
        length: largest number of tokens of the sequences, padding included, by which RoPE may choose its
            frequencies. A tensor after `fix_shapes`.
        capacity: number of tokens for which there is room, at least `length`.
        padding: (batch,) int64, number of padding tokens in front of each text; None: there is no padding.
    """

    def __init__(
        self,
        n_layers: int,
        shape: tuple[int, int, int, int],
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        padding: Tensor | None = None,
        multiple_of: int = 1,
    ) -> None:
        """Allocate for `shape` = (batch, length, kv heads, head size), with the length rounded up."""
        batch, length, heads, size = shape
        self.length: int | Tensor = length
        self.capacity = rounded_up(length, multiple_of)
        empty = partial(torch.zeros, (batch, heads, self.capacity, size), device=device, dtype=dtype)
        self.layers = [LayerCache(empty(), empty(), padding) for _ in range(n_layers)]
        self.padding = padding
        self.position: CachePosition = 0

    def check_room(self, time: int) -> None:
        """Check that `time` further tokens fit, unless the shapes are fixed.

        Raises:
            DataError: The cache has fewer than `time` free positions.
        """
        if isinstance(self.position, int) and self.position + time > self.capacity:
            raise DataError(
                f"tokens: {time} more do not fit the cache: "
                f"{self.position} of {self.capacity} positions are used"
            )

    def fix_shapes(self) -> None:
        """Make shapes independent of the position, so that one compiled step serves every token.

        From then on attention goes over all positions of the cache, and `check_room` checks nothing, because
        the position is a tensor, whose value a compiled step must not read.
        """
        device = self.layers[0].keys.device
        self.position = torch.tensor(self.position, device=device)
        self.length = torch.tensor(self.length, device=device)

    def key_count(self, time: int) -> int:
        """The number of keys that `extend` returns for `time` further tokens."""
        return self.capacity if isinstance(self.position, Tensor) else self.position + time
