"""What a reader of a verdict must know before believing it: one sentence each, none where all is well."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from zoo.ablate.measured import Measured
from zoo.ablate.results import Results
from zoo.ablate.speedup import risen
from zoo.ablate.verdict import Judgement, judge

PARAMETERS = 0.01
"""From this share on a different number of parameters is told."""

SURROUNDINGS: Mapping[str, Callable[[Measured], Any]] = {
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
    """Reasons for doubt, the gravest first."""
    checks = (
        _unfinished,
        _failed,
        _risen,
        _surroundings,
        _budgets,
        _idle,
        _border,
        _trials,
        _parameters,
        _reused,
    )
    return [sentence for check in checks for sentence in check(judgement)]


def _unfinished(judgement: Judgement) -> Iterator[str]:
    results = judgement.results
    final = [run for run in results.manifest.runs if "final" in run.phases]
    open_ = [run for run in final if run.status in ("waiting", "running", "interrupted", "stopped")]
    waiting = {variant.name for variant in results.manifest.variants} - {run.variant for run in final}
    if open_ or waiting:
        told = f", and {len(waiting)} of the variants have none yet" * bool(waiting)
        yield (
            f"{len(open_)} of {len(final)} runs of the comparison are not finished{told}. Who looks before "
            f"the end, and again, finds differences that are not there more often than {judgement.alpha:g}"
        )


def _failed(judgement: Judgement) -> Iterator[str]:
    for verdict in judgement.verdicts:
        runs = judgement.results.runs(verdict.variant)
        failed = [run for run in runs if run.status == "failed"]
        if failed:
            seeds = ", ".join(f"seed {run.seed}: {run.error or 'no reason recorded'}" for run in failed)
            share = f"{len(failed)} of {len(runs)} runs"
            yield f"{verdict.variant}: {share} failed and count in no mean ({seeds})"


def _risen(judgement: Judgement) -> Iterator[str]:
    for variant, runs in _finished(judgement).items():
        seeds = [str(seed) for seed, run in runs.items() if risen(run)]
        if seeds:
            told = "; no speed-up to that" * (variant == judgement.results.manifest.baseline)
            yield f"{variant}: seed {', '.join(seeds)} ended no lower than it began{told}"


def _surroundings(judgement: Judgement) -> Iterator[str]:
    runs = [run for _, run in _compared(judgement.results)]
    for what, value in SURROUNDINGS.items():
        if len({json.dumps(value(run), sort_keys=True) for run in runs}) > 1:
            yield f"the runs differ in {what}: what separates variants may come from there"


def _budgets(judgement: Judgement) -> Iterator[str]:
    totals = {run.validation.tokens[-1] for runs in _finished(judgement).values() for run in runs.values()}
    if len(totals) > 1:
        yield (
            f"the runs were trained on {min(totals):,.0f} to {max(totals):,.0f} tokens: final losses are not "
            "at the same budget"
        )


def _idle(judgement: Judgement) -> Iterator[str]:
    for variant, runs in _finished(judgement).items():
        if len(runs) > 1 and len({run.final for run in runs.values()}) == 1:
            yield f"{variant}: all {len(runs)} seeds end at the same loss: they are one run, without a test"


def _border(judgement: Judgement) -> Iterator[str]:
    for variant in judgement.results.manifest.variants:
        for key in variant.tuned_on_border:
            value = (variant.tuned or {}).get(key)
            yield (
                f"{variant.name}: the best {key} tried, {value}, is at the border of its grid; a better one "
                "may lie outside"
            )


def _trials(judgement: Judgement) -> Iterator[str]:
    results = judgement.results
    trials = {v.name: len(results.runs(v.name, "tune")) for v in results.manifest.variants}
    if len(set(trials.values())) > 1:
        listed = ", ".join(f"{name}: {count}" for name, count in trials.items())
        yield f"the variants were tuned with different numbers of runs ({listed}): more trials find more"


def _parameters(judgement: Judgement) -> Iterator[str]:
    sizes = {
        variant: next((run.parameters for run in runs.values() if run.parameters), None)
        for variant, runs in _finished(judgement).items()
    }
    base = sizes.get(judgement.results.manifest.baseline)
    for variant, size in sizes.items():
        if base and size and abs(size / base - 1) > PARAMETERS:
            yield f"{variant}: {size:,} parameters, {size / base - 1:+.1%} against the baseline's {base:,}"


def _reused(judgement: Judgement) -> Iterator[str]:
    """The seeds that chose the tuned values flatter them; say what is left without these seeds."""
    results = judgement.results
    reused = {run.seed for run in results.manifest.runs if set(run.phases) == {"tune", "final"}}
    if not reused:
        return
    without = judge(_without(results, reused), judgement.alpha)
    changed = [
        f"{after.variant} is {after.word}"
        for before, after in zip(judgement.verdicts, without.verdicts, strict=True)
        if before.word != after.word
    ]
    seeds = ", ".join(map(str, sorted(reused)))
    yield (
        f"seed {seeds} served to choose the tuned values as well as in the comparison: the lowest of several "
        "noisy losses is too low, on every tuned side alike. Without it "
        + (f"{'; '.join(changed)}" if changed else "every verdict is the same")
    )


def _without(results: Results, seeds: set[int]) -> Results:
    kept = tuple(run for run in results.manifest.runs if run.seed not in seeds)
    return replace(results, manifest=results.manifest.model_copy(update={"runs": kept}))


def _finished(judgement: Judgement) -> dict[str, dict[int, Measured]]:
    """The finished runs of the comparison, by variant and seed."""
    results = judgement.results
    found = {v.name: results.finished(v.name) for v in results.manifest.variants}
    return {variant: runs for variant, runs in found.items() if runs}


def _compared(results: Results) -> Iterator[tuple[str, Measured]]:
    for variant in results.manifest.variants:
        for _, run in results.begun(variant.name):
            yield variant.name, run
