"""Ladders: what a sweep over sizes and budgets trains, and what it says; tuning by a parabola."""

import json
import math
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from simulated_ladders import load, table, trained

from zoo.ablate.amount import of_size
from zoo.ablate.execute import planner_of
from zoo.ablate.ladder import LadderSize
from zoo.ablate.ladder_estimate import _shapes, decision_of, detected_shares, estimate_ladder, ladder_costs
from zoo.ablate.ladder_plan import table_of
from zoo.ablate.outcome import Outcome
from zoo.ablate.plan import PlannedRun
from zoo.ablate.rate_search import bracket, chosen_rate, search
from zoo.ablate.scale.line import Estimate
from zoo.ablate.scale.runs import format_count
from zoo.ablate.scale.simulate import Design, Faults
from zoo.ablate.scale.speeds import read_speeds
from zoo.ablate.scale.verdict import judge
from zoo.ablate.sweep import Sweep, load_sweep
from zoo.ablate.timing import measure_speeds
from zoo.commands.cli import main
from zoo.config.yaml import dump_yaml
from zoo.utils.errors import ConfigError, DataError

RATES = [1e-3, 2e-3, 4e-3, 8e-3, 16e-3]


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sweep, list[PlannedRun], dict[str, Outcome]]:
    sweep = load(tmp_path_factory.mktemp("check"))
    return sweep, *trained(sweep)


def test_sizes_by_a_shape_rule(check: Any) -> None:
    sizes: tuple[LadderSize, ...] = check[0].ladder
    assert [size.params / wanted for size, wanted in zip(sizes, (1e5, 2e5, 4e5, 8e5), strict=True)] == (
        pytest.approx([1] * 4, abs=0.25)
    )
    assert {size.budgets for size in sizes} == {(61 * 2048, 122 * 2048, 244 * 2048)}
    assert [len(size.seeds) for size in sizes] == [4, 3, 3, 2]


def test_small_sizes_come_first_and_each_is_tuned_before_it_is_compared(check: Any) -> None:
    _, order, _ = check
    params = [run.params for run in order]
    assert params == sorted(params)
    for variant, size in {(run.variant, run.params) for run in order}:
        phases = [r.phases[0] for r in order if (r.variant, r.params) == (variant, size)]
        assert phases == sorted(phases, reverse=True)  # "tune" before "final"


def test_larger_sizes_are_tuned_over_a_bracket_and_rates_lie_on_a_line(check: Any) -> None:
    sweep, order, _ = check

    def rates(variant: str, size: LadderSize, phase: str) -> set[float]:
        of_size = [run for run in order if run.variant == variant and run.params == size.params]
        return {run.point["optimizer.lr"] for run in of_size if phase in run.phases}

    for side in sweep.ladder[0].sides:
        tuned = [len(rates(side.variant, size, "tune")) for size in sweep.ladder]
        assert tuned[0] >= 5
        assert 3 <= tuned[-1] < 8
        for size in sweep.ladder:
            (rate,) = rates(side.variant, size, "final")
            assert rate == pytest.approx(5e-3 * (size.params / 1e5) ** -0.25, rel=0.25)


def test_a_budget_of_half_the_longest_is_that_of_the_tuning(tmp_path: Path) -> None:
    """Steps are whole: 2M tokens are 977 steps, and half of the 1953 steps of 4M tokens 976.5."""
    for tokens, tuned in ((["1M", "2M", "4M"], 977), (["1M", "4M"], 976.5)):
        budgets = {"tokens": tokens}
        sizes = load(tmp_path, scale={"budgets": budgets}).ladder
        assert {size.tuning_tokens for size in sizes} == {tuned * 2048}


def test_the_baseline_again_and_a_planted_speedup(check: Any) -> None:
    _, order, outcomes = check
    found = judge(table(order, outcomes), "base", margin=1.1)
    assert found["base again"].word in ("equal", "undecided")
    planted = found["base planted"]
    assert planted.word == "faster"
    assert planted.line is not None
    middle = planted.line.middle
    assert abs(middle.estimate - math.log(1.3)) <= middle.half95
    assert not any("unequally" in warning for warning in planted.warnings)


def test_a_sweep_that_is_stopped_says_what_it_knows(check: Any) -> None:
    sweep, *_ = check
    order, outcomes = trained(sweep, most=140)
    found = judge(table(order, outcomes), "base")["base planted"]
    assert found.line is None
    assert found.measured.usable


@pytest.mark.parametrize("tried", [1, 100])
def test_a_size_is_not_judged_by_the_runs_that_chose_its_rate(check: Any, tried: int) -> None:
    sweep, order, outcomes = check
    last = max(run.params for run in order)
    others = [run for run in order if (run.params, run.variant) != (last, "base again")]
    tuning = [run for run in order if run not in others and run.phases == ("tune",)]
    found = judge(table_of(sweep, [*others, *tuning[:tried]], outcomes), "base")
    assert {size.params for size in found["base planted"].measured.usable} == {s.params for s in sweep.ladder}
    (unused,) = found["base again"].measured.left_out
    assert unused.params == last and not unused.differs
    assert unused.reason == "base again: no run of the comparison has ended"
    assert not any("chose the rate count" in warning for warning in found["base again"].warnings)


@pytest.mark.parametrize("again", [False, True])
def test_sizes_are_added_until_it_is_decided(tmp_path: Path, again: bool) -> None:
    """A copy of the baseline, which is hoped to stay undecided, asks for no further size."""
    scale = {
        "sizes": {"params": ["0.05M", "0.1M", "0.2M", "0.4M", "0.8M", "1.6M"], "shape": "aspect"},
        "seeds": 3,
        "until_decided": True,
        "again": again,
    }
    sweep = load(tmp_path, scale=scale)
    order, outcomes = trained(sweep)
    assert len({run.params for run in order}) == 4
    assert judge(table(order, outcomes), "base")["base planted"].word == "faster"


def test_the_power_of_a_dry_run_is_that_of_the_verdict(tmp_path: Path) -> None:
    """Variants share the error, the copy of the baseline does not, and looks have their critical values."""
    sizes = {"params": ["0.05M", "0.1M", "0.2M", "0.4M", "0.8M", "1.6M"], "shape": "aspect"}
    seeds = {"sizes": sizes, "seeds": 2}
    once = decision_of(load(tmp_path, scale=seeds))
    assert (once.share, once.looks) == (0.05, ((6, None),))
    several = load(tmp_path, scale=seeds, axes={"schedule.warmup": [20, 30, 40]})
    assert decision_of(several).share == pytest.approx(0.05 / 3)  # two variants and the planted one
    looked = decision_of(load(tmp_path, scale={**seeds, "until_decided": True}))
    assert [count for count, _ in looked.looks] == [4, 5, 6]
    near = Estimate(0.1, 0.1 / 3, 4, 0.0, 9)  # t = 3, p = .04 with four degrees of freedom
    assert once.claims(near)
    assert not replace(once, share=0.025).claims(near)
    assert not looked.claims(replace(near, critical=looked.looks[-1][1]))
    assert not once.claims(replace(near, estimate=-0.1))


def power(sweep: Sweep) -> str:
    """What a dry run prints of the power."""
    probe: Any = SimpleNamespace(workers=1, seconds=lambda sweep, what: 1.0)
    console = Console(width=200, file=StringIO(), record=True)
    console.print(estimate_ladder(sweep, probe))
    return console.export_text()


def left(sweep: Sweep, outcomes: dict[str, Outcome], monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The share of every size that a dry run says is left, if these runs are known."""
    monkeypatch.setattr(Sweep, "outcome", lambda self, run: outcomes.get(run, Outcome()))
    probe: Any = SimpleNamespace(workers=1, seconds=lambda sweep, what: 1.0)
    return [cost.left / cost.hours for cost in ladder_costs(sweep, probe)]


def test_runs_of_one_side_are_not_left_at_sizes_that_the_sweep_has_not_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after lines were taken over from another ladder, which has the baseline at all sizes."""
    sweep = load(tmp_path, lines=None)
    order, outcomes = trained(sweep)
    known = {run.id: outcomes[run.id] for run in order if run.variant == sweep.baseline}
    shares = []
    for index, size in enumerate(sweep.ladder):
        others = tuple(side for side in size.sides if side.variant != sweep.baseline)
        tokens = (of_size(each, index, sweep.tune)[2] for each in (replace(size, sides=others), size))
        shares.append(next(tokens) / next(tokens))
    assert left(sweep, known, monkeypatch) == pytest.approx(shares)
    assert left(sweep, {}, monkeypatch) == [1.0] * len(shares)
    assert left(sweep, outcomes, monkeypatch) == pytest.approx([0.0] * len(shares), abs=1e-9)


def test_a_side_that_is_added_later_catches_up(tmp_path: Path) -> None:
    """The runs of the others stay planned; until_decided, whose words need all sides, waits at its size."""
    sweep = load(tmp_path, lines=None)
    order, outcomes = trained(sweep)
    added = next(name for name in {run.variant for run in order} if name != sweep.baseline)
    known = {run.id: outcomes[run.id] for run in order if run.variant != added}
    plan = planner_of(sweep).plan(known).runs
    sizes = [size.params for size in sweep.ladder]
    assert {run.id for run in plan if run.variant != added} == known.keys()
    waiting = [run for run in plan if run.id not in known]
    assert {(run.variant, run.params, run.phases) for run in waiting} == {(added, sizes[0], ("tune",))}
    for phase, reached in (("final", {*sizes}), ("tune", {*sizes[:2]})):  # a tuned side goes on to all sizes
        missing = next(
            run
            for run in order
            if run.variant == sweep.baseline and run.params == sizes[1] and phase in run.phases
        )
        del known[missing.id]
        plan = planner_of(sweep).plan(known).runs
        assert {run.params for run in plan if run.variant == sweep.baseline} == reached
    sizes_of_five = {"params": ["0.1M", "0.2M", "0.4M", "0.8M", "1.6M"], "shape": "aspect"}
    until = load(tmp_path, lines=None, scale={"sizes": sizes_of_five, "seeds": 2, "until_decided": True})
    order, outcomes = trained(until)
    known = {run.id: outcomes[run.id] for run in order if run.variant != added}
    assert {run.params for run in planner_of(until).plan(known).runs} == {until.ladder[0].params}


def test_points_beyond_a_border_do_not_stand_for_runs_that_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = load(tmp_path, lines=None, tune={"grid": {"optimizer.lr": [1e-3, 2e-3, 4e-3]}})
    order, outcomes = trained(sweep)
    size = sweep.ladder[0]
    here = [run for run in order if run.params == size.params]
    _, planned, tokens = of_size(size, 0, sweep.tune)
    assert len([run for run in here if "tune" in run.phases]) > planned
    missing = [run for run in here if run.variant == sweep.baseline and run.tokens == size.budgets[-1]]
    for run in missing:
        del outcomes[run.id]
    assert len(missing) == len(size.seeds)
    expected = len(missing) * size.budgets[-1] / tokens
    assert left(sweep, outcomes, monkeypatch)[0] == pytest.approx(expected)


def test_nothing_is_left_of_a_run_that_has_diverged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = load(tmp_path, lines=None)
    order, outcomes = trained(sweep)
    last = next(run for run in reversed(order) if run.phases == ("final",))
    outcomes[last.id] = Outcome(ended=True, error="the loss is not finite at step 3")
    assert left(sweep, outcomes, monkeypatch)[-1] == pytest.approx(0.0, abs=1e-9)


def test_there_is_no_power_where_losses_do_not_overlap(tmp_path: Path) -> None:
    """Section 2 of the design: |ln c| <= ln(T_max / T_min) - .5, else the word is "not comparable"."""
    wide = power(load(tmp_path))
    assert "No power" not in wide and "–" not in wide
    narrow = power(load(tmp_path, scale={"budgets": {"tokens": ["0.125M", "0.25M"]}}))
    rows = {line.strip().split("  ")[0]: line for line in narrow.splitlines()}
    for name in ("1.5", "1.5 falling to 1"):
        assert rows[name].split()[-3:] == ["–"] * 3
    assert "–" not in rows["1.1"] and "–" not in rows["1.1 falling to 1"]
    assert "No power at 1.5, 1.5 falling to 1: these budgets tell factors up to 1.21 x" in narrow
    close = power(load(tmp_path, scale={"budgets": {"tokens": ["0.2M", "0.25M", "0.3M"]}}))
    assert "What it would find" not in close
    assert "Power: none; at " in close and "x the shortest, so that losses hardly overlap" in close
    longer = {"tokens": [["0.125M", "0.5M"], ["0.125M", "0.5M"], ["0.4M", "0.5M"], ["0.125M", "0.5M"]]}
    mixed = load(tmp_path, scale={"budgets": longer})
    assert f"Power: none; at {format_count(mixed.ladder[2].params)} the longest" in power(mixed)


def test_the_power_of_budgets_that_differ_by_size(tmp_path: Path) -> None:
    """Each size is simulated with its own budgets; more of them at the larger sizes find more there."""
    two, four = ["0.125M", "0.5M"], ["0.125M", "0.2M", "0.3M", "0.5M"]
    sweeps = [load(tmp_path, scale={"budgets": {"tokens": [two, *[rest] * 3]}}) for rest in (two, four)]
    few, many = (next(row for row in power(s).splitlines() if row.split()[0:1] == ["1.1"]) for s in sweeps)
    assert float(many.split()[2]) > float(few.split()[2])
    sizes = {"params": ["0.1M", "0.2M"], "shape": "aspect"}
    alone = load(tmp_path, scale={"sizes": sizes, "budgets": {"tokens": two}, "seeds": [2, 1]})
    assert "Power: unknown; one seed at the largest size gives it no interval." in power(alone)


def test_sizes_that_do_not_overlap_leave_a_simulated_study(tmp_path: Path) -> None:
    """Close to the limit the noise takes sizes out of the line, and with them the power."""
    sweep = load(tmp_path, scale={"budgets": {"tokens": ["0.125M", "0.25M"]}})
    design = Design((1e5, 2e5, 4e5, 8e5), (5e5,) * 4, (4, 3, 3, 2), (0.5, 1.0))
    decision = decision_of(sweep)
    near = detected_shares(design, Faults(), decision, lambda _: math.log(1.1))
    far = detected_shares(design, Faults(), decision, lambda _: math.log(1.2))
    assert float(far[0]) < float(near[0])


def test_budgets_as_branches_of_a_trunk(tmp_path: Path) -> None:
    """The longest run of a seed comes first, and what the others share with it is counted once."""
    wsd = {"schedule": {"type": "wsd", "warmup": 20, "decay": 0.25}}
    sweep = load(tmp_path, base=wsd, scale={"budgets": {"trunk": True}})
    order, _ = trained(sweep)
    final = [run for run in order if run.params == sweep.ladder[0].params and "final" in run.phases]
    assert {run.steps for run in final if not run.begins} >= {244}
    for run in final:
        (trunk,) = [other for other in final if other.id == run.trunk]
        assert final.index(trunk) <= final.index(run)
        assert (trunk.steps, trunk.begins) == (round(244 * (1.3 if "planted" in run.variant else 1)), 0)
        # 20 steps of warm-up; the last quarter of those from the peak on cools down, and the first of these
        # still has the rate of the peak.
        cooling = math.ceil(0.25 * (run.steps - 19)) - 1
        assert run.begins == (0 if run is trunk else run.steps - cooling)
    runs, _, tokens = of_size(sweep.ladder[0], 0, None)
    assert runs == len(final)
    assert tokens == pytest.approx(sum((run.steps - run.begins) * 2048 for run in final), rel=1e-3)


def test_the_search_for_a_rate() -> None:
    losses = {rate: (math.log(rate / 3e-2)) ** 2 for rate in (*RATES, 32e-3, 64e-3)}
    assert search(RATES, lambda rate: None).rates == tuple(RATES)
    known = search(RATES, losses.get)
    assert known.rates == (*RATES, 32e-3, 64e-3)
    assert known.ln_best == pytest.approx(math.log(3e-2), abs=1e-6)
    falling = search(RATES, lambda rate: -rate)
    assert falling.at_border
    assert len(falling.rates) == 9
    assert search(RATES, lambda rate: math.inf if rate > 4e-3 else -rate).ln_best == math.log(4e-3)
    found = {float(x): math.log(1e-2) - 0.25 * x for x in range(3)}
    assert bracket(RATES, found, 4.0) == pytest.approx([1e-2 / math.e * f for f in (0.5, 1, 2)], rel=0.01)
    near, far = ({**found, 3.0: found[0.0] - fall} for fall in (0.7, 2.0))
    assert chosen_rate(near, 3.0) == pytest.approx(4.83e-3, rel=0.02)
    assert chosen_rate(far, 3.0) == pytest.approx(math.exp(far[3.0]), rel=0.01)  # no straight line


def test_a_search_whose_rates_tie_goes_to_the_border() -> None:
    """Of equal rates the lowest counts as the best, also where it was tried last."""
    diverged = search(RATES[:3], lambda rate: math.inf)
    assert diverged.at_border and diverged.ln_best is None
    assert diverged.rates == (*RATES[:3], *(1e-3 / 2**k for k in range(1, 5)))
    equal = search(RATES[:3], lambda rate: -0.7 if rate == 4e-3 else -0.9)  # shares of right answers
    assert equal.at_border and equal.rates == (*RATES[:3], 0.5e-3, 0.25e-3, 0.125e-3, 0.0625e-3)
    plateau = search(RATES, lambda rate: -0.9 if 1e-3 < rate < 8e-3 else -0.8)
    assert plateau.ln_best == pytest.approx(math.log(2e-3 * 2**0.5))


def test_a_side_at_the_border_has_no_verdict(tmp_path: Path) -> None:
    sweep = load(tmp_path, tune={"grid": {"optimizer.lr": [1e-8, 2e-8, 4e-8]}})
    order, _ = trained(sweep)
    assert {run.phases for run in order} == {("tune",)}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "sizes that coincide": (
        {"scale": {"sizes": {"params": ["0.1M", "0.101M", "0.4M"], "shape": "aspect"}, "seeds": 2}},
        "the same to a thousandth",
    ),
    "a size without effect": ({"scale": {"sizes": [{"model.d_mode": 64}], "seeds": 1}}, "d_mode"),
    "budgets that coincide": (
        {"scale": {"budgets": {"tokens": [100000, 100001]}}},
        "expected budgets of one step or more, and of different numbers of steps",
    ),
    "a budget below a step": (
        {"scale": {"budgets": {"tokens": [10, 100000]}}},
        "steps of 2,048 tokens; expected budgets of one step or more",
    ),
    "another batch size": (
        {"axes": {"train.batch_size": [16, 600]}},
        "2 steps of 76,800 tokens of train.batch_size=600, which are 153,600; expected the same to 0.5%",
    ),
    "steps of a variant": (
        {"axes": {"train.steps": [50, 400]}},
        "axes.train.steps: has no effect: the sweep sets it; expected `scale.budgets`",
    ),
    "steps in a fragment": (
        {"axes": {"length": {"short": {"train": {"steps": 50}}, "long": {}}}},
        "axes.length.short.train.steps: has no effect: the sweep sets it; expected `scale.budgets`",
    ),
    "steps of a size": (
        {"scale": {"sizes": [{"model.d_model": 64, "train.steps": 50}], "seeds": 2}},
        "scale.sizes.train.steps: has no effect: the sweep sets it; expected `scale.budgets`",
    ),
    "steps that are tuned": (
        {"tune": {"grid": {"train.steps": [50, 100, 200]}}},
        "tune.grid.train.steps: has no effect: the sweep sets it; expected `scale.budgets`",
    ),
    "two units": (
        {"scale": {"budgets": {"steps": [100]}}},
        "expected one of tokens, steps and per_parameter",
    ),
    "a count": ({"scale": {"budgets": {"tokens": ["1X"]}}}, "1X"),
    "a budget beyond all models": (
        {"scale": {"budgets": {"tokens": ["1e16"]}}},
        "less than or equal to 1000000000000000",
    ),
    "too short": ({"scale": {"budgets": {"tokens": [10000, 20000]}}}, "no more than the warm-up"),
    "seeds per size": ({"scale": {"seeds": [2, 2]}}, "seeds: 2 entries for 4 sizes"),
    "no seed": (
        {"scale": {"seeds": 0}},
        "seeds: value 0: expected how many seeds each size has, from 1 to 1,000",
    ),
    "margin": ({"scale": {"margin": 1.0}}, "margin"),
    "planted": ({"scale": {"planted": 0.9}}, "planted"),
    "unequal factors": ({"tune": {"grid": {"optimizer.lr": [1e-3, 2e-3, 5e-3]}}}, "rise by equal factors"),
    "best point": ({"tune": {"choose": "best"}}, "expected parabola"),
    "seeds of a sweep": ({"seeds": [0, 1]}, "expected scale.seeds"),
    "a trunk of cosines": (
        {"scale": {"budgets": {"trunk": True}}},
        "with schedule cosine the runs share no steps after the warm-up",
    ),
    "a trunk without branches": (
        {"scale": {"budgets": {"tokens": [100000], "trunk": True}}},
        "has no effect on a size with a single budget",
    ),
    "rule": ({"scale": {"sizes": {"params": ["1M"], "shape": "depth"}}}, "shape"),
    "too few other sizes": (
        {"scale": {"other_sizes": [{"where": {"init": "he"}, "sizes": [{"model.d_model": 64}]}]}},
        "other_sizes: 1 entries for 4 sizes; expected one for each",
    ),
    "other sizes of no variant": (
        {"scale": {"other_sizes": [{"where": {"init": "h"}, "sizes": [{"model.d_model": 64}] * 4}]}},
        "no such axis",
    ),
}


@pytest.mark.parametrize("changes, message", BAD.values(), ids=BAD)
def test_bad_ladders(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, **changes)
    assert message in str(error.value)


OTHER: dict[str, Any] = {
    "base": {"extends": "gpt-tiny", "schedule": {"warmup": 1}},
    "axes": {"model": {"gpt": {}, "lstm": {"model": {"type": "lstm", "vocab_size": 256}}}},
    "scale": {
        "sizes": [{"model.d_model": 16, "model.n_heads": 2}, {"model.d_model": 32, "model.n_heads": 4}],
        "other_sizes": [
            {"where": {"model": "lstm"}, "sizes": [{"model.d_model": 20}, {"model.d_model": 40}]},
        ],
        "budgets": {"steps": [2, 4]},
        "seeds": 1,
    },
}


SAME_SIZE: dict[str, Any] = {
    "base": {"extends": "gpt-tiny", "schedule": {"warmup": 1}},  # 20 steps with a validation every 10
    "axes": {"model.n_heads": [1, 2]},
    "baseline": {"model.n_heads": 2},
    "scale": {
        "sizes": [{"model.d_model": 16}, {"model.d_model": 32}],
        "budgets": {"steps": [40, 80]},
        "seeds": 1,
    },
}
"""Two variants that have equally many parameters, the second of which is the baseline."""


def test_halving_follows_the_budgets_and_not_the_steps_of_the_base(tmp_path: Path) -> None:
    grid = {"optimizer.lr": [1e-3, 2e-3, 4e-3]}
    tune = {"grid": grid, "choose": "parabola", "halving": {"at": [0.25]}}
    (file := tmp_path / "halved.yaml").write_text(dump_yaml({**SAME_SIZE, "tune": tune}))
    sweep = load_sweep(file)
    assert sweep.tune is not None
    for size in sweep.ladder:
        assert [side.rungs(size.tuning_tokens, sweep.tune.halving) for side in size.sides] == [(10, 40)] * 2
    tune["halving"] = {"at": [0.2]}
    file.write_text(dump_yaml({**SAME_SIZE, "tune": tune}))
    with pytest.raises(ConfigError, match=r"parameters: tune.halving at \[0.2\] of 40 steps"):
        load_sweep(file)


def test_a_dry_run_shows_and_measures_the_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The baseline need not be the first variant."""
    (file := tmp_path / "heads.yaml").write_text(dump_yaml(SAME_SIZE))
    sweep = load_sweep(file, out=tmp_path)
    assert [size.shape["n_heads"] for size in sweep.ladder] == [2, 2]
    measured = []

    def seconds(of_size: Sweep, what: str) -> float:
        model: Any = of_size.variants[0].configs[0].model
        measured.append((model.n_heads, model.d_model, what.partition(",")[0]))
        return 1.0

    probe: Any = SimpleNamespace(workers=1, seconds=seconds)
    ladder_costs(sweep, probe)
    assert measured == [(2, 16, "model.n_heads=2"), (2, 32, "model.n_heads=2")]


def test_a_variant_has_sizes_of_its_own(tmp_path: Path) -> None:
    (file := tmp_path / "other.yaml").write_text(dump_yaml(OTHER))
    sizes = load_sweep(file).ladder
    models: list[list[Any]] = [[side.config.model for side in size.sides] for size in sizes]
    assert [[model.type for model in size] for size in models] == [["gpt", "lstm"]] * 2
    assert [[model.d_model for model in size] for size in models] == [[16, 20], [32, 40]]
    assert [size.params for size in sizes] == [size.sides[0].params for size in sizes]  # the baseline's


WRONG_SIZES: dict[str, tuple[dict[str, Any], str]] = {
    "twice": (
        {"other_sizes": OTHER["scale"]["other_sizes"] * 2},
        "scale.other_sizes: model=lstm has sizes of its own already",
    ),
    "an unknown key": (
        {"other_sizes": [{"where": {"model": "lstm"}, "sizes": [{"model.n_heads": 2}, {}]}]},
        "n_heads",
    ),
}


@pytest.mark.parametrize("changes, message", WRONG_SIZES.values(), ids=WRONG_SIZES)
def test_wrong_sizes_of_a_variant_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    (file := tmp_path / "other.yaml").write_text(dump_yaml({**OTHER, "scale": {**OTHER["scale"], **changes}}))
    with pytest.raises(ConfigError, match=message):
        load_sweep(file)


TINY: dict[str, Any] = {
    "base": {
        "extends": "gpt-tiny",
        "schedule": {"warmup": 1},
        "train": {"eval_every": 100, "eval_batches": 1, "checkpoint_every": 100, "monitor_every": None},
    },
    "scale": {
        "sizes": [{"model.d_model": width, "model.n_layers": 1} for width in (8, 16, 24, 40)],
        "budgets": {"steps": [2, 4]},
        "seeds": 1,
        "planted": 2.0,
    },
}


def test_a_ladder_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(dump_yaml(TINY))
    out = tmp_path / "sweeps"
    with pytest.raises(SystemExit) as done:
        main(["sweep", str(file), "--out", str(out), "--workers", "1"])
    assert done.value.code == 0
    assert "base planted" in capsys.readouterr().out
    with pytest.raises(SystemExit) as done:
        main(["report", str(out / "tiny"), "--out", str(tmp_path / "page")])
    assert done.value.code == 0
    document = json.loads((tmp_path / "page/report.json").read_text())
    sizes = document["variants"]["base planted"]["sizes"]
    assert len(sizes) == 4
    capsys.readouterr()
    with pytest.raises(SystemExit) as done:
        main(["verdict", str(out / "tiny"), "--baseline", "base", "--json"])
    assert done.value.code == 0
    assert json.loads(capsys.readouterr().out)["variants"]["base planted"]["sizes"] == sizes
    with pytest.raises(DataError, match="--time 4: expected at least 5 rounds"):
        measure_speeds(out / "tiny", 4)
    measure_speeds(out / "tiny", 5)
    speeds = read_speeds(out / "tiny")
    assert speeds is not None
    assert speeds.size == max(size["params"] for size in sizes)
    assert {name: len(rounds) for name, rounds in speeds.rounds.items()} == {"base": 5, "base planted": 5}
    assert min(min(rounds) for rounds in speeds.rounds.values()) > 0


def test_sizes_that_the_shape_rule_misses(tmp_path: Path) -> None:
    """A size out of reach is an error, one that falls between two widths is told, with its shape."""
    scale = {"sizes": {"params": ["0.001M", "0.1M", "0.2M", "0.4M"], "shape": "aspect"}}
    with pytest.raises(ConfigError, match=r"scale.sizes.params: 1k: the smallest model by shape: aspect has"):
        load(tmp_path, scale=scale)
    scale = {"sizes": {"params": ["0.1M", "0.2M", "0.32M", "0.8M"], "shape": "aspect"}}
    sweep = load(tmp_path, scale=scale)
    (off,) = [size for size in sweep.ladder if size.note]
    assert off.note.startswith("scale.sizes: instead of 320k parameters, ")
    assert abs(off.params / 320e3 - 1) > 0.15
    assert off.note in sweep.notes
    shown = Console(file=StringIO(), width=120)
    shown.print(_shapes(sweep))
    told = shown.file.getvalue()  # type: ignore[attr-defined]  # a StringIO
    for size in sweep.ladder:
        assert f"{size.params:,}" in told
        assert str(size.shape["d_model"]) in told
