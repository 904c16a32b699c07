"""One process or many: torchrun's environment, sharding with FSDP2, and communication between ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

from zoo.models import Model
from zoo.spec import Module
from zoo.train.orphan import ends_with_parent
from zoo.utils.device import find_device
from zoo.utils.errors import ZooError


@dataclass(frozen=True)
class World:
    """The processes that train one model.

    Attributes:
        rank: number of this process.
        size: number of processes.
        device: where this process computes.
        mesh: one-dimensional mesh of the ranks; None for a single process.
    """

    rank: int
    size: int
    device: torch.device
    mesh: DeviceMesh | None = None

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    @property
    def copies(self) -> int:
        """How many ranks hold each row of a sharded tensor."""
        return self.mesh.size(0) if self.mesh is not None and self.mesh.ndim == 2 else 1

    @property
    def sum_dtype(self) -> torch.dtype:
        """The dtype for sums of measurements: float64, or float32 on Apple's GPUs, which lack float64."""
        return torch.float32 if self.device.type == "mps" else torch.float64

    def sum(self, values: Tensor) -> Tensor:
        """The sum over ranks, the same on all of them; `values` is overwritten."""
        if self.mesh is not None:
            dist.all_reduce(values)
        return values

    def average_buffers(self, model: nn.Module) -> None:
        """Replace buffers that are running averages of each rank's examples by their means over the ranks."""
        if self.mesh is None:
            return
        modules = [m for m in model.modules() if isinstance(m, Module)]
        averages = [m.get_buffer(name) for m in modules for name in m.averaged_buffers]
        if averages:
            mean = self.sum(torch.cat([a.flatten() for a in averages])) / self.size
            parts = torch.split(mean, [a.numel() for a in averages])
            for average, part in zip(averages, parts, strict=True):
                average.copy_(part.view_as(average))

    def gather(self, value: Any) -> list[Any]:
        """The picklable values of all ranks, in order, on all of them."""
        if self.mesh is None:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def on_main(self, act: Callable[[], object]) -> None:
        """Do something on the main rank, while the others wait.

        Args:
            act: called on the main rank only.

        Raises:
            ZooError: the main rank's, on all ranks.
        """
        mistake: ZooError | None = None
        if self.is_main:
            try:
                act()
            except ZooError as error:
                mistake = error
        mistake = self.gather(mistake)[0]
        if mistake is not None:
            raise mistake

    def wait(self) -> None:
        """Return when all ranks have called this."""
        if self.mesh is not None:
            dist.barrier()

    def shard(self, model: Model) -> None:
        """Shard a model over the ranks with FSDP2, one unit at a time.

        Args:
            model: on the meta device, or whole on this rank's device; afterwards its parameters are DTensors.
        """
        if self.mesh is None:
            return
        for block in model.fsdp_units:
            fully_shard(block, mesh=self.mesh)
        fully_shard(model, mesh=self.mesh)
        register_fsdp_forward_method(model, "loss")

    def synchronise(self, model: nn.Module, now: bool) -> None:
        """Set whether the next backward pass reduces the gradients over the ranks."""
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(now)

    def reshard(self, model: nn.Module) -> None:
        """Free the unsharded tensors after a forward pass that no backward pass follows."""
        if isinstance(model, FSDPModule):
            model.reshard()


@contextmanager
def world(device: str) -> Iterator[World]:
    """Join the processes that torchrun started; without torchrun, a world of one process.

    Args:
        device: name of the device, as in the configuration.

    Raises:
        ZooError: the device does not exist.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World(0, 1, find_device(device))
        return
    local_rank, local_ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    own = find_device(device, local_rank, local_ranks)
    if own.type == "cuda":
        torch.cuda.set_device(own)
    with ends_with_parent():
        dist.init_process_group("nccl" if own.type == "cuda" else "gloo")
        try:
            yield World(dist.get_rank(), size, own, init_device_mesh(own.type, (size,)))
        finally:
            dist.destroy_process_group()
