"""Crashes: runs whose result is unknown because they failed for another reason than divergence."""

from __future__ import annotations

from zoo.ablate.manifest import Manifest, Run


def crashes(manifest: Manifest, phase: str | None = None) -> list[str]:
    """Describe the crashed runs, in one clause per cause.

    Args:
        manifest: the manifest of the sweep.
        phase: the phase of the runs to consider; None: all runs.
    """
    by_error: dict[str, list[Run]] = {}
    for run in manifest.runs:
        if run.crashed and (phase is None or run.phases == (phase,)):
            by_error.setdefault(run.error or "no reason recorded", []).append(run)
    return [_clause(runs, error) for error, runs in by_error.items()]


def _clause(runs: list[Run], error: str) -> str:
    first = runs[0]
    point = "".join(f", {key} {value}" for key, value in first.tuned.items())
    named = f"{first.variant}{point}, seed {first.seed}"
    which = named if len(runs) == 1 else f"{len(runs)} runs, the first of them {named}"
    result = "its result is" if len(runs) == 1 else "their results are"
    return f"failed, so that {result} not known ({which}): {error}"
