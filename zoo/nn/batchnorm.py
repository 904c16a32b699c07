"""Batch normalisation (Ioffe and Szegedy 2015), which Amos treats like layer normalisation (A.9.1)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn import functional as F

from zoo.spec import Module, ParamSpec, Role
from zoo.utils.errors import DataError

MOMENTUM = 0.1
"""Weight of a batch in the running statistics."""

EPS = 1e-5


class BatchNorm(Module):
    """(x - mean) / sqrt(variance + eps) * scale + bias, channel by channel.

    In training, mean and variance are those of the examples that this process reads at once, a part of the
    batch if the batch is divided (`train.accumulation`, several ranks). In evaluation they are running
    averages over the training on all ranks.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, channels: int, residual_branches: int = 1) -> None:
        """Declare scale and bias, and the running statistics of a normal distribution.

        Args:
            channels: number of channels.
            residual_branches: number of residual branches of the model if the module ends one, otherwise 1.
        """
        super().__init__()
        self.momentum = MOMENTUM
        for name, role in (("scale", Role.NORM_SCALE), ("bias", Role.BIAS)):
            self.param(name, ParamSpec(role, (channels,), ("channels",), residual_branches=residual_branches))
        self.buffer("mean", (channels,), 0.0, average=True)
        self.buffer("variance", (channels,), 1.0, average=True)

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, h, w) -> the same.

        Raises:
            DataError: In training there is only one pixel, which has no variance.
        """
        if self.training and x[:, :1].numel() == 1:
            raise DataError(
                "batch normalisation: a single image, of which one pixel is left, has no variance in "
                "training; expected several images at once (train.batch_size over accumulation and "
                "processes), or larger ones"
            )
        scale, bias = self.virtual("scale"), self.virtual("bias")
        return F.batch_norm(x, self.mean, self.variance, scale, bias, self.training, self.momentum, EPS)


@contextmanager
def statistics_kept(module: nn.Module) -> Iterator[None]:
    """Forward passes in training leave the running statistics within a module as they are."""
    norms = [part for part in module.modules() if isinstance(part, BatchNorm)]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm in norms:
            norm.momentum = MOMENTUM
