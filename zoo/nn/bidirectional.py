"""Attention of every position to every other: an encoder's."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from zoo.nn.attention import Attention, Rope
from zoo.spec import Module


class AsTheyAre(Module):
    """q, k <- q, k: positions are told elsewhere."""

    def forward(self, q: Tensor, k: Tensor, rope: Rope | None) -> tuple[Tensor, Tensor]:
        """(batch, time, heads, h) each -> the same."""
        return q, k


class BidirectionalAttention(Attention):
    """W_o softmax(q k^T / sqrt(h)) v, with biases, over all positions that are not padding."""

    def __init__(
        self, d_model: int, n_heads: int, *, qk: Module, residual_branches: int, dropout: float = 0.0
    ) -> None:
        """Create the four maps.

        Args:
            d_model: width of the stream.
            n_heads: number of heads, a divisor of `d_model`.
            qk: module (q, k, rope) -> (q, k) applied to (batch, time, heads, h).
            residual_branches: 2N, for W_o.
            dropout: probability of dropping an attention probability.
        """
        scale = (d_model // n_heads) ** -0.5
        super().__init__(
            d_model, n_heads, n_heads, qk=qk, scale=scale, residual_branches=residual_branches, bias=True
        )
        self.dropout = dropout

    def forward(self, x: Tensor, rope: Rope | None, mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """Attend to the whole sequence.

        Args:
            x: (batch, time, d).
            rope: cosines and sines (time, h / 2), if `qk` rotates.
            mask: (batch, time) bool, False where there is padding, which nothing attends to; None: all
                positions are real.

        Returns:
            (batch, time, d).
        """
        q, k, v = self.project(x)
        q, k = self.qk(q, k, rope)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return self.join(self.attend(q, k, v, None if mask is None else mask[:, None, None]).transpose(1, 2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Softmax attention.

        Args:
            q: (batch, heads, time, h).
            k: like `q`.
            v: like `q`.
            mask: (batch, 1, 1, time) bool or None.

        Returns:
            (batch, heads, time, h).
        """
        dropped = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, mask, dropped, scale=self.scale)
