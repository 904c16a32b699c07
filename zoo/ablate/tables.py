"""The tables of a comparison: verdicts, speed-up factors, costs, and the list of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import nan
from statistics import harmonic_mean, mean, stdev

from zoo.ablate.curve import COSTS
from zoo.ablate.main_effects import main_effects
from zoo.ablate.quiet import disturbance
from zoo.ablate.results import Results
from zoo.ablate.speedup import Speedup, speedups, target_loss
from zoo.ablate.statistics import LEVEL, POWER, Comparison
from zoo.ablate.table import (
    MISSING,
    Column,
    Table,
    format_bytes,
    format_count,
    format_factor,
    format_flops,
    format_interval,
    format_loss,
    format_mean,
    format_p,
    format_seconds,
    format_spikes,
)
from zoo.ablate.verdict import Judgement, VariantVerdict
from zoo.utils.measures import CROSS_ENTROPY, MEASURES, Measure, find_measure

VARIANT = Column("variant", align_right=False)

BITS = MEASURES["bits_per_byte"]


def verdict_table(judgement: Judgement) -> Table:
    """The final values, differences from the baseline and verdicts, one row per variant."""
    results, measure = judgement.results, judgement.results.measure
    final, best = f"final {measure.title}", f"best {measure.title}"
    columns = [
        VARIANT,
        Column("verdict", align_right=False),
        Column("seeds"),
        Column(final, format_mean, parts=(final, "sd")),
        Column(best, format_loss),
        Column(f"difference ({judgement.level_text})", format_interval, parts=("difference", "low", "high")),
        Column("p", format_p),
        Column("p (Holm)", format_p),
        Column("test", align_right=False),
        Column("detectable", format_loss),
        Column("seeds needed"),
        Column("spikes", format_spikes, parts=("spikes", "deepest spike")),
    ]
    return Table(
        "verdict",
        "Verdict",
        columns,
        [_verdict_row(results, verdict) for verdict in judgement.verdicts],
        f"{_definition(measure)} after the last step, mean over seeds ± standard deviation; "
        f"{'lower' if measure.lower_is_better else 'higher'} is better. Difference: from {results.baseline}, "
        f"{'below' if measure.lower_is_better else 'above'} 0 is better, with "
        "the confidence interval of this comparison alone. A verdict needs p (Holm) of at most "
        f"{judgement.alpha:g}. Detectable: the smallest true difference that these runs would show with "
        f"probability {POWER:g}. Seeds needed: to show the observed difference with that probability; no "
        "number shows one that tuning alone makes. "
        "Spikes: their number in all runs, and in brackets how far the loss rose in the worst one."
        + _looks_note(results.manifest.max_seeds),
        drop=("test", "spikes", "detectable", "seeds needed", best, "p", "seeds", "p (Holm)"),
    )


def _looks_note(most: int | None) -> str:
    """A sentence on seeds that are added; empty if none are."""
    if most is None:
        return ""
    return (
        f" Seeds are added until every word is decided, up to {most}: p and intervals, which hold together "
        "over all looks, have the exact critical values of that maximum."
    )


def _definition(measure: Measure) -> str:
    """The definition of a final value, in words."""
    if measure.is_loss:
        return "Loss: validation cross entropy in nats per target"
    name = measure.title[0].upper() + measure.title[1:]
    if measure.is_task:
        return f"{name}, as `zoo eval --tasks` has recorded it"
    unit = f" ({measure.unit})" if measure.unit not in ("", measure.title) else ""
    return f"{name}{unit} on the validation examples"


def measure_table(results: Results) -> Table:
    """All measures at the end of the finished runs, one row per variant."""
    finished = results.all_finished()
    names = dict.fromkeys(
        name
        for runs in finished.values()
        for run in runs.values()
        for name in (CROSS_ENTROPY.name, *run.measured)
    )
    columns = [VARIANT]
    cells: list[list[object]] = [[variant] for variant in finished]
    for name in names:
        measure = results.measure if name == results.measure.name else find_measure(name)
        columns.append(Column(measure.title, format_mean, parts=(measure.title, f"{measure.title}, sd")))
        for row, runs in zip(cells, finished.values(), strict=True):
            values = [value for run in runs.values() if (value := run.final(measure)) is not None]
            row.append((mean(values), stdev(values) if len(values) > 1 else None) if values else None)
    return Table(
        "measures",
        "All measures",
        columns,
        cells,
        "The last value of each, mean over the finished seeds ± standard deviation. Only the "
        f"{results.measure.title} is judged; the others are description.",
    )


def _verdict_row(results: Results, verdict: VariantVerdict) -> list[object]:
    final, best, comparison = verdict.final, verdict.best, verdict.comparison
    runs = list(results.started(verdict.variant).values())
    depth = max((run.spike_depth for run in runs if run.spike_depth is not None), default=None)
    seeds = final.n if final else 0
    return [
        verdict.variant,
        verdict.word,
        f"{seeds}" if seeds == verdict.planned else f"{seeds} of {verdict.planned}",
        final and (final.mean, final.sd),
        best and best.mean,
        comparison and (comparison.difference, comparison.low, comparison.high),
        comparison and comparison.p,
        verdict.p,
        comparison and comparison.test,
        comparison and comparison.detectable,
        comparison and _seeds_needed(comparison),
        (sum(run.spikes for run in runs), depth) if runs else None,
    ]


def _seeds_needed(comparison: Comparison) -> int | str:
    if comparison.is_within_least:
        return "no number"
    return comparison.seeds or f"> {comparison.most_seeds}"


def effect_table(results: Results) -> Table:
    """The main effects of the axes, one row per value; empty with fewer than two axes."""
    columns = [
        Column("axis", align_right=False),
        Column("value", align_right=False),
        Column("against", align_right=False),
        Column(f"difference ({LEVEL:.0%})", format_interval, parts=("difference", "low", "high")),
        Column("least", format_loss),
        Column("most", format_loss),
        Column("pairs"),
        Column("seeds"),
    ]
    rows = []
    for effect in main_effects(results):
        d = effect.difference
        interval = (d.mean, nan if d.low is None else d.low, nan if d.high is None else d.high)
        ends = [effect.least, effect.most, effect.pairs, d.n]
        rows.append([effect.axis, effect.value, effect.against, interval, *ends])
    measure = results.measure
    return Table(
        "main-effects",
        "Main effects",
        columns,
        rows,
        f"What a value changes in the final {measure.title}, mean over the pairs of variants that differ in "
        f"this axis alone; {'below' if measure.lower_is_better else 'above'} 0 is better. Interval: over "
        "seeds, each of which has all pairs; not adjusted for the number of effects. Least and most: of a "
        "single pair; where they are far apart, the effect depends on the other axes. Main effects are "
        "description, not verdicts.",
        of_variants=False,
    )


def speedup_table(results: Results) -> Table:
    """The costs until the baseline's final value, and the factors, one row per variant."""
    title, disturbed = results.measure.title, disturbance(results)
    counted = [cost for cost in COSTS if cost != "seconds" or disturbed is None]
    formats = {
        "steps": format_count,
        "tokens": format_count,
        "flops": format_flops,
        "seconds": format_seconds,
    }
    columns = [VARIANT, Column("reached", align_right=False)]
    for cost in counted:
        parts = (f"{cost} factor", f"{cost} factor, lowest", f"{cost} factor, highest")
        columns += [
            Column(cost.replace("flops", "FLOPs"), formats[cost], parts=(cost,)),
            Column("factor", format_factor, parts=parts),
        ]
    target, factors = target_loss(results), speedups(results)
    rows: list[list[object]] = []
    if target is not None:
        totals = [run.validation.total for run in results.finished(results.baseline).values()]
        costs = [mean(total[cost] for total in totals) for cost in counted]
        of_baseline = (cell for cost in costs for cell in (cost, (1.0, 1.0, 1.0)))
        rows.append([results.baseline, "by definition", *of_baseline])
    for variant in dict.fromkeys(s.variant for s in factors):
        of_variant = [s for s in factors if s.variant == variant and s.cost in counted]
        cells = (cell for s in of_variant for cell in _speedup_cells(s))
        rows.append([variant, _reached(of_variant[0]), *cells])
    return Table(
        "speed-up",
        f"Inside the runs: cost until the baseline's final {title}, a description",
        columns,
        rows,
        f"What was spent until the validation {title} was first at "
        f"{'most' if results.measure.lower_is_better else 'least'} "
        f"{MISSING if target is None else format_loss(target)}, the mean final {title} of "
        f"{results.baseline}: mean over seeds, linear between evaluations, nothing extrapolated. Factor: "
        "the baseline's whole cost over the variant's, above 1 is better; in brackets the lowest and the "
        "highest seed. FLOPs: "
        "matrix products and attention, forward and backward, and the matrix products of zoo's own "
        "optimizers; elementwise work is not counted. "
        + (
            "Seconds: training steps, compilation included; evaluations, checkpoints and steps that a "
            "rollback undid are not counted."
            if disturbed is None
            else f"Seconds do not count here: {disturbed}."
        )
        + " This is a description and no verdict: it is read inside runs whose schedules have not ended. "
        "Where the baseline needs 1.2 times the tokens of a variant, each trained to the end of its own "
        "schedule, it shows some 1.18 with a cosine and 1.05 with WSD. A ladder measures the token speed-up.",
    )


def _speedup_cells(speedup: Speedup) -> tuple[object, object]:
    """The mean cost, if all seeds reached the value, and the factors."""
    cost = None if speedup.factor is None else mean(speedup.reached)
    return cost, None if speedup.range is None else (speedup.factor, *speedup.range)


def _reached(speedup: Speedup) -> str:
    """The number of seeds in which the value was reached, in words."""
    count, seeds = len(speedup.reached), len(speedup.needed)
    return "not reached" if not count else "yes" if count == seeds else f"in {count} of {seeds} seeds"


def cost_table(results: Results) -> Table:
    """The time, memory and sizes, one row per variant: means over the runs that have started."""
    columns = {
        "step_seconds": (Column("time per step", format_seconds), mean),
        # The harmonic mean corresponds to the mean time in the previous column.
        "tokens_per_second": (Column("targets per second", format_count), harmonic_mean),
        "peak_memory": (Column("peak memory", format_bytes), mean),
        "parameters": (Column("parameters", format_count), mean),
        "optimizer_bytes": (Column("optimizer state", format_bytes), mean),
    }
    disturbed = disturbance(results)
    rows = [
        [name, *(_mean((getattr(run, key) for run in runs.values()), of) for key, (_, of) in columns.items())]
        for name in results.variants
        if (runs := results.started(name))
    ]
    return Table(
        "cost",
        "Time and memory",
        [VARIANT, *(column for column, _ in columns.values())],
        rows,
        "Time per step: the median over log lines, the first left out; mean over seeds. "
        + ("" if disturbed is None else f"Do not compare it here: {disturbed}. ")
        + "Peak memory: of the device, on a CPU of the process.",
    )


def _mean(values: Iterable[float | None], mean: Callable[[list[float]], float]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None


def run_table(results: Results) -> Table:
    """Every run with its settings, its status and its result."""
    manifest, measure = results.manifest, results.measure
    keys = list(dict.fromkeys(key for variant in manifest.variants for key in variant.settings))
    tuned = list(dict.fromkeys(key for run in manifest.runs for key in run.tuned))
    settings = {variant.name: variant.settings for variant in manifest.variants}
    columns = [VARIANT, Column("run", align_right=False), Column("seed"), Column("phases", align_right=False)]
    columns += [Column(key, align_right=False) for key in (*keys, *tuned)]
    columns += [Column("status", align_right=False), Column("steps", format_count)]
    columns += [Column(f"{which} {measure.title}", format_loss) for which in ("final", "best")]
    bits = not measure.is_loss or any(BITS.name in run.measured for run in results.metrics.values())
    other = BITS if measure.is_loss else CROSS_ENTROPY
    columns += [Column(f"final {other.title}", format_loss)] * bits
    columns += [Column("error", align_right=False)]
    rows = []
    for run in manifest.runs:
        metrics = results.metrics.get(run.id)
        rows.append(
            [
                run.variant,
                metrics.config.name if metrics else run.id,
                run.seed,
                " + ".join(run.phases),
                *(settings[run.variant].get(key) for key in keys),
                *(run.tuned.get(key) for key in tuned),
                run.status,
                metrics and len(metrics.training) and metrics.training.steps[-1],
                metrics and metrics.final(measure),
                metrics and metrics.best(measure),
                *[metrics and metrics.final(other)] * bits,
                run.error,
            ]
        )
    return Table("runs", "Runs", columns, rows, "The whole configuration of a run is its config.yaml.")
