"""Variants, ids, grids and which runs are due: pure functions, checked by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from zoo.ablate import plan as plan_module
from zoo.ablate.config import Halving
from zoo.ablate.identity import run_id
from zoo.ablate.outcome import Outcome
from zoo.ablate.plan import Planner, SweepPlan
from zoo.ablate.sweep import Sweep, load_sweep
from zoo.ablate.tuning import best_point, describe_rule, grid_points, on_border, rung_steps, survivors
from zoo.run.config import dump_config, load_config
from zoo.utils.errors import ConfigError

ROOT = Path(__file__).parent.parent
STUDY = """
base: gpt-tiny
axes:
  optimizer: [adamw, {type: amos, momentum: 0.9}, {type: amos, momentum: 0.5}]
  method:
    small: {init: small}
    wesar: {init: small, reparam: wesar}
    default:
zip: [{model.d_model: [32, 64], model.n_heads: [4, 8]}]
exclude:
  - {optimizer: amos(momentum=0.5), method: wesar}
  - {optimizer: amos(momentum=0.5), method: small}
  - {method: default, model.d_model: 64}
seeds: [0, 1]
baseline: {optimizer: adamw, method: small, model.d_model: 32}
tune:
  grid: {optimizer.lr: [0.001, 0.01, 0.1]}
  grids: [{where: {optimizer: amos(momentum=0.9)}, grid: {optimizer.lr: [0.01, 0.02, 0.03]}}]
"""
SMALL = """
base: gpt-tiny
axes: {init: [he, small]}
seeds: [0, 1]
"""
TUNED = SMALL + "tune: {grid: {optimizer.lr: [0.1, 0.01, 0.001]}, seeds: [0, 7]}"
HALVED = SMALL + "tune: {grid: {optimizer.lr: [1, 0.1, 0.01, 0.001]}, halving: {at: [0.25, 0.5]}}"


def load(folder: Path, text: str, *overrides: str) -> Sweep:
    file = folder / "study.yaml"
    file.write_text(text, encoding="utf-8")
    return load_sweep(file, overrides)


def test_variants(tmp_path: Path) -> None:
    sweep = load(tmp_path, STUDY)
    small, large = "model.d_model=32,model.n_heads=4", "model.d_model=64,model.n_heads=8"
    assert [c.name for c in sweep.variants] == [
        f"optimizer=adamw,method=small,{small}",
        f"optimizer=adamw,method=small,{large}",
        f"optimizer=adamw,method=wesar,{small}",
        f"optimizer=adamw,method=wesar,{large}",
        f"optimizer=adamw,method=default,{small}",
        f"optimizer=amos(momentum=0.9),method=small,{small}",
        f"optimizer=amos(momentum=0.9),method=small,{large}",
        f"optimizer=amos(momentum=0.9),method=wesar,{small}",
        f"optimizer=amos(momentum=0.9),method=wesar,{large}",
        f"optimizer=amos(momentum=0.9),method=default,{small}",
        f"optimizer=amos(momentum=0.5),method=default,{small}",
    ]
    assert sweep.baseline == f"optimizer=adamw,method=small,{small}"
    assert (sweep.name, sweep.folder, sweep.runs) == ("study", Path("sweeps/study"), Path("sweeps/runs"))
    by_name = {c.name: c for c in sweep.variants}
    wesar = by_name[f"optimizer=amos(momentum=0.9),method=wesar,{large}"]
    assert wesar.settings["model.n_heads"] == "8"
    amos = "optimizer={type: amos, momentum: 0.9, lr: 0.02}"
    sizes = ["model.d_model=64", "model.n_heads=8"]
    expected = load_config("gpt-tiny", [amos, "init=small", "reparam=wesar", *sizes, "name=run"])
    assert wesar.configs[1] == expected
    # A component of the base's type keeps the base's other fields; another type brings its own.
    assert (
        by_name[sweep.baseline].configs[0].optimizer
        == load_config("gpt-tiny", ["optimizer.lr=0.001"]).optimizer
    )


def test_names_are_as_short_as_they_can_be(tmp_path: Path) -> None:
    optimizers = "optimizer: [{type: amos, lr: 1e-2}, {type: adamw, betas: [0.9, 0.99]}]"
    axes = f"axes: {{{optimizers}, train.clip_norm: [null, 1e-3]}}"
    names = [c.name for c in load(tmp_path, f"base: gpt-tiny\n{axes}\n").variants]
    assert names[0] == "optimizer=amos,train.clip_norm=null"
    assert names[3] == "optimizer=adamw,train.clip_norm=0.001"


def test_a_fragment_may_extend_a_file_beside_the_sweep(tmp_path: Path) -> None:
    (tmp_path / "wide.yaml").write_text("model: {d_model: 64}")
    sweep = load(tmp_path, "base: gpt-tiny\naxes: {size: {tiny: {}, wide: {extends: wide.yaml}}}")
    widths = [c.configs[0].model.model_dump()["d_model"] for c in sweep.variants if c.configs[0].model]
    assert widths == [32, 64]


def test_overrides_go_below_the_axes(tmp_path: Path) -> None:
    sweep = load(tmp_path, SMALL, "train.steps=7", "init=he")
    assert [c.steps for c in sweep.variants] == [7, 7]
    assert [c.name for c in sweep.variants] == ["init=he", "init=small"]


def test_a_base_that_can_be_trained_alone_keeps_its_seed(tmp_path: Path) -> None:
    alone = "extends: gpt-tiny\nname: alone\nseed: 7\ntrain: {runs_dir: mine}\n"
    (tmp_path / "alone.yaml").write_text(alone, encoding="utf-8")
    for base in ("alone.yaml", "{extends: alone.yaml}"):
        sweep = load(tmp_path, SMALL.replace("gpt-tiny", base))
        run = sweep.run(sweep.variants[0], 0, 1)
        assert (run.seed, run.name) == (1, Planner(load(tmp_path, SMALL)).configs[1].name)


def test_an_id_follows_from_what_has_an_effect(tmp_path: Path) -> None:
    config = load_config("gpt-tiny")
    same = ["name=x", "train.runs_dir=y", "train.checkpoint_every=3", "train.keep_last=7"]
    assert run_id(load_config("gpt-tiny", same)) == run_id(config)
    others = ["seed=1", "train.steps=21", "model.d_mlp=70", "init=he", "optimizer.lr=1", "data.context=16"]
    ids = {run_id(load_config("gpt-tiny", [other])) for other in others}
    assert len({*ids, run_id(config)}) == 7
    assert run_id(config).startswith("gpt-gpt2-adamw-s0-")
    # What a run records gives its id again, whether a default is written out or not.
    (tmp_path / "config.yaml").write_text(dump_config(config))
    assert run_id(load_config(tmp_path)) == run_id(config)
    assert run_id(load_config("gpt-tiny", ["train.accumulation=1", "reparam=none"])) == run_id(config)


def test_where_a_rollback_goes_back_to_has_an_effect() -> None:
    back = ["train.spikes.action=rollback"]
    ids = {run_id(load_config("gpt-tiny", [*back, f"train.checkpoint_every={n}"])) for n in (5, 10)}
    assert len(ids) == 2


def test_two_runs_with_one_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = load(tmp_path, SMALL)
    monkeypatch.setattr("zoo.ablate.sweep.run_id", lambda config: "collision")
    with pytest.raises(ConfigError, match=r"two different runs have the id collision, one of them init=he"):
        Planner(sweep)


def test_grid() -> None:
    assert grid_points({}) == ({},)
    assert grid_points({"a": [1, 2], "b": ["x"]}) == ({"a": 1, "b": "x"}, {"a": 2, "b": "x"})
    assert best_point([[2.0, 4.0], [3.0, 2.0], [2.0, 3.0]]) == 1  # means 3, 2.5, 2.5: the first of equals
    assert best_point([[math.inf], [math.inf]]) == 0
    assert survivors([[3.0], [1.0], [math.inf], [2.0], [4.0]], 0.5) == [0, 1, 3]  # 2.5, rounded up
    assert on_border(
        {"a": 1, "b": "x", "c": 2}, grid_points({"a": [3, 2, 1], "b": ["x", "y"], "c": [1, 2, 3]})
    ) == ("a",)
    assert rung_steps(None, 100, 7) == (100,)
    assert rung_steps(Halving(at=(0.25, 0.5)), 100, 10) == (20, 50, 100)
    with pytest.raises(ValueError, match="no validation of its own before each"):
        rung_steps(Halving(at=(0.25, 0.29)), 100, 10)


SEARCH = "base: gpt-tiny\ntune: {random: {optimizer.lr: {log_uniform: [1e-5, 1e-2]}, trials: 25, seed: 0}}"


def test_random_search(tmp_path: Path) -> None:
    """The points are the same everywhere, whatever the trials, other keys and variants."""
    sweep = load(tmp_path, SEARCH)
    assert [(v.name, len(v.points)) for v in sweep.variants] == [("base", 25)]
    rates = [point["optimizer.lr"] for point in sweep.variants[0].points]
    assert rates[:3] == [2.291e-4, 3.738e-5, 8.164e-5]
    assert rates == [c.optimizer.lr for c in sweep.variants[0].configs if c.optimizer is not None]
    assert all(1e-5 <= rate <= 1e-2 for rate in rates)
    # Of 25 logarithms uniform over three decades, 8.3 are expected in each; fewer than 2 have p < .002.
    assert min(sum(10.0**d <= rate < 10.0 ** (d + 1) for rate in rates) for d in (-5, -4, -3)) >= 2
    more = load(
        tmp_path, SEARCH.replace("trials: 25", "optimizer.weight_decay: {uniform: [0, 1]}, trials: 30")
    )
    assert [point["optimizer.lr"] for point in more.variants[0].points[:25]] == rates
    decays = [point["optimizer.weight_decay"] for point in more.variants[0].points]
    assert 0 <= min(decays) < 0.2
    assert 0.8 < max(decays) <= 1
    both = load(tmp_path, SEARCH + "\naxes: {init: [he, small]}")
    assert [v.points for v in both.variants] == [sweep.variants[0].points] * 2
    other = load(tmp_path, SEARCH.replace("seed: 0", "seed: 1"))
    assert not {point["optimizer.lr"] for point in other.variants[0].points} & set(rates)
    assert sweep.tune is not None
    assert describe_rule(sweep.tune).startswith(
        "optimizer.lr (log-uniform between 1e-05 and 0.01), 25 points drawn with seed 0, the same "
    )


@pytest.mark.parametrize(
    ("name", "ranges", "steps", "warmup"),
    [
        ("adam", {"optimizer.lr": (1e-5, 1e-2)}, 140_000, 7_000),
        (
            "adamw",
            {
                "optimizer.lr": (1e-4, 1e-2),
                "optimizer.weight_decay": (1e-2, 1.0),
                "model.label_smoothing": (0.0, 0.2),
            },
            187_000,
            9_350,
        ),
    ],
)
def test_the_searches_of_amos_a9(
    name: str, ranges: dict[str, tuple[float, float]], steps: int, warmup: int
) -> None:
    """A.9.2: 25 runs each; cosine with 5 % of warm-up; only the smoothing is drawn on a linear scale."""
    sweep = load_sweep(ROOT / "configs" / "sweeps" / "papers" / f"amos-9-{name}.yaml")
    assert sweep.tune is not None
    assert sweep.tune.random is not None
    assert {key: values.bounds for key, values in sweep.tune.random.ranges.items()} == ranges
    linear = {key for key, values in sweep.tune.random.ranges.items() if values.uniform}
    assert linear == set(ranges) & {"model.label_smoothing"}
    (variant,) = sweep.variants
    configs: list[Any] = list(variant.configs)
    assert len(configs) == 25
    assert {(c.train.steps, c.schedule.type, c.schedule.warmup) for c in configs} == {
        (steps, "cosine", warmup)
    }
    assert {(c.optimizer.type, c.optimizer.betas, c.train.batch_size) for c in configs} == {
        (name, (0.9, 0.999), 1024)
    }


def outcomes(sweep: Sweep, losses: dict[tuple[str, float, int], Any]) -> dict[str, Outcome]:
    """By variant, learning rate and seed: the final loss, or those by step, or None for a failure."""
    found = {}
    for variant in sweep.variants:
        for (name, lr, seed), loss in losses.items():
            if name == variant.name:
                point = [p["optimizer.lr"] for p in variant.points].index(lr)
                known = loss if isinstance(loss, dict) else {variant.steps: loss}
                found[sweep.run(variant, point, seed).name] = (
                    Outcome(error="diverged")
                    if loss is None
                    else Outcome(max(known), known, ended=variant.steps in known)
                )
    return found


def told(plan: SweepPlan, given: dict[str, Outcome]) -> list[tuple[Any, ...]]:
    """What is due: variant, rate, seed, until, phases."""
    return [
        (r.variant, r.point.get("optimizer.lr"), r.config.seed, r.until, r.phases)
        for r in plan.runs
        if not r.is_done(given.get(r.id, plan_module.NOT_STARTED))
    ]


def test_without_tuning_everything_is_due(tmp_path: Path) -> None:
    plan = Planner(load(tmp_path, SMALL)).plan({})
    expected = [(f"init={init}", None, seed, 20, ("final",)) for init in ("he", "small") for seed in (0, 1)]
    assert told(plan, {}) == expected


def test_a_variant_is_compared_once_it_is_tuned(tmp_path: Path) -> None:
    sweep = load(tmp_path, TUNED)
    he = {("init=he", lr, seed): 3.0 for lr in (0.1, 0.01) for seed in (0, 7)}
    known = outcomes(sweep, {**he, ("init=he", 0.001, 0): 1.0})
    plan = Planner(sweep).plan(known)
    assert not plan.chosen
    assert told(plan, known)[0] == ("init=he", 0.001, 7, 20, ("tune",))
    known |= outcomes(sweep, {("init=he", 0.001, 7): 4.0})
    plan = Planner(sweep).plan(known)
    assert plan.chosen["init=he"].values == {"optimizer.lr": 0.001}
    assert plan.chosen["init=he"].on_border == ("optimizer.lr",)
    # Seed 0 has been trained while tuning; seed 7 is no seed of the comparison.
    assert told(plan, known)[0] == ("init=he", 0.001, 1, 20, ("final",))
    assert {r.phases for r in plan.runs if r.config.seed == 0 and r.point["optimizer.lr"] == 0.001} == {
        ("tune", "final"),
        ("tune",),
    }


def test_a_failed_run_is_the_worst(tmp_path: Path) -> None:
    sweep = load(tmp_path, TUNED)
    losses: dict[tuple[str, float, int], Any] = {
        ("init=he", lr, seed): 3.0 for lr in (0.1, 0.01, 0.001) for seed in (0, 7)
    }
    known = outcomes(sweep, {**losses, ("init=he", 0.1, 7): None})
    assert Planner(sweep).plan(known).chosen["init=he"].values == {"optimizer.lr": 0.01}


def test_halving(tmp_path: Path) -> None:
    sweep = load(tmp_path, HALVED, "train.eval_every=5")
    planner, rates = Planner(sweep), (1, 0.1, 0.01, 0.001)
    first: dict[tuple[str, float, int], Any] = {
        ("init=he", lr, 0): {5: loss} for lr, loss in zip(rates, (4.0, 1.0, 3.0, 2.0), strict=True)
    }
    known = outcomes(sweep, first)
    due = [run for run in told(planner.plan(known), known) if run[0] == "init=he"]
    assert due == [("init=he", lr, 0, 10, ("tune",)) for lr in (0.1, 0.001)]
    given_up = [run.point["optimizer.lr"] for run in planner.plan(known).runs if run.stopped_early]
    assert given_up == [1, 0.01]
    known |= outcomes(
        sweep, {("init=he", 0.1, 0): {5: 1.0, 10: 2.0}, ("init=he", 0.001, 0): {5: 2.0, 10: 1.0}}
    )
    due = [run for run in told(planner.plan(known), known) if run[0] == "init=he"]
    assert due == [("init=he", 0.001, 0, 20, ("tune",))]


def test_the_rule_is_told(tmp_path: Path) -> None:
    tune = load(tmp_path, STUDY).tune
    assert tune is not None
    assert describe_rule(tune) == (
        "optimizer.lr, 3 points per variant with seed 0: the lowest mean of the final validation loss over "
        "these seeds; a diverged run counts as infinite, of equals the first is taken; "
        "other values, equally many, for optimizer amos(momentum=0.9)"
    )
    tune = load(tmp_path, HALVED, "train.eval_every=5").tune
    assert tune is not None
    assert describe_rule(tune).endswith(
        "; after 0.25, 0.5 of the steps only the best 0.5 of the points go on"
    )
