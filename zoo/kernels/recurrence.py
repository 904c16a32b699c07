"""The recurrent part of an LSTM, which has to be computed step by step, with its gradient.

Autograd would sum the gradients of both matrices step by step. Here each gradient is one matrix product over
all steps, and a training step takes a third of the time. No private operator of torch is used; the tests
compare with `torch.nn.LSTM` and with numerical gradients.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.flop_counter import register_flop_formula

from zoo.kernels.operator import operator
from zoo.kernels.support import Context, differentiable

Shape: TypeAlias = tuple[int, ...]
"""What a formula of the number of operations gets in the place of a tensor."""


def recurrence(
    gates: Tensor,
    weight: Tensor,
    projection: Tensor,
    h: Tensor,
    c: Tensor,
    hidden_mask: Tensor | None = None,
    memory_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run a projected LSTM over a sequence, in float32 (float64 for float64) even under autocast.

    Args:
        gates: (time, batch, 4 m), the parts of the gates i, f, g and o that do not depend on h.
        weight: (4 m, d), the kernel that is applied to h.
        projection: (d, m).
        h: (batch, d), the output of the step before the first.
        c: (batch, m), the memory cell after that step.
        hidden_mask: (time, batch, d), dropout factors of h where it enters the gates, or None for 1.
        memory_mask: (batch, m), dropout factors of the vector that is projected, or None for 1.

    Returns:
        h of every step (time, batch, d), and the memory cell after the last step (batch, m).
    """
    exact = torch.promote_types(gates.dtype, torch.float32)
    tensors = (t.to(exact) for t in (gates, weight, projection, h, c))
    outputs, memory = differentiable(_Recurrence, *tensors, hidden_mask, memory_mask)
    return outputs, memory


class _Recurrence(torch.autograd.Function):
    """(gates, weight, projection, h, c, masks) -> outputs (time, batch, d), last memory (batch, m)."""

    @staticmethod
    def forward(ctx: Context, *given: Tensor | None) -> tuple[Tensor, Tensor]:
        _, weight, projection, _, _, *masks = given
        outputs, last, *kept = _steps(*given)
        ctx.save_for_backward(weight, projection, *kept, *masks)
        return outputs, last

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad_outputs: Tensor, grad_c: Tensor) -> tuple[Tensor | None, ...]:
        return *_steps_back(grad_outputs, grad_c, *ctx.saved_tensors), None, None


# One operator for all steps: the compiler, and a count of operations on meta tensors, would take each of a
# thousand steps apart.
@operator("recurrence", lambda gates, _weight, _projection, h, c, *_masks: _results(gates, h, c))
def _steps(
    gates: Tensor,
    weight: Tensor,
    projection: Tensor,
    h: Tensor,
    c: Tensor,
    hidden_mask: Tensor | None,
    memory_mask: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The outputs, the last memory, and what the backward pass needs: see `_results`."""
    m = c.shape[1]
    outputs, last, activated, memories, squashed, entering = _results(gates, h, c)
    memories[0] = c
    for t in range(len(gates)):
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
        h = torch.mm(exposed, projection.mT, out=outputs[t])  # with `out`, autocast does not round
    return outputs, last.copy_(memories[-1]), activated, memories, squashed, entering


def _results(gates: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Empty tensors: outputs, last memory, activated gates, all memories, their tanh, h where it enters."""
    time = len(gates)
    entering = h.new_empty(time, *h.shape)
    memories, squashed = c.new_empty(time + 1, *c.shape), c.new_empty(time, *c.shape)
    return (
        torch.empty_like(entering),
        torch.empty_like(c),
        torch.empty_like(gates),
        memories,
        squashed,
        entering,
    )


def _empty_gradients(
    grad_outputs: Tensor,
    grad_c: Tensor,
    weight: Tensor,
    projection: Tensor,
    activated: Tensor,
    *_: Tensor | None,
) -> tuple[Tensor, ...]:
    shapes = activated.shape, weight.shape, projection.shape, grad_outputs.shape[1:], grad_c.shape
    return tuple(activated.new_empty(shape) for shape in shapes)


@operator("recurrence_backward", _empty_gradients)
def _steps_back(
    grad_outputs: Tensor,
    grad_c: Tensor,
    weight: Tensor,
    projection: Tensor,
    activated: Tensor,
    memories: Tensor,
    squashed: Tensor,
    entering: Tensor,
    hidden_mask: Tensor | None,
    memory_mask: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of gates, weight, projection, h and c."""
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
    return grad_z, grad_weight, grad_projection, from_next, grad_c


@register_flop_formula(torch.ops.zoo.recurrence)
def _flops(gates: Shape, weight: Shape, projection: Shape, *_: object, **__: object) -> int:
    """Two products in each step."""
    return 2 * gates[0] * gates[1] * (math.prod(weight) + math.prod(projection))


@register_flop_formula(torch.ops.zoo.recurrence_backward)
def _flops_back(
    grad_outputs: Shape, grad_c: Shape, weight: Shape, projection: Shape, *_: object, **__: object
) -> int:
    """As many for what is passed to the step before, and as many for the gradients of the matrices."""
    return 2 * _flops(grad_outputs, weight, projection)
