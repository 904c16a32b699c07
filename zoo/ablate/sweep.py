"""A sweep file, read and checked: variants, grids, baseline, seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zoo.ablate.axes import Combination, combinations, select, variant_name
from zoo.ablate.config import RUNS, Tune, check
from zoo.ablate.contenders import Contender, contenders, require_difference
from zoo.ablate.identity import digest, essence, run_id
from zoo.config.compose import extend, find_config, merge, overlay, read_config
from zoo.config.yaml import Located
from zoo.run.config import RunConfig, plain
from zoo.run.job import Job
from zoo.utils.errors import ConfigError


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
    found = contenders(base, changes, variants, grids, config, problems)
    _stop(problems)
    require_difference(found, variants)
    return Sweep(config.name, out or Path(config.out), found, baseline, config.seeds, config.tune)


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
