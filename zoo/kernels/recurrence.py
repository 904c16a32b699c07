"""The part of an LSTM that cannot be done for all steps at once, with its gradient.

Autograd would form the gradient of both matrices step by step and add them up; formed here, each is
one product over all steps. A training step takes a third of the time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def recurrence(
    gates: Tensor,
    weight: Tensor,
    projection: Tensor,
    h: Tensor,
    c: Tensor,
    hidden_mask: Tensor | None = None,
    memory_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Go through the steps of a projected LSTM; in float32 (float64 for float64) under autocast too.

    Args:
        gates: (time, batch, 4 m), i, f, g and o as far as they do not depend on h.
        weight: (4 m, d), the kernel of h.
        projection: (d, m).
        h: (batch, d), the last output.
        c: (batch, m), the memory.
        hidden_mask: (time, batch, d), factors of h where it enters the gates, or None.
        memory_mask: (batch, m), factors of what is projected, or None.

    Returns:
        h of every step (time, batch, d), and the memory after the last one.
    """
    exact = torch.promote_types(gates.dtype, torch.float32)
    tensors = (t.to(exact) for t in (gates, weight, projection, h, c))
    outputs, memory = _Recurrence.apply(*tensors, hidden_mask, memory_mask)  # type: ignore[no-untyped-call]
    return outputs, memory


class _Recurrence(torch.autograd.Function):
    """(gates, weight, projection, h, c, masks) -> outputs (time, batch, d), last memory (batch, m)."""

    @staticmethod
    def forward(
        ctx: Any,
        gates: Tensor,
        weight: Tensor,
        projection: Tensor,
        h: Tensor,
        c: Tensor,
        hidden_mask: Tensor | None,
        memory_mask: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        time, (batch, m) = len(gates), c.shape
        activated = torch.empty_like(gates)
        memories = c.new_empty(time + 1, batch, m)
        memories[0] = c
        squashed = c.new_empty(time, batch, m)
        entering = h.new_empty(time, *h.shape)
        outputs = torch.empty_like(entering)
        for t in range(time):
            entering[t] = h if hidden_mask is None else h * hidden_mask[t]
            z = torch.addmm(gates[t], entering[t], weight.mT, out=activated[t])
            i, f, g, o = z.chunk(4, dim=1)
            z[:, : 2 * m].sigmoid_()
            g.tanh_()
            o.sigmoid_()
            torch.addcmul(f * memories[t], i, g, out=memories[t + 1])
            torch.tanh(memories[t + 1], out=squashed[t])
            exposed = o * squashed[t]
            if memory_mask is not None:
                exposed *= memory_mask
            h = torch.mm(exposed, projection.mT, out=outputs[t])  # autocast leaves what has an `out` alone
        ctx.save_for_backward(
            weight, projection, activated, memories, squashed, entering, hidden_mask, memory_mask
        )
        return outputs, memories[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_outputs: Tensor, grad_c: Tensor) -> tuple[Tensor | None, ...]:
        weight, projection, activated, memories, squashed, entering, hidden_mask, memory_mask = (
            ctx.saved_tensors
        )
        m = projection.shape[1]
        grad_z = torch.empty_like(activated)
        grad_h = torch.empty_like(entering)
        from_next = torch.zeros_like(grad_outputs[0])
        for t in reversed(range(len(activated))):
            i, f, g, o = activated[t].chunk(4, dim=1)
            grad_i, grad_f, grad_g, grad_o = grad_z[t].chunk(4, dim=1)
            torch.add(grad_outputs[t], from_next, out=grad_h[t])
            grad_exposed = grad_h[t] @ projection
            if memory_mask is not None:
                grad_exposed *= memory_mask
            # d tanh = 1 - tanh^2, d sigmoid = s - s^2
            torch.mul(grad_exposed * squashed[t], o - o * o, out=grad_o)
            slope = grad_exposed * o
            grad_c = grad_c + torch.addcmul(slope, slope, squashed[t].square(), value=-1)
            torch.mul(grad_c * g, i - i * i, out=grad_i)
            torch.mul(grad_c * memories[t], f - f * f, out=grad_f)
            slope = grad_c * i
            torch.addcmul(slope, slope, g.square(), value=-1, out=grad_g)
            grad_c = grad_c * f
            from_next = grad_z[t] @ weight
            if hidden_mask is not None:
                from_next *= hidden_mask[t]
        exposed = activated[..., 3 * m :] * squashed
        if memory_mask is not None:
            exposed *= memory_mask
        grad_weight = grad_z.flatten(0, 1).mT @ entering.flatten(0, 1)
        grad_projection = grad_h.flatten(0, 1).mT @ exposed.flatten(0, 1)
        return grad_z, grad_weight, grad_projection, from_next, grad_c, None, None
