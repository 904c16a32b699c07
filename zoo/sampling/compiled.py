"""Generation whose step from one token to the next is compiled."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.sampling.fixed import Read
from zoo.utils.errors import ZooError


def compiled(step: Read) -> Read:
    """Compile a step.

    Args:
        step: a function that takes tokens of one shape, and in which no other shape changes.

    Returns:
        A function with the results of `step`. Its first call compiles; later calls are faster. A call raises
        a ZooError if the compiler does not work on this machine.
    """
    faster = torch.compile(step, fullgraph=True, dynamic=False)

    def run(tokens: Tensor) -> Tensor:
        from torch._dynamo.exc import TorchDynamoException

        try:
            return faster(tokens)
        except TorchDynamoException as error:
            reason = " ".join(str(error).split("\n")[:2])
            raise ZooError(
                f"generate: the step cannot be compiled here, leave compile out: {reason}"
            ) from error

    return run
