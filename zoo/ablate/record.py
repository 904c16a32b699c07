"""The manifest of a sweep, made from its plan and the state of its runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from os.path import relpath

from zoo.ablate.manifest import LadderRecord, Manifest, Run, Status, Tuning, Variant
from zoo.ablate.outcome import Outcome
from zoo.ablate.plan import NOT_STARTED, PlannedRun, SweepPlan
from zoo.ablate.sweep import Sweep
from zoo.ablate.tuning import describe_rule
from zoo.ablate.variants import SweepVariant


def manifest_of(
    sweep: Sweep,
    plan: SweepPlan,
    outcomes: Mapping[str, Outcome],
    running: Collection[str] = (),
    stopping: bool = False,
) -> Manifest:
    """The manifest of a sweep.

    Args:
        sweep: the sweep.
        plan: the runs known so far.
        outcomes: outcomes by id.
        running: the ids of the runs that are being trained.
        stopping: whether the sweep is being interrupted.
    """

    def record(run: PlannedRun) -> Run:
        outcome = outcomes.get(run.id, NOT_STARTED)
        return Run(
            id=run.id,
            variant=run.variant,
            seed=run.config.seed,
            phases=run.phases,
            tuned=dict(run.point),
            params=run.params or None,
            tokens=run.tokens or None,
            trunk=run.trunk or None,
            folder=f"../{sweep.runs.name}/{run.id}",
            status="running" if run.id in running else _status(run, outcome, stopping),
            error=outcome.error,
            crashed=outcome.crashed,
        )

    return Manifest(
        name=sweep.name,
        description=sweep.description,
        metric=sweep.measure.name,
        baseline=sweep.baseline,
        config_hash=sweep.config_hash,
        variants=tuple(_variant(variant, plan) for variant in sweep.variants),
        tune=sweep.tune
        and Tuning(
            keys=sweep.tune.keys,
            rule=describe_rule(sweep.tune, sweep.measure),
            random=sweep.tune.random is not None,
            drawn=sweep.tune.drawn,
            vertex=sweep.tune.choose == "parabola",
        ),
        ladder=_ladder(sweep),
        max_seeds=sweep.max_seeds,
        lines=None if sweep.lines is None else relpath(sweep.lines.file, sweep.folder),
        runs=tuple(map(record, plan.runs)),
    )


def _status(run: PlannedRun, outcome: Outcome, stopping: bool) -> Status:
    """The status of a run that is not being trained."""
    if outcome.error is not None:
        return "failed"
    if outcome.ended:
        return "finished"
    if run.stopped_early:
        return "stopped"
    return "interrupted" if stopping and outcome.step else "waiting"


def _ladder(sweep: Sweep) -> LadderRecord | None:
    if sweep.scale is None:
        return None
    return LadderRecord(
        sizes=tuple(size.params for size in sweep.ladder),
        margin=sweep.scale.margin,
        until_decided=sweep.scale.until_decided,
    )


def _variant(variant: SweepVariant, plan: SweepPlan) -> Variant:
    chosen = plan.chosen.get(variant.name)
    return Variant(
        name=variant.name,
        settings=dict(variant.settings),
        tuned=None if chosen is None else dict(chosen.values),
        tuned_on_border=() if chosen is None else chosen.on_border,
    )
