"""The transformations of queries and keys before their dot products are taken.

Each is a module (q, k, rope) -> (q, k). q and k are (batch, time, heads, h). `rope` is the result of
`zoo.nn.rope.rotation` for the positions of the tokens, or None if nothing is rotated.
"""

from __future__ import annotations

from torch import Tensor

from zoo.nn.norm import RMSNorm, unit
from zoo.nn.rope import Rope, rotate_both
from zoo.nn.scaling import Scaling, ScalingConfig
from zoo.spec import Module


class NoTransform(Module):
    """q, k <- q, k, in a model whose positions enter elsewhere."""

    def forward(self, q: Tensor, k: Tensor, rope: Rope | None) -> tuple[Tensor, Tensor]:
        """(batch, time, heads, h) each -> the same."""
        return q, k


class Rotary(Module):
    """q, k <- RoPE(q), RoPE(k); in a block without positions (`rope` is None) q, k <- q, k."""

    def forward(self, q: Tensor, k: Tensor, rope: Rope | None) -> tuple[Tensor, Tensor]:
        """(batch, time, heads, h) each -> the same."""
        return rotate_both(q, k, rope)


class NormThenRotary(Module):
    """QK-norm: q, k <- RoPE(RMSNorm(q)), RoPE(RMSNorm(k)), each norm with a scale of h entries.

    Without positions (`rope` is None) nothing is rotated.
    """

    def __init__(self, head_size: int, eps: float, norm: type[RMSNorm] = RMSNorm) -> None:
        super().__init__()
        self.q_norm = norm(("head_size", head_size), eps)
        self.k_norm = norm(("head_size", head_size), eps)

    def forward(self, q: Tensor, k: Tensor, rope: Rope | None) -> tuple[Tensor, Tensor]:
        """(batch, time, heads, h) each -> the same."""
        return rotate_both(self.q_norm(q), self.k_norm(k), rope)


class AllHeadsNormThenRotary(Module):
    """QK-norm over all heads at once, each norm with a scale for every entry of every head (OLMo 2)."""

    def __init__(
        self, n_heads: int, n_kv_heads: int, head_size: int, eps: float, norm: type[RMSNorm] = RMSNorm
    ) -> None:
        super().__init__()
        self.q_norm = norm(("heads", n_heads * head_size), eps)
        self.k_norm = norm(("kv_heads", n_kv_heads * head_size), eps)

    def forward(self, q: Tensor, k: Tensor, rope: Rope | None) -> tuple[Tensor, Tensor]:
        """(batch, time, heads, h) each -> the same."""
        q, k = (norm(t.flatten(-2)).view_as(t) for norm, t in ((self.q_norm, q), (self.k_norm, k)))
        return rotate_both(q, k, rope)


class RotaryThenScaledNorm(Module):
    """nGPT: q, k <- Norm(RoPE(q)) s_qk, Norm(RoPE(k)) s_qk (equations 15 and 16).

    s_qk has h entries for each head; queries and keys share it, and grouped queries share it within a
    group. Because only q . k matters, the queries are multiplied by s_qk^2 and the keys are not multiplied.
    Without `normalise` (Table 6) the scaling remains. Without positions (`rope` is None, as in
    cross-attention) nothing is rotated.
    """

    def __init__(
        self, n_kv_heads: int, head_size: int, d_model: int, s_qk: ScalingConfig, normalise: bool = True
    ) -> None:
        super().__init__()
        self.normalise = normalise
        # `kv_heads` is the width of all heads together, in the matrices to keys and values.
        axes = ("kv_head", n_kv_heads), ("head_size", head_size)
        self.s_qk = Scaling(axes, s_qk, d_model)

    def forward(self, q: Tensor, k: Tensor, rope: Rope | None) -> tuple[Tensor, Tensor]:
        """(batch, time, heads, h) each -> the same."""
        s = self.s_qk()
        group = q.shape[-2] // k.shape[-2]
        if isinstance(s, Tensor) and s.dim() == 2 and group > 1:
            s = s.repeat_interleave(group, 0)
        q, k = rotate_both(q, k, rope)
        if self.normalise:
            return unit(q, s * s), unit(k)
        return (q * (s * s)).to(q.dtype), k
