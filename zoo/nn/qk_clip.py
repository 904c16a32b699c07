"""QK-clip: queries and keys whose logits grow too large are scaled down after the step (Kimi K2, 2507.20534).

With S the largest logit of a head since the last step and tau the threshold::

    eta = min(1, tau / S);  W_q <- sqrt(eta) W_q,  W_k <- sqrt(eta) W_k

Heads that share their keys (grouped queries) take the smallest eta of the group.
"""

from __future__ import annotations

import torch
from torch import Tensor, distributed

from zoo.nn.linear import Linear
from zoo.nn.positions import visible
from zoo.spec import Module
from zoo.utils.errors import ConfigError
from zoo.utils.sharded import is_sharded

BLOCK = 256
"""Number of queries whose logits are computed at once."""


class QKClip(Module):
    """Keeps the largest logit of each head in a buffer and scales the projections down by it."""

    largest: Tensor

    def __init__(self, n_heads: int, threshold: float) -> None:
        super().__init__()
        self.threshold = threshold
        self.buffer("largest", (n_heads,), start=0.0)

    @torch.no_grad()
    def measure(
        self,
        q: Tensor,
        k: Tensor,
        scale: float,
        window: int | None = None,
        documents: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> None:
        """Raise the buffer to the largest logit of each head; the visible logits are computed again for it.

        Args:
            q: (batch, time, heads, h), as they enter the dot products.
            k: (batch, time, kv heads, h).
            scale: factor of the logits.
            window: how many keys a query sees, its own included; None: all up to its own.
            documents: (batch, time) int64, the number of each token's document; None: all tokens belong to
                one document.
            mask: (batch, time) bool, False for padding, which comes after the text and does not count; None:
                there is no padding.
        """
        time, group = q.shape[1], q.shape[2] // k.shape[2]
        keys = k.repeat_interleave(group, 2) if group > 1 else k
        for start in range(0, time, BLOCK):
            end = min(start + BLOCK, time)
            logits = torch.einsum("bqnh,bknh->bnqk", q[:, start:end], keys[:, :end]).float() * scale
            seen = visible(start, end - start, end, q.device, window)
            if documents is not None:
                seen = seen & (documents[:, None, start:end, None] == documents[:, None, None, :end])
            if mask is not None:  # of the queries: none in a text sees the padding behind it
                seen = seen & mask[:, None, start:end, None]
            logits = logits.masked_fill(~seen, float("-inf"))
            self.largest.copy_(torch.maximum(self.largest, logits.amax((0, 2, 3)).to(self.largest.dtype)))

    @staticmethod
    def check(*projections: Linear) -> None:
        """Refuse projections whose logits do not shrink with the trained matrix, or that must stay.

        Raises:
            ConfigError: A projection is reparameterised by more than factors, is on a sphere, or is frozen.
        """
        for projection in projections:
            reparameterisation = projection.reparameterised.get("weight")
            if reparameterisation is not None and not reparameterisation.is_product:
                raise ConfigError(
                    "model.attention.qk_clip scales W_q and W_k, which their reparameterisation does not "
                    "pass on; expected none, wesar or multipliers"
                )
            if projection.specs["weight"].sphere is not None:
                raise ConfigError(
                    "model.attention.qk_clip changes the norms of W_q and W_k, which a constraint keeps; "
                    "expected one of the two"
                )
            if any(projection.specs[name].frozen for name in _scaled(projection)):
                raise ConfigError(
                    "model.attention.qk_clip changes W_q and W_k, which are frozen; expected one of the two"
                )

    @torch.no_grad()
    def apply_to(self, q: Linear, k: Linear, n_kv_heads: int) -> None:
        """Scale the projections down and reset the buffer. All ranks must call this method."""
        if distributed.is_initialized():
            distributed.all_reduce(self.largest, distributed.ReduceOp.MAX)
        eta = (self.threshold / self.largest.clamp_min(self.threshold)).view(n_kv_heads, -1).amin(1)
        heads = len(self.largest) // n_kv_heads
        for projection, factors in ((q, eta.repeat_interleave(heads)), (k, eta)):
            for name in _scaled(projection):
                scale_rows(projection.get_parameter(name), factors.sqrt())
        self.largest.zero_()


def _scaled(projection: Linear) -> tuple[str, ...]:
    """The names of the parameters that a projection's outputs are proportional to."""
    return ("weight", "bias") if projection.has_bias else ("weight",)


def scale_rows(parameter: Tensor, factors: Tensor) -> None:
    """Multiply equal blocks of rows of a plain or sharded tensor by one factor each, in place."""
    rows = factors.repeat_interleave(parameter.shape[0] // len(factors)).to(parameter.dtype)
    rows = rows.view(-1, *(1 for _ in parameter.shape[1:]))
    if is_sharded(parameter):
        from torch.distributed.tensor import Replicate, distribute_tensor

        mesh = parameter.device_mesh
        rows = distribute_tensor(rows, mesh, [Replicate()] * mesh.ndim, src_data_rank=None)
    parameter.detach().mul_(rows)
