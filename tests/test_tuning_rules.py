"""Halving that keeps the neighbours of the best rate, and exact bands of random search's tuning curves."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from synthetic_runs import write_sweep
from tiny_sweeps import sweep_file

from zoo.ablate.execute import planner_of
from zoo.ablate.manifest import read_manifest, write_manifest
from zoo.ablate.outcome import Outcome
from zoo.ablate.plan import NOT_STARTED
from zoo.ablate.rate_search import search
from zoo.ablate.results import read_results
from zoo.ablate.sweep import load_sweep
from zoo.ablate.tuning import describe_rule
from zoo.ablate.tuning_curve import order_statistics_band, probability_inside, tuning_curve
from zoo.report.tuning_curves import tuning_curve_plots
from zoo.utils.errors import ConfigError

RATES = tuple(1e-3 * 2**k for k in range(8))


def bowl(best: float) -> Callable[[float], float | None]:
    """A loss with its lowest point at a rate."""
    return lambda rate: 3 + math.log(rate / best) ** 2


def test_halving_keeps_the_best_and_its_neighbours() -> None:
    """Half of a half of eight is two, and a parabola needs three."""
    early, late = bowl(RATES[5]), bowl(1.1 * RATES[5])
    result = search(RATES, early, early, late, keep=0.5)
    assert [rate for rate in RATES if rate not in result.dropped] == list(RATES[4:7])
    assert {rate: result.until[rate] for rate in RATES} == dict(
        zip(RATES, (0, 0, 0, 1, 2, 2, 2, 0), strict=True)
    )
    assert result.ln_best == pytest.approx(math.log(1.1 * RATES[5]))  # the loss is a parabola


def test_a_neighbour_that_was_stopped_is_trained_after_all() -> None:
    """Early losses favour high rates: in the end the best one is lower, beside one that was stopped."""
    trained: set[float] = set()

    def late(rate: float) -> float | None:
        return bowl(1.2 * RATES[3])(rate) if rate in trained else None

    steps = []
    while not (result := search(RATES, bowl(RATES[5]), late, keep=0.25)).ended:
        due = {rate for rate, rung in result.until.items() if rung == 1} - trained
        steps.append(sorted(RATES.index(rate) for rate in due))
        trained |= due
    assert steps == [[4, 5, 6], [3], [2]]
    assert result.ln_best == pytest.approx(math.log(1.2 * RATES[3]))
    assert result.dropped == {RATES[0], RATES[1], RATES[7]}


def test_at_the_border_points_are_added_as_without_halving() -> None:
    for best, expected in ((0.5 * RATES[0], False), (RATES[0] / 64, True)):
        result = search(RATES, bowl(best), bowl(best), keep=0.5)
        assert result.at_border is expected
        assert len(result.rates) == len(RATES) + (4 if expected else 2)
    assert search(RATES, bowl(RATES[2]), lambda rate: None).until == dict.fromkeys(RATES, 1)


def test_a_sweep_with_halving_and_a_parabola(tmp_path: Path) -> None:
    """The planner asks for rungs, stops rates, and compares at the vertex."""
    tune = {"grid": {"optimizer.lr": list(RATES)}, "seeds": [7], "choose": "parabola"}
    tune["halving"] = {"at": [0.34], "keep": 0.4}
    sweep = load_sweep(sweep_file(tmp_path, tune=tune))
    assert sweep.tune is not None
    assert describe_rule(sweep.tune).endswith("and always the best one with its neighbours")
    planner = planner_of(sweep)
    outcomes: dict[str, Outcome] = {}
    untils: list[set[tuple[str, int]]] = []
    while True:
        plan = planner.plan(outcomes)
        due = [run for run in plan.runs if not run.is_done(outcomes.get(run.id, NOT_STARTED))]
        if not due:
            break
        untils.append({(run.phases[0], run.until) for run in due})
        for run in due:
            loss = 3 + math.log(float(run.point["optimizer.lr"]) / (1.3 * RATES[3])) ** 2
            known = {**outcomes.get(run.id, NOT_STARTED).losses, run.until: loss}
            outcomes[run.id] = Outcome(run.until, known, ended=run.until == run.steps)
    assert untils == [{("tune", 4)}, {("tune", 12)}, {("final", 12)}]
    assert {choice.values["optimizer.lr"] for choice in plan.chosen.values()} == {
        float(f"{1.3 * RATES[3]:.3g}")
    }
    stopped = {run.point["optimizer.lr"] for run in plan.runs if run.stopped_early}
    assert stopped == {*RATES[:2], *RATES[6:]}
    tune["halving"] = {"at": [0.1], "keep": 0.4}
    with pytest.raises(ConfigError, match=r"with train.eval_every 4 there is no validation of its own"):
        load_sweep(sweep_file(tmp_path, "late", tune=tune))


@pytest.mark.parametrize("n", [5, 20, 48])
def test_the_band_holds_as_often_as_it_says(n: int) -> None:
    """Against uniform numbers that are drawn, sorted and looked at."""
    low, high = order_statistics_band(n, 0.95)
    drawn = np.sort(np.random.default_rng(n).random((20_000, n)), axis=1)
    inside = ((drawn >= low) & (drawn <= high)).all(axis=1).mean()
    assert inside == pytest.approx(0.95, abs=3.3 * math.sqrt(0.95 * 0.05 / 20_000))
    assert probability_inside(np.array([0.0]), np.array([0.5])) == pytest.approx(0.5)


def test_how_far_a_tuning_curve_goes() -> None:
    """Two ends up to about n / 9 rounds: none with 5 trials, five with 48 (2311.09480 and our design)."""
    random = np.random.default_rng(0)
    assert tuning_curve(list(random.normal(size=5))) is None
    curve = tuning_curve(list(random.normal(size=48)))
    assert curve is not None
    assert curve.trials == (1, 2, 3, 4, 5)
    for low, median, high in zip(curve.low, curve.median, curve.high, strict=True):
        assert low <= median <= high
    assert list(curve.median) == sorted(curve.median, reverse=True)
    diverged = tuning_curve([*range(10), *[math.inf] * 14])
    assert diverged is not None
    assert diverged.high[0] == math.inf


def test_the_median_of_the_best_of_k_lies_in_the_band() -> None:
    """Exponential losses: the best of k has the median ln 2 / k."""
    random, hits, studies = np.random.default_rng(1), 0, 2000
    for _ in range(studies):
        curve = tuning_curve(list(random.exponential(size=40)))
        assert curve is not None
        truth = [math.log(2) / k for k in curve.trials]
        hits += all(a <= t <= b for a, t, b in zip(curve.low, truth, curve.high, strict=True))
    # At a few k the band holds more often than for all quantiles at once.
    assert hits / studies >= 0.95 - 3.3 * math.sqrt(0.95 * 0.05 / studies)


def test_the_page_offers_curves_from_twenty_trials_on(tmp_path: Path) -> None:
    for trials in (19, 24):
        rates = {1e-3 * 1.1**k: 3 + 0.01 * k for k in range(trials)}
        folder = write_sweep(tmp_path / f"{trials}", {"a": [3.0, 3.1]}, tune={"a": rates})
        assert list(tuning_curve_plots(read_results([folder]))) == []  # a grid is no random search
        manifest = read_manifest(folder)
        assert manifest.tune is not None
        tune = manifest.tune.model_copy(update={"random": True})
        write_manifest(folder, manifest.model_copy(update={"tune": tune}))
        plots = list(tuning_curve_plots(read_results([folder])))
        assert len(plots) == (trials >= 20)
    ((series,),) = [view.series for view in plots[0].views]
    assert list(series.x) == [1, 2]
    assert plots[0].views[0].tick_texts == ["1", "2"]
    assert series.y[0] == pytest.approx(3 + 0.01 * 11)  # the twelfth of 24
