"""The parameter groups of Amos: their keys, and the values that are valid."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from zoo.kernels.amos import BusyError
from zoo.optim.amos_fused import check_fused
from zoo.optim.param_group import ParamGroup
from zoo.optim.ranges import DECAY, NOT_NEGATIVE, POSITIVE, SWITCH, OneOf, Valid, check_ranges
from zoo.utils.errors import ConfigError

log = logging.getLogger("zoo")

OPTIONS = (
    *("lr", "beta", "momentum", "clip_value", "extra_l2", "c_coef", "d_coef", "eta", "reduce"),
    *("maximize", "foreach", "fused", "targets"),
)
"""The keys that Amos reads in a group besides `params`."""

BY_TARGETS = "by targets"
"""The `clip_value` that means 1 / sqrt(number of targets)."""

KEYS_OF_SCHEDULERS = ("initial_lr", "max_lr", "min_lr", "swa_lr", "base_momentum", "max_momentum")
"""Keys that torch's learning rate schedulers write into groups; some resemble options."""

RESEMBLANCE = 0.75
"""Ratio of `difflib` from which on an unknown key is taken for a misspelt option."""

RANGES: dict[str, Valid] = {
    "lr": NOT_NEGATIVE,
    "eta": POSITIVE,
    "beta": DECAY,
    "momentum": replace(DECAY, expected=f"{DECAY.expected}, or None", others=(None,)),
    "clip_value": replace(
        POSITIVE, expected=f"{POSITIVE.expected}, '{BY_TARGETS}', or None", others=(None, BY_TARGETS)
    ),
    "extra_l2": NOT_NEGATIVE,
    "c_coef": NOT_NEGATIVE,
    "d_coef": NOT_NEGATIVE,
    "maximize": SWITCH,
    "foreach": OneOf((True, False, None)),
    "fused": SWITCH,
}


def check_keys(group: Mapping[str, object], place: str) -> None:
    """Check the keys of a group; as in torch, keys that no optimizer knows are the user's and are kept.

    Args:
        group: a parameter group, without the defaults.
        place: the group's name in messages.

    Raises:
        ConfigError: `eta` or `reduce` is missing, a key resembles one of `OPTIONS`, or it is `weight_decay`.
    """
    for key in group:
        if key in (*OPTIONS, *KEYS_OF_SCHEDULERS):
            continue
        if near := difflib.get_close_matches(key, OPTIONS, n=1, cutoff=RESEMBLANCE):
            raise ConfigError(f"{place}: unknown key '{key}'; did you mean '{near[0]}'?")
        if key == "weight_decay":
            raise ConfigError(
                f"{place}: unknown key 'weight_decay': Amos decays by itself; 'extra_l2' adds to that"
            )
    for key in ("eta", "reduce"):
        if key not in group:
            raise ConfigError(f"{place}: no '{key}'; Amos.for_module infers it from the layers")


def check_group(group: ParamGroup, place: str) -> None:
    """Check the values of a group together with its parameters.

    Where the kernel of `fused` cannot be compiled because of a stale lock, `fused` is set to False with
    a warning.

    Args:
        group: a complete parameter group.
        place: the group's name in messages.

    Raises:
        ConfigError: A value is out of range or of the wrong type, a parameter lacks a dimension of `reduce`
            or has no floating point dtype, or `fused` is impossible.
    """
    check_ranges(group, RANGES, place)
    if group["fused"] and group["foreach"]:
        raise ConfigError(f"{place}: fused and foreach are both True, expected at most one of them")
    reduce = group["reduce"]
    if not isinstance(reduce, tuple) or not all(type(d) is int for d in reduce):
        raise ConfigError(
            f"{place}: reduce is {reduce!r}, expected a tuple of tensor dimensions, () for none"
        )
    for i, parameter in enumerate(group["params"]):
        which = group["param_names"][i] if "param_names" in group else f"parameter {i}"
        if not parameter.is_floating_point():
            raise ConfigError(f"{place}: {which} is {parameter.dtype}, expected a floating point dtype")
        n = parameter.dim()
        if not all(-n <= d < n for d in reduce) or len({d % n for d in reduce}) < len(reduce):
            raise ConfigError(f"{place}: reduce is {reduce}, but {which} has shape {tuple(parameter.shape)}")
        if group["fused"]:
            try:
                check_fused(parameter, f"{place}: {which}")
            except BusyError as error:
                log.warning("Amos(fused=True) goes on without its kernel: %s", error)
                group["fused"] = False


def shared_dims(parameter: Tensor, reduce: tuple[int, ...]) -> tuple[int, ...]:
    """Return the dimensions of `reduce` in increasing order, counted from the front."""
    return tuple(sorted(d % parameter.dim() for d in reduce))
