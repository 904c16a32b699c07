"""The variants of a sweep: composing their configurations, and checking that each axis has an effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from zoo.ablate.axes import Combination, nest
from zoo.ablate.config import SweepConfig
from zoo.ablate.identity import digest, effective_settings
from zoo.ablate.tuning import Point, rung_steps
from zoo.config.compose import merge
from zoo.config.yaml import Located
from zoo.run.config import RunConfig, validate
from zoo.run.declared_once import declared_once
from zoo.run.first_weights import check_transfer
from zoo.run.from_checkpoint import inherit
from zoo.run.job import Job
from zoo.run.located import located
from zoo.utils.errors import ConfigError


@dataclass(frozen=True)
class SweepVariant:
    """A variant and the configurations of its runs.

    Attributes:
        name: ``axis=value,axis=value``.
        settings: the short name of the variant's value on every axis.
        points: the tried values of the tuned keys; one empty point if nothing is tuned.
        configs: one configuration per point, complete except for the seed and the name.
        rungs: the steps at which points are compared, the last step included. For a size of a ladder it is
            the last step of `base` alone; see `zoo.ablate.ladder.Side.rungs`.
    """

    name: str
    settings: Mapping[str, str]
    points: tuple[Point, ...]
    configs: tuple[RunConfig, ...]
    rungs: tuple[int, ...]

    @property
    def steps(self) -> int:
        """The number of steps of a whole run."""
        return self.rungs[-1]


def build_variants(
    base: Located,
    overrides: Sequence[Located],
    combinations: Sequence[Combination],
    candidates: Sequence[Sequence[Mapping[str, Located]]],
    content: Located,
    config: SweepConfig,
    problems: list[str],
    sizes: Sequence[Located] | None = None,
) -> tuple[SweepVariant, ...]:
    """Compose the configurations of all variants and check them.

    Args:
        base: the common part of all runs, including `overrides`.
        overrides: the changes of the base; each must have an effect in some run.
        combinations: the levels of every variant, to merge over the base.
        candidates: the values of the tuned keys that are tried, for every variant.
        content: the sweep file as it is written.
        config: the sweep file.
        problems: a list to which one line is added for each problem; a problem of all variants is listed
            once.
        sizes: the change of the base by one size of a ladder, for every variant; it must have an effect. A
            component of another type gets its keys as well, unless it sets them itself.

    Returns:
        The variants without problems.
    """
    variants = []
    by_variant: dict[str, list[str]] = {}
    effective: set[int] = set()
    changes = [None] * len(combinations) if sizes is None else sizes
    for combination, points, size in zip(combinations, candidates, changes, strict=True):
        in_variant = by_variant[combination.name] = []
        configs = []
        sized = base if size is None else merge(base, size)
        for point in points:
            merged, exact = _compose(sized, size, combination, point)
            in_variant += [problem for change in exact for problem in _replaced(change, merged)]
            effective |= {i for i, change in enumerate(overrides) if not [*_replaced(change, merged)]}
            configs.append(_validate(merged, in_variant))
        complete = tuple(c for c in configs if c is not None)
        if not in_variant and config.scale is None:
            in_variant += _schedule_problems(complete)
        if not in_variant:
            in_variant += [*_transfer_problems(complete[0], merged), *_clip_problems(complete)]
        if not in_variant and config.tune is not None and config.tune.choose == "parabola":
            in_variant += _whole_numbers(complete[0], points[0])
        if not in_variant:
            values = tuple({key: node.plain() for key, node in point.items()} for point in points)
            rungs = _rungs(content, config, complete[0], in_variant)
            variants.append(SweepVariant(combination.name, combination.settings, values, complete, rungs))
    problems += [
        f"{change.place}: has no effect: axes, sizes or tune put something else in its place"
        for i, change in enumerate(overrides)
        if i not in effective and not any(by_variant.values())
    ]
    for line in dict.fromkeys(line for lines in by_variant.values() for line in lines):
        having = [name for name, lines in by_variant.items() if line in lines]
        problems.append(line if len(having) == len(combinations) else f"{line} (in {having[0]})")
    return tuple(variants)


def _compose(
    base: Located, size: Located | None, combination: Combination, point: Mapping[str, Located]
) -> tuple[Located, list[Located]]:
    """Compose the configuration of a variant at a point of the tuning.

    Args:
        base: the common part of all runs, with the change by the size.
        size: this change; None: there is none.
        combination: the levels of the variant.
        point: the values of the tuned keys.

    Returns:
        The configuration, and the changes in it that must have an effect.
    """
    merged, exact = base, [] if size is None else [size]
    for level in combination.levels:
        for change in level.changes:
            merged = merge(merged, change)
            exact += [change] if level.exact else []
    if size is not None:  # a model of another type has replaced the one with the size
        merged = merge(size, merged)
    for change in (nest(key, value) for key, value in point.items()):
        merged = merge(merged, change)
        exact.append(change)
    return merged, exact


def _validate(merged: Located, problems: list[str]) -> RunConfig | None:
    of_variant: list[str] = []
    config = validate(inherit(merged, of_variant), of_variant)
    try:
        if config is not None:
            with located(config):
                Job.of(config).optimizer.require_trainable()
    except ConfigError as error:
        of_variant.append(str(error))
    problems += of_variant
    return None if of_variant else config


def _schedule_problems(configs: Sequence[RunConfig]) -> Iterator[str]:
    """Yield the reasons why the schedules of a variant do not fit its runs."""
    for config in configs:
        try:
            with located(config):
                config.schedule.check(Job.of(config).train.steps)
        except ConfigError as error:
            yield str(error)


def _transfer_problems(config: RunConfig, merged: Located) -> Iterator[str]:
    """Yield the reasons why a variant's transfer rule does not cover its runs, for any tuned value."""
    try:
        check_transfer(config)
    except ConfigError as error:
        yield f"{merged.value['transfer'].place}: {error}"


def _clip_problems(configs: Sequence[RunConfig]) -> Iterator[str]:
    """Yield the reasons why the clipping of a variant has no effect on its reparameterised model."""
    for config in configs:
        job = Job.of(config)
        if not job.train.clip.needs_reparam:
            continue
        try:
            with located(config):
                job.train.build_clip().prepare(declared_once(config))
        except ConfigError as error:
            yield str(error)


def _whole_numbers(config: RunConfig, point: Mapping[str, Located]) -> Iterator[str]:
    """Yield a problem for every tuned key that takes whole numbers, which the vertex of a parabola is not."""
    for key, written in point.items():
        value: object = config
        for name in key.split("."):
            value = getattr(value, name, None)
        if isinstance(value, int):
            yield (
                f"{written.place}: tune.grid.{key}: value {value}: this key takes whole numbers, and choose: "
                "parabola computes one between those of the grid; expected another key, or these values as "
                "variants (axes)"
            )


def _rungs(content: Located, config: SweepConfig, run: RunConfig, problems: list[str]) -> tuple[int, ...]:
    """The steps at which points are compared; in a ladder, whose runs have other lengths, the last alone."""
    train = Job.of(run).train
    halving = config.tune.halving if config.tune is not None and config.scale is None else None
    try:
        return rung_steps(halving, train.steps, train.eval_every)
    except ValueError as error:
        problems.append(f"{content.value['tune'].value['halving'].place}: tune.{error}")
        return (train.steps,)


def _replaced(change: Located, merged: Located, path: str = "") -> Iterator[str]:
    """Yield one line for every value of a change that a later change has replaced."""
    if isinstance(change.value, dict):
        inside = dict(enumerate(merged.value)) if isinstance(merged.value, list) else merged.value
        fields = {str(k): v for k, v in inside.items()} if isinstance(inside, dict) else {}
        for key, value in change.value.items():
            yield from _replaced(value, fields.get(key, Located(None, "")), f"{path}.{key}" if path else key)
        return
    result = merged.plain()
    if isinstance(change.value, str) and isinstance(result, dict):
        result = result.get("type")
    if result != change.plain():
        by = merged.place or "what comes later"
        yield f"{change.place}: {path}: has no effect: {by} puts something else in its place"


def require_different_runs(variants: Sequence[SweepVariant], combinations: Sequence[Combination]) -> None:
    """Refuse a sweep in which two runs are the same.

    Raises:
        ConfigError: Two variants, or two points of the tuning, have the same configuration.
    """
    seen: dict[str, tuple[int, int]] = {}
    for i, variant in enumerate(variants):
        for j, config in enumerate(variant.configs):
            i_before, j_before = seen.setdefault(digest(effective_settings(config)), (i, j))
            if i_before != i:
                raise ConfigError(_same_variants(combinations[i_before], combinations[i]))
            if j_before != j:
                raise ConfigError(
                    f"tune: changes nothing between {variant.points[j_before]} and {variant.points[j]} "
                    f"of {variant.name}: they come out as the same configuration"
                )


def _same_variants(one: Combination, other: Combination) -> str:
    differing = [b for a, b in zip(one.levels, other.levels, strict=True) if a is not b]
    axes = " and ".join(
        f"axes.{axis}" if len(level.settings) == 1 else f"zip.{axis}"
        for level in differing
        for axis in level.settings
    )
    return (
        f"{differing[0].changes[0].place}: {axes}: changes nothing: {one.name} and {other.name} come "
        "out as the same configuration"
    )
