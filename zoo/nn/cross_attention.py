"""Attention of a decoder to the hidden states of an encoder."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from zoo.nn.biased import DropoutAttention


@dataclass
class SourceCache:
    """Keys and values of the source in one layer, (batch, source, kv heads, h) each.

    They are the same for every token of the target; reading the first one fills the cache.
    """

    keys_values: tuple[Tensor, Tensor] | None = None


class CrossAttention(DropoutAttention):
    """W_o softmax(scale q k^T) v: queries from the decoder's stream, keys and values from the source.

    There are no positions, because those of the target are not related to those of the source.
    """

    def forward(
        self, x: Tensor, source: Tensor, mask: Tensor | None, cache: SourceCache | None = None
    ) -> Tensor:
        """Attend to the source.

        Args:
            x: (batch, time, d), the decoder's stream.
            source: (batch, source, d), the hidden states of the encoder.
            mask: (batch, 1, 1, source) bool, False for padding; None: there is no padding.
            cache: keys and values of this source; filled if it is empty.

        Returns:
            (batch, time, d).
        """
        q = self.queries(x)
        if cache is None or cache.keys_values is None:
            keys_values = self.keys_values(source)
            if cache is not None:
                cache.keys_values = keys_values
        else:
            keys_values = cache.keys_values
        k, v = keys_values
        q, k = self.qk(q, k, None)
        return self.join(self.attend(q, k, v, mask))
