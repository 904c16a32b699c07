"""Tuning of a ladder: two keys in turn, random search, and what its verdict says of either."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from operator import itemgetter
from pathlib import Path
from statistics import pstdev
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import stats
from simulated_ladders import best_decay, best_rate, load, table, trained, true_loss
from synthetic_runs import write_sweep
from test_lines import ladder as tiny_ladder
from test_lines import said

from zoo.ablate.amount import most_added, of_size
from zoo.ablate.execute import execute, planner_of
from zoo.ablate.ladder_estimate import estimate_ladder
from zoo.ablate.ladder_plan import table_of
from zoo.ablate.manifest import read_manifest, write_manifest
from zoo.ablate.outcome import Outcome
from zoo.ablate.plan import PlannedRun
from zoo.ablate.rate_search import chosen_rate
from zoo.ablate.results import read_results
from zoo.ablate.scale.presentation import tables
from zoo.ablate.scale.runs import FinishedRun, RunTable, read_runs
from zoo.ablate.scale.sources import read_table
from zoo.ablate.scale.tuned import tuned_sizes
from zoo.ablate.scale.tuning import GAPS, Parabola, equal_steps, fitted, random_gap, tuning_gap
from zoo.ablate.scale.tuning_table import tuning_table
from zoo.ablate.scale.verdict import judge
from zoo.ablate.side_tuning import tune_at_random, tune_in_turn
from zoo.ablate.sweep import Sweep
from zoo.ablate.tuning import describe_rule, random_points
from zoo.ablate.tuning_error import gap, tuning_error
from zoo.report.ladder import write_ladder
from zoo.report.ladder_plots import ladder_plots
from zoo.utils.errors import ConfigError, DataError

LR, DECAY = "optimizer.lr", "optimizer.weight_decay"
RATES = [1e-3, 2e-3, 4e-3, 8e-3, 16e-3]
DECAYS = [0.025, 0.05, 0.1, 0.2, 0.4]
TWO = {"grid": {LR: RATES, DECAY: DECAYS}}
BENT = 0.1
"""Curvature of the loss over ln of the weight decay."""
TRIALS = 24
DRAWN = (5e-4, 5e-2)


def at_random(**changes: Any) -> dict[str, Any]:
    search = {LR: {"log_uniform": list(DRAWN)}, "trials": TRIALS, **changes}
    return {"grid": None, "choose": "best", "random": search}


Ladder = tuple[Sweep, list[PlannedRun], dict[str, Outcome]]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Ladder:
    sweep = load(tmp_path_factory.mktemp("two"), tune=TWO)
    return sweep, *trained(sweep, decay=BENT)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Ladder:
    sweep = load(tmp_path_factory.mktemp("random"), tune=at_random())
    return sweep, *trained(sweep)


def of(order: Sequence[PlannedRun], variant: str, params: int, phase: str) -> list[PlannedRun]:
    return [r for r in order if (r.variant, r.params) == (variant, params) and phase in r.phases]


def points(runs: Sequence[PlannedRun]) -> list[tuple[float, float]]:
    """The points of runs in the order in which they are due, each once."""
    return list(dict.fromkeys((run.point[LR], run.point[DECAY]) for run in runs))


def vertex_by_hand(losses: dict[float, float]) -> float:
    """ln of the vertex through the best of at least three values and its neighbours (Newton's formula)."""
    values = sorted(losses)
    best = values.index(min(values, key=lambda value: losses[value]))
    a, b, c = values[best - 1 : best + 2]
    x, y, z = (math.log(value) for value in (a, b, c))
    first = (losses[b] - losses[a]) / (y - x)
    second = ((losses[c] - losses[b]) / (z - y) - first) / (z - x)
    return (x + y) / 2 - first / (2 * second)


def test_the_rate_then_the_second_key_at_its_vertex_then_three_rates(two: Ladder) -> None:
    """At the three smallest sizes over whole grids, then about the lines."""
    sweep, order, outcomes = two
    assert all(tuple(run.point) == (LR, DECAY) for run in order)  # every run names both values
    vertices: dict[float, float] = {}
    for index, size in enumerate(sweep.ladder):
        runs = of(order, "base", size.params, "tune")
        losses = {(r.point[LR], r.point[DECAY]): outcomes[r.id].losses[r.steps] for r in runs}
        tried = points(runs)
        ((rate, decay),) = set(points(of(order, "base", size.params, "final")))
        start = tried[0][1]
        turn = next(i for i, (_, value) in enumerate(tried) if value != start)
        first = {r: losses[r, start] for r, _ in tried[:turn]}
        vertex = tried[turn][0]
        second = {d: losses[r, d] for r, d in tried if r == vertex and d != decay}
        last = {r: losses[r, d] for r, d in tried if d == decay}
        lines = [(r, start) for r in first] + [(vertex, d) for d in second] + [(r, decay) for r in last]
        assert {*lines} == {*tried}
        assert math.log(vertex) == pytest.approx(vertex_by_hand(first), abs=2e-3)
        assert min(last) < vertex < max(last)
        if index < 3:
            assert set(RATES) <= set(first)
            assert set(DECAYS) <= set(second)
            assert start == DECAYS[2]
        else:
            assert len(first) < 5
            assert not set(second) <= set(DECAYS)
        vertices[math.log(size.params)] = vertex_by_hand(last)
        assert rate == pytest.approx(chosen_rate(vertices, math.log(size.params)), rel=2e-3)
        assert rate == pytest.approx(best_rate(size.params), rel=0.25)
        assert decay == pytest.approx(best_decay(size.params), rel=0.5)


def test_a_verdict_reads_a_ladder_of_two_keys(two: Ladder) -> None:
    """Runs at another second value are tuning; the planted factor is found, and nothing is left out."""
    sweep, order, outcomes = two
    runs = table(order, outcomes)
    found = judge(runs, "base", margin=1.1)
    assert found["base planted"].word == "faster"
    assert found["base again"].word in ("equal", "undecided")
    warnings = "; ".join(found["base planted"].warnings)
    assert "left out" not in warnings
    assert "unequally" not in warnings
    assert "different rules" not in warnings
    for size, side in zip(sweep.ladder, tuned_sizes(runs.of("base")).values(), strict=True):
        final = of(order, "base", size.params, "final")
        assert {run.point for run in side.compared} == {(final[0].point[LR], final[0].point[DECAY])}
        assert len(side.compared) == len(final) == len(size.budgets) * len(size.seeds)
        assert side.tuning_runs == len(of(order, "base", size.params, "tune"))
        assert len(side.tried) in (3, 4)
        assert side.parabola is not None
        assert len(side.second_tried) >= 3
        assert equal_steps(tuple(side.second_tried)) == pytest.approx(2, rel=0.01)
        assert side.second_parabola is not None
        assert side.interpolated
    measured = {name: verdict.measured for name, verdict in found.items()}
    shown = tuning_table(measured, "base")
    titles = [column.title for column in shown.columns]
    assert titles.index("second key") == titles.index("tried") + 1
    row = dict(zip(titles, shown.rows[0], strict=True))
    assert row["second key"] == pytest.approx(0.1, rel=0.5)
    (rates,) = [plot for plot in ladder_plots(found, "base") if plot.key == "rates"]
    assert len(rates.views[0].series[0].x) == len(tuned_sizes(runs.of("base"))[sweep.ladder[0].params].tried)
    assert "another value of the second key are not drawn" in rates.note


def test_a_second_key_that_stays_where_it_was_asks_for_no_third_search() -> None:
    """Its neighbour diverges, so that its best point is taken, at which the rate has been tuned."""

    def loss(point: Any, rung: int) -> float | None:
        if point[DECAY] > 0.1:
            return math.inf
        return 2 + 0.1 * math.log(point[LR] / 5e-3) ** 2 + 0.05 * math.log(point[DECAY] / 0.1) ** 2

    tuning = tune_in_turn({LR: RATES, DECAY: DECAYS}, {}, 11.0, 1, loss)
    assert tuning.chosen is not None
    assert tuning.chosen.values == {LR: 5e-3, DECAY: 0.1}
    tried = [(trial.point[LR], trial.point[DECAY]) for trial in tuning.trials]
    assert len(tried) == 10
    runs = [
        FinishedRun("a", 1e6, 1e6, 9, loss({LR: r, DECAY: d}, 0) or 0.0, r, second_key=d, tuning=True)
        for r, d in dict.fromkeys(tried)
    ]
    final = [FinishedRun("a", 1e6, 2e6, s, 1.9, 5e-3, second_key=0.1, tuning=False) for s in (0, 1)]
    (side,) = tuned_sizes([*runs, *final]).values()
    assert list(side.tried) == RATES  # without the vertex, at which the second key was tuned
    assert list(side.second_tried) == DECAYS
    assert side.problem == ""
    assert side.parabola is not None
    assert math.exp(side.parabola.ln_rate) == pytest.approx(5e-3)
    assert side.second_parabola is None


def test_a_table_with_all_combinations_of_two_keys() -> None:
    """As other programs tune: the row and the column of the chosen point, in steps as they are."""
    rates, decays = (1e-3, 3e-3, 1e-2), (0.01, 0.05, 0.1, 0.3)
    runs = [
        FinishedRun(
            "a", 1e6, 1e6, 9, 2 + math.log(r / 4e-3) ** 2 + 0.1 * math.log(d / 0.06) ** 2, r, second_key=d
        )
        for r in rates
        for d in decays
    ]
    runs += [FinishedRun("a", 1e6, t, s, 1.9, 3e-3, second_key=0.05) for s in (0, 1) for t in (1e6, 2e6)]
    (side,) = tuned_sizes(runs).values()
    assert (side.rate, side.second_key) == (3e-3, 0.05)
    assert (tuple(side.tried), tuple(side.second_tried)) == (rates, decays)
    assert len(side.losses) == side.tuning_runs == 12
    assert len(side.compared) == 4
    assert side.problem == ""


def test_the_errors_of_both_keys_add_at_one_size(two: Ladder) -> None:
    """In squares, each simulated on its own parabola by the rule of the grid."""
    sweep, order, outcomes = two
    size = sweep.ladder[0].params
    runs = table([run for run in order if run.params == size], outcomes)
    measured = judge(runs, "base")["base planted"].measured
    assert measured.tau is not None
    per_loss = abs(measured.usable[0].curve[-2])
    variances = []
    for side in measured.pairs[size].sides:
        assert side.rate not in side.tried
        assert side.second_key not in side.second_tried
        for parabola, tried in (
            (side.parabola, side.tried),
            (side.second_parabola, side.second_tried),
        ):
            assert parabola is not None
            slope = per_loss * parabola.loss
            sd = measured.tau * slope
            found = tuning_gap(
                parabola, tuple(tried), sd=sd, seeds=1, per_token=slope, interpolated=True, generator=3
            )
            variances.append(found**2)
    assert measured.gap == pytest.approx(math.sqrt(sum(variances) / 2), rel=0.05)
    assert min(variances) > 0.01 * max(variances)


def test_a_dry_run_counts_the_runs_of_both_keys(two: Ladder) -> None:
    sweep, order, _ = two
    assert sweep.tune is not None
    for index, size in enumerate(sweep.ladder):
        compared, tuning, _ = of_size(size, index, sweep.tune)
        assert compared == len([r for r in order if r.params == size.params and "final" in r.phases])
        assert tuning == 3 * (5 + 5 + 3 if index < 3 else 3 + 3 + 3)  # of three sides
    total = sum(of_size(size, index, sweep.tune)[1] for index, size in enumerate(sweep.ladder))
    tuned = len([run for run in order if "tune" in run.phases])
    most = most_added(sweep.ladder, sweep.tune)
    assert most == 4 * 3 * 3 * 4  # sizes, sides, searches, points
    # A run that two searches share is counted twice.
    assert total - 2 * 3 * 4 <= tuned <= total + most
    probe: Any = SimpleNamespace(workers=1, seconds=lambda sweep, what: 1.0)
    console = Console(width=200, file=StringIO(), record=True)
    console.print(estimate_ladder(sweep, probe))
    assert f"beyond a border are not counted, at most {most} runs" in console.export_text()


@pytest.mark.parametrize("key", [LR, DECAY])
def test_a_side_at_the_border_of_either_key_has_no_verdict(tmp_path: Path, key: str) -> None:
    far = {**TWO["grid"], key: [1e-8, 2e-8, 4e-8]}
    sweep = load(tmp_path, tune={"grid": far})
    order, outcomes = trained(sweep, decay=BENT)
    assert {run.phases for run in order} == {("tune",)}
    size = sweep.ladder[0].params
    (side,) = [side for n, side in tuned_sizes(table(order, outcomes).of("base")).items() if n == size]
    what = "rate" if key == LR else "second key"
    assert f"the best {what}, " in side.problem
    assert "lies at the border of 1e-08 to 6.4e-07" in side.problem


def test_a_tuning_of_two_keys_without_a_comparison_has_no_result(two: Ladder) -> None:
    """A point that only tuning has tried is no comparison, wherever the tuning was stopped."""
    sweep, order, outcomes = two
    first = of(order, "base", sweep.ladder[0].params, "tune")
    stopped = len(first) - 1
    assert len({run.point[DECAY] for run in first[:stopped]}) > 1
    for count in (stopped, len(first)):
        (side,) = tuned_sizes(table(first[:count], outcomes).runs).values()
        assert side.problem
    assert side.problem == "two keys were tuned, and no run of a comparison is there"


def test_a_random_ladder_takes_the_best_point_of_every_size(drawn: Ladder) -> None:
    sweep, order, outcomes = drawn
    assert sweep.tune is not None
    seen = []
    for index, size in enumerate(sweep.ladder):
        of_sides = []
        for side in size.sides:
            runs = of(order, side.variant, size.params, "tune")
            losses = {run.point[LR]: outcomes[run.id].losses[run.steps] for run in runs}
            of_sides.append(list(losses))
            (rate,) = {run.point[LR] for run in of(order, side.variant, size.params, "final")}
            assert rate == min(losses, key=lambda r: losses[r])
        assert len(of_sides[0]) == TRIALS
        assert all(rates == of_sides[0] for rates in of_sides)  # the same points for all sides
        assert all(DRAWN[0] <= rate <= DRAWN[1] for rate in of_sides[0])
        seen.append(set(of_sides[0]))
        assert of_size(size, index, sweep.tune)[1] == 3 * TRIALS
    assert not set.intersection(*seen)  # a draw of its own for every size
    assert most_added(sweep.ladder, sweep.tune) == 0
    # The first size has the points of a sweep without sizes, which have not changed.
    assert sweep.tune.random is not None
    assert seen[0] == {point[LR] for point in random_points(sweep.tune.random)}
    assert describe_rule(sweep.tune).startswith(
        f"{LR} (log-uniform between 0.0005 and 0.05), {TRIALS} points"
    )


def test_a_random_ladder_is_judged_with_its_doubt_and_its_curves(drawn: Ladder, tmp_path: Path) -> None:
    sweep, order, outcomes = drawn
    found = judge(table(order, outcomes, drawn=DRAWN), "base", margin=1.1)
    planted = found["base planted"]
    assert planted.word == "faster"
    (doubt,) = [warning for warning in planted.warnings if "random points" in warning]
    assert "more error of tuning" in doubt
    assert doubt.endswith("how large it is here is not known")
    assert not any("unequally" in warning for warning in planted.warnings)
    of_ladder = judge(table_of(sweep, order, outcomes), "base", margin=1.1)["base planted"]
    (lucky,) = [warning for warning in of_ladder.warnings if "tuned with one seed" in warning]
    assert lucky.endswith("that seed may have chosen; expected two seeds or more per rate")
    plots = {plot.key: plot for plot in ladder_plots(found, "base")}
    curves = plots["tuning-curves"]
    assert len(curves.views) == len(sweep.ladder)
    assert {len(view.series) for view in curves.views} == {3}
    assert list(curves.views[0].series[0].x) == [1, 2]  # 24 / 9
    for view in curves.views:
        for series in view.series:
            for low, median, high in zip(series.low, series.y, series.high, strict=True):
                assert low <= float(str(median)) <= high
    page = write_ladder(found, "base", tmp_path, margin=1.1, alpha=0.05, title="random")
    assert "Median loss of the best of k random trials" in page.read_text()
    fewer = [run for run in order if "final" in run.phases]
    for size in sweep.ladder:
        for side in size.sides:
            tried = of(order, side.variant, size.params, "tune")
            fewer += sorted(tried, key=lambda run: outcomes[run.id].losses[run.steps])[:19]
    assert "tuning-curves" not in {
        plot.key for plot in ladder_plots(judge(table(fewer, outcomes, drawn=DRAWN), "base"), "base")
    }


@pytest.mark.parametrize(("trials", "at", "ended"), [(8, [0.25, 0.5], 2), (48, [0.5], 24)])
def test_points_that_halving_stops_count_as_tried(
    tmp_path: Path, trials: int, at: list[float], ended: int
) -> None:
    """The best of two that were trained to the end has stopped ones beside it; a curve needs every end."""
    sweep = load(
        tmp_path,
        lines=None,
        base={"train": {"eval_every": 5}},
        tune={**at_random(trials=trials), "halving": {"at": at, "keep": 0.5}},
        scale={"sizes": {"params": ["0.1M"], "shape": "aspect"}, "seeds": 2, "again": False},
    )
    planner, outcomes = planner_of(sweep), dict[str, Outcome]()
    while due := [r for r in planner.plan(outcomes).runs if not r.is_done(outcomes.get(r.id, Outcome()))]:
        for run in due:
            losses = {**outcomes.get(run.id, Outcome()).losses}
            losses[run.until] = true_loss(sweep, replace(run, steps=run.until))
            outcomes[run.id] = Outcome(run.until, losses, ended=run.until == run.steps)
    found = judge(table_of(sweep, planner.plan(outcomes).runs, outcomes), "base", margin=1.1)
    measured = found["base planted"].measured
    (size,) = sweep.ladder
    assert [usable.params for usable in measured.usable] == [size.params]
    for side in measured.pairs[size.params].sides:
        assert sorted(side.tried) == sorted(point[LR] for point in size.sides[0].points)
        assert side.share_within(9.0) == ended / trials
    assert "tuning-curves" not in {plot.key for plot in ladder_plots(found, "base")}


def test_two_keys_at_random(tmp_path: Path) -> None:
    """Points are drawn together: the best pair is compared, and no parabola of the rate alone is claimed."""
    sweep = load(tmp_path, tune=at_random(**{DECAY: {"log_uniform": [0.01, 1.0]}}))
    order, outcomes = trained(sweep, decay=BENT)
    size = sweep.ladder[0].params
    runs = of(order, "base", size, "tune")
    best = min(runs, key=lambda run: outcomes[run.id].losses[run.steps])
    final = of(order, "base", size, "final")
    assert final
    assert {tuple(run.point.items()) for run in final} == {tuple(best.point.items())}
    side = tuned_sizes(table(order, outcomes, drawn=DRAWN).of("base"))[size]
    assert (side.rate, side.second_key) == tuple(best.point.values())
    assert len(side.tried) == len(side.second_tried) == len(side.losses) == TRIALS
    assert side.parabola is None
    assert side.problem == ""


def test_a_random_search_with_halving_keeps_the_best_share() -> None:
    rates = [{LR: rate} for rate in RATES]
    early = {1e-3: 5.0, 2e-3: 4.0, 4e-3: 3.0, 8e-3: 3.1, 16e-3: 9.0}
    late = {2e-3: 2.0, 4e-3: 2.5, 8e-3: 2.9}

    def loss(point: Any, rung: int) -> float | None:
        return (early, late)[rung].get(point[LR])

    tuning = tune_at_random(rates, 2, loss, keep=0.5)
    assert [(trial.until, trial.dropped) for trial in tuning.trials] == [
        *((0, True), (1, False), (1, False), (1, False), (0, True))
    ]
    assert tuning.chosen is not None
    assert tuning.chosen.values == {LR: 2e-3}
    assert tune_at_random(rates, 2, lambda point, rung: None).chosen is None
    low = tune_at_random(rates, 1, lambda point, rung: point[LR]).chosen
    assert low is not None
    assert (low.values, low.on_border) == ({}, (LR,))


SWAPPED = {key: {"log_uniform": [1e-3, 1e-2]} for key in (DECAY, LR)}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "three keys": (
        {"grid": {LR: RATES, DECAY: DECAYS, "optimizer.beta2": [0.9, 0.95, 0.99]}},
        "a grid of one key, or of two that are tuned in turn, first the rate; value: optimizer.lr, "
        "optimizer.weight_decay, optimizer.beta2",
    ),
    "a decay of 0": (
        {"grid": {LR: RATES, DECAY: [0, 0.1, 0.2]}},
        "optimizer.weight_decay: values 0, 0.1, 0.2: expected three or more numbers above 0 that rise by "
        "equal factors",
    ),
    "words": (
        {"grid": {LR: RATES, "model.norm": ["rms", "layer", "none"]}},
        "model.norm: values rms, layer, none: expected three or more numbers above 0",
    ),
    "whole numbers": (
        {"grid": {LR: RATES, "schedule.warmup": [10, 20, 40]}},
        "tune.grid.schedule.warmup: value 10: this key takes whole numbers, and choose: parabola computes "
        "one between those of the grid; expected another key, or these values as variants (axes)",
    ),
    "the size of a batch": (
        {"grid": {LR: RATES, "train.batch_size": [8, 16, 32]}},
        "tune.grid.train.batch_size: value 8: this key takes whole numbers",
    ),
    "other grids of other factors": (
        {
            "grid": {LR: RATES, DECAY: DECAYS},
            "grids": [{"where": {"init": "he"}, "grid": {LR: RATES, DECAY: [0.01, 0.03, 0.09, 0.27, 0.81]}}],
        },
        "grids: expected the same factor between neighbours for every variant",
    ),
    "the rate second": (
        {"grid": None, "choose": "best", "random": {**SWAPPED, "trials": 5}},
        "tune: optimizer.weight_decay, optimizer.lr: the first key of a ladder is the learning rate; "
        "expected optimizer.lr first",
    ),
    "uniform": (
        at_random(**{LR: {"uniform": [1e-3, 1e-2]}}),
        "tune.random: optimizer.lr: uniform: a ladder draws log-uniformly; expected log_uniform",
    ),
    "three random keys": (
        at_random(**{key: {"log_uniform": [0.01, 0.1]} for key in (DECAY, "optimizer.eps")}),
        "tune.random: optimizer.lr, optimizer.weight_decay, optimizer.eps: expected one key or two",
    ),
    "two points": (at_random(trials=2), "tune.random.trials: 2: expected 3 or more"),
    "a parabola of random points": ({**at_random(), "choose": "parabola"}, "needs a grid of one key"),
    "a grid beside random points": (
        {**at_random(), "grids": [{"where": {"a": 1}, "grid": {LR: RATES}}]},
        "with random, every variant has the same points",
    ),
}


@pytest.mark.parametrize(("tune", "message"), BAD.values(), ids=BAD)
def test_bad_tunings(tmp_path: Path, tune: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, tune=tune)
    assert message in str(error.value)
    assert str(error.value).count("\n") == 0  # one error


def test_two_keys_in_turn_are_for_ladders(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"keys are tuned in turn in a ladder \(scale\); without sizes"):
        load(tmp_path, scale=None, lines=None, axes={"schedule.warmup": [20, 30]}, tune=TWO)


def variant(runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    return [run for run in runs if run.variant == "init=he"]


def test_lines_keep_both_values_and_the_range(tmp_path: Path) -> None:
    """The CSV says what the sweep says, and the sweep goes on from it."""
    values = itemgetter("variant", "size", "tokens", "seed", "rate", "second_key", "drawn", "loss")
    scale = {"sizes": [{"model.d_model": 8}], "budgets": {"steps": [4, 8]}, "seeds": 1}
    grid = {LR: [5e-3, 1e-2, 2e-2], DECAY: [0.05, 0.1, 0.2]}
    search = {LR: {"log_uniform": [2e-3, 5e-2]}, DECAY: {"log_uniform": [0.05, 0.2]}, "trials": 6}
    for name, tune in {
        "turn": {"grid": grid, "choose": "parabola", "seeds": [7]},
        "random": {"random": search, "seeds": [7]},
    }.items():
        folder = tmp_path / name
        folder.mkdir()
        sweep = tiny_ladder(folder, scale=scale, tune=tune)
        execute(sweep, 1)
        whole = said(sweep)
        of_sweep = read_table([sweep.folder]).runs
        of_csv = read_table([folder / "lines.csv"]).runs
        assert {values(vars(run)) for run in of_csv} == {values(vars(run)) for run in of_sweep}
        assert len({run.second_key for run in of_csv}) > 2
        ours, theirs = (tuned_sizes(runs).popitem()[1] for runs in (variant(of_csv), variant(of_sweep)))
        for what in ("rate", "second_key", "tried", "second_tried", "losses", "problem"):
            assert getattr(ours, what) == getattr(theirs, what)
        assert {run.drawn for run in of_csv} == ({None} if name == "turn" else {(2e-3, 5e-2)})
        (folder / "sweeps").rename(folder / "gone")
        again = tiny_ladder(folder, scale=scale, tune=tune)
        execute(again, 1)
        assert list((folder / "sweeps").glob("runs/*")) == []
        assert said(again) == whole


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("second_key\n a,1M,1M,0,2,,.1", "second_key without a rate; expected both"),
        ("second_key\n a,1M,1M,0,2,1e-3,0", "second_key: value '0': expected a number above 0"),
        ("range\n a,1M,1M,0,2,1e-3,1e-3", "range: value '1e-3': expected the lowest and the highest rate"),
        ("range\n a,1M,1M,0,2,1e-3,1e-2 1e-3", "range: value '1e-2 1e-3'"),
        ("second_key\n a,1M,1M,0,2,1e-3,.1\n a,1M,1M,1,2,1e-3,", "no second_key, but other runs"),
    ],
)
def test_bad_columns(tmp_path: Path, columns: str, message: str) -> None:
    file = tmp_path / "runs.csv"
    file.write_text(f"variant,size,tokens,seed,loss,rate,{columns}\n")
    with pytest.raises(DataError) as error:
        read_runs(file)
    assert message in str(error.value)


def test_the_error_of_a_random_search_against_its_formula() -> None:
    """Without noise the best of n points is the nearest one; its distance d has P(> d) = (1 - 2 d / W)^n."""
    for n in (5, 25):
        width = math.log(DRAWN[1] / DRAWN[0])
        middle = Parabola(math.log(math.sqrt(DRAWN[0] * DRAWN[1])), 2.0, 0.1)
        found = random_gap(middle, DRAWN, n, sd=0.0, seeds=1, per_token=0.3)
        mean = 2 * (width / 2) ** 2 / ((n + 1) * (n + 2))
        square = 24 * (width / 2) ** 4 / ((n + 1) * (n + 2) * (n + 3) * (n + 4))
        assert found == pytest.approx(0.1 / 0.3 * math.sqrt(2 * (square - mean**2)), rel=0.05)


def test_the_error_of_a_random_search_against_another_simulation() -> None:
    """One study after the other, with the standard library, and noise."""
    generator, bent, noise, trials = random.Random(3), 0.08, 0.016, 12
    regrets = []
    for _ in range(8000):
        tried = [generator.uniform(math.log(1e-3), math.log(3e-2)) - math.log(4e-3) for _ in range(trials)]
        losses = [bent * u * u + generator.gauss(0, noise / math.sqrt(2)) for u in tried]
        regrets.append(bent * tried[losses.index(min(losses))] ** 2 / 0.35)
    expected = math.sqrt(2) * pstdev(regrets)
    parabola = Parabola(math.log(4e-3), 2.0, bent)
    found = random_gap(parabola, (1e-3, 3e-2), trials, sd=noise, seeds=2, per_token=0.35)
    assert found == pytest.approx(expected, rel=0.08)
    grid = tuple(4e-3 * 3**k for k in (-2, -1, 0, 1, 2))
    of_grid = tuning_gap(parabola, grid, sd=noise, seeds=2, per_token=0.35, interpolated=True)
    assert found > 2 * of_grid


def test_the_parabola_of_random_points_is_that_of_all_of_them() -> None:
    """Two points that nearly coincide, one of them lucky, bend a parabola through three, and not this one."""
    generator = np.random.default_rng(0)
    truth, curvatures = math.log(4e-3), []
    for _ in range(200):
        rates = np.exp(generator.uniform(math.log(1e-3), math.log(1.6e-2), 24))
        losses = 2 + 0.1 * (np.log(rates) - truth) ** 2 + 0.01 * generator.standard_normal(24)
        try:
            curvatures.append(fitted(dict(zip(rates, losses, strict=True))).curvature)
        except ValueError:
            continue
    assert len(curvatures) > 150
    assert float(np.mean(curvatures)) == pytest.approx(0.1, rel=0.05)
    exact = fitted({rate: 2 + 0.1 * math.log(rate / 3e-3) ** 2 for rate in (1e-3, 1.1e-3, 2e-3, 5e-3, 7e-3)})
    assert (exact.ln_rate, exact.loss, exact.curvature) == pytest.approx((math.log(3e-3), 2.0, 0.1))
    with pytest.raises(ValueError, match="4 points near"):
        fitted({1e-3: 2.2, 2e-3: 2.1, 3e-3: 2.0, 4e-3: 2.1, 1.0: 3.0})


def one_size(factor: float, rates: Sequence[float], more: Any) -> list[FinishedRun]:
    """1M parameters: six seeds at three budgets, and a random search with losses `more` above the best."""
    runs = []
    for name, c in (("a", 1.0), ("b", factor)):
        chosen = min(rates, key=more)
        runs += [FinishedRun(name, 1e6, 10e6, 9, 1.7 + more(r), r, drawn=DRAWN) for r in rates]
        for seed in range(6):
            for tokens in (5e6, 10e6, 20e6):
                noise = 0.004 * math.sin(2.1 * seed + 1.3 * tokens / 1e6 + c)
                loss = 0.7 + 2 * (c * tokens / 1e6) ** -0.3 + noise
                runs.append(FinishedRun(name, 1e6, tokens, seed, loss, chosen, drawn=DRAWN))
    return runs


def test_one_size_after_a_random_search_must_exceed_its_error() -> None:
    generator = np.random.default_rng(5)
    rates = [
        float(f"{r:.4g}") for r in np.exp(generator.uniform(math.log(DRAWN[0]), math.log(DRAWN[1]), TRIALS))
    ]

    def more(rate: float) -> float:
        return 0.1 * math.log(rate / 4e-3) ** 2

    large = judge(RunTable(tuple(one_size(1.5, rates, more))), "a")["b"]
    assert large.word == "faster"
    gap = large.measured.gap
    assert gap is not None
    size = large.measured.usable[0]
    per_token = abs(size.curve[-2]) * 1.7
    side = large.measured.pairs[1e6].baseline
    assert side.parabola is not None
    tau = large.measured.tau
    assert tau is not None
    expected = random_gap(side.parabola, DRAWN, TRIALS, sd=tau * per_token, seeds=1, per_token=per_token)
    assert gap == pytest.approx(expected, rel=0.02)
    assert any(f"on the parabolas of this table it is {gap:.2g}" in w for w in large.warnings)
    small = judge(RunTable(tuple(one_size(1 + 2 * gap, rates, more))), "a")["b"]
    p = small.measured.usable[0].p_value
    assert p is not None
    assert p < 0.05  # seeds alone would call it faster
    assert small.word == "undecided"


def test_where_the_error_of_tuning_is_not_known_a_word_says_its_false_alarms() -> None:
    """A CSV with one rate of each side: the seeds decide, and the warning says how often they err."""
    runs = [run for run in one_size(1.3, [1e-3, 2e-3], lambda rate: rate) if run.seed != 9]
    found = judge(RunTable(tuple(runs)), "a", margin=1.5)["b"]
    assert found.measured.gap is None
    assert found.word == "faster"
    assert any("its false alarms may be .18 with six seeds and .38 with 20" in w for w in found.warnings)


@pytest.mark.parametrize(("seeds", "alone"), [(6, 0.25), (20, 0.45)])
def test_false_alarms_after_a_random_search(seeds: int, alone: float) -> None:
    """Both sides try the same 20 points, their best rates lie somewhere near the middle of the range."""
    generator, studies, points, noise, bent = np.random.default_rng(seeds), 8000, 20, 0.05, 0.24
    best = math.log(5e-3)
    gap = random_gap(Parabola(best, 2.0, bent), DRAWN, points, sd=noise, seeds=1, per_token=1.0)
    x = generator.uniform(math.log(DRAWN[0]), math.log(DRAWN[1]), (studies, points))
    regrets = []
    for _ in range(2):
        regret = bent * (x - best - generator.uniform(-0.5, 0.5, (studies, 1))) ** 2
        found = (regret + noise * generator.standard_normal(x.shape)).argmin(1)
        regrets.append(regret[np.arange(studies), found])
    scatter = noise * math.sqrt(2 / 3)  # of a seed's ln c over three budgets
    ln_c = (regrets[1] - regrets[0])[:, None] + scatter * generator.standard_normal((studies, seeds))
    mean, se = ln_c.mean(1), ln_c.std(1, ddof=1) / math.sqrt(seeds)
    claimed = np.abs(mean / se) > stats.t.isf(0.025, seeds - 1)
    assert claimed.mean() == pytest.approx(alone, abs=0.02)
    assert (claimed & (np.abs(mean) > GAPS * gap)).mean() == pytest.approx(0.016, abs=0.006)


def test_a_sweep_at_one_size_simulates_its_random_search(tmp_path: Path) -> None:
    generator = np.random.default_rng(2)
    rates = {
        float(f"{r:.4g}"): 0.0
        for r in np.exp(generator.uniform(math.log(DRAWN[0]), math.log(DRAWN[1]), TRIALS))
    }
    tune = {n: {r: 3 + 0.1 * math.log(r / 4e-3) ** 2 for r in rates} for n in ("base", "new")}
    folder = write_sweep(tmp_path / "sweep", {"base": [3.0, 3.02, 3.01], "new": [2.9, 2.92, 2.93]}, tune=tune)
    manifest = read_manifest(folder)
    assert manifest.tune is not None
    for drawn in (None, DRAWN):
        tuned = manifest.tune.model_copy(update={"random": True, "drawn": drawn})
        write_manifest(folder, manifest.model_copy(update={"tune": tuned}))
        results = read_results([folder])
        error = tuning_error(results, "base")
        assert error is not None
        if drawn is None:  # not log-uniform, or not recorded
            assert error.sd is None
            assert gap(results, "new") is None
            continue
        parabola = Parabola(math.log(4e-3), 3.0, 0.1)
        expected = random_gap(parabola, DRAWN, TRIALS, sd=0.01, seeds=1, per_token=1.0)
        assert error.sd == pytest.approx(expected, rel=0.02)
        assert gap(results, "new") is not None


def test_the_share_of_points_near_the_best() -> None:
    """.02 ln tokens are .02 x slope nats, the slope being that of the loss over ln tokens at this size."""
    slope = 2 * 0.3 * 10**-0.3  # of .7 + 2 t^-.3 at the middle budget, 10M

    def more(rate: float) -> float:
        return {1e-3: 0.05, 2e-3: 0.019 * slope, 3e-3: 0.0, 4e-3: 0.021 * slope, 8e-3: 0.1}[rate]

    runs = one_size(1.0, [1e-3, 2e-3, 3e-3, 4e-3, 8e-3], more)
    found = judge(RunTable(tuple(runs)), "a")["b"]
    (shown,) = [t for t in tables({"b": found}, "a") if t.key == "tuning"]
    row = dict(zip([column.title for column in shown.columns], shown.rows[0], strict=True))
    assert row["within 2 % tokens of the best"] == pytest.approx(2 / 5)


def line_of_rates(moved: float) -> list[FinishedRun]:
    """Five sizes on a line of rates, tuned at a parabola; the first is compared so far from its vertex."""
    runs = []
    for index, n in enumerate((1e6, 2e6, 4e6, 8e6, 16e6)):
        best = 4e-3 * (n / 1e6) ** -0.3
        rate = best * 1.01 * math.exp(moved if index == 0 else 0.0)
        for name, c in (("a", 1.0), ("b", 1.2)):
            for k in (-1, 0, 1):
                tried = 2 + 0.1 * (k * math.log(2)) ** 2
                runs.append(FinishedRun(name, n, 8e6, 9, tried, best * 2**k, tuning=True))
            for tokens in (4e6, 8e6, 16e6):
                for seed in range(2):
                    noise = 1 + 1e-3 * math.sin(seed + tokens + n + c)
                    loss = (0.5 + 2 * (c * tokens / 1e6) ** -0.3) * noise
                    runs.append(FinishedRun(name, n, tokens, seed, loss, rate, tuning=False))
    return runs


@pytest.mark.parametrize(("moved", "told"), [(0.15, False), (0.25, True), (-0.25, True)])
def test_a_line_of_rates_that_larger_sizes_have_moved(moved: float, told: bool) -> None:
    warnings = judge(RunTable(tuple(line_of_rates(moved))), "a")["b"].warnings
    about = [warning for warning in warnings if "line over all" in warning]
    assert bool(about) == told
    if told:
        compared = 4e-3 * 1.01 * math.exp(moved)
        assert f"line over all 5 tuned sizes: 1M at {compared:.3g} instead of 0.004;" in about[0]
    scattered = [
        replace(run, rate=run.rate * (3 if run.size in (2e6, 8e6) else 1) if run.rate else None)
        for run in line_of_rates(moved)
    ]
    assert not any("line over all" in w for w in judge(RunTable(tuple(scattered)), "a")["b"].warnings)
