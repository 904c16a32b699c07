"""What a reader must know before believing a verdict: a sentence for each reason for doubt."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from zoo.ablate.results import Results
from zoo.ablate.run_metrics import RunMetrics
from zoo.ablate.speedup import has_risen
from zoo.ablate.tuning_error import gap, tuning_error
from zoo.ablate.verdict import Judgement, judge

SIZE_TOLERANCE = 0.01
"""Numbers of parameters that differ by more than this share are reported."""

SHARED_CONDITIONS: Mapping[str, Callable[[RunMetrics], object]] = {
    "precision": lambda run: run.config.train and run.config.train.precision,
    "machine": lambda run: [run.environment.get(key) for key in ("system", "processor", "device")],
    "number of threads or ranks": lambda run: [run.environment.get(key) for key in ("threads", "ranks")],
    "package versions": lambda run: run.environment.get("packages"),
    "commit of zoo": lambda run: run.environment.get("git_commit"),
    "data": lambda run: run.data,
    "length of the examples": lambda run: run.config.data and run.config.data.length,
    "validation batches": lambda run: run.config.train and run.config.train.eval_batches,
}
"""What should be the same for all runs of a comparison."""


def caveats(judgement: Judgement) -> list[str]:
    """Reasons for doubt without their full stops, the gravest first; empty if there are none."""
    checks = (
        _unfinished,
        _failed,
        _risen,
        _different_conditions,
        _different_budgets,
        _equal_seeds,
        _grid_border,
        _different_trials,
        _tuning_error,
        _one_size,
        _different_sizes,
        _reused_seeds,
    )
    return [sentence for check in checks for sentence in check(judgement)]


def _unfinished(judgement: Judgement) -> Iterator[str]:
    results = judgement.results
    final = [run for run in results.manifest.runs if "final" in run.phases]
    unfinished = [run for run in final if run.status not in ("finished", "failed")]
    not_planned = set(results.variants) - {run.variant for run in final}
    if unfinished or not_planned:
        more = f", and {len(not_planned)} of the variants have none yet" * bool(not_planned)
        yield (
            f"{len(unfinished)} of {len(final)} runs of the comparison are not finished{more}. If verdicts "
            "are read repeatedly before the end, differences that do not exist are found more often than "
            f"with probability {judgement.alpha:g}"
        )


def _failed(judgement: Judgement) -> Iterator[str]:
    for variant in judgement.results.variants:
        runs = judgement.results.runs(variant)
        failed = [run for run in runs if run.status == "failed"]
        if failed:
            seeds = ", ".join(f"seed {run.seed}: {run.error or 'no reason recorded'}" for run in failed)
            yield f"{variant}: {len(failed)} of {len(runs)} runs failed and count in no mean ({seeds})"


def _risen(judgement: Judgement) -> Iterator[str]:
    for variant, runs in judgement.results.all_finished().items():
        seeds = [str(seed) for seed, run in runs.items() if has_risen(run)]
        if seeds:
            consequence = "; no speed-up to that" * (variant == judgement.results.baseline)
            yield f"{variant}: seed {', '.join(seeds)} ended no lower than it began{consequence}"


def _different_conditions(judgement: Judgement) -> Iterator[str]:
    runs = [run for _, run in judgement.results.all_started()]
    for condition, value in SHARED_CONDITIONS.items():
        if len({json.dumps(value(run), sort_keys=True) for run in runs}) > 1:
            yield f"the runs differ in {condition}, which may be the cause of differences between variants"


def _different_budgets(judgement: Judgement) -> Iterator[str]:
    finished = judgement.results.all_finished().values()
    totals = {run.validation.tokens[-1] for runs in finished for run in runs.values()}
    if len(totals) > 1:
        yield (
            f"the runs were trained on {min(totals):,.0f} to {max(totals):,.0f} tokens: final losses are not "
            "at the same budget"
        )


def _equal_seeds(judgement: Judgement) -> Iterator[str]:
    for variant, runs in judgement.results.all_finished().items():
        if len(runs) > 1 and len({run.final_loss for run in runs.values()}) == 1:
            yield f"{variant}: all {len(runs)} seeds end at the same loss: they are one run, without a test"


def _grid_border(judgement: Judgement) -> Iterator[str]:
    for variant in judgement.results.manifest.variants:
        for key in variant.tuned_on_border:
            value = (variant.tuned or {}).get(key)
            if value is None:
                yield f"{variant.name}: the best {key} is at the border of all that was tried: no verdict"
                continue
            yield (
                f"{variant.name}: the best {key} tried, {value}, is at the border of its grid; a better one "
                "may lie outside"
            )


def _different_trials(judgement: Judgement) -> Iterator[str]:
    results = judgement.results
    trials = {variant: len(results.runs(variant, "tune")) for variant in results.variants}
    if len(set(trials.values())) > 1:
        counts = ", ".join(f"{name}: {count}" for name, count in trials.items())
        yield f"the variants were tuned with different numbers of runs ({counts}): more trials find more"


def _tuning_error(judgement: Judgement) -> Iterator[str]:
    """What is weak about the rule of the tuning."""
    results = judgement.results
    errors = {variant: tuning_error(results, variant) for variant in results.variants}
    best = [name for name, error in errors.items() if error is not None and not error.interpolated]
    if best:
        step = max(error.step for error in errors.values() if error is not None)
        yield (
            f"the best point of a x{step:.2g} grid was taken, not the vertex of a parabola: all seeds "
            "share that error, "
            "which is two to three times as large (tune.choose: parabola)"
        )
    compared = [verdict.variant for verdict in judgement.verdicts if verdict.comparison]
    if results.manifest.tune and (unknown := [v for v in compared if gap(results, v) is None]):
        whose = "" if len(unknown) == len(compared) else f" for {', '.join(unknown)}"
        yield (
            f"how large a difference tuning alone makes is not known{whose} and not in the verdict: it "
            "takes a grid of one number with its best point inside, and two seeds"
        )


def _one_size(judgement: Judgement) -> Iterator[str]:
    decided = any(verdict.word in ("better", "worse") for verdict in judgement.verdicts)
    if judgement.results.manifest.tune and decided:
        yield "one size and one budget: whether a difference holds, shrinks or grows is open (scale)"


def _different_sizes(judgement: Judgement) -> Iterator[str]:
    sizes = {
        variant: next((run.parameters for run in runs.values() if run.parameters), None)
        for variant, runs in judgement.results.all_finished().items()
    }
    base = sizes.get(judgement.results.baseline)
    for variant, size in sizes.items():
        if base and size and abs(size / base - 1) > SIZE_TOLERANCE:
            yield f"{variant}: {size:,} parameters, {size / base - 1:+.1%} against the baseline's {base:,}"


def _reused_seeds(judgement: Judgement) -> Iterator[str]:
    """Seeds that chose the tuned values bias their losses downwards; say what the others alone show."""
    results = judgement.results
    reused = {run.seed for run in results.manifest.runs if set(run.phases) == {"tune", "final"}}
    if not reused:
        return
    without = judge(_without_seeds(results, reused), judgement.alpha)
    changed = [
        f"{after.variant} is {after.word}"
        for before, after in zip(judgement.verdicts, without.verdicts, strict=True)
        if before.word != after.word
    ]
    seeds = ", ".join(map(str, sorted(reused)))
    yield (
        f"seed {seeds} was used to choose the tuned values as well as in the comparison: the lowest of "
        "several noisy losses is too low, for every tuned variant alike. Without it "
        + (f"{'; '.join(changed)}" if changed else "every verdict is the same")
    )


def _without_seeds(results: Results, seeds: set[int]) -> Results:
    kept = tuple(run for run in results.manifest.runs if run.seed not in seeds)
    return replace(results, manifest=results.manifest.model_copy(update={"runs": kept}))
