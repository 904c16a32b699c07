"""The tables of a comparison: verdicts, speed-up factors, costs, and the list of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import harmonic_mean, mean
from typing import Any

from zoo.ablate.curve import COSTS
from zoo.ablate.results import Results
from zoo.ablate.sheet import (
    Column,
    Sheet,
    deviation,
    factors,
    interval,
    large,
    loss,
    probability,
    scientific,
    seconds,
    size,
    spikes,
)
from zoo.ablate.speedup import Speedup, speedups, target
from zoo.ablate.statistics import LEVEL, MAX_SEEDS, POWER
from zoo.ablate.verdict import Judgement, Verdict

VARIANT = Column("variant", right=False)


def verdict_sheet(judgement: Judgement) -> Sheet:
    """Final losses, differences from the baseline and the verdict, one row per variant."""
    columns = [
        VARIANT,
        Column("verdict", right=False),
        Column("seeds"),
        Column("final loss", deviation, parts=("final loss", "sd")),
        Column("best loss", loss),
        Column(f"difference ({LEVEL:.0%})", interval, parts=("difference", "low", "high")),
        Column("p", probability),
        Column("p (Holm)", probability),
        Column("test", right=False),
        Column("detectable", loss),
        Column("seeds needed"),
        Column("spikes", spikes, parts=("spikes", "deepest spike")),
    ]
    base = judgement.results.manifest.baseline
    return Sheet(
        "verdict",
        "Verdict",
        columns,
        [_verdict_row(judgement.results, verdict) for verdict in judgement.verdicts],
        f"Loss: validation cross entropy in nats per target after the last step, mean over seeds ± standard "
        f"deviation; lower is better. Difference: from {base}, below 0 is better, with the confidence "
        f"interval of the one comparison. A verdict needs p (Holm) at most {judgement.alpha:g}. Detectable: "
        f"the smallest true difference that these runs would show with probability {POWER:g}. Seeds needed: "
        "to show the difference found with that probability. Spikes: how many in all runs, and in brackets "
        "how far the loss rose in the highest.",
    )


def _verdict_row(results: Results, verdict: Verdict) -> list[Any]:
    final, best, compared = verdict.final, verdict.best, verdict.comparison
    runs = [run for _, run in results.begun(verdict.variant)]
    depth = max((run.spike_depth for run in runs if run.spike_depth is not None), default=None)
    count = final.n if final else 0
    return [
        verdict.variant,
        verdict.word,
        f"{count}" if count == verdict.planned else f"{count} of {verdict.planned}",
        final and (final.mean, final.sd),
        best and best.mean,
        compared and (compared.difference, compared.low, compared.high),
        compared and compared.p,
        verdict.p,
        compared and compared.test,
        compared and compared.detectable,
        compared and (compared.seeds or f"> {MAX_SEEDS}"),
        (sum(run.spikes for run in runs), depth) if runs else None,
    ]


def speedup_sheet(results: Results) -> Sheet:
    """Costs until the baseline's final loss, and the factors, one row per variant."""
    shown = {"steps": large, "tokens": large, "flops": scientific, "seconds": seconds}
    columns = [VARIANT, Column("reached", right=False)]
    for cost in COSTS:
        parts = (f"{cost} factor", f"{cost} factor, lowest", f"{cost} factor, highest")
        columns += [
            Column(cost.replace("flops", "FLOPs"), shown[cost], parts=(cost,)),
            Column("factor", factors, parts=parts),
        ]
    found = speedups(results)
    goal, base = target(results), results.manifest.baseline
    rows: list[list[Any]] = []
    if goal is not None:
        totals = [run.validation.total for run in results.finished(base).values()]
        whole = [mean(total[cost] for total in totals) for cost in COSTS]
        rows = [[base, "by definition", *(cell for cost in whole for cell in (cost, (1.0, 1.0, 1.0)))]]
    for variant in dict.fromkeys(s.variant for s in found):
        own = [s for s in found if s.variant == variant]
        rows.append([variant, _reached(own[0]), *(cell for s in own for cell in _cells(s))])
    return Sheet(
        "speed-up",
        "Cost until the baseline's final loss",
        columns,
        rows,
        "What was spent until the validation loss was first at most "
        f"{'–' if goal is None else loss(goal)}, the mean final loss of {base}: mean over seeds, linear "
        "between evaluations, nothing extrapolated. Factor: the baseline's whole cost over the variant's, "
        "above 1 is better; in brackets the lowest and the highest seed. FLOPs: matrix products and "
        "attention, forward and backward; optimizer and elementwise work are not counted. Seconds: training "
        "steps, compilation included; evaluations, checkpoints and steps that a rollback undid are not.",
    )


def _cells(speedup: Speedup) -> tuple[float | None, tuple[float | None, float, float] | None]:
    """The mean cost and the factors; no mean unless all seeds reached the loss."""
    centre = None if speedup.factor is None else mean(speedup.reached)
    return centre, None if speedup.range is None else (speedup.factor, *speedup.range)


def _reached(speedup: Speedup) -> str:
    """In how many seeds."""
    count, all_ = len(speedup.reached), len(speedup.needed)
    return "not reached" if not count else "yes" if count == all_ else f"in {count} of {all_} seeds"


def cost_sheet(results: Results) -> Sheet:
    """Time, memory and sizes, one row per variant: means over the runs that have begun."""
    columns = [
        VARIANT,
        Column("time per step", seconds),
        Column("targets per second", large),
        Column("peak memory", size),
        Column("parameters", large),
        Column("optimizer state", size),
    ]
    fields = {
        "step_seconds": mean,
        "tokens_per_second": harmonic_mean,  # of the same time as the column before
        **dict.fromkeys(("peak_memory", "parameters", "optimizer_bytes"), mean),
    }
    rows = [
        [variant.name, *(_mean((getattr(run, key) for run in runs), of) for key, of in fields.items())]
        for variant in results.manifest.variants
        if (runs := [run for _, run in results.begun(variant.name)])
    ]
    return Sheet(
        "cost",
        "Time and memory",
        columns,
        rows,
        "Time per step: the median over log lines, the first left out; mean over seeds. Compare it only "
        "where nothing else ran on the machine. Peak memory: of the device, on a CPU of the process.",
    )


def _mean(values: Iterable[float | None], of: Callable[[list[float]], float]) -> float | None:
    known = [value for value in values if value is not None]
    return of(known) if known else None


def run_sheet(results: Results) -> Sheet:
    """Every run, with what was set and what came of it."""
    keys = list(dict.fromkeys(key for variant in results.manifest.variants for key in variant.settings))
    tuned = list(dict.fromkeys(key for run in results.manifest.runs for key in run.tuned))
    settings = {variant.name: variant.settings for variant in results.manifest.variants}
    columns = [VARIANT, Column("run", right=False), Column("seed"), Column("phases", right=False)]
    columns += [Column(key, right=False) for key in (*keys, *tuned)]
    columns += [Column("status", right=False), Column("steps", large), Column("final loss", loss)]
    columns += [Column("best loss", loss), Column("error", right=False)]
    rows = []
    for run in results.manifest.runs:
        found = results.measured.get(run.id)
        rows.append(
            [
                run.variant,
                found.config.name if found else run.id,
                run.seed,
                " + ".join(run.phases),
                *(settings[run.variant].get(key) for key in keys),
                *(run.tuned.get(key) for key in tuned),
                run.status,
                found and len(found.training) and found.training.steps[-1],
                found and found.final,
                found and found.best,
                run.error,
            ]
        )
    return Sheet("runs", "Runs", columns, rows, "The whole configuration of a run is its config.yaml.")
