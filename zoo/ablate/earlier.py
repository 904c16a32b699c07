"""Runs that an earlier session of a sweep had finished, and that have other ids now."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from zoo.ablate.manifest import FILE, read_manifest
from zoo.ablate.outcome import Outcome
from zoo.ablate.plan import NOT_STARTED, PlannedRun
from zoo.ablate.sweep import Sweep
from zoo.utils.errors import ZooError
from zoo.utils.untyped import Json


def replaced_runs(
    sweep: Sweep, planned: Sequence[PlannedRun], outcomes: Mapping[str, Outcome]
) -> Iterator[str]:
    """Yield a sentence if runs are trained again although sweep.json has them as finished.

    Args:
        sweep: the sweep, before its sweep.json is written anew.
        planned: the runs of its plan.
        outcomes: outcomes by id.
    """
    try:
        runs = read_manifest(sweep.folder).runs
    except ZooError:
        return  # there is none, or it is written anew
    finished = {
        _place(run.variant, run.seed, run.tuned, run.params, run.tokens): run.id
        for run in runs
        if run.status == "finished"
    }
    again = 0
    for run in planned:
        place = _place(run.variant, run.config.seed, run.point, run.params or None, run.tokens or None)
        again += finished.get(place, run.id) != run.id and not run.is_done(outcomes.get(run.id, NOT_STARTED))
    if not again:
        return
    what = f"{again} runs" if again > 1 else "1 run"
    yield (
        f"{sweep.name}: {what} that {sweep.folder / FILE} has as finished will be trained again, because ids "
        "have changed: by other settings, by another content of a plugin's file, or because the sweep was "
        "started from another folder (an id has the paths of inputs, as seen from there). Their folders stay "
        f"in {sweep.runs}."
    )


def _place(
    variant: str, seed: int, tuned: Mapping[str, Json], params: int | None, tokens: int | None
) -> tuple[object, ...]:
    """The place of a run in a sweep, whatever its settings are."""
    return variant, seed, json.dumps(dict(tuned), sort_keys=True), params, tokens
