"""Attention with a bias of the scores: for positions, or for what must not be seen."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from zoo.nn.attention import MultiHeadAttention
from zoo.nn.kv_cache import LayerCache
from zoo.nn.positions import CachePosition
from zoo.nn.rope import Rope
from zoo.utils.untyped import Passed


class DropoutAttention(MultiHeadAttention):
    """Attention with dropout of the probabilities and a bias of the scores, which determines what is seen."""

    def __init__(self, *args: Passed, dropout: float = 0.0, **kwargs: Passed) -> None:
        """Create the four matrices.

        Args:
            *args: the arguments of `MultiHeadAttention`.
            dropout: probability of dropping a probability of the softmax.
            **kwargs: the keyword arguments of `MultiHeadAttention`.
        """
        super().__init__(*args, **kwargs)
        self.dropout = dropout

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        """dropout(softmax(scale q k^T + bias)) v.

        Args:
            q: (batch, time, heads, h).
            k: (batch, keys, kv heads, h).
            v: the same shape as `k`.
            bias: (1 or batch, 1 or heads, time, keys), numbers that are added to the scores, or bool, False
                for keys that must not be seen; None: every key is seen.

        Returns:
            (batch, time, heads, h).
        """
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2).to(q.dtype),
            v.transpose(1, 2).to(q.dtype),
            attn_mask=bias if bias is None or not bias.is_floating_point() else bias.to(q.dtype),
            dropout_p=self.dropout if self.training else 0.0,
            scale=self.scale,
            enable_gqa=q.shape[2] != k.shape[2],
        )
        return y.transpose(1, 2)


class BiasedAttention(DropoutAttention):
    """W_o dropout(softmax(scale q k^T + bias)) v; the bias determines what may be seen."""

    def forward(
        self,
        x: Tensor,
        rope: Rope | None,
        bias: Tensor | None,
        cache: LayerCache | None = None,
        position: CachePosition = 0,
    ) -> Tensor:
        """Attend to the tokens of `x` and to those in the cache.

        Args:
            x: (batch, time, d).
            rope: cosines and sines of the positions of these tokens, if `qk` rotates.
            bias: numbers that are added to the scores, or a bool mask, see `attend`.
            cache: keys and values of the tokens before; extended in place.
            position: number of tokens in the cache.

        Returns:
            (batch, time, d).
        """
        q, k, v = self.project(x)
        q, k = self.qk(q, k, rope)
        if cache is not None:
            k, v = cache.extend(k, v, position)
        return self.join(self.attend(q, k, v, bias))
