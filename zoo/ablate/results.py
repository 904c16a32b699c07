"""The runs of a comparison with their metrics, from a sweep or from run folders."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from os.path import commonprefix
from pathlib import Path

from zoo.ablate.manifest import FILE, Manifest, Run, Status, Variant, read_manifest, run_folder
from zoo.ablate.outcome import verify
from zoo.ablate.run_metrics import RunMetrics, read_run_metrics
from zoo.ablate.short_names import short_names, shortened
from zoo.ablate.task_scores import recorded_task
from zoo.ablate.tokenizers import mixed_tokenizers, tokenizers_of_runs
from zoo.run.config import RunConfig, plain
from zoo.train.start import MAY_CHANGE
from zoo.utils.errors import ZooError, did_you_mean
from zoo.utils.measures import CROSS_ENTROPY, Measure, find_measure, require_recorded
from zoo.utils.run_folder import RunFolder

MAY_DIFFER = {"name", "description", "seed", "metric"} | {
    key for key in MAY_CHANGE if not key.startswith(("train.steps", "train.spikes"))
}
"""Settings in which two runs of one variant may differ."""


@dataclass(frozen=True)
class Results:
    """A sweep with the metrics of its runs.

    Attributes:
        manifest: the manifest with variants, baseline and runs.
        metrics: metrics by the id of the run; runs that have not started are missing.
        measure: the measure by which the runs are compared.
    """

    manifest: Manifest
    metrics: Mapping[str, RunMetrics]
    measure: Measure = CROSS_ENTROPY

    @property
    def baseline(self) -> str:
        """The name of the variant that the others are compared with."""
        return self.manifest.baseline

    @property
    def variants(self) -> list[str]:
        """The names of the variants, in the order of the sweep."""
        return self.manifest.variant_names

    def runs(self, variant: str, phase: str = "final") -> list[Run]:
        """The runs of a variant in a phase, in the order of the seeds."""
        runs = [r for r in self.manifest.runs if r.variant == variant and phase in r.phases]
        return sorted(runs, key=lambda run: run.seed)

    def started(self, variant: str) -> dict[int, RunMetrics]:
        """The metrics of the variant's runs in the comparison, finished or not, by seed."""
        return {run.seed: self.metrics[run.id] for run in self.runs(variant) if run.id in self.metrics}

    def finished(self, variant: str) -> dict[int, RunMetrics]:
        """The metrics, by seed, of the variant's finished runs whose final value is finite."""
        started = self.started(variant)
        finished = [run.seed for run in self.runs(variant) if run.status == "finished"]
        values = {seed: started[seed].final(self.measure) for seed in finished}
        return {seed: started[seed] for seed, v in values.items() if v is not None and isfinite(v)}

    def finals(self, variant: str) -> dict[int, float]:
        """The final values of the finished runs, by seed."""
        values = {seed: run.final(self.measure) for seed, run in self.finished(variant).items()}
        return {seed: value for seed, value in values.items() if value is not None}

    def all_started(self) -> list[tuple[str, RunMetrics]]:
        """The name of the variant and the metrics for every run in the comparison that has started."""
        return [(variant, run) for variant in self.variants for run in self.started(variant).values()]

    def all_finished(self) -> dict[str, dict[int, RunMetrics]]:
        """The finished runs by variant and seed, for variants that have any."""
        return {variant: runs for variant in self.variants if (runs := self.finished(variant))}

    def first_runs(self) -> dict[str, RunMetrics]:
        """The started run with the lowest seed of every variant, by variant."""
        return {v: next(iter(runs.values())) for v in self.variants if (runs := self.started(v))}


def is_sweep(folder: Path) -> bool:
    """Whether a folder belongs to a sweep."""
    return (folder / FILE).is_file()


def read_results(paths: Sequence[Path], baseline: str | None = None, metric: str | None = None) -> Results:
    """Read a sweep, or run folders, which are grouped into variants by all settings but the seed.

    Variants of a sweep get short names: only the settings in which each differs from the baseline.

    Args:
        paths: the folder of one sweep, or one or more run folders.
        baseline: full or short name of the variant that the others are compared with; None: the sweep's own,
            or that of the first run folder.
        metric: name of the measure by which the runs are compared, see `zoo.utils.measures.Measure`; None:
            the sweep's own, or that of the run folders' configurations, or the loss.

    Raises:
        ZooError: There are no paths, a sweep is among other paths, the baseline is unknown, no run has
            recorded the measure, it is a loss per token and the tokenizers differ, two runs of a variant have
            the same seed, a folder was not written by zoo, or a run of a sweep was edited.
    """
    if not paths:
        raise ZooError("report: no runs; expected the folder of a sweep, or one or more run folders")
    sweeps = [path for path in paths if is_sweep(path)]
    for path in paths:
        if not _holds_results(path):
            raise ZooError(
                f"report: {path}: expected the folder of a sweep, or a run folder made by `zoo train`"
                f"{_found_in(path)}"
            )
    if sweeps and len(paths) > 1:
        raise ZooError(
            f"report: {sweeps[0]} is a sweep; expected it alone, with other sweeps, or run folders only"
        )
    results = _read_sweep(sweeps[0]) if sweeps else _read_folders(paths)
    chosen = metric or results.manifest.metric
    results = replace(results, measure=_measure(chosen, list(results.metrics.values()), "report"))
    _require_one_tokenizer(results)
    return _against(results, baseline)


def _holds_results(folder: Path) -> bool:
    """Whether a folder is that of a sweep or of a run."""
    return is_sweep(folder) or RunFolder(folder).metrics.is_file()


def _found_in(folder: Path) -> str:
    """A hint for a user who named the parent of runs or sweeps; empty if it holds none."""
    inside = sorted(folder.iterdir()) if folder.is_dir() else []
    found = [path for path in inside if _holds_results(path)]
    if not found:
        return ""
    return f", of which {folder} holds {len(found)}, for instance {found[0]}"


def _require_one_tokenizer(results: Results) -> None:
    """Refuse runs of different tokenizers that are compared by a loss per token.

    Raises:
        ZooError: There are such runs.
    """
    names, runs = list(results.metrics), list(results.metrics.values())
    if mixed := mixed_tokenizers(names, tokenizers_of_runs(runs), results.measure):
        raise ZooError(f"report: metric: {mixed}")


def _against(results: Results, baseline: str | None) -> Results:
    """The results with a baseline, given by its full or short name, and with short names of variants."""
    manifest = results.manifest
    if baseline is not None:
        by_short = {short: full for full, short in short_names(manifest).items()}
        baseline = by_short.get(baseline, baseline)
        if baseline not in results.variants:
            known = [*results.variants, *by_short]
            raise ZooError(f"report: no variant is named {baseline!r}{did_you_mean(baseline, known)}")
        manifest = manifest.model_copy(update={"baseline": baseline})
    return replace(results, manifest=shortened(manifest))


def _measure(name: str, runs: Sequence[RunMetrics], command: str) -> Measure:
    """The measure by which runs are compared.

    Raises:
        ZooError: There is no measure of this name, or no run has recorded it.
    """
    try:
        measure = find_measure(name)
        if measure.is_task:
            return recorded_task(name, [run.folder for run in runs])
        recorded = {key for run in runs for key in run.measured}
        if recorded and not measure.is_loss:
            require_recorded(measure, recorded)
    except ZooError as error:
        raise ZooError(f"{command}: {error}") from error
    except ValueError as error:
        raise ZooError(f"{command}: metric: {error}") from error
    return measure


def _read_sweep(folder: Path) -> Results:
    manifest = read_manifest(folder)
    metrics = {}
    for run in manifest.runs:
        path = run_folder(folder, run)
        if RunFolder(path).metrics.is_file():
            verify(path)
            metrics[run.id] = read_run_metrics(path)
            seed = metrics[run.id].config.seed
            if seed != run.seed:
                raise ZooError(
                    f"{path}: has seed {seed}, but {folder / FILE} says {run.seed}; one of them was changed "
                    "by hand"
                )
        elif run.status == "finished":
            raise ZooError(f"{path}: gone; {folder / FILE} calls this run finished")
    return Results(manifest, metrics)


def _read_folders(folders: Sequence[Path]) -> Results:
    """Read run folders as a sweep; the runs of a variant have the same settings except for `MAY_DIFFER`."""
    metrics: dict[str, RunMetrics] = {}
    seeds_by_settings: dict[str, dict[int, str]] = {}
    variant_settings: dict[str, dict[str, object]] = {}
    for folder in folders:
        run = metrics[str(folder)] = read_run_metrics(folder)
        settings = settings_of(run.config)
        key = json.dumps(settings, sort_keys=True)
        variant_settings[key], seeds = settings, seeds_by_settings.setdefault(key, {})
        if run.config.seed in seeds:
            raise ZooError(
                f"report: {seeds[run.config.seed]} and {folder} are the same but for the name, seed "
                f"{run.config.seed} included; expected each run once"
            )
        seeds[run.config.seed] = str(folder)
    names = _variant_names(
        [[metrics[run].folder.name for run in seeds.values()] for seeds in seeds_by_settings.values()]
    )
    runs = [
        Run(
            id=run,
            variant=name,
            seed=seed,
            phases=("final",),
            folder=run,
            status=_status(metrics[run]),
            error=metrics[run].diverged,
        )
        for name, seeds in zip(names, seeds_by_settings.values(), strict=True)
        for seed, run in seeds.items()
    ]
    manifest = Manifest(
        name=f"{len(runs)} runs" if len(runs) > 1 else metrics[runs[0].id].folder.name,
        baseline=names[0],
        config_hash="",
        metric=_common_metric(list(metrics.values())),
        variants=_describe_variants(names, list(variant_settings.values())),
        runs=tuple(runs),
    )
    return Results(manifest, metrics)


def _status(run: RunMetrics) -> Status:
    if run.diverged is not None:
        return "failed"
    return "finished" if run.complete else "interrupted"


def _common_metric(runs: Sequence[RunMetrics]) -> str:
    """The measure that the configurations of all runs name; otherwise the loss."""
    names = {run.config.metric for run in runs}
    return next(iter(names)) or CROSS_ENTROPY.name if len(names) == 1 else CROSS_ENTROPY.name


def settings_of(config: RunConfig) -> dict[str, object]:
    """The settings that all runs of a variant have in common, by dotted key."""
    return {key: value for key, value in _flatten(plain(config)) if key not in MAY_DIFFER}


def _flatten(fields: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Dotted keys and values of a configuration."""
    for key, value in fields.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _describe_variants(names: Sequence[str], settings: Sequence[Mapping[str, object]]) -> tuple[Variant, ...]:
    """The variants with the settings in which they differ."""
    keys = dict.fromkeys(key for fields in settings for key in fields)
    differing = [k for k in keys if any(fields.get(k) != settings[0].get(k) for fields in settings)]
    return tuple(
        Variant(name=name, settings={k: str(fields.get(k)) for k in differing})
        for name, fields in zip(names, settings, strict=True)
    )


def _variant_names(groups: Sequence[Sequence[str]]) -> list[str]:
    """A name per variant: the common prefix of the names of its runs, numbered if names coincide."""
    names: list[str] = []
    for group in groups:
        name = group[0]
        if len(group) > 1:
            common = commonprefix(group)  # noqa: RUF071 (names, not paths)
            name = common.rstrip("-_.0123456789").removesuffix("seed").rstrip("-_.") or name
        same = sum(other == name or other.startswith(f"{name} (") for other in names)
        names.append(f"{name} ({same + 1})" if same else name)
    return names
