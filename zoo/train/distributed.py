"""One process or many: torchrun's environment, sharding with FSDP2, and communication between ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import Store

from zoo.models import Model
from zoo.run.train_config import ParallelConfig
from zoo.spec import Module
from zoo.train.launch import processes
from zoo.train.orphan import ends_with_parent
from zoo.train.rank_errors import (
    FAILED,
    connect_store,
    gather_answers,
    keep_store_alive,
    only_first_rank_reports,
)
from zoo.utils.device import find_device, total_memory
from zoo.utils.errors import ConfigError, DivergenceError, EndedRankError, RankError, ZooError

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """The processes that train one model.

    Attributes:
        rank: number of this process.
        size: number of processes.
        device: the device of this process.
        mesh: mesh of the ranks that share a copy of the model, or of copies and shards; None for a single
            process.
        parallel: how the ranks share the model.
    """

    rank: int
    size: int
    device: torch.device
    mesh: DeviceMesh | None = None
    parallel: ParallelConfig = field(default=ParallelConfig())

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    @property
    def copies(self) -> int:
        """The number of ranks that hold each row of a sharded tensor."""
        return self.mesh.size(0) if self.mesh is not None and self.mesh.ndim == 2 else 1

    @property
    def leads_copy(self) -> bool:
        """Whether this rank is the first of those that share a copy of the model."""
        return self.mesh is None or self.mesh.get_local_rank("shard") == 0

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

    def gather(self, value: T) -> list[T]:
        """The picklable values of all ranks, in order, on all of them."""
        if self.mesh is None:
            return [value]
        values = [value] * self.size
        dist.all_gather_object(values, value)
        return values

    def on_main(self, act: Callable[[], object]) -> None:
        """Call a function on the main rank, while the others wait.

        Args:
            act: the function, which is called on the main rank only.

        Raises:
            ZooError: `act` raised it on the main rank; it is raised on all ranks.
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

    def new_group(self) -> dist.ProcessGroup:
        """A group of all ranks for tensors on the CPU, with the timeout of the run."""
        group: dist.ProcessGroup = dist.new_group(
            backend="gloo", timeout=timedelta(seconds=self.parallel.timeout)
        )
        return group

    def wait(self) -> None:
        """Wait until all ranks have called this method."""
        if self.mesh is not None:
            dist.barrier()

    def shard(self, model: Model) -> None:
        """Shard a model over the ranks with FSDP2, one unit at a time.

        Args:
            model: a model on the meta device, or whole on this rank's device; afterwards its parameters are
                DTensors.
        """
        if self.mesh is None:
            return
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

        p = self.parallel
        reduce = torch.bfloat16 if p.reduce == "bfloat16" else None
        gather = torch.bfloat16 if p.gather == "bfloat16" else None
        if gather is not None and reduce is None:
            reduce = torch.float32
        # The residual stream, which starts in the root, stays float32; autocast rounds inputs of products.
        root = MixedPrecisionPolicy(reduce_dtype=reduce, cast_forward_inputs=False)
        inside = replace(root, param_dtype=gather)
        for block in model.fsdp_units:
            again = p.reshard_after_forward
            fully_shard(block, mesh=self.mesh, reshard_after_forward=again, mp_policy=inside)
        fully_shard(model, mesh=self.mesh, reshard_after_forward=False, mp_policy=root)
        register_fsdp_forward_method(model, "loss")

    def synchronise(self, model: nn.Module, now: bool) -> None:
        """Set whether the next backward pass reduces the gradients over the ranks.

        Args:
            model: plain or sharded.
            now: whether it is the last backward pass of its step; earlier ones reduce by
                `ParallelConfig.sync`.
        """
        if (sharded := self._sharded(model)) is not None:
            sharded.set_requires_gradient_sync(now or not self._defers(model))

    def _defers(self, model: nn.Module) -> bool:
        """Whether gradients stay unsharded until the last part of a batch."""
        whole = sum(p.numel() for p in model.parameters() if p.requires_grad)
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if self.device.type == "cpu" else 1
        return self.parallel.defers(whole, total_memory(self.device) // processes)

    def lost(self, error: RuntimeError, place: str) -> RankError | None:
        """The error to raise if another rank is gone; None if `error` has another reason."""
        return None if self.mesh is None else lost(error, place, self.parallel.timeout)

    def reshard(self, model: nn.Module) -> None:
        """Free the unsharded tensors after a forward pass that no backward pass follows."""
        if self.mesh is None:
            return
        from torch.distributed.fsdp import FSDPModule

        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # of its own tensors alone, not of those of the units within

    def _sharded(self, model: nn.Module) -> FSDPModule | None:
        """A model that `shard` has sharded; None for a plain one."""
        if self.mesh is None:
            return None
        from torch.distributed.fsdp import FSDPModule

        return model if isinstance(model, FSDPModule) else None


@contextmanager
def world(device: str, parallel: ParallelConfig = ParallelConfig()) -> Iterator[World]:  # noqa: B008 (frozen)
    """Join the processes that torchrun or srun started; without them, a world of one process.

    An error of the user that several ranks notice is raised on one of them; the others exit with its status.

    Args:
        device: name of the device, as in the configuration.
        parallel: how the processes share the model.

    Raises:
        ConfigError: The device does not exist on every rank, or the ranks cannot be divided as `parallel`
            says.
        RankError: A rank has ended or does not answer.
    """
    size = processes()
    if size == 1:
        parallel.copies(1)
        yield World(0, 1, _device(device), parallel=parallel)
        return
    try:
        with only_first_rank_reports():
            store, rank = _joined(parallel.timeout), int(os.environ["RANK"])
            copies = parallel.copies(size)
            device_of_rank = _common_device(device, store, size)
            if device_of_rank.type == "cuda":
                torch.cuda.set_device(device_of_rank)
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if device_of_rank.type == "cuda" else "gloo",
                store=store,
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=parallel.timeout),
            )
            try:
                mesh = _mesh(device_of_rank.type, size, copies, parallel.timeout)
                with ends_with_parent():
                    yield World(rank, size, device_of_rank, mesh, parallel)
            except RuntimeError as error:
                if (gone := lost(error, "the run", parallel.timeout)) is not None:
                    raise gone from error
                raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        if sys.exc_info()[0] is not None:
            keep_store_alive()


def _mesh(device_type: str, size: int, copies: int, timeout: int) -> DeviceMesh:
    """The mesh of all ranks, or of copies and shards, whose groups have the timeout of the run.

    `init_device_mesh` would give torch's default timeout to every group that is not the group of all ranks.
    """
    if copies == 1:
        return init_device_mesh(device_type, (size,), mesh_dim_names=("shard",))
    ranks = torch.arange(size).view(copies, size // copies)
    limit = timedelta(seconds=timeout)
    groups = [
        dist.new_subgroups_by_enumeration(rows.tolist(), limit)[0]  # type: ignore[no-untyped-call]  # torch
        for rows in (ranks.T, ranks)
    ]
    return DeviceMesh.from_group(groups, device_type, ranks, mesh_dim_names=("replicate", "shard"))


def _joined(timeout: int) -> Store:
    """The store of all processes.

    Raises:
        RankError: The other processes did not join in time.
    """
    try:
        return connect_store(timeout)
    except RuntimeError as error:
        if (gone := lost(error, "the start of the processes", timeout)) is not None:
            raise gone from error
        raise


def lost(error: RuntimeError, place: str, timeout: int) -> RankError | None:
    """The error to raise for torch's error when another rank is gone; None for any other error."""
    text = str(error)
    if isinstance(error, RankError | DivergenceError):
        return None
    kind = RankError
    if "Timed out" in text or "timed out" in text:
        what = f"no answer from the other processes within {timeout} s (train.parallel.timeout)"
    elif isinstance(error, dist.DistError) or "gloo" in text or "Connection" in text:
        kind, what = EndedRankError, "another process has ended"
    else:
        return None
    return kind(f"{place}: {what}: {text.splitlines()[0]}")


def _common_device(name: str, store: Store, size: int) -> torch.device:
    """The device of this rank.

    Raises:
        ConfigError: A rank has no such device, or the ranks have different kinds of devices.
    """
    try:
        device = _device(name, int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))
    except ZooError as error:
        gather_answers(store, size, f"{FAILED}{error}")
        raise
    devices = gather_answers(store, size, device.type)
    if len(set(devices)) > 1:
        raise ConfigError(
            f"train.device: '{name}': the processes find {', '.join(devices)}; expected one kind"
        )
    return device


def _device(name: str, local_rank: int = 0, local_ranks: int = 1) -> torch.device:
    """The device of a process, see `find_device`; an error names the key of the configuration."""
    try:
        return find_device(name, local_rank, local_ranks)
    except ZooError as error:
        raise ConfigError(f"train.device: {error}") from None
