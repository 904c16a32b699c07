"""One optimizer step: the gradient of a batch that is computed in parts, and the clipped update."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from zoo.data.dataset import Batch
from zoo.nn.loss import IGNORE_INDEX, LossParts
from zoo.optim.base import set_targets
from zoo.optim.clip import Clip
from zoo.optim.skip import skipped_if
from zoo.optim.state import restore, snapshot
from zoo.run.train_config import Precision
from zoo.train.async_copy import AsyncHostCopy
from zoo.train.distributed import World
from zoo.train.precision import autocast
from zoo.utils.errors import DataError, DivergenceError
from zoo.utils.sharded import norms, whole

Loss = Callable[..., LossParts]
"""The loss of a `zoo.models.Model`: (*inputs, targets, z_loss=0.0) -> its parts."""


class StepResult:
    """The measurements of a step over the whole batch of all ranks.

    They are copied from the device asynchronously; reading the first one waits for all.

    Attributes:
        norm: `grad_norm` as a tensor on the device, for clipping.
    """

    def __init__(self, sums: Tensor, norm: Tensor) -> None:
        """Begin to copy the measurements to the host.

        Args:
            sums: the result of `Stepper.backward`.
            norm: the global norm of the gradient, 0-dim, the same on all ranks.
        """
        self.norm, self._sums = norm, sums
        self._numbers = AsyncHostCopy(torch.cat((sums, norm.to(sums.dtype).reshape(1))))

    @cached_property
    def _read(self) -> list[float]:
        return self._numbers.read()

    @property
    def loss(self) -> float:
        """The objective, `cross_entropy + z_loss`."""
        return self.cross_entropy + self.z_loss

    @property
    def cross_entropy(self) -> float:
        """Nats per target."""
        return self._read[0]

    @property
    def z_loss(self) -> float:
        """coefficient * mean(logsumexp^2)."""
        return self._read[1]

    @property
    def stop(self) -> bool:
        """Whether a stop was requested on any rank."""
        return self._read[2] > 0

    @property
    def targets(self) -> float:
        """Number of targets over which the loss is the mean."""
        return self._read[3]

    @property
    def grad_norm(self) -> float:
        """Global norm of the gradient before clipping."""
        return self._read[4]

    @property
    def diverged(self) -> Tensor:
        """Whether the loss or the norm is not finite: 0-dim bool on the device, without waiting for it."""
        loss = self._sums[0] + self._sums[1]
        return ~torch.stack((loss, self.norm.to(loss.dtype))).isfinite().all()

    @property
    def is_finite(self) -> bool:
        """Whether the loss and the norm of the gradient are finite."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)

    def require_finite(self) -> None:
        """Check the loss and the norm of the gradient.

        Raises:
            DivergenceError: The loss or the norm is not finite.
            DataError: The reason is that the batch has no targets, over which the loss is a mean.
        """
        if not self.is_finite:
            if not self.targets:
                raise DataError(f"data: a training batch has no targets: all are {IGNORE_INDEX} (ignored)")
            numbers = f"the loss is {self.loss:.4g}, the norm of its gradient {self.grad_norm:.4g}"
            raise DivergenceError(numbers)


@dataclass(frozen=True)
class Stepper:
    """Computes gradients and takes optimizer steps.

    Attributes:
        model: the model, in training mode.
        loss: the model's loss, compiled or not.
        optimizer: the optimizer, to which hooks after every step are attached, such as the projection onto
            spheres (`zoo.optim.attach`).
        world: the ranks.
        accumulation: number of parts that a batch is divided into.
        precision: precision of the forward pass.
        clip: the clipping of the gradient.
        z_loss: coefficient of the z-loss.
        unclipped: names of the parameters whose gradients are neither counted nor clipped.
    """

    model: nn.Module
    loss: Loss
    optimizer: torch.optim.Optimizer
    world: World
    accumulation: int
    precision: Precision
    clip: Clip
    z_loss: float
    unclipped: frozenset[str] = frozenset()

    @cached_property
    def _parameters(self) -> tuple[tuple[str, nn.Parameter], ...]:
        """The model's parameters by name: to look for them takes a host longer than to start a kernel."""
        return tuple(self.model.named_parameters())

    def backward(self, batch: Batch, stop: Callable[[], bool]) -> Tensor:
        """Compute the gradient of the mean over all targets of all ranks, without waiting for the device.

        The loss of a part is the mean over its own targets, so a part is weighted by its number of targets.
        FSDP averages the gradients of the ranks, hence the factor `world.size`.

        Args:
            batch: this rank's inputs and targets, on the CPU.
            stop: whether a stop was requested on this rank; called after the backward pass.

        Returns:
            (4,), the same on all ranks: cross entropy, z-loss, number of ranks asked to stop, number of
            targets.
        """
        device = self.world.device
        moved = [t.to(device, non_blocking=device.type == "cuda") for t in batch]
        parts = list(zip(*(t.chunk(self.accumulation) for t in moved), strict=True))
        counts = torch.stack([(targets != IGNORE_INDEX).sum() for *_, targets in parts]).to(
            self.world.sum_dtype
        )
        shares = counts / self.world.sum(counts.sum())
        sums = torch.zeros(4, dtype=self.world.sum_dtype, device=device)
        for i, part in enumerate(parts):
            self.world.synchronise(self.model, i == len(parts) - 1)
            with autocast(self.precision, device):
                loss = self.loss(*part, z_loss=self.z_loss)
            torch.autograd.backward(loss.total * (shares[i] * self.world.size))
            sums[:2] += torch.stack((loss.cross_entropy, loss.z_loss)) * shares[i]
        sums[2].fill_(float(stop()))  # an assignment would wait for the device
        sums[3] = counts.sum()
        return self.world.sum(sums)

    def gradient(self, batch: Batch, stop: Callable[[], bool]) -> StepResult:
        """Compute the gradient of a batch into the parameters' `.grad`; the weights do not change.

        Args:
            batch: this rank's inputs and targets, on the CPU.
            stop: whether a stop was requested on this rank; called after the backward pass.

        Returns:
            The measurements, the same on all ranks.
        """
        sums = self.backward(batch, stop)
        return StepResult(sums, global_norm(p.grad for _, p in self._parameters))

    def update(self, result: StepResult, pending: bool = False) -> None:
        """Clip the gradient in the parameters' `.grad`, step the optimizer, and clear the gradient.

        Args:
            result: the result of `gradient`.
            pending: whether to step without waiting for the measurements. If they are not finite, the device
                leaves weights and slots unchanged (`zoo.optim.skip`), and the caller ends the run once
                it has read the measurements.

        Raises:
            DivergenceError: The loss or the norm of the gradient is not finite; the weights are unchanged.
            DataError: The batch has no targets; the weights are unchanged.
        """
        if not pending:
            result.require_finite()
        counted = [
            (name, p) for name, p in self._parameters if p.grad is not None and name not in self.unclipped
        ]
        self.clip.clip(counted, global_norm(p.grad for _, p in counted) if self.unclipped else result.norm)
        set_targets(self.optimizer, lambda: result.targets)
        with skipped_if(self.optimizer, result.diverged if pending else None):
            self.optimizer.step()
        self.optimizer.zero_grad()
        self.world.average_buffers(self.model)


@contextmanager
def undone(model: nn.Module, optimizer: torch.optim.Optimizer, clip: Clip | None = None) -> Iterator[None]:
    """Restore weights, buffers, the optimizer's state and that of `clip` at the end of a `with` block."""
    tensors = [*model.parameters(), *model.buffers()]
    before, state = [t.detach().clone() for t in tensors], snapshot(optimizer)
    remembered = clip.state() if clip else {}
    yield
    if clip:
        clip.load(remembered)
    with torch.no_grad():
        for tensor, old in zip(tensors, before, strict=True):
            tensor.copy_(old)
    restore(optimizer, state)


def global_norm(tensors: Iterable[Tensor | None]) -> Tensor:
    """The norm of all tensors together, 0-dim and unsharded, the same on all ranks; None counts as 0.

    Norms of bfloat16 tensors are taken in float32; torch's own function rounds them to bfloat16.
    """
    given = [t.detach() for t in tensors if t is not None]
    if any(t.dtype.itemsize < torch.float32.itemsize for t in given):
        total: Tensor = torch.linalg.vector_norm(norms(given))
        return total
    return whole(torch.nn.utils.get_total_norm(given))
