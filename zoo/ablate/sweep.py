"""Reading and checking a sweep file: variants, grids, baseline, seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, islice
from pathlib import Path

from zoo.ablate.axes import Combination, combinations, entries_of, nest, select, variant_name
from zoo.ablate.compiling import choose_compiled, describe
from zoo.ablate.config import RUNS, SweepConfig, Tune, validate_sweep
from zoo.ablate.identity import digest, effective_settings, run_id
from zoo.ablate.ladder import LadderSize, build_ladder, located_points, single_size
from zoo.ablate.lines import Lines
from zoo.ablate.outcome import Outcome, read_outcome
from zoo.ablate.reserved import RESERVED, RESERVED_IN_LADDERS, of_sweep_file, reserved
from zoo.ablate.scale_config import Scale
from zoo.ablate.scoring import TaskScoring, TaskSettings
from zoo.ablate.tokenizers import mixed_tokenizers, tokenizers_of
from zoo.ablate.tuning import grid_points
from zoo.ablate.variants import SweepVariant, build_variants, require_different_runs
from zoo.config.compose import extend, find_config, merge, name_of_file, parse_overrides, read_config
from zoo.config.inputs import folder_of, from_current_folder
from zoo.config.yaml import Located
from zoo.run.config import RunConfig, plain
from zoo.run.job import Job
from zoo.utils.errors import ConfigError
from zoo.utils.files import expand_home
from zoo.utils.measures import CROSS_ENTROPY, LOSSES, Measure, find_measure, require_recorded


@dataclass(frozen=True)
class Sweep:
    """A sweep file, ready to be run.

    Attributes:
        name: the name of the sweep.
        out: the folder of all sweeps.
        variants: the variants in the order of the file.
        baseline: the name of the variant that the others are compared with.
        seeds: the seeds of the comparison.
        tune: the tuning; None if nothing is tuned.
        scale: the declarations of the ladder; None without sizes.
        ladder: the sizes, ascending; empty if the rates are those of a grid.
        measure: the measure by which the runs are tuned and compared.
        notes: settings that were chosen for the runs and files that are missing, for the terminal.
        description: the purpose of the sweep, as described in the file.
        scoring: the settings of `measure` if it is the score of a task; None: it is a measure of the
            validation.
        lines: the lines of runs that have ended; None: they are not kept.
        max_seeds: the number of seeds up to which seeds are added until every word is decided; None: all
            variants have the given seeds.
    """

    name: str
    out: Path
    variants: tuple[SweepVariant, ...]
    baseline: str
    seeds: tuple[int, ...]
    tune: Tune | None
    scale: Scale | None = None
    ladder: tuple[LadderSize, ...] = ()
    measure: Measure = CROSS_ENTROPY
    notes: tuple[str, ...] = ()
    description: str | None = None
    scoring: TaskScoring | None = None
    lines: Lines | None = None
    max_seeds: int | None = None

    @property
    def first_seeds(self) -> tuple[int, ...]:
        """The seeds of the comparison before any are added; those of the first size of a ladder."""
        return self.ladder[0].seeds if self.ladder else self.seeds

    @property
    def added_seeds(self) -> tuple[int, ...]:
        """The seeds that may be added, in their order; seeds of the tuning are left out."""
        if self.max_seeds is None:
            return ()
        taken = self.tune.seeds if self.tune else ()
        further = (seed for seed in count(max(self.first_seeds) + 1) if seed not in taken)
        return tuple(islice(further, self.max_seeds - len(self.first_seeds)))

    @property
    def folder(self) -> Path:
        """The folder of sweep.json."""
        return self.out / self.name

    @property
    def runs(self) -> Path:
        """The parent of the run folders, which all sweeps in `out` share."""
        return self.out / RUNS

    @cached_property
    def config_hash(self) -> str:
        """A digest of all settings that determine the runs and their comparison."""
        settings = {v.name: [effective_settings(config) for config in v.configs] for v in self.variants}
        tune = plain(self.tune) if self.tune else None
        parts = [self.baseline, list(self.seeds), tune, settings]
        parts += [] if self.measure.is_loss else [self.measure.name]
        parts += [] if self.max_seeds is None else [self.max_seeds]
        parts += [] if self.scoring is None else [plain(self.scoring.settings)]
        return digest([*parts, plain(self.scale)] if self.scale else parts)

    @property
    def variant_names(self) -> list[str]:
        """The names of the variants, in the order of the sweep file."""
        return [variant.name for variant in self.variants]

    def outcome(self, run: str) -> Outcome:
        """The state of a run, by its id; see `read_outcome`."""
        return read_outcome(self.runs / run, self.measure, self.scoring)

    @property
    def context(self) -> int | None:
        """The largest number of tokens that the models of all runs can read; None: any number."""
        data = [Job.of(config).data for variant in self.variants for config in variant.configs]
        return min((d.length for d in data if d.objective_name != "stream"), default=None)

    def prepared(self) -> Sweep:
        """The sweep with the direction of the task's score that is its measure; other sweeps are unchanged.

        Raises:
            ZooError: The task cannot be used, has no such metric, or does not state which direction is
                better.
        """
        if self.scoring is None:
            return self
        scoring = self.scoring.prepared(self.context)
        return replace(self, measure=scoring.measure, scoring=scoring)

    def run(self, variant: SweepVariant, point: int, seed: int) -> RunConfig:
        """The configuration of one run, named by its id."""
        return self.named(variant.configs[point].model_copy(update={"seed": seed}))

    def named(self, config: RunConfig) -> RunConfig:
        """A configuration with the id as its name and the folder of the sweep's runs."""
        train = Job.of(config).train.model_copy(update={"runs_dir": self.runs})
        return config.model_copy(update={"name": run_id(config), "train": train})


def load_sweep(file: Path, overrides: Sequence[str] = (), out: Path | None = None) -> Sweep:
    """Read a sweep file and check every configuration in it.

    Args:
        file: YAML.
        overrides: ``a.b=c``, merged over `base`.
        out: the folder of the sweeps; None: the one in the file.

    Raises:
        ConfigError: The file has problems; the message lists all of them, one per line.
    """
    problems: list[str] = []
    content = merge(name_of_file(file), read_config(file, problems))
    if "model" in content.value and "base" not in content.value:
        raise ConfigError(
            f"{file}: the configuration of a run; expected a sweep file, with this one as `base`"
        )
    config = validate_sweep(content, problems)
    if config is None or problems:
        raise ConfigError("\n".join(problems))
    taken = RESERVED if config.scale is None else RESERVED_IN_LADDERS
    chosen = combinations(content, taken, problems)
    base = _base(content.value["base"], problems)
    _stop_at(problems)
    changes = [parse_overrides([text], problems) for text in overrides]
    for change in changes:
        problems += reserved(change, keys=taken)
        problems += of_sweep_file(change, frozenset(SweepConfig.model_fields))
        base = merge(base, change)
    baseline = _baseline(content, chosen, problems)
    points = _points(content, config.tune, chosen, taken, problems)
    _stop_at(problems)
    variants: Sequence[SweepVariant]
    if config.scale is None:
        variants = build_variants(base, changes, chosen, points, content, config, problems)
        _stop_at(problems)
        require_different_runs(variants, chosen)
        interpolated = config.tune is not None and config.tune.choose == "parabola"
        ladder = single_size(variants, config.seeds, baseline) if interpolated else ()
    else:
        ladder = build_ladder(base, changes, chosen, points, content, config, baseline, problems)
        _stop_at(problems)
        variants = ladder[0].variants
        require_different_runs(variants[: len(chosen)], chosen)
    measure = _measure(content, config, variants, problems)
    for side_by_side in [size.variants for size in ladder] or [variants]:
        _require_one_tokenizer(content, side_by_side, measure, problems)
    if config.lines_of:
        _require_recognisable(content, variants, problems)
    _stop_at(problems)
    lines = _lines(content, config.tune, measure, problems) if config.lines else None
    _stop_at(problems)
    notes = tuple(size.note for size in ladder if size.note) + _missing(lines)
    if config.compile == "auto":
        _require_no_compile(content.value["compile"].place, variants)
        variants, ladder, shapes = choose_compiled(variants, ladder, config.tune, config.seeds)
        notes += (describe(shapes),)
    return Sweep(
        config.name,
        out or Path(config.out),
        tuple(variants),
        baseline,
        config.seeds,
        config.tune,
        config.scale,
        ladder,
        measure,
        notes,
        config.description,
        _scoring(content, config, measure),
        lines,
        config.max_seeds if config.scale is None else config.scale.max_seeds,
    )


def _lines(content: Located, tune: Tune | None, measure: Measure, problems: list[str]) -> Lines:
    """The lines of runs that have ended, in this and in other ladders."""
    file = _beside(content.value["lines"])
    others = content.value["lines_of"].value if "lines_of" in content.value else ()
    problems += [
        f"{other.place}: lines_of: {other.value} is the file of `lines`; expected those of other ladders"
        for other in others
        if _beside(other).resolve() == file.resolve()
    ]
    drawn = None if tune is None else tune.drawn
    return Lines(file, [_beside(other) for other in others], drawn, measure)


def _missing(lines: Lines | None) -> tuple[str, ...]:
    """A note on each file of `lines_of` that does not exist (yet)."""
    others = () if lines is None else lines.others
    return tuple(
        f"lines_of: {other} does not exist; no run is taken over from it"
        for other in others
        if not other.exists()
    )


def _require_recognisable(content: Located, variants: Sequence[SweepVariant], problems: list[str]) -> None:
    """Refuse `lines_of` where runs of another ladder may have the same settings and be other runs.

    Settings name files without their folders. Of the data a line has the fingerprint, which is compared if
    all variants read the same; of a checkpoint it has nothing.
    """
    configs = [config for variant in variants for config in variant.configs]
    data = {config.data.model_dump_json() for config in configs if config.data is not None}
    if any(config.checkpoint is not None for config in configs):
        reason = "begin with a checkpoint, of which lines have only the name"
    elif len(data) > 1:
        reason = "differ in their data"
    else:
        return
    problems.append(
        f"{content.value['lines_of'].place}: lines_of: the variants {reason}; expected none, because runs of "
        "other ladders with the same settings may be other runs"
    )


def _scoring(content: Located, config: SweepConfig, measure: Measure) -> TaskScoring | None:
    """The settings of the score of a task, with the path of the task files relative to the current folder."""
    if not measure.is_task:
        return None
    settings = config.tasks or TaskSettings()
    if settings.path is not None:
        path = expand_home(str(from_current_folder(content.value["tasks"].value["path"]).value))
        settings = settings.model_copy(update={"path": path})
    return TaskScoring(measure, settings)


def _beside(written: Located) -> Path:
    """A path relative to the folder of the file in which it is written, whether it exists or not."""
    return folder_of(written, Path()) / expand_home(str(written.value))


def _measure(
    content: Located, config: SweepConfig, variants: Sequence[SweepVariant], problems: list[str]
) -> Measure:
    """The measure by which the runs are compared; each run has to record it."""
    runs = [run for variant in variants for run in variant.configs]
    of_runs = {run.metric for run in runs}
    named = config.metric or (of_runs.pop() if len(of_runs) == 1 else None)
    if named is None:
        return CROSS_ENTROPY
    measure = find_measure(named)
    place = _place_of_metric(content)
    recorders = [] if measure.is_task else [run.data for run in runs if run.data is not None]
    for data in {data.model_dump_json(): data for data in recorders}.values():
        try:
            require_recorded(measure, data.measures)
        except ValueError as error:
            problems.append(f"{place}: {error}")
            break
    if config.scale is not None and measure.name not in LOSSES:
        problems.append(
            f"{place}: value '{measure.name}': a ladder is judged by tokens until a loss; expected "
            f"{' or '.join(LOSSES)}"
        )
    return measure


def _place_of_metric(content: Located) -> str:
    return f"{content.value.get('metric', content.value['base']).place}: metric"


def _require_one_tokenizer(
    content: Located, variants: Sequence[SweepVariant], measure: Measure, problems: list[str]
) -> None:
    """Refuse a loss per token as the measure of runs that have different tokenizers."""
    runs = [(variant.name, config) for variant in variants for config in variant.configs]
    tokenizers = tokenizers_of([config for _, config in runs])
    if mixed := mixed_tokenizers([name for name, _ in runs], tokenizers, measure):
        problems.append(f"{_place_of_metric(content)}: {mixed}")


def _require_no_compile(place: str, variants: Sequence[SweepVariant]) -> None:
    for variant in variants:
        if any(Job.of(config).train.compile for config in variant.configs):
            raise ConfigError(
                f"{place}: compile: auto: {variant.name} has train.compile already; expected one of the two"
            )


def _stop_at(problems: Sequence[str]) -> None:
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))


def _base(base: Located, problems: list[str]) -> Located:
    if isinstance(base.value, dict):
        problems += reserved(base, "base.")
        return extend(base, Path(), problems, imported=True)
    if not isinstance(base.value, str):
        problems.append(f"{base.place}: base: value {base.plain()!r}: expected a name, a path or a mapping")
        return base
    try:
        return read_config(find_config(base.value, folder_of(base, Path())), problems)
    except ConfigError as error:
        problems.append(f"{base.place}: base: {error}")
        return base


def _reserved_keys(values: Mapping[str, Located], where: str, taken: Mapping[str, str]) -> Iterator[str]:
    """Yield a problem for every reserved key among dotted keys."""
    for key, value in values.items():
        yield from reserved(nest(key, value), where, taken)


def _baseline(content: Located, variants: Sequence[Combination], problems: list[str]) -> str:
    if not variants:
        problems.append(f"{content.value['exclude'].place}: exclude: no variant is left")
        return ""
    rule = content.value.get("baseline")
    if rule is None or rule.value is None:
        return variants[0].name
    wanted = select(rule, variants, problems, "baseline")
    if wanted is None:
        return ""
    matching = [v.name for v in variants if v.matches(wanted)]
    if len(matching) != 1:
        mistake = f"it is {len(matching)} variants" if matching else "it is excluded"
        problems.append(f"{rule.place}: baseline: {variant_name(wanted)}: expected one variant: {mistake}")
    return matching[0] if matching else ""


def _points(
    content: Located,
    tune_config: Tune | None,
    variants: Sequence[Combination],
    taken: Mapping[str, str],
    problems: list[str],
) -> list[tuple[Mapping[str, Located], ...]]:
    """The points of every variant; a single empty point if nothing is tuned."""
    tune = content.value.get("tune")
    if tune_config is None or tune is None:
        return [({},) for _ in variants]
    if tune_config.random is not None:
        of_search = tune.value["random"].value
        drawn_keys = {key: of_search[key] for key in tune_config.random.ranges}
        problems += _reserved_keys(drawn_keys, "tune.random.", taken)
        drawn = located_points(tune_config.random, tune.value["random"].place)
        return [drawn for _ in variants]
    problems += _reserved_keys(tune.value["grid"].value, "tune.grid.", taken)
    others = entries_of(tune, "grids", "a grid", variants, problems, "tune")
    grids = [others[v].value["grid"] if v in others else tune.value["grid"] for v in variants]
    return [grid_points({key: node.value for key, node in grid.value.items()}) for grid in grids]
