"""An Amos step by the C++ kernel of `zoo/kernels/amos.cpp`, which reads memory once."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from zoo.kernels.amos import kernels
from zoo.kernels.support import uncompiled
from zoo.optim.amos_step import Variable, advance, eager_step
from zoo.optim.amos_update import TINY, Step
from zoo.optim.sharding import crosses_ranks
from zoo.utils.errors import ConfigError
from zoo.utils.sharded import is_sharded

LONGEST_ROW = 1 << 18
"""Longest row whose mean one thread computes; means over longer rows are computed by all threads."""


def check_fused(parameter: Tensor, name: str) -> None:
    """Check that `fused_step` can update a parameter, and compile the kernel.

    Args:
        parameter: plain or sharded.
        name: name of the parameter, for messages.

    Raises:
        ConfigError: The parameter is not on the CPU or not contiguous, or the compiler fails.
        BusyError: Another process is compiling the kernel and does not finish.
    """
    if parameter.device.type != "cpu":
        raise ConfigError(f"{name} is on {parameter.device}, but Amos(fused=True) runs on the CPU only")
    if not (parameter.to_local() if is_sharded(parameter) else parameter).is_contiguous():
        raise ConfigError(f"{name} {tuple(parameter.shape)} is not contiguous, which Amos(fused=True) needs")
    kernels()


@uncompiled
def fused_step(variables: Sequence[Variable], step: Step) -> None:
    """Take a step with some variables.

    The kernel works on rows that share a slot. Where the slots are shared over other dimensions than the last
    ones, as in the (in, out) kernels of some libraries, torch operations take the step.

    Args:
        variables: variables of one group, checked by `check_fused`.
        step: the numbers of the step.
    """
    if without_rows := [v for v in variables if not v.has_rows]:
        eager_step(without_rows, step)
    in_rows = [v for v in variables if v.has_rows]
    for dtype in {v.theta.dtype for v in in_rows}:
        same_dtype = [v for v in in_rows if v.theta.dtype == dtype]
        if within := [v for v in same_dtype if not _needs_all_threads(v)]:
            _step_rows(within, step)
        if across := [v for v in same_dtype if _needs_all_threads(v)]:
            _apply_rows(across, step)


def _needs_all_threads(variable: Variable) -> bool:
    """Return whether the mean over a row needs more than one thread: the row spans ranks, or is long."""
    return variable.shared > LONGEST_ROW or crosses_ranks(variable.parameter, variable.dims)


def _step_rows(variables: Sequence[Variable], step: Step) -> None:
    """Compute mean squares, slots and update, row by row."""
    kernels().step_rows(
        [v.theta for v in variables],
        [v.g.contiguous() for v in variables],
        [v.local("v") for v in variables],
        [v.local("b") for v in variables],
        [v.local("m") for v in variables] if step.momentum else [],
        step.lr,
        step.eta,
        step.beta,
        step.correction,
        step.momentum or 0.0,
        step.clip_value,
        step.extra_l2,
        step.c_coef,
        step.d_coef,
        TINY,
    )


def _apply_rows(variables: Sequence[Variable], step: Step) -> None:
    """Compute the update; mean squares and slots are computed by torch."""
    for_g, for_theta = zip(*advance(variables, step), strict=True)
    kernels().apply_rows(
        [v.theta for v in variables],
        [v.g.contiguous() for v in variables],
        for_g,
        for_theta,
        [v.local("m") for v in variables] if step.momentum else [],
        step.momentum or 0.0,
        step.clip_value,
    )
