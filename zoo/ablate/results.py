"""The runs of a comparison, measured: those of a sweep, or any run folders."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from os.path import commonprefix
from pathlib import Path
from typing import Any

from zoo.ablate.manifest import FILE, Manifest, Run, Variant, read_manifest, run_folder
from zoo.ablate.measured import Measured, measure
from zoo.ablate.outcome import verify
from zoo.run.config import plain
from zoo.train.start import MAY_CHANGE
from zoo.utils.errors import ZooError, did_you_mean
from zoo.utils.run_folder import RunFolder

SAME = {"name", "seed", "train.device"} | {
    key for key in MAY_CHANGE if not key.startswith(("train.steps", "train.spikes"))
}
"""Settings in which two runs of one variant may differ."""


@dataclass(frozen=True)
class Results:
    """A sweep with what its runs have measured.

    Attributes:
        manifest: variants, baseline, runs.
        measured: by the id of a run; those that have not begun are missing.
    """

    manifest: Manifest
    measured: Mapping[str, Measured]

    def runs(self, variant: str, phase: str = "final") -> list[Run]:
        """The runs of a variant that count for a phase, in the order of the seeds."""
        runs = [r for r in self.manifest.runs if r.variant == variant and phase in r.phases]
        return sorted(runs, key=lambda run: run.seed)

    def finished(self, variant: str, phase: str = "final") -> dict[int, Measured]:
        """By seed what the finished ones among them measured, if their validation loss is a number."""
        found = {r.seed: self.measured[r.id] for r in self.runs(variant, phase) if r.status == "finished"}
        return {seed: run for seed, run in found.items() if run.final is not None and isfinite(run.final)}

    def begun(self, variant: str) -> list[tuple[Run, Measured]]:
        """The runs of the comparison that have something to show."""
        return [(run, self.measured[run.id]) for run in self.runs(variant) if run.id in self.measured]


def read_results(paths: Sequence[Path], baseline: str | None = None) -> Results:
    """Read a sweep, or run folders, which are grouped by everything but the seed.

    Args:
        paths: the folder of one sweep, or one or more run folders.
        baseline: name of the variant that the others are compared with; None: the sweep's own, or
            that of the first run folder.

    Raises:
        ZooError: no paths, a sweep among other paths, an unknown baseline, two runs of a variant with
            one seed, a folder that was not written by zoo, or a run of a sweep that was edited.
    """
    if not paths:
        raise ZooError("report: no runs; expected the folder of a sweep, or one or more run folders")
    sweeps = [path for path in paths if (path / FILE).is_file()]
    if sweeps and len(paths) > 1:
        raise ZooError(f"report: {sweeps[0]} is a sweep; expected it alone, or run folders only")
    results = _of_sweep(sweeps[0]) if sweeps else _of_folders(paths)
    names = [variant.name for variant in results.manifest.variants]
    if baseline is None:
        return results
    if baseline not in names:
        raise ZooError(f"report: no variant is named {baseline!r}{did_you_mean(baseline, names)}")
    return Results(results.manifest.model_copy(update={"baseline": baseline}), results.measured)


def _of_sweep(folder: Path) -> Results:
    manifest = read_manifest(folder)
    measured = {}
    for run in manifest.runs:
        if RunFolder(run_folder(folder, run)).metrics.is_file():
            verify(run_folder(folder, run))
            measured[run.id] = measure(run_folder(folder, run))
        if run.status == "finished" and run.id not in measured:
            raise ZooError(f"{run_folder(folder, run)}: gone; {folder / FILE} calls this run finished")
        if run.id in measured and measured[run.id].config.seed != run.seed:
            seed = measured[run.id].config.seed
            raise ZooError(
                f"{run_folder(folder, run)}: has seed {seed}, but {folder / FILE} says {run.seed}; "
                "one of them was changed by hand"
            )
    return Results(manifest, measured)


def _of_folders(folders: Sequence[Path]) -> Results:
    """Run folders as a sweep: a variant is what agrees in everything but the seed."""
    measured: dict[str, Measured] = {}
    groups: dict[str, dict[int, str]] = {}
    settings: dict[str, dict[str, Any]] = {}
    for folder in folders:
        run = measured[str(folder)] = measure(folder)
        fields = {k: v for k, v in _flat(plain(run.config)) if k not in SAME}
        key = json.dumps(fields, sort_keys=True)
        settings[key] = fields
        seeds = groups.setdefault(key, {})
        if run.config.seed in seeds:
            raise ZooError(
                f"report: {seeds[run.config.seed]} and {folder} are the same but for the name, seed "
                f"{run.config.seed} included; expected each run once"
            )
        seeds[run.config.seed] = str(folder)
    names = _names([[measured[f].folder.name for f in seeds.values()] for seeds in groups.values()])
    differing = _differing(list(settings.values()))
    variants = [
        Variant(name=name, settings={k: str(settings[key].get(k)) for k in differing})
        for name, key in zip(names, groups, strict=True)
    ]
    runs = [
        Run(
            id=folder,
            variant=variant.name,
            seed=seed,
            phases=("final",),
            folder=folder,
            status="finished" if measured[folder].complete else "interrupted",
        )
        for variant, seeds in zip(variants, groups.values(), strict=True)
        for seed, folder in seeds.items()
    ]
    manifest = Manifest(
        name=f"{len(runs)} runs" if len(runs) > 1 else measured[runs[0].id].folder.name,
        baseline=variants[0].name,
        config_hash="",
        variants=tuple(variants),
        runs=tuple(runs),
    )
    return Results(manifest, measured)


def _flat(fields: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of a configuration."""
    for key, value in fields.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys in which variants differ."""
    keys = dict.fromkeys(key for fields in settings for key in fields)
    return [k for k in keys if any(fields.get(k) != settings[0].get(k) for fields in settings)]


def _names(groups: Sequence[Sequence[str]]) -> list[str]:
    """A name per variant: what the names of its runs begin with, numbered where that is not enough."""
    names: list[str] = []
    for group in groups:
        start = group[0]
        if len(group) > 1:
            common = commonprefix(group)  # noqa: RUF071 (of names, letter by letter)
            start = common.rstrip("-_.0123456789").removesuffix("seed").rstrip("-_.") or start
        same = sum(name == start or name.startswith(f"{start} (") for name in names)
        names.append(f"{start} ({same + 1})" if same else start)
    return names
