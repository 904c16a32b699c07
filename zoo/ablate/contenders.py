"""The variants of a sweep: their configurations put together, each axis seen to have an effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zoo.ablate.axes import Combination, nest
from zoo.ablate.config import SweepConfig
from zoo.ablate.identity import digest, essence
from zoo.ablate.tuning import Point, points, rungs
from zoo.config.compose import merge
from zoo.config.yaml import Located
from zoo.run.config import RunConfig, validate
from zoo.run.from_checkpoint import inherit
from zoo.run.job import Job
from zoo.utils.errors import ConfigError


@dataclass(frozen=True)
class Contender:
    """A variant and its runs' configurations.

    Attributes:
        name: ``axis=value,axis=value``.
        settings: the short name of its value on every axis.
        grid: values of the tuned keys; empty if nothing is tuned.
        points: every combination of them.
        configs: of each point, complete but for the seed and the name.
        rungs: steps at which points are compared, the last one included.
    """

    name: str
    settings: Mapping[str, str]
    grid: Mapping[str, Sequence[Any]]
    points: tuple[Point, ...]
    configs: tuple[RunConfig, ...]
    rungs: tuple[int, ...]

    @property
    def steps(self) -> int:
        """Steps of a whole run."""
        return self.rungs[-1]


def contenders(
    base: Located,
    overrides: Sequence[Located],
    variants: Sequence[Combination],
    grids: Sequence[Mapping[str, Located]],
    config: SweepConfig,
    problems: list[str],
) -> tuple[Contender, ...]:
    """Put every configuration together and check it.

    Args:
        base: what all runs share, `overrides` included.
        overrides: what was put on top of it; each must have an effect.
        variants: to put on top.
        grids: of each variant, its tuned keys.
        config: the sweep file.
        problems: those found are appended, one of all variants once.

    Returns:
        The variants without problems.
    """
    found, by_variant = [], {}
    kept: set[int] = set()
    for variant, nodes in zip(variants, grids, strict=True):
        own: list[str] = []
        grid = {key: node.plain() for key, node in nodes.items()}
        resolved = []
        for point in points({key: node.value for key, node in nodes.items()}):
            given, exact = base, []
            for level in variant.levels:
                for change in level.changes:
                    given = merge(given, change)
                    exact += [change] if level.exact else []
            for key, value in point.items():
                change = nest(key, value)
                given = merge(given, change)
                exact.append(change)
            own += [told for change in exact for told in _lost(change, given)]
            kept |= {i for i, change in enumerate(overrides) if not [*_lost(change, given)]}
            resolved.append(_resolve(given, own))
        complete = [c for c in resolved if c is not None]
        by_variant[variant.name] = list(dict.fromkeys(own))
        if not own:
            cuts = _rungs(config, complete[0], own)
            found.append(Contender(variant.name, variant.settings, grid, points(grid), tuple(complete), cuts))
            by_variant[variant.name] = own
    problems += [
        f"{change.place}: has no effect: axes or tune.grid put something else in its place"
        for i, change in enumerate(overrides)
        if i not in kept and not any(by_variant.values())
    ]
    for line in dict.fromkeys(line for lines in by_variant.values() for line in lines):
        having = [name for name, lines in by_variant.items() if line in lines]
        problems.append(line if len(having) == len(variants) else f"{line} (in {having[0]})")
    return tuple(found)


def _resolve(given: Located, problems: list[str]) -> RunConfig | None:
    own: list[str] = []
    config = validate(inherit(given, own), own)
    try:
        if config is not None:
            Job.of(config)
    except ConfigError as error:
        own.append(str(error))
    problems += own
    return None if own else config


def _rungs(config: SweepConfig, run: RunConfig, problems: list[str]) -> tuple[int, ...]:
    train = Job.of(run).train
    try:
        return rungs(config.tune.halving if config.tune else None, train.steps, train.eval_every)
    except ValueError as error:
        problems.append(f"tune.{error}")
        return (train.steps,)


def _lost(change: Located, result: Located, path: str = "") -> Iterator[str]:
    """One line for every value of a change that is not in the result: something put on top replaced it."""
    if isinstance(change.value, dict):
        inside = dict(enumerate(result.value)) if isinstance(result.value, list) else result.value
        for key, value in change.value.items():
            fields = {str(k): v for k, v in inside.items()} if isinstance(inside, dict) else {}
            yield from _lost(value, fields.get(key, Located(None, "")), f"{path}.{key}" if path else key)
        return
    found = result.plain()
    if isinstance(change.value, str) and isinstance(found, dict):
        found = found.get("type")
    if found != change.plain():
        by = result.place or "what comes later"
        yield f"{change.place}: {path}: has no effect: {by} puts something else in its place"


def require_difference(found: Sequence[Contender], variants: Sequence[Combination]) -> None:
    """Refuse two variants, or two points of a grid, that are the same run.

    Raises:
        ConfigError: there are such two.
    """
    seen: dict[str, tuple[int, int]] = {}
    for i, contender in enumerate(found):
        for j, config in enumerate(contender.configs):
            k, same = seen.setdefault(digest(essence(config)), (i, j))
            if k != i:
                raise ConfigError(_same(variants[k], variants[i]))
            if same != j:
                raise ConfigError(
                    f"tune.grid: changes nothing between {contender.points[same]} and {contender.points[j]} "
                    f"of {contender.name}: they come out as the same configuration"
                )


def _same(one: Combination, other: Combination) -> str:
    pairs = [(a, b) for a, b in zip(one.levels, other.levels, strict=True) if a is not b]
    axes = " and ".join(axis for a, _ in pairs for axis in a.settings)
    return (
        f"{pairs[0][1].changes[0].place}: axes.{axes}: changes nothing: {one.name} and {other.name} come out "
        "as the same configuration"
    )
