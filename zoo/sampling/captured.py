"""Generation whose step from one token to the next is a CUDA graph: one call starts all kernels of the step.

A step of one token launches many small kernels, and the host takes longer to launch them than the GPU to run
them. A graph keeps their arguments, among them the addresses of the tensors that they read and write: a step
can be captured if everything that changes between two steps is in tensors whose addresses stay the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from zoo.sampling.fixed import Read
from zoo.utils.errors import ZooError

WARM_UP = 2
"""Number of steps without a graph, during which libraries and compilers initialise."""


class Graphs(Protocol):
    """The interface for capturing a step."""

    def warm_up(self, step: Callable[[], Tensor]) -> Tensor:
        """Take a step under the conditions of the capture, and return its result."""

    def capture(self, step: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """Capture a step without taking it.

        Returns:
            A function that takes the step at every call, and the tensor with the latest result.
        """


class CUDAGraphs:
    """Captures steps on a GPU."""

    def __init__(self, device: torch.device) -> None:
        """Make the stream of the captures.

        Args:
            device: the device of the model.

        Raises:
            ZooError: The device is no CUDA GPU.
        """
        self.require(device)
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch does not annotate it

    @staticmethod
    def require(device: torch.device) -> None:
        """Refuse a device whose steps cannot be captured.

        Raises:
            ZooError: The device is no CUDA GPU.
        """
        if device.type != "cuda":
            raise ZooError(f"generate: cuda_graph has no effect on {device.type}; expected a model on a GPU")

    def warm_up(self, step: Callable[[], Tensor]) -> Tensor:
        """Take a step on the stream of the capture, as torch's documentation requires."""
        present = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(present)
        with torch.cuda.stream(self._stream):
            result = step()
        present.wait_stream(self._stream)
        return result

    def capture(self, step: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """Capture a step, see `Graphs`.

        Raises:
            ZooError: The step contains an operation that cannot be captured.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.device(self._stream.device), torch.cuda.graph(graph, stream=self._stream):
                result = step()
        except RuntimeError as error:
            reason = str(error).split("\n")[0]
            raise ZooError(
                f"generate: the step cannot be captured, leave cuda_graph out: {reason}"
            ) from error
        return graph.replay, result


def captured(step: Read, graphs: Graphs) -> Read:
    """Make a step that is captured after `WARM_UP` calls, and replayed from then on.

    Args:
        step: a function of tokens of one shape; everything else that changes is in tensors of constant
            address.
        graphs: the means of capturing the step.

    Returns:
        A function with the results of `step`; the next call may change the tensor that it has returned.
    """
    calls, given = 0, torch.empty(0)
    replay: Callable[[], None] | None = None
    result = torch.empty(0)

    def run(tokens: Tensor) -> Tensor:
        nonlocal calls, given, replay, result
        calls += 1
        if calls <= WARM_UP:
            return graphs.warm_up(lambda: step(tokens))
        if replay is None:
            given = tokens.clone()
            replay, result = graphs.capture(lambda: step(given))
        given.copy_(tokens)
        replay()
        return result

    return run
