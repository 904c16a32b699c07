"""What a CUDA graph does, on a processor: a step's operators are written down and done again.

As in a graph, their tensors are those of the capture, in the same memory, and all numbers of the host are
what they were then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAITS = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select")
"""Operators that a GPU is waited for, which no graph can hold."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not annotate it
    """Writes down operators, and what they change in place."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Any]]] = []
        self.changed: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, options = func._schema.name.removeprefix("aten::"), kwargs or {}
        assert name not in WAITS, name
        if func._schema.is_mutable:
            for argument, tensor in zip(func._schema.arguments, args, strict=False):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    self.changed.append((tensor, tensor.clone()))
        result = func(*args, **options)
        self.calls.append((func, args, options, tree_leaves(result)))
        return result


class RecordedGraphs:
    """Captures as `zoo.sampling.captured.CUDAGraphs` does; counts replays."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.replays = device, 0

    def warm_up(self, step: Callable[[], Tensor]) -> Tensor:
        return step()

    def capture(self, step: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        with Recorder() as recorder:
            result = step()
        for tensor, before in reversed(recorder.changed):  # a capture does not take the step
            tensor.copy_(before)

        def replay() -> None:
            self.replays += 1
            for func, args, options, results in recorder.calls:
                for old, new in zip(results, tree_leaves(func(*args, **options)), strict=True):
                    if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)

        return replay, result
