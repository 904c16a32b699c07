"""What makes the sizes of a ladder: the keys of every size, or a rule for the shape of the models."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from zoo.ablate.axes import Combination, entries_of, nest
from zoo.ablate.reserved import RESERVED_IN_LADDERS, reserved
from zoo.ablate.scale.runs import format_count
from zoo.ablate.scale_config import Scale, SizeRule
from zoo.checkpoint.recipe import declare
from zoo.config.compose import merge
from zoo.config.registry import Config
from zoo.config.yaml import Located
from zoo.models import Model
from zoo.run.config import RunConfig, validate
from zoo.run.factory import recipe_of
from zoo.spec import declared
from zoo.utils.errors import ConfigError

MOST_WIDTHS = 256
"""Widths that the shape rule tries, in numbers of heads."""
FAR = 0.15
"""Relative difference from the requested number of parameters above which a size is reported."""
SHAPE = ("d_model", "n_layers", "n_heads")
"""The fields of a model that the shape rule sets."""
VOCABULARY = "vocab"
"""The axis of tokens, see `zoo.spec.ParamSpec.axes`."""


def parameters(model: Model, count: Literal["all", "non_embedding"] = "all") -> int:
    """The number of parameters of a model, counted according to `Scale.parameters`."""
    every = sum(p.numel() for p in model.parameters())
    if count == "all":
        return every
    return every - sum(p.spec.numel for p in declared(model) if VOCABULARY in p.spec.axes)


def size_changes(base: Located, node: Located, scale: Scale, problems: list[str]) -> list[Located]:
    """Read or compute the mappings that the sizes merge over `base`.

    Args:
        base: the common part of all runs.
        node: `scale` as it is written in the sweep file.
        scale: the same, checked.
        problems: a list to which one line is added for each problem.
    """
    sizes = node.value["sizes"]
    if isinstance(scale.sizes, SizeRule):
        return _shaped(base, sizes.place, scale.sizes, scale.parameters, problems)
    return [_change(written, "scale.sizes.", problems) for written in sizes.value]


def other_changes(
    node: Located, variants: Sequence[Combination], problems: list[str]
) -> dict[Combination, list[Located]]:
    """Read the sizes that some variants have instead of those of all (`Scale.other_sizes`).

    Args:
        node: `scale` as it is written in the sweep file.
        variants: all variants.
        problems: a list to which one line is added for each problem.

    Returns:
        For every such variant the mappings, by size, that take the place of those of `size_changes`.
    """
    entries = entries_of(node, "other_sizes", "sizes", variants, problems, "scale")
    return {
        variant: [_change(written, "scale.other_sizes.", problems) for written in entry.value["sizes"].value]
        for variant, entry in entries.items()
    }


def _change(written: Located, where: str, problems: list[str]) -> Located:
    """Dotted keys and their values as one mapping."""
    change = Located({}, written.place)
    for key, value in written.value.items():
        change = merge(change, nest(key, value))
    problems += reserved(change, where, RESERVED_IN_LADDERS)
    return change


def _shaped(
    base: Located,
    place: str,
    rule: SizeRule,
    count: Literal["all", "non_embedding"],
    problems: list[str],
) -> list[Located]:
    """The widths and depths of models with nearly the requested numbers of parameters."""
    of_base: list[str] = []
    config = validate(base, of_base)
    model: Any = None if config is None else config.model  # Any: its fields are asked for below
    if config is None or model is None:
        problems += of_base or [f"{place}: scale.sizes: `base` has no model whose shape could be scaled"]
        return []
    if missing := [field for field in SHAPE if not hasattr(model, field)]:
        problems.append(
            f"{place}: scale.sizes: the model {model.type} has no {', '.join(missing)}; expected the keys "
            "of every size instead of a shape rule"
        )
        return []
    head = model.d_model // model.n_heads
    shapes: dict[tuple[int, int, int], int] = {}
    for heads in range(1, MOST_WIDTHS + 1):
        width = head * heads
        depth = (
            max(1, round(width * model.n_layers / model.d_model))
            if rule.shape == "aspect"
            else model.n_layers
        )
        shape = (width, depth, heads)
        try:
            shaped = _with_shape(config, dict(zip(SHAPE, shape, strict=True)))
            shapes[shape] = parameters(declare(recipe_of(shaped)), count)
        except (ConfigError, ValueError):
            continue  # the model does not allow this width
        if shapes[shape] > 2 * max(rule.params):
            break
    problems += _out_of_reach(place, rule, shapes)
    changes = []
    for wanted in rule.params if shapes else ():
        shape = min(shapes, key=lambda shape: abs(math.log(shapes[shape] / wanted)))
        values = {f"model.{field}": Located(value, place) for field, value in zip(SHAPE, shape, strict=True)}
        changes.append(_change(Located(values, place), "scale.sizes.", problems))
    return changes


def _out_of_reach(place: str, rule: SizeRule, shapes: Mapping[tuple[int, int, int], int]) -> Iterator[str]:
    """Yield a problem for every requested size beyond the smallest and the largest one of a rule."""
    ends = {
        "smallest": min(shapes, key=lambda shape: shapes[shape], default=None),
        "largest": max(shapes, key=lambda shape: shapes[shape], default=None),
    }
    for wanted in rule.params:
        for name, end in ends.items():
            if end is None:
                yield f"{place}: scale.sizes: the model allows no shape of this rule"
                return
            beyond = math.log(shapes[end] / wanted) * (1 if name == "smallest" else -1)
            if beyond > math.log(1 + FAR):
                keys = ", ".join(f"{key} {value}" for key, value in zip(SHAPE, end, strict=True))
                yield (
                    f"{place}: scale.sizes.params: {format_count(wanted)}: the {name} model by shape: "
                    f"{rule.shape} has {format_count(shapes[end])} parameters ({keys}); expected a size that "
                    "the rule reaches, or the keys of every size"
                )


def _with_shape(config: RunConfig, shape: Mapping[str, int]) -> RunConfig:
    assert config.model is not None  # callers have read its shape
    model: Config = type(config.model).model_validate({**config.model.model_dump(), **shape})
    return config.model_copy(update={"model": model})
