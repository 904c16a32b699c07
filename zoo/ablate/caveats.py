"""Caveats of a verdict: a sentence for each reason for doubt."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from statistics import fmean, variance

from zoo.ablate.crashes import crashes
from zoo.ablate.curve import READ
from zoo.ablate.data_cautions import data_cautions
from zoo.ablate.results import Results
from zoo.ablate.run_metrics import RunMetrics
from zoo.ablate.speedup import has_risen
from zoo.ablate.tuning_error import enough_seeds, gap, tuning_error
from zoo.ablate.verdict import Judgement, judge

SIZE_TOLERANCE = 0.01
"""Relative difference of numbers of parameters above which it is reported."""

SHARED_CONDITIONS: Mapping[str, Callable[[RunMetrics], object]] = {
    "precision": lambda run: run.config.train and run.config.train.precision,
    "machine": lambda run: [run.environment.get(key) for key in ("system", "processor", "device")],
    "number of threads or ranks": lambda run: [run.environment.get(key) for key in ("threads", "ranks")],
    "package versions": lambda run: run.environment.get("packages"),
    "commit of zoo": lambda run: run.environment.get("git_commit"),
    "tokenizer": lambda run: run.tokenizer,
    "objective": lambda run: run.objective,
    "data": lambda run: run.data,
    "length of the examples": lambda run: run.config.data and run.config.data.length,
    "validation batches": lambda run: run.config.train and run.config.train.eval_batches,
}
"""The conditions that should be the same for all runs of a comparison."""


NOT_ALWAYS_KNOWN = ("tokenizer", "data")
"""The conditions that some runs do not record: the data only with their first checkpoint."""


def caveats(judgement: Judgement) -> list[str]:
    """Reasons for doubt without their full stops, the gravest first; empty if there are none."""
    checks = (
        _not_tuned,
        _unfinished,
        _failed,
        _without_value,
        _risen,
        _different_conditions,
        _data_read,
        _different_budgets,
        _equal_seeds,
        _diverged_tuning,
        _grid_border,
        _different_trials,
        _one_tuning_seed,
        _tuning_error,
        _enough_seeds,
        _one_size,
        _different_sizes,
        _reused_seeds,
    )
    return [sentence for check in checks for sentence in check(judgement)]


def _shared(texts: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Sentences ``variant: text``; variants with the same text share a sentence."""
    by_text: dict[str, list[str]] = {}
    for variant, text in texts:
        by_text.setdefault(text, []).append(variant)
    return (f"{', '.join(variants)}: {text}" for text, variants in by_text.items())


def _without_tuning(results: Results) -> list[str]:
    """The variants whose tuning cannot be completed, because the result of a run is unknown."""
    return [
        variant.name
        for variant in results.manifest.variants
        if variant.tuned is None and any(run.crashed for run in results.runs(variant.name, "tune"))
    ]


def _not_tuned(judgement: Judgement) -> Iterator[str]:
    names = _without_tuning(judgement.results)
    if names:
        reasons = "; ".join(crashes(judgement.results.manifest, "tune"))
        yield f"{', '.join(names)}: not tuned and not compared: {reasons}"


def _unfinished(judgement: Judgement) -> Iterator[str]:
    results = judgement.results
    final = [run for run in results.manifest.runs if "final" in run.phases]
    unfinished = [run for run in final if run.status not in ("finished", "failed")]
    at_border = {v.name for v in results.manifest.variants if v.tuned is None and v.tuned_on_border}
    never = at_border.union(_without_tuning(results))  # other cautions name them
    not_planned = set(results.variants) - {run.variant for run in final} - never
    facts = []
    if unfinished:
        facts.append(f"{len(unfinished)} of {len(final)} runs of the comparison are not finished")
    if not_planned:
        count = f"{len(not_planned)} of {len(results.variants)}"
        facts.append(f"{count} variants have no run of the comparison yet")
    if facts and results.manifest.max_seeds is not None:  # looks are accounted for
        yield ", and ".join(facts)
    elif facts:
        yield (
            f"{', and '.join(facts)}. If verdicts "
            "are read repeatedly before the end, differences that do not exist are found more often than "
            f"with probability {judgement.alpha:g}"
        )


def _failed(judgement: Judgement) -> Iterator[str]:
    texts = []
    for variant in judgement.results.variants:
        runs = judgement.results.runs(variant)
        failed = [run for run in runs if run.status == "failed"]
        if failed:
            by_error: dict[str, list[str]] = {}
            for run in failed:
                by_error.setdefault(run.error or "no reason recorded", []).append(str(run.seed))
            seeds = ", ".join(f"seed {', '.join(numbers)}: {error}" for error, numbers in by_error.items())
            texts.append(
                (variant, f"{len(failed)} of {len(runs)} runs failed and count in no mean ({seeds})")
            )
    return _shared(texts)


def _without_value(judgement: Judgement) -> Iterator[str]:
    """Name finished runs that have nothing to compare, for instance because no text was held out."""
    results, texts = judgement.results, []
    for variant in results.variants:
        compared, started = results.finished(variant), results.started(variant)
        finished = [run.seed for run in results.runs(variant) if run.status == "finished"]
        if seeds := [str(seed) for seed in finished if seed in started and seed not in compared]:
            text = f"seed {', '.join(seeds)} recorded no finite {results.measure.title} after the last step"
            texts.append((variant, f"{text} and counts in no mean"))
    return _shared(texts)


def _risen(judgement: Judgement) -> Iterator[str]:
    texts, measure = [], judgement.results.measure
    for variant, runs in judgement.results.all_finished().items():
        seeds = [str(seed) for seed, run in runs.items() if has_risen(run, measure)]
        if seeds:
            consequence = "; no speed-up to that" * (variant == judgement.results.baseline)
            better = "lower" if measure.is_loss else "better"
            texts.append((variant, f"seed {', '.join(seeds)} ended no {better} than it began{consequence}"))
    return _shared(texts)


def _different_conditions(judgement: Judgement) -> Iterator[str]:
    runs = [run for _, run in judgement.results.all_started()]
    differing = []
    for condition, value in SHARED_CONDITIONS.items():
        values = [value(run) for run in runs]
        if condition in NOT_ALWAYS_KNOWN:
            values = [value for value in values if value is not None]
        if len({json.dumps(value, sort_keys=True) for value in values}) > 1:
            differing.append(condition)
    if differing:
        *others, last = differing
        named = f"{', '.join(others)} and {last}" if others else last
        yield f"the runs differ in {named}, which may be the cause of differences between variants"


def _data_read(judgement: Judgement) -> Iterator[str]:
    """Warn of more than one pass over the data, and of validation text that is in the training text."""
    runs = [run for _, run in judgement.results.all_started()]
    return data_cautions((run.passes for run in runs), (run.overlap for run in runs))


def _different_budgets(judgement: Judgement) -> Iterator[str]:
    finished = judgement.results.all_finished().values()
    totals = {run.validation.tokens[-1] for runs in finished for run in runs.values()}
    if len(totals) > 1:
        yield (
            f"the runs have read {min(totals):,.0f} to {max(totals):,.0f} {READ}: final "
            f"{'losses' if judgement.results.measure.is_loss else 'values'} are not at the same budget"
        )


def _equal_seeds(judgement: Judgement) -> Iterator[str]:
    results, texts = judgement.results, []
    for variant in results.variants:
        finals = results.finals(variant)
        if len(finals) > 1 and len(set(finals.values())) == 1:
            same = f"all {len(finals)} seeds end at the same {results.measure.title}"
            texts.append((variant, f"{same}: their noise is not known, so that there is no test"))
    return _shared(texts)


def _never_finite(results: Results) -> list[str]:
    """The variants all of whose runs of the tuning diverged, so that no value is better than another."""
    tuning = {variant: results.runs(variant, "tune") for variant in results.variants}
    return [
        variant
        for variant, runs in tuning.items()
        if runs and all(run.status == "failed" and not run.crashed for run in runs)
    ]


def _diverged_tuning(judgement: Judgement) -> Iterator[str]:
    tune = judgement.results.manifest.tune
    if tune is not None and (names := _never_finite(judgement.results)):
        yield (
            f"{', '.join(names)}: every run of the tuning diverged, so that no {' or '.join(tune.keys)} that "
            "was tried is better than another"
        )


def _grid_border(judgement: Judgement) -> Iterator[str]:
    by_key: dict[str, dict[str, object]] = {}
    diverged = _never_finite(judgement.results)
    for variant in judgement.results.manifest.variants:
        for key in variant.tuned_on_border if variant.name not in diverged else ():
            by_key.setdefault(key, {})[variant.name] = (variant.tuned or {}).get(key)
    for key, values in by_key.items():
        if left := [name for name, value in values.items() if value is None]:
            yield f"{', '.join(left)}: the best {key} is at the border of all that was tried: no verdict"
        tried = {name: value for name, value in values.items() if value is not None}
        outside = "lies at the edge of its range; a better one may lie outside"
        if len(tried) == 1:
            ((name, value),) = tried.items()
            yield f"{name}: the best {key} tried, {value}, {outside}"
        elif tried:
            names = ", ".join(f"{name} ({value})" for name, value in tried.items())
            yield f"{names}: the best {key} tried {outside}"


def _different_trials(judgement: Judgement) -> Iterator[str]:
    results = judgement.results
    trials = {variant: len(results.runs(variant, "tune")) for variant in results.variants}
    if len(set(trials.values())) > 1:
        counts = ", ".join(f"{name}: {count}" for name, count in trials.items())
        yield f"the variants were tuned with different numbers of runs ({counts}): more trials find more"


def _one_tuning_seed(judgement: Judgement) -> Iterator[str]:
    """Warn if every tried value has a single run, whose loss depends on the seed."""
    results = judgement.results
    seeds = {run.seed for run in results.manifest.runs if "tune" in run.phases}
    if results.manifest.tune is None or len(seeds) != 1:
        return
    finals = (list(results.finals(variant).values()) for variant in results.variants)
    variances = [variance(values) for values in finals if len(values) > 1]
    noise = ""
    if variances:
        noise = f", and the seed alone moves a run by {math.sqrt(fmean(variances)):.2g} (standard deviation)"
    yield (
        f"tuned with one seed: each value that was tried has a single run{noise}; that seed may have chosen "
        "(tune.seeds: two or more)"
    )


def _tuning_error(judgement: Judgement) -> Iterator[str]:
    """Warn of the weaknesses of the tuning rule."""
    results = judgement.results
    errors = {variant: tuning_error(results, variant) for variant in results.variants}
    best = [name for name, error in errors.items() if error is not None and not error.interpolated]
    if best:
        step = max(error.step for error in errors.values() if error is not None)
        random = results.manifest.tune is not None and results.manifest.tune.random
        point = "the best random point" if random else f"the best point of a x{step:.2g} grid"
        yield (
            f"{point} was taken, not the vertex of a parabola: all seeds share that error, which is two to "
            "three times as large (tune.choose: parabola)"
        )
    compared = [verdict.variant for verdict in judgement.verdicts if verdict.comparison]
    if results.manifest.tune and (unknown := [v for v in compared if gap(results, v) is None]):
        whose = "" if len(unknown) == len(compared) else f" for {', '.join(unknown)}"
        yield (
            f"how large a difference tuning alone makes is not known{whose} and not in the verdict: it "
            "takes a grid or a log-uniform random search of one number with its best point inside, and two "
            "seeds"
        )


def _enough_seeds(judgement: Judgement) -> Iterator[str]:
    """Say where the error of tuning is the larger part, which all seeds share."""
    texts = []
    for verdict in judgement.verdicts:
        comparison, sd = verdict.comparison, gap(judgement.results, verdict.variant)
        if comparison is not None and sd is not None and (enough := enough_seeds(comparison, sd)) is not None:
            text = (
                f"from {enough} seeds on, (standard deviation of a pair / that of the gap of tuning)², "
                "further seeds only sharpen the error of tuning, which all seeds share"
            )
            texts.append((verdict.variant, text))
    return _shared(texts)


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
    if base:
        return _shared(
            (variant, f"{size:,} parameters, {size / base - 1:+.1%} against the baseline's {base:,}")
            for variant, size in sizes.items()
            if size and abs(size / base - 1) > SIZE_TOLERANCE
        )
    return iter(())


def _reused_seeds(judgement: Judgement) -> Iterator[str]:
    """Warn of seeds that chose the tuned values, whose losses are biased; give the verdicts of the others."""
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
    """The results without the seeds in the comparison; their runs stay in the tuning."""
    runs = (
        run.model_copy(update={"phases": tuple(phase for phase in run.phases if phase != "final")})
        if run.seed in seeds
        else run
        for run in results.manifest.runs
    )
    kept = tuple(run for run in runs if run.phases)
    return replace(results, manifest=results.manifest.model_copy(update={"runs": kept}))
