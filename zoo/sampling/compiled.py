"""Generation whose step from one token to the next is compiled."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.kernels.graph_cache import keep_every_graph
from zoo.sampling.fixed import Read
from zoo.sampling.payoff import StepCount
from zoo.utils.errors import ZooError


def compiled(step: Read, count: StepCount, *, required: bool) -> Read:
    """Compile a step.

    Args:
        step: a function that takes tokens of one shape, and in which no other shape changes.
        count: what has been generated with this step; it announces the compilation.
        required: whether a compiler that does not work is an error; otherwise `step` is taken as it is, and
            the count tells so.

    Returns:
        A function with the results of `step`. Its first call compiles; later calls are faster. A call raises
        a ZooError if compilation is required and does not work on this machine.
    """
    keep_every_graph()
    faster = torch.compile(step, fullgraph=True, dynamic=False)

    def run(tokens: Tensor) -> Tensor:
        from torch._dynamo.exc import TorchDynamoException

        if count.failed and not required:
            return step(tokens)
        count.tell()
        try:
            return faster(tokens)
        except TorchDynamoException as error:
            reason = " ".join(str(error).split("\n")[:2])
            if required:
                raise ZooError(
                    f"generate: the step cannot be compiled here, expected compile=False: {reason}"
                ) from error
            count.give_up(reason)
            return step(tokens)

    return run
