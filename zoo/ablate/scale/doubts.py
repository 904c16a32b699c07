"""Caveats of a verdict across scale: a sentence for each reason for doubt."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from statistics import mean, stdev

import numpy as np

from zoo.ablate.data_cautions import data_cautions
from zoo.ablate.scale.factors import estimated, factor_text
from zoo.ablate.scale.line import FEWEST_SIZES, Estimate, Line
from zoo.ablate.scale.measure import VariantMeasurement
from zoo.ablate.scale.noise import large_values
from zoo.ablate.scale.rate_doubts import moved_rates, random_rates
from zoo.ablate.scale.runs import AGAIN, FinishedRun, format_count, format_counts
from zoo.ablate.scale.tuned import TunedPoint, TunedSize
from zoo.ablate.scale.tuning_doubts import tuning_doubts
from zoo.ablate.student_t import two_sided_p
from zoo.utils.printable import first_few

SAME_COST = 1.01
"""Factor between the parameters or FLOPs per token of two sides above which they are reported."""
SAME_RATIO = 4.0
"""Factor between tokens per parameter at different sizes above which the change is reported."""
NOISY = 0.07
"""Standard deviation of a run, in ln tokens, above which one run per rate is too few even for a parabola."""
FALSE_ALARMS = (
    ".18 with six seeds and .38 with 20 where each rate is the best of five a factor 3 apart, .25 and .45 "
    "after a random search of 20 rates over two decades"
)
"""Simulated with one run per rate, a noise of `TAU` and a curvature of `KAPPA` in ln tokens."""
SHOWN = 20
"""Largest number of characters of a commit or machine."""
MOST_PLACES = 3
"""Largest number of rows whose places are listed one by one."""
ALL_SEEDS = "all seeds"
"""The words for seeds that have the same losses, if there are no others."""
OTHERS = ". Of several outcomes the first that the table names is judged, and no other takes its place"


def doubts(
    measurement: VariantMeasurement, missed: bool = False, too_early: str = "", shared: str = ""
) -> list[str]:
    """Reasons for doubt without their full stops, the gravest first.

    Args:
        measurement: the variant.
        missed: whether the largest size lies outside the prediction of the smaller ones.
        too_early: the reason for which there is no word before the first look; empty if there is none.
        shared: how the error is shared with other variants; empty if it is not.
    """
    checks = (
        _broken,
        _few_sizes,
        _copied_runs,
        _same_losses,
        _other_rates,
        tuning_doubts,
        random_rates,
        moved_rates,
        _one_tuning_seed,
        _one_size,
        _spikes,
        _law,
        _crossing,
        _conditions,
        _timing,
        _counts,
        _assumptions,
    )
    reasons = [sentence for check in checks for sentence in check(measurement)]
    if missed:
        reasons.append(
            "the largest size lies outside what the smaller ones predicted: nothing is said beyond it"
        )
    return [reason for reason in (too_early, *reasons, shared) if reason]


def _broken(measurement: VariantMeasurement) -> Iterator[str]:
    """Name files whose end is missing, with which the end of a run may be missing."""
    files = [run.broken for run in _compared(measurement) if run.broken]
    if files:
        yield (
            "not read to the end, because a record is cut off or damaged: "
            f"{first_few(files, MOST_PLACES)}; the loss is the last one before it, maybe not that of "
            "the end of the run"
        )


def _timing(measurement: VariantMeasurement) -> Iterator[str]:
    runs = _compared(measurement)
    disturbed = sum(run.disturbed for run in runs)
    if disturbed and not measurement.rounds:
        yield (
            f"the speed varied within {disturbed} of {len(runs)} runs, so that something else ran on the "
            "machine: their seconds do not count"
        )


def _few_sizes(measurement: VariantMeasurement) -> Iterator[str]:
    usable = measurement.usable
    if measurement.line is None:
        if len(usable) > 1:
            yield (
                f"{len(usable)} usable sizes: no line is drawn below {FEWEST_SIZES}; what is said is of the "
                "largest size alone"
            )
    elif len(usable) < 5:
        yield "fewer than five sizes: the scatter about the line is known from few of them"
    alone = [size.params for size in usable if size.se is None]
    complete = all(_is_complete(side) for params in alone for side in measurement.pairs[params].sides)
    one_seed = "one seed" if complete else "a budget with one seed"
    if usable and len(alone) == len(usable):
        rest = (
            "there is neither an interval nor a word"
            if measurement.line is None
            else "the intervals are those of the sizes' scatter"
        )
        yield f"{one_seed} at every size: the seeds' noise is not known, {rest}"
    elif alone:
        if measurement.line is not None:
            rest = "the seeds' noise is taken from the other sizes"
        elif usable[-1].se is None:
            rest = "the largest size, which is judged, has neither an interval nor a word"
        else:
            rest = "there is no interval"
        yield f"{one_seed} at {format_counts(alone)}: {rest}"


def _copied_runs(measurement: VariantMeasurement) -> Iterator[str]:
    """Name seeds that have the same losses, which only copies of one run have."""
    for k, name in enumerate(("the baseline", measurement.name)):
        copies = defaultdict(list)
        for n, pair in measurement.pairs.items():
            if seeds := _copied_seeds(pair.sides[k]):
                copies[seeds].append(n)
        for seeds, sizes in copies.items():
            effect = "not measured" if seeds == ALL_SEEDS else "underestimated"
            yield (
                f"{name}: {seeds} have the same losses, at {format_counts(sizes)}: the noise of seeds is "
                f"{effect}; expected runs that differ, and not one run under several seeds"
            )


def _same_losses(measurement: VariantMeasurement) -> Iterator[str]:
    """Name sizes at which both sides have the same losses, seed by seed, which two methods do not have."""
    cells = {size.params: measurement.pairs[size.params].cells for size in measurement.usable}
    same = [params for params, (ours, theirs) in cells.items() if ours == theirs]
    if same:
        yield (
            f"every loss is that of the baseline with the same seed and budget, at {format_counts(same)}: "
            "the setting changes nothing, or the same runs have two names"
        )


def _other_rates(measurement: VariantMeasurement) -> Iterator[str]:
    """Name runs that are left out of the comparison because of their rates, and are no tuning either."""
    for k, name in enumerate(("the baseline", measurement.name)):
        sides = {n: pair.sides[k] for n, pair in measurement.pairs.items() if pair.sides[k].dropped}
        dropped = [run for side in sides.values() for run in side.dropped]
        if not dropped:
            continue
        rates = sorted({run.point for run in dropped if run.rate is not None})
        chosen = sorted({(side.rate, side.second_key) for side in sides.values() if side.rate is not None})
        places = [run.place for run in dropped if run.place]
        where = (
            f" ({', '.join(places[:MOST_PLACES])}{', ...' * (len(places) > MOST_PLACES)})" if places else ""
        )
        count = "1 run is" if len(dropped) == 1 else f"{len(dropped)} runs are"
        yield (
            f"{name}: {count} left out of the comparison, at {format_counts(sides)}{where}: the rate is "
            f"{_rates(rates)}, most runs have {_rates(chosen)}, and no seed has both at one budget, as in a "
            "tuning"
        )


def _rates(points: Sequence[TunedPoint]) -> str:
    """Rates, each with the value of the second key if there is one."""
    return ", ".join(" and ".join(f"{value:.4g}" for value in point if value is not None) for point in points)


def _one_tuning_seed(measurement: VariantMeasurement) -> Iterator[str]:
    """Warn if every tried rate has a single run, whose loss depends on the seed."""
    tuned = [side for pair in measurement.pairs.values() for side in pair.sides if side.tuned]
    if all(side.seeds > 1 for side in tuned):
        return
    noise = ""
    if measurement.tau is not None:
        noise = f", and the seed alone moves a run by {measurement.tau:.2g} in ln tokens (standard deviation)"
    bearable = (
        measurement.tau is not None and measurement.tau <= NOISY and all(side.interpolated for side in tuned)
    )
    luck = "that seed may have chosen; expected two seeds or more per rate"
    yield (
        f"tuned with one seed: each rate that was tried has a single run{noise}; "
        + (
            f"a parabola through the rates takes most of that out, as it is below {NOISY:g}"
            if bearable
            else luck
        )
    )


def _one_size(measurement: VariantMeasurement) -> Iterator[str]:
    if measurement.usable and measurement.line is None:
        known = "; false alarms are more frequent than stated"
        if measurement.gap is None:
            known = (
                " and not known of these rates, so that nothing is called equal and a word rests on the "
                f"seeds alone: its false alarms may be {FALSE_ALARMS}"
            )
        yield (
            f"one size: the error of tuning is shared by all seeds{known}, and whether the factor holds at "
            "other sizes is open"
        )


def _spikes(measurement: VariantMeasurement) -> Iterator[str]:
    spiked = [run for run in _compared(measurement) if run.spikes]
    if spiked:
        yield f"{len(spiked)} {'run' if len(spiked) == 1 else 'runs'} of the comparison had spikes"


def _law(measurement: VariantMeasurement) -> Iterator[str]:
    line, law = measurement.line, measurement.law
    if line is None or law is None:
        return
    largest = line.largest
    of_law, of_line = (f"{math.exp(value):.2f} x" for value in (law.ln_c, largest.estimate))
    if of_law != of_line and abs(law.ln_c - largest.estimate) > max(largest.half95, law.half95 or 0.0):
        yield f"law and line disagree at the largest size: {of_law} and {of_line}"
    if _drifts(measurement, line):
        yield (
            "the factor depends on the length of the runs, because the mean drift over the sizes excludes 0: "
            "longer runs may have another"
        )


def _crossing(measurement: VariantMeasurement) -> Iterator[str]:
    """Warn if one side needs fewer tokens at some sizes and the other one at others."""
    line = measurement.line
    if line is None:
        return
    first, middle, end = line.at(float(line.x.min())), line.middle, line.largest
    if _side(middle) * _side(end) < 0:
        yield "the sign changes over the sizes: what holds in the middle is reversed at the largest"
    elif _side(first) * _side(end) < 0:
        of_first, of_end = (
            f"{factor_text(estimated(value))} at {format_count(size.params)}"
            for value, size in ((first, measurement.usable[0]), (end, measurement.usable[-1]))
        )
        yield (
            f"the sides cross over the sizes: on the line the factor is {of_first} and {of_end}, which the "
            "word, that of the middle of the sizes, does not say"
        )


def _drifts(measurement: VariantMeasurement, line: Line) -> bool:
    """Whether the mean drift over the sizes excludes 0, by Student's t over sizes."""
    drifts = [size.drift for size in measurement.usable if size.drift is not None]
    if len(drifts) < 2 or np.ptp(drifts) <= 1e-9:
        return False
    return two_sided_p(mean(drifts) / (stdev(drifts) / math.sqrt(len(drifts))), len(drifts) - 1) < 0.05


def _conditions(measurement: VariantMeasurement) -> Iterator[str]:
    runs = _compared(measurement)
    if any(run.trunk for run in runs):
        yield (
            "budgets are branches of one trunk, which are correlated: a seed counts once, with all its "
            "branches"
        )
    if other := _different(measurement, attrgetter("data")):
        yield (
            "the sides differ in their tokenizer, order of the data or validation set, at "
            f"{format_counts(other)}"
        )
    if other := _different(measurement, attrgetter("objective")):
        yield f"the sides differ in what they predict, their objective, at {format_counts(other)}"
    yield from _different_makings(measurement)
    yield from data_cautions((run.passes for run in runs), (run.overlap for run in runs))
    if measurement.items is None and any(any(run.outcomes.values()) for run in runs):
        yield (
            "items are not judged: that takes two seeds and two questions of both sides, in two clusters if "
            "they have some, at one budget of the largest size; fewer say something of checkpoints, not of "
            "recipes" + OTHERS * (len(measurement.outcomes) > 1)
        )
    if measurement.items is not None and not measurement.items.se:
        yield "items: every question differs by the same amount, so that no noise is known; no claim is made"
    yield from _costs_of_one_side(measurement)
    if not measurement.rounds and any(cost.name == "seconds" for cost in measurement.costs):
        yield "seconds are those of the runs: compare them only where nothing else ran on the machine"


def _costs_of_one_side(measurement: VariantMeasurement) -> Iterator[str]:
    """Name costs that are not compared because at the largest size they are known of one side alone."""
    if not measurement.usable:
        return
    sides = measurement.pairs[measurement.usable[-1].params].sides
    for what in ("flops", "seconds"):
        known = [any(getattr(run, what) is not None for run in side.compared) for side in sides]
        disturbed = what == "seconds" and any(run.disturbed for run in _compared(measurement))
        if known[0] != known[1] and not disturbed:
            who = "the baseline" if known[0] else measurement.name
            yield f"{what} at the largest size are known of {who} alone, and not compared"


def _different_makings(measurement: VariantMeasurement) -> Iterator[str]:
    """Name what trained the sides of a size, where it is known of both and not the same."""
    for name, title in (
        ("commit", "were trained by different commits"),
        ("machine", "were trained on different machines"),
        ("bfloat16_product", "have products of bfloat16 that were computed differently"),
    ):
        if different := _different(measurement, attrgetter(f"making.{name}")):
            values = dict.fromkeys(value[:SHOWN] for of_size in different.values() for value in of_size)
            yield f"the sides {title} at {format_counts(different)}: {', '.join(values)}"


def _different(measurement: VariantMeasurement, of: Callable[[FinishedRun], str]) -> dict[float, list[str]]:
    """The values at the sizes where all are known and those of one side are not those of the other."""
    different = {}
    for params, pair in measurement.pairs.items():
        ours, theirs = ({of(run) for run in side.compared} for side in pair.sides)
        if "" not in ours | theirs and ours != theirs:
            different[params] = sorted(ours | theirs)
    return different


def _counts(measurement: VariantMeasurement) -> Iterator[str]:
    seeds = {
        n: [len({run.seed for run in side.compared}) for side in pair.sides]
        for n, pair in measurement.pairs.items()
    }
    odd = 1 if measurement.name.endswith(AGAIN) else 0  # an odd number of seeds has no equal halves
    if unequal := [n for n, (ours, theirs) in seeds.items() if abs(ours - theirs) > odd]:
        yield (
            f"the sides have different numbers of seeds at {format_counts(unequal)}; seeds that are added "
            "until something is decided need a declared maximum"
        )
    incomplete = [n for n, pair in measurement.pairs.items() if not all(map(_is_complete, pair.sides))]
    if incomplete:
        yield (
            f"at {format_counts(incomplete)} some seeds lack a budget: as many seeds count as most of the "
            "budgets have, at most twice the fewest, and one where a budget has one; expected every seed at "
            "every budget"
        )
    apart: dict[str, list[float]] = {}
    for params, pair in measurement.pairs.items():
        if pair.ratio > SAME_COST:
            apart.setdefault(f"{pair.ratio - 1:.1%}", []).append(params)
    for percent, sizes in apart.items():
        yield f"{format_counts(sizes)}: parameters or FLOPs per token differ by {percent} between the sides"
    ratios = [max(run.tokens for run in pair.baseline.compared) / n for n, pair in measurement.pairs.items()]
    if len(ratios) > 1 and max(ratios) > SAME_RATIO * min(ratios):
        yield (
            f"tokens per parameter change between {max(ratios):.3g} and {min(ratios):.3g} over the sizes: "
            "the trend is also one of that ratio"
        )


def _copied_seeds(side: TunedSize) -> str:
    """The seeds that have the same loss at every budget, in words; empty if there are none.

    Runs that diverged are named elsewhere. A single budget that some of the seeds share may be a coincidence
    of rounded losses.
    """
    points = {(run.tokens, run.loss) for run in side.compared}
    seeds = sorted({run.seed for run in side.compared})
    if len(seeds) > 1 and len(points) == len({tokens for tokens, _ in points}) < len(side.compared):
        return ALL_SEEDS if all(math.isfinite(loss) for _, loss in points) else ""
    curves = defaultdict(list)
    for seed in seeds:
        curve = {run.tokens: run.loss for run in side.compared if run.seed == seed}
        if len(curve) > 1 and all(map(math.isfinite, curve.values())):
            curves[tuple(sorted(curve.items()))].append(seed)
    groups = [group for group in curves.values() if len(group) > 1]
    return " and ".join(f"seeds {', '.join(map(str, group))}" for group in groups)


def _is_complete(side: TunedSize) -> bool:
    """Whether every seed has been trained to every budget."""
    cells = {(run.tokens, run.seed) for run in side.compared}
    return len(cells) == len({tokens for tokens, _ in cells}) * len({seed for _, seed in cells})


def _assumptions(measurement: VariantMeasurement) -> Iterator[str]:
    for what, value, assumed in large_values(measurement):
        yield (
            f"the {what} is {value:.2g} in ln tokens, and was {assumed:g} where the verdict was simulated: "
            "its stated error rates may not hold here"
        )


def _compared(measurement: VariantMeasurement) -> Sequence[FinishedRun]:
    return [run for pair in measurement.pairs.values() for side in pair.sides for run in side.compared]


def _side(value: Estimate) -> int:
    """1 if the interval of a value lies above 0, -1 if below, 0 if it contains 0."""
    return int(value.estimate > value.half95) - int(value.estimate < -value.half95)
