"""Verdicts of worlds whose truth is known, against formulas of their own, and from every source of runs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import zoo
from scipy import optimize, stats
from synthetic_runs import write_run

from zoo.ablate.scale.document import document
from zoo.ablate.scale.factors import estimated, factor, factor_text
from zoo.ablate.scale.items import ItemScores
from zoo.ablate.scale.line import Estimate
from zoo.ablate.scale.looks import Looks, adjusted_p, anytime_p, critical_values
from zoo.ablate.scale.measure import measure
from zoo.ablate.scale.presentation import notes, sentences, tables
from zoo.ablate.scale.robust import with_less_weight_on_outliers
from zoo.ablate.scale.runs import FinishedRun, RunTable, check_runs, parse_count, read_runs
from zoo.ablate.scale.sources import LoggerExport, read_table
from zoo.ablate.scale.speedup import size_speedup
from zoo.ablate.scale.tuned import halved, tuned_sizes
from zoo.ablate.scale.tuning import Parabola, tuning_gap
from zoo.ablate.scale.verdict import ScaleVerdict, judge
from zoo.ablate.table import Column, Table
from zoo.report.ladder import write_ladder
from zoo.report.latex import tables_latex
from zoo.utils.errors import DataError

ROOT = Path(__file__).parents[1]
SIZES = (1e6, 2e6, 4e6, 8e6, 16e6)
BUDGETS = (4e6, 8e6, 16e6)


def loss(size: float, tokens: float) -> float:
    """The baseline's, by a law."""
    return float(0.45 + 0.25 * (size / 1e6) ** -0.3 + 0.8 * (tokens / 1e6) ** -0.3)


def world(
    factors: Sequence[float],
    tau: float = 0.0,
    seeds: int = 3,
    sizes: Sequence[float] = SIZES,
    budgets: Sequence[float] = BUDGETS,
    **fields: Any,
) -> list[FinishedRun]:
    """Runs of a and b, which is so many times faster at each size; a seed is worth tau in ln tokens."""
    random = np.random.default_rng(7)
    return [
        FinishedRun(name, n, t, s, loss(n, t * (c if name == "b" else 1) * math.exp(noise)), **fields)
        for n, c in zip(sizes, factors, strict=True)
        for name in ("a", "b")
        for t in budgets
        for s in range(seeds)
        for noise in [tau * random.standard_normal()]
    ]


def test_sizes_are_paired_with_the_nearest_ones() -> None:
    """The baseline has one size more; an equally good variant a little above each of the others is equal."""
    ours = [run for run in world([1.0] * 5, sizes=(1e6, 1.2e6, 1.44e6, 1.73e6, 2.07e6)) if run.variant == "a"]
    theirs = [run for run in world([1.0] * 4, sizes=(1.21e6, 1.45e6, 1.745e6, 2.09e6)) if run.variant == "b"]
    pairs = judge(RunTable((*ours, *theirs)), "a")["b"].measured.pairs
    sizes = {size: pair.variant.compared[0].size for size, pair in pairs.items()}
    assert sizes == {1.2e6: 1.21e6, 1.44e6: 1.45e6, 1.73e6: 1.745e6, 2.07e6: 2.09e6}


def test_what_trained_the_sides_is_compared(tmp_path: Path) -> None:
    runs = world([1.2] * 5, tau=0.02)
    making = {"a": ("c0ffee", "X", "processor"), "b": ("decade", "X", "")}
    lines = csv_of(tmp_path / "runs.csv", runs).read_text().splitlines()
    rows = [",".join((line, *making[run.variant])) for line, run in zip(lines[1:], runs, strict=True)]
    header = f"{lines[0]},commit,machine,bfloat16_product"
    (tmp_path / "runs.csv").write_text("\n".join([header, *rows]) + "\n")
    warnings = judge(read_table([tmp_path / "runs.csv"]), "a")["b"].warnings
    assert [w for w in warnings if "trained" in w or "bfloat16" in w] == [
        "the sides were trained by different commits at 1M, 2M, 4M, 8M, 16M: c0ffee, decade"
    ]


@pytest.mark.parametrize("masked", ["mlm", "causal", ""])
def test_sides_of_different_objectives_are_told(tmp_path: Path, masked: str) -> None:
    """The loss of masked tokens is another number than that of the next token; "" is not known."""
    objectives = {"a": "causal", "b": masked}
    runs = [replace(run, objective=objectives[run.variant]) for run in world([1.2] * 5, tau=0.02)]
    table = read_table([csv_of(tmp_path / "runs.csv", runs, "objective")])
    told = [w for w in judge(table, "a")["b"].warnings if "objective" in w]
    expected = "the sides differ in what they predict, their objective, at 1M, 2M, 4M, 8M, 16M"
    assert told == ([expected] if masked == "mlm" else [])


def csv_of(file: Path, runs: Sequence[FinishedRun], *columns: str) -> Path:
    """A table of runs with these columns beside the required ones."""
    names = ("variant", "size", "tokens", "seed", "loss", *columns)
    lines = [
        ",".join(repr(v) if isinstance(v := getattr(r, n), float) else str(v) for n in names) for r in runs
    ]
    file.write_text("\n".join([",".join(names), *lines]) + "\n")
    return file


def test_the_truth_of_worlds_without_noise(tmp_path: Path) -> None:
    """Constant, shrinking, growing and slower: ln c of every size and of the line, from a CSV."""
    for factors in ([1.0] * 5, [1.5] * 5, [1.5, 1.4, 1.3, 1.2, 1.1], [1.1, 1.2, 1.3, 1.4, 1.5], [0.7] * 5):
        file = csv_of(tmp_path / "runs.csv", world(factors))
        found = judge(read_runs(file), "a")["b"]
        assert [size.ln_c for size in found.measured.sizes] == pytest.approx(np.log(factors), abs=0.003)
        assert found.line is not None
        x = np.log(SIZES) - np.log(SIZES).mean()
        assert found.line.middle.estimate == pytest.approx(np.log(factors).mean(), abs=0.003)
        assert found.line.slope.estimate == pytest.approx(x @ np.log(factors) / (x @ x), abs=0.002)
        words = {1.0: "undecided", 1.5: "faster", 1.1: "faster", 0.7: "slower"}
        assert found.word == words[factors[0]]


def shifted(runs: Sequence[FinishedRun], size: float, without: int | None = None) -> float:
    """ln c of a size by another minimiser, over all five parameters at once."""
    kept = [run for run in runs if run.size == size and run.seed != without]
    u, y, side = [], [], []
    for name in ("a", "b"):
        for t in BUDGETS:
            u.append(math.log(t) - np.log(BUDGETS).mean())
            y.append(np.mean([math.log(r.loss) for r in kept if (r.variant, r.tokens) == (name, t)]))
            side.append(float(name == "b"))
    columns = np.array([u, y, side])

    def residuals(p: Any) -> Any:
        z = columns[0] + columns[2] * (p[3] + p[4] * columns[0])
        return columns[1] - (p[0] + p[1] * z + p[2] * z**2)

    start = [columns[1].mean(), -0.2, 0.02, 0.2, 0.0]
    return float(optimize.least_squares(residuals, start, xtol=1e-14, ftol=1e-14, gtol=1e-14).x[3])


def test_estimates_and_intervals_by_other_formulas() -> None:
    """Shift, jackknife, line and the wider of both intervals, written down once more."""
    runs = world([1.4, 1.35, 1.3, 1.25, 1.2], tau=0.05, seeds=4)
    found = judge(RunTable(tuple(runs)), "a")["b"]
    theta = np.array([shifted(runs, n) for n in SIZES])
    left_out = np.array([[shifted(runs, n, s) for s in range(4)] for n in SIZES])
    variance = 3 / 4 * ((left_out - left_out.mean(1, keepdims=True)) ** 2).sum(1)
    assert [size.ln_c for size in found.measured.sizes] == pytest.approx(theta, abs=1e-6)
    assert [size.se for size in found.measured.sizes] == pytest.approx(np.sqrt(variance), abs=1e-5)
    x = np.log(SIZES)
    fit = stats.linregress(x, theta)
    rest = theta - fit.intercept - fit.slope * x
    scatter = rest @ rest / 3
    one = 4 * variance  # of one seed
    pooled = np.array([(3 * one.sum() - 3 * v) / 12 for v in one])
    of_size = (3 * one + 3 * pooled) / 6 / 4
    assert found.line is not None
    for value, weights in (
        (found.line.middle, np.full(5, 0.2)),
        (found.line.largest, 0.2 + (x[-1] - x.mean()) * (x - x.mean()) / ((x - x.mean()) ** 2).sum()),
        (found.line.slope, (x - x.mean()) / ((x - x.mean()) ** 2).sum()),
    ):
        parts = weights**2 * of_size
        df = parts.sum() ** 2 / (parts**2 / 6).sum()
        halves = [
            stats.t.ppf(0.975, 3) * math.sqrt(scatter * weights @ weights),
            stats.t.ppf(0.975, df) * math.sqrt(parts.sum()),
        ]
        assert value.estimate == pytest.approx(weights @ theta, abs=1e-6)
        assert value.half95 == pytest.approx(max(halves), rel=1e-3)


def test_one_size_is_judged_with_what_tuning_adds() -> None:
    """The interval that is told holds the simulated error of tuning, and so does what could be found."""
    runs = world([1.02], tau=0.05, seeds=6, sizes=[1e6], rate=3e-3)
    valley = {1e-3: 0.02, 2e-3: 0.0, 4e-3: 0.0, 8e-3: 0.02}
    tuning = [
        FinishedRun(name, 1e6, 8e6, 9, loss(1e6, 8e6) + more * (1 + 0.1 * rate), rate)
        for name in ("a", "b")
        for rate, more in valley.items()
    ]
    found = judge(RunTable((*runs, *tuning)), "a")["b"]
    size, gap = found.measured.usable[0], found.measured.gap
    assert gap is not None
    assert size.se is not None
    half = stats.t.ppf(0.975, 5) * math.hypot(size.se, gap)
    assert found.measured.half_alone() == pytest.approx(half)
    assert found.word == "undecided"
    shown = math.exp(max(half, 3 * gap) + stats.t.ppf(0.8, 5) * math.hypot(size.se, gap))
    assert found.detectable == pytest.approx(shown)
    (row,) = tables({"b": found}, "a")[0].rows
    largest = dict(zip([c.title for c in tables({"b": found}, "a")[0].columns], row, strict=True))["largest"]
    assert largest[2] == pytest.approx(math.exp(size.ln_c + half))


def test_the_error_of_a_random_search_follows_its_points_near_the_best() -> None:
    """Where the optimum lies between the points is drawn over their distance there, wherever others lie."""
    parabola = Parabola(math.log(4e-3), 2.0, 0.1)

    def error(*rates: float) -> float:
        return tuning_gap(parabola, rates, sd=0.0, seeds=1, per_token=1.0, interpolated=False, studies=2000)

    even = error(1e-3, 2e-3, 4e-3, 8e-3, 16e-3)
    assert error(1e-3, 1.01e-3, 2e-3, 4e-3, 8e-3, 16e-3) == pytest.approx(even, rel=0.05)
    # A regret of .1 u^2 with u uniform between -h and h, half a step: its variance is .01 h^4 4 / 45.
    h = math.log(2) / 2
    assert even == pytest.approx(0.1 * h**2 * math.sqrt(4 / 45) * math.sqrt(2), rel=0.05)


def test_rates_too_close_together_have_no_parabola() -> None:
    """The vertex of a parabola through them may have a loss below 0: the error of tuning is not known."""
    runs = [
        *world([1.3], 0.01, 3, [1e6], rate=4.05e-3, tuning=False),
        *(
            FinishedRun(name, 1e6, 8e6, 100, loss(1e6, 8e6) + more, rate, tuning=True)
            for name in ("a", "b")
            for rate, more in ((1e-3, 1.0), (4e-3, 0.0), (4.1e-3, 0.5))
        ),
    ]
    measured = judge(RunTable(tuple(runs)), "a")["b"].measured
    (pair,) = measured.pairs.values()
    assert pair.baseline.parabola is not None
    assert (pair.baseline.parabola.loss < 0, measured.gap) == (True, None)


def test_a_computed_rate_may_be_one_that_was_tried() -> None:
    """Rates of a ladder have three digits, so that a vertex may be the best point of its grid.

    The error of tuning is the same then. A table from elsewhere may be of the best points of grids.
    """
    tried = [
        FinishedRun(name, 1e6, 8e6, 9, loss(1e6, 8e6) + 0.1 * k**2, 2e-3 * 2**k, tuning=True)
        for name in ("a", "b")
        for k in (-2, -1, 0, 1, 2)
    ]

    def judged(rate: float, by_parabola: bool) -> ScaleVerdict:
        runs = world([1.05], tau=0.02, seeds=6, sizes=[1e6], rate=rate, tuning=False)
        return judge(RunTable((*runs, *tried), by_parabola=by_parabola), "a")["b"]

    one, other, elsewhere = (
        judged(*case).measured for case in ((2e-3, True), (2.01e-3, True), (2e-3, False))
    )
    assert all(side.interpolated for side in one.pairs[1e6].sides)
    assert one.gap == pytest.approx(other.gap, rel=1e-6)
    assert not any(side.interpolated for side in elsewhere.pairs[1e6].sides)
    assert one.gap is not None and elsewhere.gap is not None and elsewhere.gap > 2 * one.gap
    (side, _), lost = one.pairs[1e6].sides, {1e-3: math.inf, 2e-3: 1.0, 4e-3: 1.5}
    assert not replace(side, tried=lost).interpolated  # there is no parabola beside a run that diverged


def test_seeds_of_the_tuning_may_be_those_of_the_comparison() -> None:
    """Where a sweep says which runs chose the rate, the others of the same seed and budget are compared."""
    compared = world([1.3], seeds=3, sizes=[1e6], rate=3.1e-3, tuning=False)
    tried = [
        FinishedRun(name, 1e6, 8e6, 0, loss(1e6, 8e6) + more, rate, tuning=True)
        for name in ("a", "b")
        for rate, more in ((1e-3, 0.3), (2e-3, 0.1), (4e-3, 0.09), (8e-3, 0.3))
    ]
    side = tuned_sizes([run for run in (*compared, *tried) if run.variant == "b"])[1e6]
    assert list(side.tried) == [1e-3, 2e-3, 4e-3, 8e-3]
    assert side.interpolated
    assert not side.reused
    assert len(side.compared) == 9
    unknown = [replace(run, tuning=None) for run in (*compared, *tried) if run.variant == "b"]
    assert len(tuned_sizes(unknown)[1e6].compared) == 8


def test_items_are_compared_at_a_common_budget() -> None:
    """The baseline's longer run, which one budget of the variant asks for, is no match for it."""

    def runs(common: bool) -> list[FinishedRun]:
        kept = []
        for run in world([1.2], tau=0.02, sizes=[1e6]):
            score = run.tokens / 4e6 + 0.1 * run.seed
            longest = run.tokens == 16e6
            if run.variant == "b" and longest:
                continue
            items = ItemScores(tuple(score + 0.01 * q * (run.seed + 1) for q in range(4)))
            asked = longest if run.variant == "a" and not common else True
            kept.append(replace(run, outcomes={"items": items if asked else None}))
        return kept

    judged = judge(RunTable(tuple(runs(True))), "a")
    found = judged["b"].measured.items
    assert found is not None
    assert found.difference == pytest.approx(0.0)  # both at 8M
    half = found.half_width()
    told = f"+0.000 ({-half:+.3f} to {half:+.3f})"
    assert told in tables(judged, "a")[0].texts[0]
    other = judge(RunTable(tuple(runs(False))), "a")
    assert other["b"].measured.items is None
    assert any("two questions of both sides" in warning for warning in other["b"].warnings)
    assert "items" not in [column.title for column in tables(other, "a")[0].columns]


def test_the_sentence_has_the_scores_of_items() -> None:
    runs = tuple(
        replace(
            run, outcomes={"items": ItemScores(tuple(0.1 * q + 0.01 * run.seed + better for q in range(5)))}
        )
        for run in world([1.5] * 5, tau=0.02)
        for better in [0.3 * (run.variant == "b")]
    )
    judged = judge(RunTable(runs), "a")
    assert "items" in judged["b"].claims
    (sentence,) = sentences(judged, "a", None)
    assert " Items: +0.300 (" in sentence
    assert sentence.endswith(" at 16M.")


def test_one_seed_at_one_size_has_no_interval() -> None:
    found = judge(RunTable(tuple(world([1.2], seeds=1, sizes=[1e6]))), "a")
    assert tables(found, "a")[0].texts[0][3] == "1.20 x"
    assert any("neither an interval nor a word" in warning for warning in found["b"].warnings)


def test_a_note_names_its_variant_once() -> None:
    runs = [replace(run, rate=1e-3) for run in world([1.2] * 5, tau=0.03)]
    told = notes(judge(RunTable(tuple(runs)), "a"))
    sizes = "1M, 2M, 4M, 8M, 16M"
    assert f"b: the rate is not tuned in this table, at {sizes}" in told


def test_intervals_beyond_all_numbers(tmp_path: Path) -> None:
    """Two seeds of a loss that hardly falls: the ends are far away, and the page can be written."""
    assert factor_text(factor(0.5, 800.0)) == "1.65 x (0.00-inf)"

    def flat(run: FinishedRun) -> FinishedRun:
        apart = 0.01 * (1 - 2 * run.seed) if run.variant == "b" else 0.0
        return replace(run, loss=(2 + 1e-4 * run.loss) * math.exp(apart))

    for sizes in (SIZES[:1], SIZES):
        runs = tuple(flat(run) for run in world([1.0] * len(sizes), seeds=2, sizes=sizes))
        found = judge(RunTable(runs), "a", margin=1.1)
        assert found["b"].word == "undecided"
        assert (found["b"].detectable or 0) > 1e20
        plain = document(found, "a", margin=1.1, alpha=0.05).model_dump_json()
        assert "NaN" not in plain
        assert "Infinity" not in plain
        assert sentences(found, "a", 1.1)
        assert write_ladder(found, "a", tmp_path, margin=1.1, alpha=0.05, title="wide").exists()


def test_an_error_that_is_too_small_to_be_simulated_is_not_spent() -> None:
    values = critical_values(5, 1e-8, 100_000)
    assert values[0] == math.inf
    assert adjusted_p(1e-12, math.inf, 4, 1e-8) == 1.0
    table = RunTable(tuple(world([1.5], tau=0.01, seeds=4, sizes=[1e6])))
    with pytest.raises(DataError, match="max_seeds: value 1000: expected 3 to 30 seeds"):
        judge(table, "a", looks=Looks(max_seeds=1000))


def test_a_check_has_an_error_of_its_own() -> None:
    """The p-value of the planted copy lies between half of 5 % and 5 %: a check does not halve its share."""
    runs = read_runs(ROOT / "docs/results/ladder-check-long.csv").runs
    line = judge(RunTable(runs), "base")["base planted"].line
    assert line is not None
    middle = line.middle
    assert 0.025 < 2 * stats.t.sf(abs(middle.estimate / middle.scatter), middle.df_scatter) < 0.05
    for name, word in {"base again": "faster", "a method": "undecided"}.items():
        renamed = [replace(run, variant=name) if run.variant == "base again" else run for run in runs]
        assert judge(RunTable(tuple(renamed)), "base")["base planted"].word == word


@pytest.mark.parametrize("collapse", (0.3, 0.0))
def test_nothing_is_predicted_across_a_size_that_speaks_against_it(collapse: float) -> None:
    """The factor is 1.3 at four sizes; at the largest the variant is far behind, or has diverged."""
    runs = world([1.3, 1.3, 1.3, 1.3, collapse or 1.3], tau=0.01)
    last = max(run.size for run in runs)
    if not collapse:
        runs = [
            replace(run, loss=math.inf) if run.variant == "b" and run.size == last else run for run in runs
        ]
    found = judge(RunTable(tuple(runs)), "a")["b"]
    assert found.word == "faster" and found.predicted is None and found.trend == "trend open"
    reason = "losses hardly overlap: the factor is less than" if collapse else "9 runs of b diverged"
    assert f"Not judged, above these sizes: 16M, where {reason}" in sentences({"b": found}, "a", None)[0]
    held = judge(RunTable(tuple(run for run in runs if run.size < last)), "a")["b"]
    assert held.predicted is not None and "Not judged" not in sentences({"b": held}, "a", None)[0]


def test_the_side_that_diverged_is_named() -> None:
    runs = world([1.3], sizes=SIZES[:1])
    lost = [replace(run, loss=math.inf) if run.variant == "a" and run.seed == 0 else run for run in runs]
    found = judge(RunTable(tuple(lost)), "a")["b"]
    assert [size.reason for size in found.measured.left_out] == ["3 runs of the baseline diverged"]
    every = judge(RunTable(tuple(replace(run, loss=math.inf) for run in runs)), "a")["b"]
    assert [size.reason for size in every.measured.left_out] == [
        "9 runs of the baseline and 9 runs of b diverged"
    ]
    assert not any("all seeds have the same losses" in warning for warning in every.warnings)


def test_budgets_too_close_together_leave_no_factor_to_tell() -> None:
    """1.22 x between the budgets is less than the half e-fold that both sides must share, at any factor."""
    found = judge(RunTable(tuple(world([1.3] * 5, tau=0.01, budgets=(4.5e6, 5e6, 5.5e6)))), "a")
    assert found["b"].word == "not comparable"
    (reason,) = {size.reason for size in found["b"].measured.left_out}
    assert (
        reason.startswith("the budgets are too close together")
        and "expected a longest one of 1.65 x" in reason
    )
    assert not any(" than 0." in text or "overlap" in text for text in sentences(found, "a", None))
    apart = judge(RunTable(tuple(world([1.3] * 5, tau=0.01, budgets=(4e6, 5e6, 7e6)))), "a")["b"]
    assert not any("too close" in size.reason for size in apart.measured.left_out)


def test_a_variant_with_the_losses_of_the_baseline_is_told() -> None:
    """The same rows under two names, or a setting that changes nothing: equal, but no two methods."""
    runs = [run for run in world([1.0] * 4, tau=0.05, sizes=SIZES[:4]) if run.variant == "a"]
    twice = [*runs, *(replace(run, variant="b") for run in runs)]
    found = judge(RunTable(tuple(twice)), "a", margin=1.05)["b"]
    words = "every loss is that of the baseline with the same seed and budget, at 1M, 2M, 4M, 8M"
    assert found.word == "equal" and any(words in warning for warning in found.warnings)
    once = judge(RunTable((*twice[:-1], replace(twice[-1], loss=1.5))), "a", margin=1.05)["b"]
    assert any("at 1M, 2M, 4M:" in warning for warning in once.warnings)


def test_seeds_that_lack_a_budget_are_a_doubt() -> None:
    runs = world([1.3], tau=0.01, sizes=SIZES[:1])
    words = "some seeds lack a budget"
    assert not any(words in warning for warning in judge(RunTable(tuple(runs)), "a")["b"].warnings)
    one_long = RunTable(tuple(run for run in runs if run.tokens < max(BUDGETS) or run.seed == 0))
    assert any(words in warning for warning in judge(one_long, "a")["b"].warnings)


@pytest.mark.parametrize(
    "numbers, counted",
    [((3, 3, 1), 1), ((3, 1, 1), 1), ((5, 2, 2), 2), ((10, 10, 2), 4), ((3, 3, 2), 3), ((3, 3, 3), 3)],
)
def test_equal_sides_with_few_seeds_at_some_budgets_are_rarely_told_apart(
    numbers: tuple[int, ...], counted: int
) -> None:
    """Not all seeds of any budget count; a budget with one seed does not show its noise."""
    random, alarms = np.random.default_rng(0), 0
    for _ in range(60):
        sides = [
            {
                (tokens, seed): loss(1e6, tokens * math.exp(0.05 * random.standard_normal()))
                for tokens, seeds in zip(BUDGETS, numbers, strict=True)
                for seed in range(seeds)
            }
            for _ in "ab"
        ]
        size = size_speedup(1e6, *sides)
        assert (size.seeds, size.se is None) == (counted, counted == 1)
        alarms += size.p_value is not None and size.p_value <= 0.05
    assert alarms <= 7  # beyond .05 of 60 by 2.4 standard errors
    runs = [
        FinishedRun(name, 1e6, tokens, seed, value)
        for name, side in zip("ab", sides, strict=True)
        for (tokens, seed), value in side.items()
    ]
    found = judge(RunTable(tuple(runs)), "a")["b"]
    told = "a budget with one seed at every size: the seeds' noise is not known, there is neither"
    assert any(told in warning for warning in found.warnings) == (counted == 1)


def test_flops_of_one_side_alone_compare_nothing() -> None:
    """Then sizes are compared, and not parameters of one side with FLOPs of the other."""
    runs = [replace(run, flops=6 * run.size * run.tokens) for run in world([1.3] * 5)]
    ours = [replace(run, flops=None) if run.variant == "b" else run for run in runs]
    for known in (runs, ours):
        larger = [replace(run, size=1.05 * run.size) if run.variant == "b" else run for run in known]
        found = judge(RunTable(tuple(larger)), "a")["b"]
        assert found.word == "faster" and not found.measured.left_out
        told = re.findall(r"differ by ([\d.]+%)", " ".join(found.warnings))
        assert told == ["5.0%"], found.warnings


def test_the_declared_seeds_bind_both_sides() -> None:
    runs = world([1.3], tau=0.01, seeds=6, sizes=SIZES[:1])
    few = RunTable(tuple(run for run in runs if run.variant == "b" or run.seed < 3))
    with pytest.raises(DataError, match="b: 6 seeds of a side; the declared maximum is 5"):
        judge(few, "a", looks=Looks(max_seeds=5))


def test_rates_of_one_side_alone() -> None:
    runs = [replace(run, rate=1e-3) if run.variant == "b" else run for run in world([1.3] * 5, tau=0.01)]
    warnings = judge(RunTable(tuple(runs)), "a")["b"].warnings
    assert any("no learning rates of the baseline" in warning for warning in warnings)
    assert not any("tuned unequally" in warning for warning in warnings), warnings


def test_a_count_is_the_number_that_it_names(tmp_path: Path) -> None:
    assert parse_count("4.1M") == 4_100_000 and parse_count("8.2m") == 8_200_000 and parse_count("7") == 7


def test_an_export_with_several_rows_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        f"{r.variant}-{r.seed},{r.variant},{r.size},{r.tokens},{r.seed},{r.loss!r}" for r in world([1.3] * 5)
    ]
    file = tmp_path / "export.csv"
    file.write_text("\n".join(["Name,optimizer,size,tokens,seed,loss", *rows]))
    columns = "variant=optimizer,run=Name"
    zoo("verdict", file, "--baseline", "a", "--columns", columns, status=2)
    assert (
        "Name: value 'a-0' stands in line 2 already: a ladder is not read inside" in capsys.readouterr().err
    )


def test_unequal_numbers_of_seeds() -> None:
    """Of two sides they are a doubt; an odd number has no equal halves, which is none."""
    runs = world([1.0] * 5, tau=0.01, seeds=5)
    words = "different numbers of seeds"
    fewer = RunTable(tuple(run for run in runs if run.variant == "a" or run.seed < 4))
    assert any(words in warning for warning in judge(fewer, "a")["b"].warnings)
    (check,) = judge(halved(RunTable(tuple(runs)), "a"), "a").values()
    assert not any(words in warning for warning in check.warnings)


def test_halves_of_the_baseline_are_not_called_untuned() -> None:
    """A tuning belongs to both, and is left out: the note tells what the comparison does not test."""
    runs = world([1.0] * 5, tau=0.01, seeds=4, rate=1e-3)
    (check,) = judge(halved(RunTable(tuple(runs)), "a"), "a").values()
    assert [warning for warning in check.warnings if "rate" in warning] == [
        "both halves have the rates of the baseline, so that the error of the tuning is no part of this "
        "comparison"
    ]


def test_the_looks_of_a_study_widen_its_intervals() -> None:
    """Section 5 of the design: mean +- crit_n s / sqrt(n); and one look at another level."""
    table = RunTable(tuple(world([1.3], tau=0.05, seeds=4, sizes=[1e6])))
    once = judge(table, "a")["b"]
    se = once.measured.usable[0].se
    assert se is not None
    assert once.measured.half_alone() == pytest.approx(stats.t.ppf(0.975, 3) * se)
    looked = judge(table, "a", looks=Looks(max_seeds=6))["b"]
    assert looked.measured.half_alone() == pytest.approx(5.28 * se, rel=0.03)
    assert looked.measured.half_alone(0.9) == looked.measured.half_alone()
    strict = judge(table, "a", alpha=1e-3)["b"]
    wanted = (stats.t.isf(5e-4, 3) + stats.t.ppf(0.8, 3)) * se
    assert strict.detectable == pytest.approx(math.exp(wanted))


def test_declared_sizes_widen_the_intervals_of_the_line() -> None:
    """Section 5 of the design: the critical values of the line's t in the place of Student's."""
    table, looks = RunTable(tuple(world([1.0] * 5, tau=0.03))), Looks(sizes=(*SIZES, 32e6, 64e6))
    once, looked = judge(table, "a")["b"], judge(table, "a", looks=looks)["b"]
    line, wider = once.measured.line, looked.measured.line
    assert line is not None and wider is not None and looked.measured.critical is not None
    assert looked.measured.critical == pytest.approx(5.0, rel=0.1)  # of the second of four looks
    widening = looked.measured.critical / stats.t.ppf(0.975, 3)
    for one, other in ((line.middle, wider.middle), (line.largest, wider.largest), (line.slope, wider.slope)):
        assert other.half95 == pytest.approx(one.half95 * widening)
        assert other.half_width(0.9) == other.half95 > one.half_width(0.9)
        assert other.p_value == one.p_value
    assert once.detectable is not None and looked.detectable is not None
    assert looked.detectable > once.detectable
    ends = [
        abs(line.largest.estimate) + half for half in (line.largest.half_width(0.9), wider.largest.half95)
    ]
    margin = math.exp(sum(ends) / 2)
    assert judge(table, "a", margin=margin)["b"].within_margin
    assert not judge(table, "a", margin=margin, looks=looks)["b"].within_margin


@pytest.mark.parametrize(
    ("looks", "seeds", "first"), [(Looks(max_seeds=6), 2, 3), (Looks(anytime=True), 3, 4)]
)
def test_before_the_first_look_at_seeds_there_is_no_word(looks: Looks, seeds: int, first: int) -> None:
    """Neither a word nor an interval, although the sides are equal within the margin by any t test."""
    runs = [
        *world([1.02], tau=0.01, seeds=seeds, sizes=[1e6], rate=2e-3),
        *(
            FinishedRun(side, 1e6, 8e6, 9, loss(1e6, 8e6) + 0.01 * abs(k - 2) ** 2, 5e-4 * 2**k)
            for side in "ab"
            for k in range(5)
        ),
    ]
    table = RunTable(tuple(runs))
    assert judge(table, "a", margin=2.0)["b"].word == "equal"
    early = judge(table, "a", margin=2.0, looks=looks)
    assert early["b"].word == "undecided"
    assert early["b"].warnings[0] == f"{seeds} seeds: the first look is after {first}: no word before"
    assert early["b"].measured.half_alone() is None
    assert early["b"].detectable is None
    assert sentences(early, "a", 2.0) == ["b: undecided against a."]
    largest = tables(early, "a")[0].texts[0][3]
    assert "inf" not in largest
    assert "(" not in largest


def test_the_looks_at_sizes_widen_the_intervals_of_the_costs() -> None:
    runs = tuple(
        replace(run, seconds=run.tokens * (1 + 0.01 * run.seed)) for run in world([1.2] * 5, tau=0.05)
    )
    table, looks = RunTable(runs), Looks(sizes=(*SIZES, 32e6, 64e6))
    once, looked = (judge(table, "a", looks=given)["b"] for given in (None, looks))
    (cost,), (wider,) = once.measured.costs, looked.measured.costs
    assert looked.line is not None
    assert wider.half95 > looked.line.largest.half95 > cost.half95
    assert wider.p_value > cost.p_value


def test_a_loss_that_stays_is_no_ladder() -> None:
    runs = tuple(replace(run, loss=2.0) for run in world([1.0] * 5))
    found = judge(RunTable(runs), "a")["b"]
    assert found.detectable is None
    assert {left.reason for left in found.measured.left_out} == {
        "the loss does not fall with more tokens, so that no speed-up can be read off it"
    }


@pytest.mark.parametrize("sizes", [SIZES, SIZES[2:3]])
@pytest.mark.parametrize("worse", [(0.05, 0.05, 0.4), (0.11, 0.01, 0.145), (0.0, 0.9, 2.2)])
def test_a_variant_that_is_worse_everywhere_is_not_faster(
    worse: tuple[float, ...], sizes: Sequence[float]
) -> None:
    """Where it hardly improves with more tokens, one curve for both sides turns around and rises.

    In the second case the variant's own loss falls with every budget.
    """
    more, random = dict(zip(BUDGETS, worse, strict=True)), np.random.default_rng(3)
    falling = dict(zip(BUDGETS, (3.30, 3.12, 2.98), strict=True))
    runs = [
        replace(run, loss=falling[run.tokens] + more[run.tokens] * (run.variant == "b") + noise)
        for run in world([1.0] * len(sizes), sizes=sizes)
        for noise in [0.002 * random.standard_normal()]
    ]
    for baseline, other in (("a", "b"), ("b", "a")):
        found = judge(RunTable(tuple(runs)), baseline, margin=1.05)[other]
        assert (found.word, len(found.measured.usable)) == ("undecided", 0)
        for left in found.measured.left_out:
            assert "does not fall with more tokens" in left.reason or "no falling curve" in left.reason


def test_equal_needs_the_largest_size() -> None:
    """A size that was left out because of its losses is the one that a reader would train."""
    runs = world([1.0] * 5, tau=0.01)
    assert judge(RunTable(tuple(runs)), "a", margin=1.05)["b"].word == "equal"

    def at_largest(run: FinishedRun) -> bool:
        return (run.variant, run.size) == ("b", SIZES[-1])

    for lost in (math.inf, 4.0):
        changed = tuple(replace(run, loss=lost) if at_largest(run) else run for run in runs)
        found = judge(RunTable(changed), "a", margin=1.05)
        assert found["b"].word == "undecided"
        assert "Not judged, above these sizes: 16M" in sentences(found, "a", 1.05)[0]


def test_a_level_that_no_look_reaches() -> None:
    """The error of a look is then too small to be simulated, and nothing may be said."""
    table = RunTable(tuple(world([1.3] * 5, tau=0.05)))
    found = judge(table, "a", margin=1.05, alpha=3e-7, looks=Looks(sizes=SIZES))["b"]
    assert (found.word, found.detectable) == ("undecided", None)
    assert found.line is not None and found.line.middle.half95 == math.inf
    assert any("no look at 5 sizes is possible at the level 3e-07" in text for text in found.warnings)


def test_an_interval_that_contains_1_has_its_own_reason() -> None:
    """At a level of .1 a word may differ from its interval of 95 % although no rate was tuned."""
    for ln_c in np.linspace(0.0, 0.2, 41):
        table = RunTable(tuple(world([math.exp(ln_c)], tau=0.05, sizes=SIZES[:1])))
        found = judge(table, "a", alpha=0.1)["b"]
        if found.word == "faster" and judge(table, "a")["b"].word == "undecided":
            assert found.measured.gap is None
            assert not any("includes the error of tuning" in text for text in found.warnings)
            assert any("a word may differ from its interval" in text for text in found.warnings)
            return
    raise AssertionError("no factor lies between the two levels")


def test_a_declared_size_that_was_left_out_is_no_look() -> None:
    """A size whose runs diverged does not end a study that goes on."""
    runs = world([1.5] * 5, tau=0.02)
    lost = [replace(run, loss=math.inf) if run.size == 2e6 else run for run in runs]
    declared = (*SIZES, 32e6)
    found = judge(RunTable(tuple(lost)), "a", looks=Looks(sizes=declared))["b"]
    assert len(found.measured.usable) == 4
    assert found.word == "faster"
    skipped = [run for run in runs if run.size != 2e6]
    with pytest.raises(DataError, match="are not the first of those declared"):
        judge(RunTable(tuple(skipped)), "a", looks=Looks(sizes=declared))


def test_a_run_that_stands_there_twice_was_read_inside(tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    rows = [f"a,1M,{t},0,{2 - i / 10},first" for i, t in enumerate((4e6, 8e6, 16e6))]
    file.write_text("\n".join(["variant,size,tokens,seed,loss,run", *rows]))
    with pytest.raises(DataError, match=r"runs.csv:3: run: value 'first' stands in line 2 already"):
        read_runs(file)


def folders(root: Path, seed_of_the_decay: int | None = None) -> list[Path]:
    """Run folders of two optimizers at four sizes, 20 to 80 steps of 64 tokens."""
    found = []
    for run in world([1.3] * 4, tau=0.01, seeds=2, sizes=SIZES[:4], budgets=(1280.0, 2560.0, 5120.0)):
        kind, steps = {"a": "adamw", "b": "lion"}[run.variant], round(run.tokens / 64)
        changes = [f"optimizer.type={kind}", "optimizer.lr=1e-3", f"train.steps={steps}"]
        if run.seed == seed_of_the_decay and kind == "adamw":
            changes.append("optimizer.weight_decay=0.5")
        found.append(
            write_run(
                root / f"{kind}-{run.size:.0f}-{steps}-s{run.seed}",
                [9.0] * (steps // 10) + [run.loss],
                seed=run.seed,
                overrides=changes,
                size={"parameters": round(run.size), "optimizer_bytes": 1},
            )
        )
    return found


def test_run_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Variants are named by the types in which they differ; seeds have the same settings."""
    zoo("verdict", *folders(tmp_path / "same"), "--baseline", "adamw", "--json")
    told = json.loads(capsys.readouterr().out)["variants"]["lion"]
    assert told["word"] == "faster"
    assert [size["params"] for size in told["sizes"]] == list(SIZES[:4])
    assert [size["ln_c"] for size in told["sizes"]] == pytest.approx([math.log(1.3)] * 4, abs=0.05)
    with pytest.raises(
        DataError, match=r"s1: optimizer.weight_decay: 0.5, and .* in .*s0: both would be seeds"
    ):
        read_table(folders(tmp_path / "mixed", seed_of_the_decay=1))


def test_the_command_of_every_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table of W&B's, with more columns than are read, and what programs are told."""
    file = tmp_path / "wandb.csv"
    rows = [
        f'"run {i}",finished,{r.variant},{r.size:.0f},{r.tokens:.0f},{r.seed},{r.loss!r},note'
        for i, r in enumerate(world([1.3] * 5, tau=0.02))
    ]
    file.write_text("\n".join(["Name,State,optimizer,params,tokens,seed,eval/loss,Notes", *rows]))
    columns = "variant=optimizer,size=params,loss=eval/loss"
    zoo("verdict", file, "--baseline", "a", "--columns", columns, "--json")
    told = json.loads(capsys.readouterr().out)["variants"]["b"]
    assert told["word"] == "faster"
    assert told["line"]["middle"]["estimate"] == pytest.approx(math.log(1.3), abs=0.03)
    # The baseline's even seeds are twice as fast as its odd ones: an alarm, for programs as well.
    split = [
        replace(r, loss=loss(r.size, r.tokens * (1 + r.seed % 2)))
        for r in world([1.0] * 5, tau=0.0, seeds=4)
        if r.variant == "a"
    ]
    noisy = [replace(r, loss=r.loss * (1 + 1e-4 * math.sin(9 * r.seed + r.tokens))) for r in split]
    alarm = csv_of(tmp_path / "aa.csv", noisy)
    for as_json in ([], ["--json"]):
        zoo("verdict", alarm, "--baseline", "a", "--aa", *as_json, status=1)
        assert "alarm: a again: the baseline differs from itself" in capsys.readouterr().err
    zoo("verdict", alarm, "--baseline", "a", "--aa", "--time", "5", status=2)
    assert "--time has no effect with --aa" in capsys.readouterr().err
    zoo("verdict", alarm, "--baseline", "a", "--time", "5", status=2)
    assert f"--time: {alarm}: expected the folder of a ladder" in capsys.readouterr().err
    zoo("verdict", file, "--baseline", "a", "--columns", f"{columns},loss=tokens", status=2)
    assert "loss is there twice" in capsys.readouterr().err


def test_event_files_of_several_folders(tmp_path: Path) -> None:
    """The folder that has the tag is found; two that have it are an error."""
    writers = pytest.importorskip("torch.utils.tensorboard")
    root = tmp_path / "a-1000000-s0"
    for folder, tag in (("train", "loss"), ("validation", "eval/loss")):
        with writers.SummaryWriter(str(root / folder)) as writer:
            for step, value in ((1, 3.0), (2, 2.0), (100, 1.5)):
                writer.add_scalar(tag, value, step)
    export = LoggerExport(pattern="{variant}-{size}-s{seed}", tag="eval/loss", tokens_per_step=10.0)
    (run,) = read_table([root], export).runs
    assert (run.variant, run.size, run.seed, run.tokens, run.loss) == ("a", 1e6, 0, 1000.0, 1.5)
    with pytest.raises(DataError, match="--tag accuracy: expected one of eval/loss, loss"):
        read_table([root], replace(export, tag="accuracy"))
    with pytest.raises(DataError, match="--tag: missing: expected one of eval/loss, loss"):
        read_table([root], replace(export, tag=None))
    with writers.SummaryWriter(str(root / "validation")) as writer:
        writer.add_scalar("eval/loss", 1.4, 100)  # the same step once more, as after a restart
    assert read_table([root], export).runs[0].loss == pytest.approx(1.4)
    with writers.SummaryWriter(str(root / "again")) as writer:
        writer.add_scalar("eval/loss", 1.0, 1)
    with pytest.raises(DataError, match="both have it; expected the folder of one run"):
        read_table([root], export)


def test_rows_of_latex_are_as_in_the_table() -> None:
    """A row that begins with a bracket would be an argument of the line break before, a sign a hyphen."""
    texts = ["[0.9 0.95]", "*", "50% & more_", "two\nlines"]
    texts += ["-0.07 (-0.1 to +0.2)", "1e-05 q1-70", "--alpha", "a|b"]
    table = Table("odd", "Odd", [Column("variant")], [[text] for text in texts], "note")
    lines = tables_latex([table]).splitlines()
    assert lines[lines.index(r"\midrule") + 1 : lines.index(r"\bottomrule")] == [
        r"{}[0.9 0.95] \\",
        r"{}* \\",
        r"50\% \& more\_ \\",
        r"two lines \\",
        r"$-$0.07 ($-$0.1 to +0.2) \\",
        r"1e-05 q1-70 \\",
        r"-{}-alpha \\",
        r"a\textbar{}b \\",
    ]


def several(factors: Sequence[float], names: str, **options: Any) -> RunTable:
    """The world of a and b, in which every variant has the runs of b with another noise."""
    runs = world(factors, **options)
    more = [
        replace(run, variant=name, loss=run.loss * (1 + 1e-3 * math.sin(9 * run.seed + run.tokens + i)))
        for i, name in enumerate(names)
        for run in runs
        if run.variant == "b"
    ]
    return RunTable((*runs, *more))


def test_a_variant_that_is_not_ready_keeps_its_share_of_the_error() -> None:
    """Of three sides of a ladder one is at four sizes: its word has a third of the error, as at the end."""
    looks = Looks(sizes=SIZES)
    runs = several([1.3] * 4, "cd", tau=0.2, sizes=SIZES[:4]).runs
    early = tuple(run for run in runs if run.variant in ("a", "b") or run.size < SIZES[3])
    alone = judge(RunTable(tuple(run for run in early if run.variant in ("a", "b"))), "a", looks=looks)["b"]
    found = judge(RunTable(early), "a", looks=looks)
    assert alone.line is not None and 0.05 / 3 < alone.line.middle.p_over_looks(0.05) < 0.05
    assert (alone.word, found["b"].word) == ("faster", "undecided")
    assert {verdict.word for verdict in found.values()} == {"undecided"}
    every = judge(RunTable(runs), "a", looks=looks)
    assert every["b"].word == "undecided"
    words = "3 variants share the error of 0.05"
    assert any(note.startswith(words) for note in notes(found))


def test_the_detectable_factor_is_that_at_which_the_claim_is_made() -> None:
    """For one of eight variants the interval of the sizes is the wider one, at 5 % that of the seeds."""
    value = Estimate(0.0, scatter=0.00876, df_scatter=3, seeds=0.01422, df_seeds=23.8)
    for alpha in (0.05, 0.01, 0.05 / 8):
        errors = [(value.scatter, 3), (value.seeds, 23.8)]
        critical, se, df = max((stats.t.isf(alpha / 2, df) * se, se, df) for se, df in errors)
        assert replace(value, estimate=critical).p_value == pytest.approx(alpha)
        assert value.detectable(alpha) == pytest.approx(math.exp(critical + stats.t.ppf(0.8, df) * se))


def test_what_several_variants_would_have_shown() -> None:
    """At the level at which a variant's chain starts; a check shares nothing, and no interval changes."""
    one, three = (several([1.0] * 5, names, tau=0.03) for names in ("", "cd"))
    alone, shared = judge(one, "a")["b"], judge(three, "a")
    assert alone.line is not None and shared["b"].line is not None
    assert shared["b"].line.middle == alone.line.middle
    se, df = alone.line.middle.binding
    for found, level in ((alone, 0.05), (shared["b"], 0.05 / 3)):
        wanted = (stats.t.isf(level / 2, df) + stats.t.ppf(0.8, df)) * se
        assert found.detectable == pytest.approx(math.exp(wanted))
    words = (
        "3 variants share the error of 0.05: the first claim on each is made at the level 0.0167, and every"
    )
    assert [note.startswith(words) for note in notes(shared)].count(True) == 1
    assert not any("share the error" in note for note in notes({"b": alone}))
    again = RunTable(
        tuple(replace(run, variant="a again") if run.variant == "c" else run for run in three.runs)
    )
    checked = judge(again, "a")
    assert not any("share the error" in warning for warning in checked["a again"].warnings)
    assert any("2 variants share the error" in warning for warning in checked["b"].warnings)
    plain = document(shared, "a", margin=None, alpha=0.05).variants["b"]
    assert plain.detectable == shared["b"].detectable and plain.warnings == shared["b"].warnings


@pytest.mark.parametrize("looks", (Looks(), Looks(max_seeds=8), Looks(anytime=True)))
def test_what_several_variants_would_have_shown_at_one_size(looks: Looks) -> None:
    """A difference as large as the half width of the claim is claimed, a smaller one is not."""
    table = several([1.0], "c", tau=0.05, seeds=6, sizes=[1e6])
    found = judge(table, "a", looks=looks)["b"]
    se = found.measured.usable[0].se
    assert se is not None and found.detectable is not None
    quantile = math.log(found.detectable) / se - stats.t.ppf(0.8, 5)
    alone = judge(several([1.0], "", tau=0.05, seeds=6, sizes=[1e6]), "a", looks=looks)["b"]
    assert alone.detectable is not None and found.detectable > alone.detectable

    def claimed(t: float) -> bool:
        if looks.anytime:
            return anytime_p(t, 6) <= 0.025
        p = float(2 * stats.t.sf(t, 5))
        return (adjusted_p(p, critical_values(8)[3], 5, 0.05) if looks.max_seeds else p) <= 0.025

    assert claimed(1.001 * quantile) and not claimed(0.999 * quantile)


def test_runs_at_other_rates_are_named_unless_they_are_a_tuning(tmp_path: Path) -> None:
    """Two seeds with rates of their own beside three of one rate; then a seed that has tried all of them."""
    runs = world([1.3] * 5, tau=0.01, seeds=5)
    odd = [
        replace(run, rate={3: 5e-4, 4: 2e-3}.get(run.seed if run.variant == "b" else 0, 1e-3)) for run in runs
    ]
    file = csv_of(tmp_path / "runs.csv", odd, "rate")
    judged = judge(read_runs(file), "a")
    (told,) = [warning for warning in judged["b"].warnings if "left out of the comparison" in warning]
    assert told.startswith("b: 30 runs are left out of the comparison, at 1M, 2M, 4M, 8M, 16M (")
    assert f"({file}:20, {file}:21, {file}:25, ...): the rate is 0.0005, 0.002, most runs have 0.001" in told
    assert told in notes(judged)
    by_budget = [replace(run, rate=1e-3 if run.tokens < 16e6 else 7e-4) for run in runs]
    twice = judge(RunTable(tuple(by_budget)), "a")["b"].warnings
    assert sum("left out of the comparison" in warning for warning in twice) == 2
    assert any(warning.startswith("the baseline: 25 runs are left out") for warning in twice)
    tried = [
        replace(run, seed=9, rate=rate, loss=run.loss + 0.1 * abs(math.log(rate / 1e-3)))
        for run in runs
        if run.seed == 0 and run.tokens == 8e6
        for rate in (5e-4, 1e-3, 2e-3)
    ]
    table = RunTable((*(replace(run, rate=1e-3) for run in runs), *tried))
    for tuning in (None, True):
        marked = [replace(run, tuning=tuning) if run.seed == 9 else run for run in table.runs]
        warnings = judge(RunTable(tuple(marked)), "a")["b"].warnings
        assert not any("left out of the comparison" in warning for warning in warnings)


@pytest.mark.parametrize("rates", ((2e-3,), (5e-4, 2e-3)))
def test_runs_at_other_rates_that_are_no_tuning_leave_the_size_as_it_is(rates: Sequence[float]) -> None:
    """One rate beside that of the comparison would be a border, two would show an error of tuning."""
    runs = [replace(run, rate=1e-3) for run in world([1.3], tau=0.01, seeds=4, sizes=[1e6])]
    odd = [
        replace(run, seed=7 + i, rate=rate, loss=1.01 * run.loss)
        for i, rate in enumerate(rates)
        for run in runs
        if run.seed == 0
    ]
    alone, beside = (judge(RunTable((*runs, *more)), "a", margin=2.0)["b"] for more in ((), odd))
    assert alone.word == beside.word == "faster"
    assert (beside.measured.sizes, beside.measured.gap) == (alone.measured.sizes, None)
    assert [side.tuning_runs for side in beside.measured.pairs[1e6].sides] == [0, 0]
    assert sum("left out of the comparison" in warning for warning in beside.warnings) == 2


@pytest.mark.parametrize("gain", (1.5, 1 / 1.5))
@pytest.mark.parametrize("cost", (0.5, 3.0))
def test_claims_have_a_direction(gain: float, cost: float) -> None:
    """Tokens, scores and seconds may each be better or worse; the JSON and the sentence say the same."""
    runs = tuple(
        replace(
            run,
            seconds=run.tokens * (cost if run.variant == "b" else 1.0),
            outcomes={"items": ItemScores(tuple(0.1 * q + 0.01 * run.seed - worse for q in range(5)))},
        )
        for run in world([gain] * 5, tau=0.02)
        for worse in [0.3 * (run.variant == "b")]
    )
    judged = judge(RunTable(runs), "a")
    found = document(judged, "a", margin=None, alpha=0.05).variants["b"]
    assert found.claims == ("middle", "largest", "items", "seconds") == tuple(found.directions)
    ours, (seconds,) = "better" if gain > 1 else "worse", judged["b"].measured.costs
    assert seconds.ln_c == pytest.approx(math.log(gain / cost), abs=0.05)
    faster = "better" if gain > cost else "worse"
    assert tuple(found.directions.values()) == (ours, ours, "worse", faster)
    assert found.word == ("faster" if gain > 1 else "slower")
    told = factor_text(factor(seconds.ln_c, seconds.half95))
    assert f" Seconds: {told} at 16M{', worse' if gain < cost else ''}." in found.sentence
    assert found.sentence.endswith("at 16M, worse.") and " Items: -0.300 (" in found.sentence


def test_a_claim_at_the_largest_size_against_that_in_the_middle() -> None:
    judged = judge(RunTable(tuple(world([2.0, 1.7, 1.4, 1.1, 0.8], tau=0.005))), "a")
    found = judged["b"]
    assert found.word == "faster" and not found.at_largest
    assert found.directions == {"middle": "better", "largest": "worse"}
    assert "fewer tokens; slower at 16M (0." in sentences(judged, "a", None)[0]
    assert tables(judged, "a")[0].texts[0][1] == "faster, slower at 16M"


def test_intervals_are_called_by_their_level(tmp_path: Path) -> None:
    """With looks they hold jointly with 1 - alpha; without looks they are 95 %, whatever the claims are."""
    runs = tuple(replace(run, seconds=run.tokens) for run in world([1.5] * 5, tau=0.02, sizes=SIZES))
    table, looks = RunTable(runs), Looks(sizes=(*SIZES, 32e6, 64e6))
    for alpha, level in ((0.05, "95 %"), (0.2, "80 %")):
        judged = judge(table, "a", alpha=alpha, looks=looks)
        found, line = judged["b"], judged["b"].line
        assert line is not None and found.measured.critical is not None
        middle = line.middle
        of_look = float(stats.t.sf(found.measured.critical, 3))
        halves = (
            middle.scatter * found.measured.critical,
            middle.seeds * stats.t.isf(of_look, middle.df_seeds),
        )
        assert middle.half95 == pytest.approx(max(halves))
        assert document(judged, "a", margin=None, alpha=alpha).variants["b"].level == 1 - alpha
        (told,) = sentences(judged, "a", None)
        every = tables(judged, "a")
        assert (" Intervals: 80 %, those of predictions and items 95 %." in told) == (alpha != 0.05)
        assert f"with {level} intervals" in every[0].note
        assert ("intervals" in [column.title for column in every[0].columns]) == (alpha != 0.05)
        write_ladder(judged, "a", tmp_path, margin=None, alpha=alpha, title="levels")
        page, csv = (tmp_path / "report.html").read_text(), (tmp_path / "report.csv").read_text()
        assert f"Line and band: across the sizes, {level}." in page
        assert ("Both predictions: 95 %." in page) == (alpha != 0.05)
        assert ("verdict,1,b,intervals,0.8" in csv) == (alpha != 0.05)
        assert level.replace("%", r"\%") + " intervals" in (tmp_path / "report.tex").read_text()
        assert not any("claims are made at the level" in warning for warning in found.warnings)
        (cost,) = found.measured.costs
        assert cost.half95 == pytest.approx(line.largest.half95)
        df, critical = line.largest.binding[1], cost.half95 / abs(cost.ln_c)
        assert cost.p_value == pytest.approx(2 * stats.t.sf(stats.t.isf(alpha / 2, df) / critical, df))
    plain = judge(table, "a", alpha=0.2)["b"]
    usual = judge(table, "a")["b"]
    assert plain.line is not None and usual.line is not None
    assert plain.line.middle.half95 == usual.line.middle.half95
    assert "with 95 % intervals" in tables({"b": plain}, "a")[0].note
    words = "claims are made at the level 0.2, but the intervals are those of 95 %"
    assert [words in warning for warning in plain.warnings].count(True) == 1
    assert not any("claims are made" in warning for warning in usual.warnings)


@pytest.mark.parametrize(("alpha", "level"), ((0.05, "95 %"), (0.01, "99 %"), (None, "90 %")))
def test_the_level_of_the_interval_of_equal(alpha: float | None, level: str) -> None:
    """With looks the interval within the margin is the joint one, not that of two one-sided tests at .05."""
    table, looks = RunTable(tuple(world([1.0] * 5, tau=0.01))), Looks(sizes=SIZES)
    judged = judge(table, "a", margin=1.5, alpha=alpha or 0.05, looks=looks if alpha else None)
    assert judged["b"].word == "equal"
    assert f" within 1.5 x ({level} interval " in sentences(judged, "a", 1.5)[0]


def test_levels_of_variants_that_differ() -> None:
    """Looks at seeds concern variants without a line; each variant has its level in the table."""
    runs = several([1.5] * 5, "c", tau=0.02, seeds=4).runs
    table = RunTable(tuple(run for run in runs if run.variant != "c" or run.size == SIZES[0]))
    judged = judge(table, "a", alpha=0.01, looks=Looks(max_seeds=6))
    first = tables(judged, "a")[0]
    assert "with 95 % (b), 99 % (c) intervals (95 % where predicted and of items)" in first.note
    assert [row[2] for row in first.texts] == ["95 %", "99 %"]


def test_a_size_above_the_only_one_judged_is_named() -> None:
    """Three sizes give no line; that the variant is out of reach at the fourth belongs to what is said."""
    runs = [
        replace(run, loss=run.loss / 3) if run.variant == "b" and run.size == 8e6 else run
        for run in world([1.3] * 4, tau=0.02, sizes=SIZES[:4])
    ]
    (told,) = sentences(judge(RunTable(tuple(runs)), "a"), "a", None)
    assert "At 4M, the only size judged" in told
    assert told.endswith(
        "Not judged, above this size: 8M, where losses hardly overlap: the factor is more than 2.43 x."
    )


def test_one_seed_without_a_line_has_no_interval() -> None:
    """Below four sizes nothing lends its noise to a size with one seed."""
    runs = world([1.2, 1.2], tau=0.02, sizes=SIZES[:2])
    for size, rest in (
        (SIZES[0], "there is no interval"),
        (SIZES[1], "the largest size, which is judged, has neither an interval nor a word"),
    ):
        table = RunTable(tuple(run for run in runs if run.seed == 0 or run.size != size))
        told = [w for w in judge(table, "a")["b"].warnings if w.startswith("one seed at")]
        assert told == [f"one seed at {size / 1e6:.0f}M: {rest}"]


def test_a_disagreement_that_is_not_seen_is_not_told() -> None:
    """Of two sides with the same losses only one has a trend, which takes up what the law does not fit."""
    ours = [run for run in world([1.0] * 5) if run.variant == "a"]
    bent = [
        replace(run, loss=run.loss + 0.02 * (run.size / 1e6) ** 0.15 / math.log(run.tokens / 1e6))
        for run in ours
    ]
    found = judge(RunTable((*bent, *(replace(run, variant="b") for run in bent))), "a")["b"]
    assert found.measured.law is not None
    assert 1e-3 < abs(found.measured.law.ln_c) < 0.005
    assert not any("law and line disagree" in warning for warning in found.warnings)


def with_rates(sizes: Sequence[float], *names: str) -> list[FinishedRun]:
    """Runs with three rates of a tuning seed, then three budgets and seeds at the best of them."""
    return [
        FinishedRun(name, n, t, s, loss(n, t) + 0.1 * math.log(rate / 1e-3) ** 2, rate)
        for name in names
        for n in sizes
        for t, s, rate in (
            *((BUDGETS[1], 9, rate) for rate in (5e-4, 1e-3, 2e-3)),
            *((t, s, 1e-3) for t in BUDGETS for s in range(3)),
        )
    ]


def test_the_baseline_has_its_rates_at_every_size_that_any_variant_has(tmp_path: Path) -> None:
    runs = (*with_rates(SIZES, "a", "w"), *with_rates(SIZES[:4], "v"))
    judged = judge(RunTable(runs), "a")
    (rates,) = (table for table in tables(dict(sorted(judged.items())), "a") if table.key == "tuning")
    assert [row[1] for row in rates.rows if row[0] == "a"] == list(SIZES)
    assert [row[1] for row in rates.rows if row[0] == "v"] == list(SIZES[:4])
    for count, named in ((5, True), (1, False)):
        table = RunTable(tuple(with_rates(SIZES[:count], "a", "w")))
        write_ladder(judge(table, "a"), "a", tmp_path, margin=None, alpha=0.05, title="rates")
        assert ("Last: that rate over the size" in (tmp_path / "report.md").read_text("utf-8")) == named


def test_sides_that_are_the_same_have_a_law_that_agrees() -> None:
    warnings = judge(RunTable(tuple(world([1.0] * 5))), "a")["b"].warnings
    assert not any("law and line disagree" in warning for warning in warnings)


@pytest.mark.parametrize("cost", ("flops", "seconds"))
def test_costs_of_one_side_alone_are_named(cost: str) -> None:
    runs = world([1.3] * 5, tau=0.02)

    def with_cost(run: FinishedRun) -> FinishedRun:
        changes: Any = {cost: run.tokens}
        return replace(run, **changes)

    for who, name in (("a", "the baseline"), ("b", "b")):
        known = [with_cost(run) if run.variant == who else run for run in runs]
        warnings = judge(RunTable(tuple(known)), "a")["b"].warnings
        assert f"{cost} at the largest size are known of {name} alone, and not compared" in warnings
    below = [run if run.variant == "b" and run.size == max(SIZES) else with_cost(run) for run in runs]
    warnings = judge(RunTable(tuple(below)), "a")["b"].warnings
    assert f"{cost} at the largest size are known of the baseline alone, and not compared" in warnings
    both = judge(RunTable(tuple(map(with_cost, runs))), "a")["b"].warnings
    assert not any("alone, and not compared" in warning for warning in both)


@pytest.mark.parametrize("text", ("", ",,", "1M,,2M"))
def test_sizes_that_declare_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    """A declaration that is empty by mistake would be a study with one look."""
    file = csv_of(tmp_path / "runs.csv", world([1.3] * 5, tau=0.02))
    zoo("verdict", file, "--baseline", "a", "--declared-sizes", text, status=2)
    assert "--declared-sizes: value '': expected numbers above 0" in capsys.readouterr().err


def test_one_run_under_several_seeds_has_no_noise() -> None:
    """At one size there is then no interval and no word; on a line the scatter of the sizes is left."""
    alone = judge(RunTable(tuple(world([1.3], sizes=[1e6]))), "a", margin=2.0)
    assert alone["b"].word == "undecided" and alone["b"].detectable is None
    assert tables(alone, "a")[0].texts[0][3] == "1.30 x"
    for found in (alone["b"], judge(RunTable(tuple(world([1.3] * 5))), "a")["b"]):
        copies = [warning for warning in found.warnings if "all seeds have the same losses" in warning]
        assert [warning.split(":")[0] for warning in copies] == ["the baseline", "b"]
    assert found.word == "faster"
    real = judge(RunTable(tuple(world([1.3], tau=0.02, sizes=[1e6]))), "a")["b"]
    assert not any("same losses" in warning for warning in real.warnings)


def test_a_run_under_two_of_three_seeds_is_named() -> None:
    """At one budget losses of four digits can agree by chance; at several they do not."""
    runs = [run for run in world([1.3] * 5, tau=0.02) if run.variant == "a" or run.seed != 2]
    copied = [replace(run, seed=2) for run in runs if run.variant == "b" and run.seed == 0]
    found = judge(RunTable((*runs, *copied)), "a")["b"]
    reason = "the noise of seeds is underestimated; expected runs that differ"
    named = [warning for warning in found.warnings if reason in warning]
    assert [warning.split(" have the same losses, at ")[0] for warning in named] == ["b: seeds 0, 2"]
    once = judge(RunTable(tuple(run for run in (*runs, *copied) if run.tokens == runs[0].tokens)), "a")["b"]
    partial = judge(RunTable((*runs, *copied[:1])), "a")["b"]
    for other in (once, partial):
        assert not any("have the same losses" in warning for warning in other.warnings)


def test_rates_that_differ_by_rounding_alone() -> None:
    runs = [replace(run, rate=4e-3 * (1 + 1e-9 * run.seed)) for run in world([1.3], tau=0.02, sizes=[1e6])]
    with pytest.raises(
        DataError, match=r"size 1e\+06: rates 0.004 and 0.004000000004 are the same to a million"
    ):
        check_runs(runs)
    check_runs([replace(run, rate=4e-3 * (1 + 1e-4 * (run.seed > 0))) for run in runs])


def test_a_copy_of_the_baseline_that_differs_is_an_alarm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The words of all variants rest on a baseline that is equal to itself, whoever made the runs."""
    for c, alarming in ((1.3, True), (1.0, False)):
        again = world([c] * 5, tau=0.02)
        runs = [replace(run, variant={"b": "a again"}.get(run.variant, "a")) for run in again]
        file, status = csv_of(tmp_path / "runs.csv", runs), int(alarming)
        zoo("verdict", file, "--baseline", "a", "--json", "--out", tmp_path / "page", status=status)
        told = capsys.readouterr()
        wanted = "a again: the baseline differs from itself"
        assert any(wanted in alarm for alarm in json.loads(told.out)["alarms"]) == alarming
        assert (f"alarm: {wanted}" in told.err) == alarming
        assert (wanted in (tmp_path / "page/report.md").read_text()) == alarming


def test_nothing_is_predicted_beyond_the_measured_range() -> None:
    """Four sizes within a factor of 1.2 say nothing of twice the largest one."""
    for sizes, told in (((1.0e6, 1.05e6, 1.1e6, 1.2e6), False), ((1.0e6, 1.3e6, 1.6e6, 2.0e6), True)):
        found = judge(RunTable(tuple(world([1.3] * 4, tau=0.02, sizes=sizes))), "a")
        assert (found["b"].predicted is not None) == told
        assert any("expect" in sentence for sentence in sentences(found, "a", None)) == told
        line = document(found, "a", margin=None, alpha=0.05).variants["b"].line
        assert line is not None
        assert (line.prediction_2x is not None) == told


def test_a_spike_that_decides_the_word_at_the_largest_size() -> None:
    """One spiked run of the largest size widens the mean's interval over 1; Huber's does not reach it."""
    runs = world([1.13] * 5, tau=0.02, seeds=4)
    spiked = [
        replace(run, loss=run.loss * 1.15, spikes=1)
        if (run.variant, run.size, run.tokens, run.seed) == ("b", SIZES[-1], BUDGETS[1], 0)
        else run
        for run in runs
    ]
    assert not [text for text in judge(RunTable(tuple(runs)), "a")["b"].warnings if "Huber" in text]
    found = judge(RunTable(tuple(spiked)), "a")
    line, robust = found["b"].line, document(found, "a", margin=None, alpha=0.05).variants["b"].robust
    assert line is not None
    assert robust is not None
    assert robust.largest is not None
    assert line.largest.estimate - line.largest.half95 < 0 < robust.largest.estimate - robust.largest.half95
    (warning,) = (text for text in found["b"].warnings if "Huber" in text)
    assert "faster, not shown at the largest size (" in warning
    assert f"{math.exp(robust.largest.estimate):.2f} x at the largest size) by Huber's estimate" in warning
    assert (robust.word, robust.at_largest, found["b"].at_largest) == ("faster", True, False)


def tuned_world(factor: float, tau: float = 0.01, seeds: int = 5) -> list[FinishedRun]:
    """One size, with the runs that chose both sides' rates from a grid a factor 2 apart."""
    return [
        *world([factor], tau, seeds, [1e6], rate=4e-3, tuning=False),
        *(
            FinishedRun(name, 1e6, 8e6, 100, loss(1e6, 8e6) + more, rate, tuning=True)
            for name in ("a", "b")
            for rate, more in ((2e-3, 0.02), (4e-3, 0.0), (8e-3, 0.02))
        ),
    ]


def test_a_comparison_at_another_rate_than_the_best_one_is_named() -> None:
    """A baseline that is trained at the second best of its rates needs more tokens by that alone."""
    runs = tuned_world(1.2)
    more = [replace(run, rate=1e-3, loss=run.loss + 0.05) for run in runs if run.tuning and run.rate == 2e-3]
    table = RunTable((*runs, *more))
    assert not [text for text in judge(table, "a")["b"].warnings if "lowest loss" in text]
    second = [replace(run, rate=2e-3) if run.variant == "a" and not run.tuning else run for run in table.runs]
    assert (
        "the baseline: another rate than that of the comparison had the lowest loss in the tuning, at 1M: "
        "0.002 instead of 0.004" in judge(RunTable(tuple(second)), "a")["b"].warnings
    )


@pytest.mark.parametrize(
    ("factor", "margin", "words"), [(1.2, None, ("undecided", "faster")), (1.0, 1.1, ("undecided", "equal"))]
)
def test_a_spike_that_decides_the_word_at_one_size(
    factor: float, margin: float | None, words: tuple[str, str], tmp_path: Path
) -> None:
    """One spiked run takes the word away from a side that has it by Huber's estimate: faster, or equal."""
    runs = tuned_world(factor)
    found = judge(RunTable(tuple(runs)), "a", margin=margin)["b"]
    assert (found.word, found.robust and found.robust.word) == (words[1], words[1])
    assert not [text for text in found.warnings if "Huber" in text]
    key = ("b", BUDGETS[1], 1)
    spiked = [
        replace(run, loss=run.loss * 1.1)
        if (run.variant, run.tokens, run.seed) == key and not run.tuning
        else run
        for run in runs
    ]
    verdicts = judge(RunTable(tuple(spiked)), "a", margin=margin)
    found, robust = verdicts["b"], document(verdicts, "a", margin=margin, alpha=0.05).variants["b"].robust
    assert robust is not None
    assert (found.word, robust.word) == words
    assert robust.middle is None
    assert robust.ln_c == pytest.approx(math.log(factor), abs=0.03)
    (warning,) = (text for text in found.warnings if "Huber" in text)
    assert f"{words[1]} ({math.exp(robust.ln_c):.2f} x) by Huber's estimate" in warning


def test_the_standard_error_of_hubers_estimate() -> None:
    """It is the deviation of the estimates over studies; moved losses alone would give .87 of it."""
    random = np.random.default_rng(3)
    errors, variances = [], []
    for _ in range(200):
        runs = [
            FinishedRun(name, 1e6, t, s, loss(1e6, t * math.exp(0.05 * random.standard_normal())))
            for name in "ab"
            for t in BUDGETS
            for s in range(5)
        ]
        table = RunTable(tuple(runs))
        measured = measure("b", tuned_sizes(table.of("a")), tuned_sizes(table.of("b")))
        moved = with_less_weight_on_outliers(measured)
        assert moved is not None
        (size,) = moved.usable
        assert size.se is not None
        errors.append(size.ln_c)
        variances.append(size.se**2)
    assert math.sqrt(np.mean(variances)) / np.std(errors) == pytest.approx(1.0, abs=0.08)


def test_seeds_that_agree_beside_one_that_does_not() -> None:
    """Two of three seeds agree, on both sides: at least half of the runs stay where they are."""
    runs = [
        FinishedRun(name, 1e6, tokens, seed, loss(1e6, tokens * factor) * (1.03 if seed == 2 else 1.0))
        for name, factor in (("a", 1.0), ("b", 1.2))
        for tokens in BUDGETS
        for seed in range(3)
    ]
    table = RunTable(tuple(runs))
    moved = with_less_weight_on_outliers(measure("b", tuned_sizes(table.of("a")), tuned_sizes(table.of("b"))))
    assert moved is not None
    (size,) = moved.usable
    assert math.exp(size.ln_c) == pytest.approx(1.2, abs=0.01)


def test_huber_where_moved_losses_do_not_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no second estimate then, and the verdict is that of the mean."""
    runs = [
        FinishedRun(name, 1e6, tokens, seed, loss(1e6, tokens) * (1 + 0.001 * seed))
        for name in "ab"
        for tokens in BUDGETS
        for seed in range(3)
    ]
    table = RunTable(tuple(runs))
    measured = measure("b", tuned_sizes(table.of("a")), tuned_sizes(table.of("b")))
    (size,) = measured.usable
    risen = [dict.fromkeys(cells, 3.0) for cells in measured.pairs[size.params].cells]
    monkeypatch.setattr("zoo.ablate.scale.robust.huberised", lambda size, sides: risen)
    assert with_less_weight_on_outliers(measured) is None


def test_what_was_not_measured_has_no_number() -> None:
    """Two budgets show no drift, hours need the seconds of all runs, and data one side alone is nothing."""
    runs = [
        FinishedRun(
            name,
            size,
            tokens,
            seed,
            loss(size, tokens) * (1 + 0.001 * seed),
            data="x" if name == "a" else "",
            seconds=3600.0 if seed else None,
        )
        for name in "ab"
        for size in (1e6, 4e6)
        for tokens in BUDGETS[:2]
        for seed in range(3)
    ]
    verdicts = judge(RunTable(tuple(runs)), "a")
    by_key = {table.key: table for table in tables(verdicts, "a")}
    for key in ("verdict", "sizes"):
        table = by_key[key]
        column = [each.title for each in table.columns].index("drift per doubling of T")
        assert {row[column] for row in table.rows} == {None}
    titles = [each.title for each in by_key["verdict"].columns]
    assert by_key["verdict"].rows[0][titles.index("hours")] is None
    assert {size.drift for size in verdicts["b"].measured.sizes} == {None}
    assert not [text for text in verdicts["b"].warnings if "differ in their tokenizer" in text]


@pytest.mark.parametrize(
    "factors, word",
    [((1.6, 1.265, 1.0, 0.79, 0.625), "undecided"), ((1.4, 1.1, 0.88, 0.69, 0.55), "slower")],
)
def test_sides_that_cross_over_the_sizes_are_named(factors: tuple[float, ...], word: str) -> None:
    """The word is that of the middle, where such sides are alike, or only the larger sizes are slower."""
    found = judge(RunTable(tuple(world(factors, tau=0.02))), "a")["b"]
    crossing = [warning for warning in found.warnings if warning.startswith("the sides cross over the sizes")]
    assert found.word == word and len(crossing) == 1
    assert found.line is not None
    for at, size in ((found.line.x.min(), "1M"), (found.line.x.max(), "16M")):
        assert f"{factor_text(estimated(found.line.at(float(at))))} at {size}" in crossing[0]
    steady = judge(RunTable(tuple(world([1.3] * 5, tau=0.02))), "a")["b"]
    assert not any("cross" in warning for warning in steady.warnings)
