"""The numbers behind the verdict on a variant: its sizes, the line through them, law, costs and items."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from zoo.ablate import student_t
from zoo.ablate.scale.items import ItemDifference
from zoo.ablate.scale.law import Law, fit_law
from zoo.ablate.scale.line import FEWEST_SIZES, Estimate, Line
from zoo.ablate.scale.outcomes import ItemOutcome, compare_outcome
from zoo.ablate.scale.runs import cells
from zoo.ablate.scale.speedup import Cells, RisingLossError, SizeSpeedup, size_speedup
from zoo.ablate.scale.tuned import TunedSize
from zoo.ablate.scale.tuning import random_gap, tuning_gap
from zoo.ablate.statistics import LEVEL
from zoo.utils.measures import CROSS_ENTROPY, Measure

PAIRED_FLOPS = 1.25
"""Largest factor between the FLOPs per token of two sides' sizes that are compared."""


@dataclass(frozen=True)
class UnusedSize:
    """A size that could not be used.

    Attributes:
        params: number of parameters of the baseline's model.
        reason: the reason in words.
        differs: whether it was left out because of the losses: the variant is so much better or worse there
            that there is no factor, the loss rises with more tokens, or runs diverged.
    """

    params: float
    reason: str
    differs: bool = False


@dataclass(frozen=True)
class CurrencySpeedup:
    """The speed-up of a variant in another currency than tokens.

    Attributes:
        name: "flops" or "seconds".
        ln_c: ln of the speed-up at the largest size.
        half95: half the interval of `ln_c`, at the level of the tokens' (`VariantMeasurement.level`).
        p_value: two-sided p-value of no difference.
    """

    name: str
    ln_c: float
    half95: float
    p_value: float


@dataclass(frozen=True)
class SizePair:
    """The runs of the baseline and of a variant at one size.

    Attributes:
        baseline: the runs of the baseline.
        variant: the runs of the variant.
        ratio: the larger one of the factors, 1 or more, by which parameters and FLOPs per token differ.
    """

    baseline: TunedSize
    variant: TunedSize
    ratio: float = 1.0

    @property
    def sides(self) -> tuple[TunedSize, TunedSize]:
        """The baseline, then the variant."""
        return self.baseline, self.variant

    @property
    def cells(self) -> tuple[Cells, Cells]:
        """The final losses of both sides by tokens and seed."""
        ours, theirs = (next(iter(cells(side.compared).values())) for side in self.sides)
        return ours, theirs


@dataclass
class VariantMeasurement:
    """The measurements of a variant, on which its verdict is based.

    Attributes:
        name: the variant.
        pairs: the runs of both sides at each size, by the number of the baseline's parameters, ascending.
        sizes: every size by itself.
        left_out: sizes without a result, and the reasons.
        line: the line across the sizes; None with fewer than four.
        law: the shared scaling law.
        costs: the speed-up in FLOPs and in seconds, where they are known.
        rounds: number of interleaved rounds in which the seconds were measured; 0: they are those of the
            runs.
        outcomes: the scores of questions at the largest size, by the name of the outcome, in the order in
            which the table names them; None where they cannot be compared.
        gap: the standard deviation of ln c at the largest size by tuning alone, where there is no line; None
            if the runs do not show how the rates were chosen.
        critical: the critical value of |t| if sizes or, without a line, seeds are added until a decision;
            None if there is one look, and Student's t holds; infinite before the first look.
        level: the level of the intervals in the middle, at the largest size and of the slope; with several
            looks that at which they hold jointly.
        tau: standard deviation of a run, in ln tokens; None with one seed everywhere.
        kappa: curvature over the learning rate, in ln tokens per (ln rate)^2; None without a parabola.
        loss: the loss by which the runs were compared, one of `zoo.utils.measures.LOSSES`.
    """

    name: str
    pairs: Mapping[float, SizePair] = field(default_factory=dict)
    sizes: list[SizeSpeedup] = field(default_factory=list)
    left_out: list[UnusedSize] = field(default_factory=list)
    line: Line | None = None
    law: Law | None = None
    costs: list[CurrencySpeedup] = field(default_factory=list)
    rounds: int = 0
    outcomes: Mapping[str, ItemOutcome | None] = field(default_factory=dict)
    gap: float | None = None
    critical: float | None = None
    level: float = LEVEL
    tau: float | None = None
    kappa: float | None = None
    loss: Measure = CROSS_ENTROPY

    def per_token(self, params: float, loss: float) -> float | None:
        """The decrease of a loss per e-fold of tokens on the common curve of a size; None without a curve."""
        return next((_slope(size) * loss for size in self.sizes if size.params == params), None)

    @property
    def judged_outcome(self) -> ItemOutcome | None:
        """The first outcome that the table names, which is judged; others are description.

        None if the table has no scores, or the first outcome cannot be compared: no other takes its place.
        """
        return next(iter(self.outcomes.values()), None)

    @property
    def described_outcomes(self) -> list[ItemOutcome]:
        """The further outcomes that could be compared."""
        return [outcome for outcome in [*self.outcomes.values()][1:] if outcome is not None]

    @property
    def items(self) -> ItemDifference | None:
        """The difference in the scores that are judged."""
        return None if self.judged_outcome is None else self.judged_outcome.difference

    @property
    def beyond(self) -> list[UnusedSize]:
        """Sizes above all usable ones that were left out because of their losses."""
        largest = max((size.params for size in self.usable), default=math.inf)
        return [size for size in self.left_out if size.differs and size.params > largest]

    @property
    def usable(self) -> list[SizeSpeedup]:
        """The sizes whose losses overlap."""
        return [size for size in self.sizes if size.comparable]

    @property
    def se_alone(self) -> float | None:
        """The standard error of ln c at the largest usable size by itself, with that of tuning if known.

        None if the seeds' noise is not known, because there is one seed, or all have the same losses.
        """
        se = self.usable[-1].se
        return math.hypot(se, self.gap or 0.0) if se else None

    def level_of(self, level: float) -> float:
        """The level of an interval that is asked for with `level`: with several looks that of all of them."""
        return level if self.critical is None else self.level

    def half_alone(self, level: float = LEVEL) -> float | None:
        """Half the interval of ln c at the largest usable size by itself.

        It is None with one seed, and before the first look of a study in which seeds are added. It includes
        the error of tuning, as far as that is known, because all seeds share it. If seeds are added until a
        decision, the intervals of all looks hold jointly with `self.level`, and `level` has no effect.
        """
        if self.se_alone is None or self.critical == math.inf:
            return None
        quantile = self.critical or student_t.quantile((1 + level) / 2, self.usable[-1].seeds - 1)
        return quantile * self.se_alone


def loss_unit(measurements: Iterable[VariantMeasurement]) -> str:
    """The unit of the losses that were compared, in words; that of the cross entropy without measurements."""
    return next((measurement.loss for measurement in measurements), CROSS_ENTROPY).short_unit


def measure(
    name: str, baseline: Mapping[float, TunedSize], variant: Mapping[float, TunedSize]
) -> VariantMeasurement:
    """Measure a variant against the baseline, all but the costs (`add_costs`).

    Args:
        name: name of the variant.
        baseline: runs of the baseline by size.
        variant: runs of the variant by size.
    """
    measurement = paired(name, baseline, variant)
    usable = measurement.usable
    if not usable:
        return measurement
    if len(usable) >= FEWEST_SIZES:
        both = {size.params: measurement.pairs[size.params].cells for size in usable}
        measurement.line = Line(usable)
        measurement.law = fit_law({n: c[0] for n, c in both.items()}, {n: c[1] for n, c in both.items()})
    else:
        measurement.gap = gap_of_tuning(measurement.pairs[usable[-1].params], usable[-1], measurement.tau)
    measurement.outcomes = _outcomes(measurement.pairs[usable[-1].params])
    return measurement


def paired(
    name: str, baseline: Mapping[float, TunedSize], variant: Mapping[float, TunedSize]
) -> VariantMeasurement:
    """Measure every size of a variant by itself, and the noise of both sides' runs.

    Args:
        name: name of the variant.
        baseline: runs of the baseline by size.
        variant: runs of the variant by size.
    """
    measurement = VariantMeasurement(name)
    measurement.pairs = _paired(baseline, variant, measurement)
    for params, pair in measurement.pairs.items():
        _add_size(measurement, params, pair)
    measurement.tau, measurement.kappa = run_deviation(measurement), _kappa(measurement)
    return measurement


def _add_size(measurement: VariantMeasurement, params: float, pair: SizePair) -> None:
    """Fit one size, or leave it out with a reason."""
    for side, name in zip(pair.sides, ("the baseline", measurement.name), strict=True):
        if side.problem:
            reason = f"{name}: {side.problem}"
            measurement.left_out.append(UnusedSize(params, reason, differs=side.all_diverged))
            return
    ours, theirs = pair.cells
    if diverged := _diverged(measurement.name, ours, theirs):
        measurement.left_out.append(UnusedSize(params, diverged, differs=True))
        return
    try:
        size = size_speedup(params, ours, theirs)
    except ValueError as error:
        measurement.left_out.append(
            UnusedSize(params, str(error), differs=isinstance(error, RisingLossError))
        )
        return
    measurement.sizes.append(size)
    if size.problem:
        reason = f"{size.problem}: {size.consequence}"
        measurement.left_out.append(UnusedSize(params, reason, differs=not size.too_close))


def _diverged(name: str, ours: Cells, theirs: Cells) -> str:
    """How many runs of which side diverged; empty if none did."""
    lost = {"the baseline": ours, name: theirs}
    counts = {side: sum(not math.isfinite(loss) for loss in of.values()) for side, of in lost.items()}
    parts = [f"{n} {'run' if n == 1 else 'runs'} of {side}" for side, n in counts.items() if n]
    return f"{' and '.join(parts)} diverged" if parts else ""


def _outcomes(pair: SizePair) -> dict[str, ItemOutcome | None]:
    """The scores of questions in every outcome that the table names."""
    sides = [side.compared for side in pair.sides]
    names = dict.fromkeys(name for side in sides for run in side for name in run.outcomes)
    return {name: compare_outcome(name, *sides) for name in names}


def _paired(
    baseline: Mapping[float, TunedSize], variant: Mapping[float, TunedSize], measurement: VariantMeasurement
) -> dict[float, SizePair]:
    """The runs of both sides, paired by the number of parameters or else by FLOPs per token."""
    pairs = {
        size: SizePair(side, variant[size], _size_ratio(side, size, variant[size], size))
        for size, side in baseline.items()
        if size in variant
    }
    rest = {size: side for size, side in variant.items() if size not in baseline}
    # The nearest sizes are paired first, so that a size does not take the partner of its neighbour.
    ratios = sorted(
        (_cost_ratio(side, size, other_side, other), size, other)
        for size, side in baseline.items()
        for other, other_side in rest.items()
        if size not in pairs
    )
    for ratio, size, other in ratios:
        if ratio <= PAIRED_FLOPS and size not in pairs and other in rest:
            side, other_side = baseline[size], rest.pop(other)
            pairs[size] = SizePair(side, other_side, _size_ratio(side, size, other_side, other))
    unpaired = [size for size in {*baseline, *rest} if size not in pairs]
    measurement.left_out += [
        UnusedSize(size, "only one side has runs of this size") for size in sorted(unpaired)
    ]
    return dict(sorted(pairs.items()))


def _ratio(one: float, other: float) -> float:
    return max(one / other, other / one)


def _cost_ratio(one: TunedSize, one_size: float, other: TunedSize, other_size: float) -> float:
    """The ratio of the FLOPs per token, or of the parameters if a side does not know its FLOPs."""
    flops = [_flops_per_token(side) for side in (one, other)]
    return _ratio(one_size, other_size) if None in flops else _ratio(*(f for f in flops if f is not None))


def _size_ratio(one: TunedSize, one_size: float, other: TunedSize, other_size: float) -> float:
    """The larger one of the ratios of the FLOPs per token and of the parameters.

    The parameters are those of each side's own models where they are known: a ladder of zoo calls a size by
    those of the baseline.
    """
    own = [_own_parameters(side) for side in (one, other)]
    of_parameters = (
        _ratio(one_size, other_size) if None in own else _ratio(*(n for n in own if n is not None))
    )
    return max(_cost_ratio(one, one_size, other, other_size), of_parameters)


def _own_parameters(side: TunedSize) -> float | None:
    return next((run.parameters for run in side.compared if run.parameters is not None), None)


def _flops_per_token(side: TunedSize) -> float | None:
    flops = [run.flops / run.tokens for run in side.compared if run.flops is not None]
    return float(np.mean(flops)) if flops else None


def _slope(size: SizeSpeedup) -> float:
    """The decrease of ln loss per e-fold of tokens at the middle budget."""
    return abs(size.curve[-2])


def run_deviation(measurement: VariantMeasurement) -> float | None:
    """The standard deviation of a run, pooled over the cells of all sizes, in ln tokens."""
    squares, freedom = 0.0, 0
    for size in measurement.usable:
        for side in measurement.pairs[size.params].cells:
            for tokens in {tokens for tokens, _ in side}:
                values = [math.log(loss) for (t, _), loss in side.items() if t == tokens]
                squares += float(np.var(values)) * len(values) / _slope(size) ** 2
                freedom += len(values) - 1
    return math.sqrt(squares / freedom) if freedom else None


def _kappa(measurement: VariantMeasurement) -> float | None:
    """The mean curvature over the rate of all tunings that have a parabola, in ln tokens."""
    bends = [
        side.parabola.curvature / side.parabola.loss / _slope(size)
        for size in measurement.usable
        for side in measurement.pairs[size.params].sides
        if side.parabola is not None
    ]
    return float(np.mean(bends)) if bends else None


def gap_of_tuning(pair: SizePair, size: SizeSpeedup, tau: float | None) -> float | None:
    """The standard deviation of ln c by tuning alone, simulated by each side's rule on its parabolas."""
    if tau is None:
        return None
    gaps = [_gap_of_side(side, _slope(size), tau) for side in pair.sides]
    known = [gap for gap in gaps if gap is not None]
    # A gap is that of two sides with the same rule, each of which has half of its variance.
    return math.sqrt(sum(gap**2 for gap in known) / 2) if len(known) == len(gaps) else None


def _gap_of_side(side: TunedSize, slope: float, tau: float) -> float | None:
    """The standard deviation between two sides that are tuned like this one; None if it is not known.

    With two keys the losses by either are taken to add, as on a parabola of both without a product of the two
    (our choice).
    """
    searches = [(side.parabola, side.tried, side.interpolated)]
    if side.second_tried:
        searches.append((side.second_parabola, side.second_tried, side.second_interpolated))
    variance = 0.0
    for parabola, tried, interpolated in searches:
        if parabola is None or parabola.loss <= 0:  # rates too close together for a parabola
            return None
        per_token = slope * parabola.loss
        sd = tau * per_token
        if side.drawn is not None:
            gap = random_gap(parabola, side.drawn, len(tried), sd=sd, seeds=side.seeds, per_token=per_token)
        else:
            gap = tuning_gap(
                parabola,
                tuple(tried),
                sd=sd,
                seeds=side.seeds,
                per_token=per_token,
                interpolated=interpolated,
            )
        variance += gap**2
    return math.sqrt(variance)


def add_costs(measurement: VariantMeasurement, timing: tuple[float, Sequence[float]] | None = None) -> None:
    """Add the speed-up in FLOPs and seconds at the largest size; squares of half widths are summed.

    Args:
        measurement: the measurement to extend. Its critical value is that of this look, because the intervals
            of the costs rest on that of the tokens.
        timing: a size, and ln of the variant's tokens per second over the baseline's in interleaved rounds;
            None: seconds are those of the runs.
    """
    if not measurement.usable:
        return
    largest = measurement.usable[-1]
    speeds = timing[1] if timing is not None and timing[0] == largest.params else ()
    measurement.rounds = len(speeds)
    sides = measurement.pairs[largest.params].sides
    for name in ("flops", "seconds"):
        if name == "seconds" and speeds:
            _add_cost(measurement, largest, name, [speeds])
            continue
        rates = [
            [math.log(run.tokens / cost) for run in side.compared if (cost := getattr(run, name)) is not None]
            for side in sides[::-1]
        ]
        if all(rates):
            _add_cost(measurement, largest, name, rates)


def _add_cost(
    measurement: VariantMeasurement, largest: SizeSpeedup, name: str, rates: Sequence[Sequence[float]]
) -> None:
    """Add the speed-up in one currency.

    Args:
        measurement: the measurement to extend.
        largest: the largest size.
        name: name of the currency.
        rates: ln of tokens per unit, of the variant's runs and of the baseline's, or of their ratio alone.
    """
    value, half, df = _at_largest(measurement, largest)
    if half is None:
        return
    means = [float(np.mean(rate)) for rate in rates]
    ln_c = value + means[0] - sum(means[1:])
    variances = [float(np.var(r, ddof=1)) / len(r) if len(r) > 1 else 0.0 for r in rates]
    freedom = max(1, min(map(len, rates)) - 1)
    quantile = (1 + measurement.level) / 2
    of_cost = student_t.quantile(quantile, freedom) * math.sqrt(sum(variances))
    wider = math.hypot(half, of_cost)
    t = abs(ln_c) / wider * student_t.quantile(quantile, df) if wider else math.inf * abs(ln_c)
    p = student_t.two_sided_p(t, df) if wider or ln_c else 1.0
    measurement.costs.append(CurrencySpeedup(name, ln_c, wider, p))


def _at_largest(measurement: VariantMeasurement, largest: SizeSpeedup) -> tuple[float, float | None, float]:
    """ln c at the largest size, half of its interval, and the degrees of freedom."""
    if measurement.line is not None:
        value: Estimate = measurement.line.largest
        return value.estimate, value.half95, value.binding[1]
    return largest.ln_c, measurement.half_alone(), largest.seeds - 1
