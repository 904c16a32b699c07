"""The softmax of logits with the gradient of cross entropy, on a CPU in one pass over every row.

The plain PyTorch path is `reference_softmax_gradient`, for machines without a compiler.
"""

from __future__ import annotations

from ctypes import c_float, c_int, c_int64

import torch
from torch import Tensor

from zoo.kernels import native
from zoo.kernels.operator import operator

IGNORE_INDEX = -1
"""The target of a token that is ignored."""


def has_kernel(logits: Tensor) -> bool:
    """Whether there is a kernel for these logits."""
    return logits.device.type == "cpu" and logits.dtype in native.SUFFIXES


def _results(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    of_rows = logits.new_empty(logits.shape[0], dtype=torch.float32)  # len() would fix a dynamic size
    return logits.new_empty(logits.shape), of_rows, torch.empty_like(of_rows)


@operator("softmax_gradient", lambda logits, *_: _results(logits), "cpu")
def softmax_gradient(logits: Tensor, targets: Tensor, z_loss: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of sum(lse - logit of the target + z_loss lse^2) by the logits; lse: logsumexp of a row.

    Args:
        logits: (n, V), float32 or bfloat16, on a CPU.
        targets: (n,) int64 in [0, V), or -1 for a row that is ignored. With another, the kernel makes the
            row NaN, and PyTorch raises an error.
        z_loss: the coefficient of lse^2, 0-dim; a float that changes would have a graph compiled twice.

    Returns:
        The gradient (n, V) in the dtype of the logits, lse (n,) float32 and the logits of the targets (n,)
        float32, computed in float32. Gradient and logit are 0 where the target is ignored.
    """
    kernels = native.load_kernels()
    if kernels is None:
        return reference_softmax_gradient(logits, targets, z_loss)
    logits, targets = logits.contiguous(), targets.contiguous()
    gradient, lse, target_logits = _results(logits)
    getattr(kernels, f"softmax_gradient_{native.SUFFIXES[logits.dtype]}")(
        native.pointer(logits),
        native.pointer(targets),
        c_float(float(z_loss)),
        *(native.pointer(t) for t in (gradient, lse, target_logits)),
        *map(c_int64, logits.shape),
        c_int(torch.get_num_threads()),
    )
    return gradient, lse, target_logits


def reference_softmax_gradient(
    logits: Tensor, targets: Tensor, z_loss: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """`softmax_gradient` in plain PyTorch, for any device; float64 logits are computed in float64."""
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
    gradient, lse, target_logits = softmax_gradient_(exact, targets, z_loss)
    return gradient.to(logits.dtype), lse, target_logits


def softmax_gradient_(
    logits: Tensor, targets: Tensor, z_loss: Tensor | float
) -> tuple[Tensor, Tensor, Tensor]:
    """`softmax_gradient`, but the gradient overwrites `logits`, (n, V), and everything has their dtype."""
    counted = (targets != IGNORE_INDEX).to(logits.dtype)
    index = counted_index(targets)
    lse = logits.logsumexp(-1)
    target_logits = logits.gather(-1, index).squeeze(-1) * counted
    # d/dlogits of lse - logits[target] + z lse^2 is softmax * (1 + 2 z lse) - onehot.
    slope = (1 + 2 * z_loss * lse) * counted
    gradient = logits.sub_(lse.unsqueeze(-1)).exp_().mul_(slope.unsqueeze(-1))
    return gradient.scatter_add_(-1, index, -counted.unsqueeze(-1)), lse, target_logits


def counted_index(targets: Tensor) -> Tensor:
    """The targets as an index of logits (n, V): (n, 1), 0 for an ignored one, all others as they are.

    Those outside the row are left for torch's own check of an index, which a GPU makes as well.
    """
    return targets.masked_fill(targets == IGNORE_INDEX, 0).unsqueeze(-1)
