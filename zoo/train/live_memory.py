"""The bytes of all live tensors (real, sharded or fake), counted operator by operator."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any, Self

import torch
from torch import Tensor
from torch._guards import active_fake_mode
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from zoo.utils.sharded import local


class LiveMemory(TorchDispatchMode):
    """Counts the storages of the tensors that operators return, until they are freed.

    The result is that of `torch.distributed._tools.MemTracker`, which also attributes memory to modules,
    takes several times as long, and does not support a step of several parts. Tensors on the device "meta"
    have no memory and do not count.

    Attributes:
        now: bytes of the storages that are alive.
        peak: the most bytes that were alive at once, since the beginning or since `forget_peak`.
    """

    def __init__(self, tensors: Iterable[Tensor] = ()) -> None:
        """Start counting when the `with` statement begins.

        Args:
            tensors: tensors that are in memory already and are counted as well, plain or sharded.
        """
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not annotate it
        self.now = self.peak = 0
        self._sizes = WeakIdKeyDictionary()
        self._see(list(tensors))

    def forget_peak(self) -> None:
        """Begin a new peak."""
        self.peak = self.now

    def __enter__(self) -> Self:
        # DTensor runs operators on fake tensors of its own, which take no memory on a rank.
        self._outer = active_fake_mode()
        self._resize = torch.UntypedStorage.resize_
        resize, see = self._resize, self._see_storage

        def resize_(storage: torch.UntypedStorage, size: int) -> None:
            resize(storage, size)  # FSDP frees gathered weights this way, without an operator
            see(storage)

        torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign,assignment]  # until the end
        super().__enter__()  # type: ignore[no-untyped-call]  # torch's
        return self

    def __exit__(self, *error: object) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]  # as it was
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch's

    def __torch_dispatch__(
        self,
        func: Any,  # Any: torch has no public name for the class of its operators
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # called again with the rank's local tensor
        result = func(*args, **(kwargs or {}))
        if active_fake_mode() is self._outer:
            self._see(result)
        return result

    def _see(self, tensors: object) -> None:
        for tensor in tree_leaves(tensors):
            if isinstance(tensor, Tensor) and tensor.device.type != "meta":
                self._see_storage(local(tensor).untyped_storage())

    def _see_storage(self, storage: torch.UntypedStorage) -> None:
        if storage not in self._sizes:
            self._sizes[storage] = size = [0]
            weakref.finalize(storage, self._freed, size)
        counted = self._sizes[storage]
        self.now += storage.size() - counted[0]
        counted[0] = storage.size()
        self.peak = max(self.peak, self.now)

    def _freed(self, counted: list[int]) -> None:
        self.now -= counted[0]
