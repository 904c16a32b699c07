"""What torch has to be told to keep the graphs of zoo, in its cache and in a process."""

from __future__ import annotations

from typing import Any

import torch

import zoo
from zoo.kernels.support import is_trusted

CACHEABLE = (
    "torch.amp.autocast_mode._enter_autocast",
    "torch.amp.autocast_mode._exit_autocast",
    "torch.ops.higher_order.autograd_function_apply",
)
"""What torch has to be told to keep in its cache of compiled graphs with their backward passes.

A graph with a call of which torch does not know that the graph says all it depends on is left out of this
cache: it is differentiated, partitioned and optimised anew in every process, and only its kernels are cached.
Of these calls the graph does say all: the arguments of autocast, and the traced forward and backward passes
of functions such as that of `zoo.kernels.blockwise`. torch intends to admit them by itself.
"""


def cache_options() -> dict[str, Any] | None:  # Any: options have different types
    """The options of `torch.compile` with which graphs are cached; None where torch does not have the option.

    The operators of this package are in a graph by name only. Therefore a cache is of one version of it.
    """
    from torch._inductor import list_options  # imports a part of the compiler

    option = "unsafe_marked_cacheable_functions"
    if not is_trusted() or option not in list_options():
        return None
    return {option: dict.fromkeys(CACHEABLE, zoo.__version__)}


def keep_every_graph() -> None:
    """Let this process compile a function for more than 8 shapes, up to 256.

    torch counts the graphs of a function over all models of a process. Beyond `recompile_limit` it ends with
    an error where graph breaks are errors, and otherwise runs the function without compiling it. A process
    that trains models of several sizes, one after the other, gets there; `accumulated_recompile_limit`
    remains as a limit.
    """
    limits = torch.compiler.config
    limits.recompile_limit = max(limits.recompile_limit, limits.accumulated_recompile_limit)


def replays_graphs(device: torch.device) -> bool:
    """Whether torch replays what it compiles as CUDA graphs (TORCHINDUCTOR_CUDAGRAPHS=1), on a GPU only."""
    from torch._inductor import config  # imports a part of the compiler

    return device.type == "cuda" and bool(config.triton.cudagraphs)
