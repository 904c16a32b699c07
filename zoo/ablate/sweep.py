"""From a sweep file to its variants, every configuration resolved and checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.ablate.axes import Combination, combinations, nest, select, variant_name
from zoo.ablate.config import RUNS, SweepConfig, Tune, check
from zoo.ablate.identity import digest, essence, run_id
from zoo.ablate.tuning import Point, points, rungs
from zoo.compose import extend, find_config, merge, overlay, read_config
from zoo.config import RunConfig, plain, validate
from zoo.errors import ConfigError
from zoo.inherit import inherit
from zoo.train.job import Job
from zoo.yamlfile import Located


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


@dataclass(frozen=True)
class Sweep:
    """A sweep file, ready to be run.

    Attributes:
        name: of the sweep.
        out: folder of the sweeps.
        contenders: the variants, in the order of the file.
        baseline: name of the one the others are compared with.
        seeds: of the comparison.
        tune: None if nothing is tuned.
    """

    name: str
    out: Path
    contenders: tuple[Contender, ...]
    baseline: str
    seeds: tuple[int, ...]
    tune: Tune | None

    @property
    def folder(self) -> Path:
        """Where sweep.json lies."""
        return self.out / self.name

    @property
    def runs(self) -> Path:
        """Where the run folders lie, with those of other sweeps."""
        return self.out / RUNS

    @property
    def config_hash(self) -> str:
        """Changes with everything that determines the runs and how they are compared."""
        all_runs = {c.name: [essence(config) for config in c.configs] for c in self.contenders}
        tune = plain(self.tune) if self.tune else None
        return digest([self.baseline, list(self.seeds), tune, all_runs])

    def run(self, contender: Contender, point: int, seed: int) -> RunConfig:
        """The configuration of one run, named by its id."""
        config = contender.configs[point].model_copy(update={"seed": seed})
        train = Job.of(config).train.model_copy(update={"runs_dir": self.runs})
        return config.model_copy(update={"name": run_id(config), "train": train})


def load_sweep(file: Path, overrides: Sequence[str] = (), out: Path | None = None) -> Sweep:
    """Read a sweep file.

    Args:
        file: YAML.
        overrides: ``a.b=c``, put on top of `base`.
        out: instead of the file's.

    Returns:
        The sweep, every configuration checked.

    Raises:
        ConfigError: every problem that was found, one per line.
    """
    problems: list[str] = []
    given = merge(Located.of({"name": file.stem}, str(file)), read_config(file, problems))
    config = check(given, problems)
    _stop(problems)
    assert config is not None
    variants = combinations(given, file.parent, problems)
    base = _base(given.value["base"], file.parent, problems)
    _stop(problems)
    changes = [overlay([text], problems) for text in overrides]
    for change in changes:
        base = merge(base, change)
    baseline = _baseline(given, variants, problems)
    grids = _grids(config.tune, given, variants, problems)
    _stop(problems)
    contenders = _contenders(base, changes, variants, grids, config, problems)
    _stop(problems)
    _require_difference(contenders, variants)
    return Sweep(config.name, out or Path(config.out), contenders, baseline, config.seeds, config.tune)


def _stop(problems: Sequence[str]) -> None:
    if problems:
        raise ConfigError("\n".join(problems))


def _base(given: Located, folder: Path, problems: list[str]) -> Located:
    if isinstance(given.value, dict):
        return extend(given, folder, problems)
    if not isinstance(given.value, str):
        problems.append(f"{given.place}: base: value {given.value!r}: expected a name, a path or a mapping")
        return given
    try:
        return read_config(find_config(given.value, folder), problems)
    except ConfigError as error:
        problems.append(f"{given.place}: base: {error}")
        return given


def _baseline(given: Located, variants: Sequence[Combination], problems: list[str]) -> str:
    if not variants:
        problems.append(f"{given.value['exclude'].place}: exclude: no variant is left")
        return ""
    rule = given.value.get("baseline")
    if rule is None or rule.value is None:
        return variants[0].name
    wanted = select(rule, variants, problems, "baseline")
    matching = [v.name for v in variants if wanted is not None and v.matches(wanted)]
    if wanted is not None and len(matching) != 1:
        told = f"it is {len(matching)} variants" if matching else "it is excluded"
        problems.append(f"{rule.place}: baseline: {variant_name(wanted)}: expected one variant: {told}")
    return matching[0] if matching else ""


def _grids(
    tune: Tune | None, given: Located, variants: Sequence[Combination], problems: list[str]
) -> list[dict[str, Located]]:
    """The grid of every variant, with places."""
    if tune is None:
        return [{} for _ in variants]
    node = given.value["tune"]
    found = [node.value["grid"].value for _ in variants]
    special = dict.fromkeys(range(len(variants)), 0)
    for other in node.value["grids"].value if "grids" in node.value else ():
        wanted = select(other.value["where"], variants, problems, "tune.grids.where")
        for i, variant in enumerate(variants):
            if wanted is not None and variant.matches(wanted):
                found[i] = other.value["grid"].value
                special[i] += 1
                if special[i] > 1:
                    problems.append(
                        f"{other.place}: tune.grids: {variant.name} has a grid of its own already"
                    )
    return found


def _contenders(
    base: Located,
    overrides: Sequence[Located],
    variants: Sequence[Combination],
    grids: Sequence[Mapping[str, Located]],
    config: SweepConfig,
    problems: list[str],
) -> tuple[Contender, ...]:
    """Put every configuration together and check it; a problem of all variants is told once."""
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


def _require_difference(contenders: Sequence[Contender], variants: Sequence[Combination]) -> None:
    """Refuse two variants, or two points of a grid, that are the same run."""
    seen: dict[str, tuple[int, int]] = {}
    for i, contender in enumerate(contenders):
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
