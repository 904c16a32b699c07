"""A verdict across scale in JSON, with a schema, for programs and agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import Field

from zoo.ablate.scale.items import Accuracy
from zoo.ablate.scale.law import Law
from zoo.ablate.scale.line import Estimate, Line, Prediction
from zoo.ablate.scale.outcomes import ItemOutcome
from zoo.ablate.scale.presentation import sentence
from zoo.ablate.scale.speedup import SizeSpeedup
from zoo.ablate.scale.verdict import Direction, ScaleVerdict, Trend, alarms
from zoo.ablate.scale.word import Answer, Word
from zoo.config.registry import Config


class SizeDocument(Config):
    """The result of one size by itself."""

    params: float = Field(description="parameters of the baseline's model")
    ln_c: float = Field(description="natural logarithm of the token speed-up")
    se: float | None = Field(description="its standard error over seeds; null with one seed")
    half95: float | None = Field(description="half its 95 % interval, Student's t with seeds - 1")
    drift: float | None = Field(
        description="change of ln c per e-fold of tokens; null with two budgets of a side, which show none"
    )
    seeds: int = Field(description="seeds of the side with fewer; 1 if a budget of a side has one")
    comparable: bool = Field(description="whether the losses of the two sides overlap")


class LeftDocument(Config):
    """A size that could not be used, or only in part."""

    params: float = Field(description="parameters of the baseline's model")
    reason: str = Field(description="why")


class EstimateDocument(Config):
    """A value on the line."""

    estimate: float = Field(description="ln c; for the slope its change per e-fold of parameters")
    half95: float = Field(
        description="half the 95 % interval, the wider one of scatter and seeds; with declared looks that of "
        "`level`"
    )
    half90: float = Field(description="half the 90 % interval; with declared looks that of `level`")


class PredictionDocument(Config):
    """A prediction for one further size."""

    estimate: float = Field(description="ln c on the line")
    half95: float = Field(description="half the 95 % prediction interval")


class LineDocument(Config):
    """The straight line through ln c over ln N."""

    middle: EstimateDocument
    largest: EstimateDocument
    slope: EstimateDocument
    prediction_2x: PredictionDocument | None = Field(
        description="at twice the largest size; null if the back-test missed, a larger size was left out "
        "because of its losses, or the sizes span less than a factor of two"
    )


class BackTestDocument(Config):
    """The prediction of the largest size by the smaller ones."""

    predicted: float
    half95: float
    found: float
    hit: bool


class RobustDocument(Config):
    """The answer by Huber's estimate, beside that by the mean of all runs, which is judged."""

    word: Word = Field(description="the word that it would lead to")
    at_largest: bool = Field(description="whether that word is shown at the largest size as well")
    middle: EstimateDocument | None = Field(description="null with fewer than four sizes")
    largest: EstimateDocument | None = Field(
        description="ln c at the largest size; null with fewer than four sizes, where `ln_c` is"
    )
    ln_c: float = Field(description="ln c at the largest size by itself")
    half95: float | None = Field(description="half the interval of `ln_c`, as `half95` of sizes")


class LawDocument(Config):
    """The shared law, a second opinion; E, a and b are nuisance parameters."""

    E: float
    a: float
    b: float
    ln_c: float
    half95: float | None
    slope: float


class CostDocument(Config):
    """The speed-up at the largest size in another currency."""

    ln_c: float = Field(description="ln of the variant's speed-up, above 0 if it needs less")
    half95: float = Field(description="half the 95 % interval; with declared looks that of `level`")
    p_value: float


class AccuracyDocument(Config):
    """The share of right answers of one side, which is shown, not judged."""

    mean: float = Field(description="mean over seeds")
    sd: float = Field(description="standard deviation over seeds")


class AccuraciesDocument(Config):
    """The share of right answers of both sides, which is shown, not judged."""

    baseline: AccuracyDocument
    variant: AccuracyDocument


class ItemsDocument(Config):
    """Scores of questions at the largest size, variant less baseline."""

    name: str = Field(description="the column of the table: items, or items:NAME")
    difference: float
    se: float = Field(description="standard error over new seeds and new questions, or new clusters of them")
    df: float
    p_value: float | None = Field(description="p value of this comparison alone; null if it is not judged")
    questions: int = Field(description="number of questions")
    clusters: int | None = Field(
        description="number of clusters of questions, such as passages; null: taken as independent"
    )
    accuracy: AccuraciesDocument | None = Field(
        description="shown, not judged: the share of right answers, where the scores are log-probabilities "
        "and the samples have it"
    )


class VariantDocument(Config):
    """The verdict on one variant."""

    word: Word
    sentence: str
    claims: tuple[str, ...] = Field(
        description="claims that hold, in either direction: middle, largest, items, seconds"
    )
    directions: dict[str, Direction] = Field(
        description="whether the variant is better than the baseline (fewer tokens or seconds, higher "
        "scores) or worse, for each claim that holds"
    )
    at_largest: bool = Field(description="whether the word is shown at the largest size as well")
    trend: Trend | None = Field(
        description="the trend of the gain, or of the disadvantage of a slower variant, as the size doubles; "
        "null without a line"
    )
    level: float = Field(
        description="the level of half95 on the line (predictions excepted) and of the costs: .95; with "
        "declared looks 1 - alpha, at which the intervals of all looks hold jointly, on a "
        "line exactly those of the middle"
    )
    within_margin: bool
    sizes: tuple[SizeDocument, ...]
    left_out: tuple[LeftDocument, ...]
    line: LineDocument | None = Field(description="null with fewer than four sizes")
    back_test: BackTestDocument | None
    law: LawDocument | None
    robust: RobustDocument | None = Field(
        description="null if no size is usable, or if Huber's estimate has none"
    )
    costs: dict[str, CostDocument] = Field(description="flops and seconds, where they are known")
    items: ItemsDocument | None = Field(
        description="the first outcome that the table names, which is judged; null if it is missing or "
        "cannot be compared"
    )
    described_items: tuple[ItemsDocument, ...] = Field(
        description="the further outcomes in the order of the table, which are description, not judged"
    )
    detectable: float | None = Field(
        description="the factor that the study finds with probability .8, at the level of a variant's first "
        "claim: alpha, shared by the variants"
    )
    tuning_gap: float | None = Field(
        description="standard deviation of ln c by tuning alone; null with a line, or if it is not known"
    )
    tau: float | None = Field(description="standard deviation of a run, in ln tokens")
    kappa: float | None = Field(description="curvature over the rate, in ln tokens per (ln rate)^2")
    warnings: tuple[str, ...]


class VerdictDocument(Config):
    """The output of `zoo verdict --json`; logarithms are natural."""

    baseline: str
    alpha: float = Field(description="the probability of any false claim")
    margin: float | None = Field(description="the factor within which two sides count as equal")
    alarms: tuple[str, ...] = Field(
        description="reasons why no word counts: the baseline with other seeds differs from the baseline"
    )
    missing: tuple[str, ...] = Field(
        description="sentences on the runs of a ladder of `zoo sweep` that have not ended or have crashed; "
        "with any, the verdicts are those of the runs so far"
    )
    variants: dict[str, VariantDocument]


def document(
    verdicts: Mapping[str, ScaleVerdict],
    baseline: str,
    *,
    margin: float | None,
    alpha: float,
    missing: Sequence[str] = (),
) -> VerdictDocument:
    """All verdicts of a table.

    Args:
        verdicts: the verdicts of all variants.
        baseline: the variant that they are compared with.
        margin: the factor within which two sides count as equal.
        alpha: the probability of any false claim.
        missing: sentences on runs that have not ended or crashed.
    """
    return VerdictDocument(
        baseline=baseline,
        alpha=alpha,
        margin=margin,
        alarms=tuple(alarms(verdicts, baseline)),
        missing=tuple(missing),
        variants={name: _variant(verdict, baseline, margin) for name, verdict in verdicts.items()},
    )


def _variant(verdict: ScaleVerdict, baseline: str, margin: float | None) -> VariantDocument:
    measurement, line, test, law = verdict.measured, verdict.line, verdict.back_test, verdict.measured.law
    return VariantDocument(
        word=verdict.word,
        sentence=sentence(verdict, baseline, margin),
        claims=verdict.claims,
        directions=verdict.directions,
        at_largest=verdict.at_largest,
        trend=verdict.trend,
        level=measurement.level,
        within_margin=verdict.within_margin,
        sizes=tuple(map(_size, measurement.sizes)),
        left_out=tuple(LeftDocument(params=left.params, reason=left.reason) for left in measurement.left_out),
        line=None if line is None else _line(line, verdict.predicted),
        back_test=None if test is None else _back_test(test, measurement.usable[-1].ln_c),
        law=None if law is None else _law(law),
        robust=None if verdict.robust is None else _robust(verdict.robust),
        costs={
            cost.name: CostDocument(ln_c=cost.ln_c, half95=cost.half95, p_value=cost.p_value)
            for cost in measurement.costs
        },
        items=None if measurement.judged_outcome is None else _items(measurement.judged_outcome, judged=True),
        described_items=tuple(_items(outcome, judged=False) for outcome in measurement.described_outcomes),
        detectable=verdict.detectable,
        tuning_gap=measurement.gap,
        tau=measurement.tau,
        kappa=measurement.kappa,
        warnings=verdict.warnings,
    )


def _size(size: SizeSpeedup) -> SizeDocument:
    return SizeDocument(
        params=size.params,
        ln_c=size.ln_c,
        se=size.se,
        half95=size.half_width(),
        drift=size.drift,
        seeds=size.seeds,
        comparable=size.comparable,
    )


def _line(line: Line, predicted: Prediction | None) -> LineDocument:
    return LineDocument(
        middle=_estimate(line.middle),
        largest=_estimate(line.largest),
        slope=_estimate(line.slope),
        prediction_2x=_prediction(predicted),
    )


def _back_test(test: Prediction, found: float) -> BackTestDocument:
    return BackTestDocument(predicted=test.estimate, half95=test.half95, found=found, hit=test.holds(found))


def _law(law: Law) -> LawDocument:
    return LawDocument(E=law.irreducible, a=law.a, b=law.b, ln_c=law.ln_c, half95=law.half95, slope=law.slope)


def _robust(answer: Answer) -> RobustDocument:
    line, largest = answer.measured.line, answer.measured.usable[-1]
    return RobustDocument(
        word=answer.word,
        at_largest=answer.at_largest,
        middle=None if line is None else _estimate(line.middle),
        largest=None if line is None else _estimate(line.largest),
        ln_c=largest.ln_c,
        half95=largest.half_width(),
    )


def _estimate(value: Estimate) -> EstimateDocument:
    return EstimateDocument(estimate=value.estimate, half95=value.half95, half90=value.half_width(0.9))


def _items(outcome: ItemOutcome, *, judged: bool) -> ItemsDocument:
    found = outcome.difference
    return ItemsDocument(
        name=outcome.name,
        difference=found.difference,
        se=found.se,
        df=found.df,
        p_value=found.p_value if judged else None,
        questions=outcome.questions,
        clusters=outcome.clusters,
        accuracy=_accuracies(outcome.accuracy),
    )


def _accuracies(sides: tuple[Accuracy, Accuracy] | None) -> AccuraciesDocument | None:
    if sides is None:
        return None
    own, other = (AccuracyDocument(mean=side.mean, sd=side.sd) for side in sides)
    return AccuraciesDocument(baseline=own, variant=other)


def _prediction(value: Prediction | None) -> PredictionDocument | None:
    return None if value is None else PredictionDocument(estimate=value.estimate, half95=value.half95)
