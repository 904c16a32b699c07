"""Where nGPT's scalings start by `auto`, and whether a run can move them where they should get."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
from command_line import zoo
from tiny_runs import tiny_fields

from zoo import Amos, build_model, build_optimizer
from zoo.init import EtaOverride, Registry
from zoo.models.starts import alpha_start, logit_scale, s_z_start
from zoo.optim import AdamWConfig, AmosConfig, ScheduleConfig
from zoo.run.config import load_config
from zoo.run.explanation import explain
from zoo.spec import ParamSpec, Role
from zoo.train.run import train
from zoo.utils.errors import ConfigError

AUTO: dict[str, Any] = {"alpha": {"init": "auto"}, "s_z": {"init": "auto"}}


def run(d_model: int, n_layers: int, lr: float, steps: int, warmup: int = 0, **fields: Any) -> dict[str, Any]:
    sizes = {"vocab_size": 64, "d_model": d_model, "n_layers": n_layers, "n_heads": 4}
    return {
        "model": {"type": "ngpt", **sizes, **fields},
        "optimizer": {"type": "adamw", "lr": lr},
        "schedule": {"type": "cosine", "warmup": warmup},
        "train": {"steps": steps, "batch_size": 1},
    }


STARTS = [
    # d_model, layers, rate, steps -> alpha, s_z: the sizes of docs/results/ngpt-starts.md
    ((64, 4, 1e-2, 300), 0.25, 8.0),
    ((64, 8, 1e-2, 300), 0.125, 8.0),
    ((128, 4, 1e-2, 300), 0.25, 128**0.5),
    ((64, 4, 1e-2, 1200), 0.25, 8.0),
    # the paper's long runs: s_z at 1, alpha "of the order of 1 / n_layers"
    ((1024, 24, 1e-3, 100_000), 1 / 24, 1.0),
    ((1280, 36, 1e-3, 100_000), 1 / 36, 1.0),
]


@pytest.mark.parametrize(("sizes", "alpha", "s_z"), STARTS)
def test_the_rules(sizes: tuple[int, int, float, int], alpha: float, s_z: float) -> None:
    """They are resolved when a configuration is read, so that a run folder and a checkpoint have numbers."""
    model: Any = load_config(run(*sizes, **AUTO)).model
    assert model.alpha.init == pytest.approx(alpha)
    assert model.s_z.init == pytest.approx(s_z)


def test_a_schedule_may_have_a_list() -> None:
    """As a plugin's with milestones has; the same fields under another class are another schedule."""

    class Halving(ScheduleConfig):
        type: Literal["halving"] = "halving"
        milestones: list[int]

        def after_warmup(self, step: int, peak: int, length: int) -> float:
            return float(0.5 ** sum(step >= milestone for milestone in self.milestones))

    class Doubling(Halving):
        def after_warmup(self, step: int, peak: int, length: int) -> float:
            return 1 / super().after_warmup(step, peak, length)

    optimizer, spec = AdamWConfig(lr=0.1), ParamSpec(Role.SCALING, (4,), ("embed",), start=1.0)
    assert optimizer.reach(spec, Halving(milestones=[2, 3]), 4) == pytest.approx(0.1 * 2.75)
    assert optimizer.reach(spec, Halving(milestones=[1]), 4) == pytest.approx(0.1 * 2.5)
    assert optimizer.reach(spec, Doubling(milestones=[1]), 4) == pytest.approx(0.1 * 7)


def test_the_rules_are_functions_of_numbers() -> None:
    assert alpha_start(24) == pytest.approx(0.0417, abs=1e-4)
    assert logit_scale(1024) == 32
    assert s_z_start(64, 0.0) == 8
    assert s_z_start(64, 1e6) == 1


def test_the_paper_s_configurations_keep_its_numbers() -> None:
    for name in ("ngpt-0.5b", "ngpt-0.5b-8k", "ngpt-1.0b", "ngpt-1.0b-4k"):
        model: Any = load_config(name).model
        assert (model.alpha.init, model.s_z.init) == (0.05, 1.0)


def test_what_is_learned_alone_decides() -> None:
    """A constant s_z cannot move at all; a classifier's trunk follows the same rules."""
    fixed: dict[str, Any] = {"alpha": {"init": "auto"}, "s_z": {"init": "auto", "kind": "fixed"}}
    model: Any = load_config({"model": run(64, 2, 1e-3, 1, **fixed)["model"]}).model
    assert (model.alpha.init, model.s_z.init) == (0.5, 8.0)
    trunk = run(64, 4, 1e-2, 300, **AUTO)
    trunk["model"] = {"type": "classifier", "classes": 3, "trunk": trunk["model"]}
    classifier: Any = load_config(trunk).model
    assert (classifier.trunk.alpha.init, classifier.trunk.s_z.init) == (0.25, 8.0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (run(64, 4, 1e-2, 9, s_qk={"init": "auto"}), "model.s_qk.init: value 'auto': there is no rule"),
        (run(64, 4, 1e-2, 9, s_nu={"init": "auto"}), "model.s_nu.init: value 'auto': there is no rule"),
        ({"model": run(64, 4, 1, 9, **AUTO)["model"]}, "s_z.init: value 'auto': the rule needs an optimizer"),
        (
            run(64, 4, 1e-2, 9, **AUTO) | {"optimizer": {"type": "adafactor", "lr": 0.01}},
            "s_z.init: value 'auto': there is no rule for this optimizer",
        ),
        (
            run(64, 4, 1e-2, 9, **AUTO)
            | {"optimizer": {"type": "schedule_free", "lr": 0.01}, "schedule": "constant"},
            "s_z.init: value 'auto': there is no rule for this optimizer",
        ),
        (
            run(64, 4, 1e-2, 9, s_z={"init": "Auto"}),
            "model.s_z.init: value 'Auto': expected a number or 'auto'",
        ),
        (
            {
                "model": {
                    "type": "ngpt-t5",
                    **AUTO,
                    "vocab_size": 64,
                    "d_model": 64,
                    "n_layers": 2,
                    "n_heads": 4,
                }
            },
            "model.alpha.init: value 'auto': the rule is for decoders",
        ),
    ],
)
def test_auto_without_a_rule(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(config)


def test_a_model_alone_has_no_horizon() -> None:
    with pytest.raises(ConfigError, match=r"the rule needs an optimizer and train\.steps"):
        build_model("ngpt", vocab_size=64, d_model=64, n_layers=2, n_heads=4, s_z={"init": "auto"})
    build_model(
        "ngpt", vocab_size=64, d_model=64, n_layers=2, n_heads=4, alpha={"init": "auto"}, device="meta"
    )


def test_the_bound_of_a_run() -> None:
    """From 1, s_z of width 64 gets to at most 4.6 in 300 steps at 3e-3, and to 13 at 1e-2 (half a cosine)."""
    spec = ParamSpec(Role.SCALING, (64,), ("vocab",), start=0.125)
    for lr, largest in [(3e-3, 4.6), (1e-2, 13.0)]:
        reach = load_config(run(64, 4, lr, 300)).reach
        assert reach is not None
        assert 1 + (reach(spec) or 0) / 0.125 == pytest.approx(largest, abs=0.05)


def test_the_bound_follows_the_rule_for_the_length_of_a_run() -> None:
    """A horizon of -1/2 at a hundred times the steps divides all rates by ten."""
    horizon = {"transfer": {"type": "horizon", "horizon": -0.5, "base": {"steps": 10}}}
    starts = []
    for lr, rule in ((0.1, {}), (0.1, horizon), (0.01, {})):
        model: Any = load_config(run(64, 4, lr, 1000, **AUTO) | rule).model
        starts.append(model.s_z.init)
    assert starts == [1.0, 8.0, 8.0]


def test_a_run_goes_on_with_the_start_that_it_began_with(tmp_path: Path) -> None:
    """`auto` depends on the number of steps, which may change when a run resumes."""
    fields = tiny_fields(tmp_path, steps=4, checkpoint_every=2)
    fields["model"] |= {"type": "ngpt", **AUTO}
    fields |= {"optimizer": {"type": "adamw", "lr": 0.5}, "schedule": {"type": "constant"}}
    first = train(load_config(fields))
    begun: Any = load_config(str(first.folder)).model
    fields["train"]["steps"] = 400
    longer = load_config(fields)
    assert longer.model.s_z.init == 1.0 < begun.s_z.init  # type: ignore[union-attr]
    assert train(longer, resume=True, until=6).step == 6
    resumed: Any = load_config(str(first.folder)).model
    assert resumed.s_z.init == begun.s_z.init


@pytest.mark.parametrize(
    ("config", "warned"),
    [
        (run(64, 4, 3e-3, 300), ["read_out.s_z.scale starts at 0.12", "194%"]),
        (run(64, 4, 1e-2, 300), ["read_out.s_z.scale", "58%"]),
        (run(64, 4, 1e-2, 300, **AUTO), []),
        (run(64, 4, 1e-2, 1200), []),
        (run(1024, 1, 1e-3, 20_000), []),
        (run(64, 2, 1e-2, 100, s_z={"kind": "fixed"}), ["blocks.*.attention_residual.alpha.scale", "99%"]),
    ],
)
def test_a_scaling_that_cannot_get_where_it_should(config: dict[str, Any], warned: list[str]) -> None:
    warnings = explain(load_config(config)).warnings
    assert bool(warnings) == bool(warned)
    assert all(part in " ".join(warnings) for part in warned)


def test_zoo_explain_warns(capsys: pytest.CaptureFixture[str]) -> None:
    zoo("explain", "quickstart-ngpt", "--fold", "model.s_z.init=1")
    assert "warning: read_out.s_z.scale starts at" in " ".join(capsys.readouterr().out.split())
    zoo("explain", "quickstart-ngpt", "--json")
    assert json.loads(capsys.readouterr().out)["warnings"] == []


def test_amos_on_scalings() -> None:
    """Eta is what the layer declares, for any start, and every entry has a slot; or as in zoo 0.2."""
    other: dict[str, Any] = {"alpha": {"init": 0.1, "scale": 2.0}, "s_z": {"init": 3.0}}
    for fields in ({}, other):
        model: Any = build_model("ngpt", vocab_size=64, d_model=64, n_layers=4, n_heads=4, **fields)
        registry = Registry(model)
        for scaling, declared in [(model.read_out.s_z, 8.0), (model.blocks[3].mlp_residual.alpha, 0.25)]:
            entry = next(e for e in registry if e.owner is scaling)
            assert entry.eta * scaling.factor == pytest.approx(declared)
    groups = Amos.from_entries(registry, 0.1).param_groups
    assert {g["eta"] for g in groups if g["params"][0].dim() == 1 and g["reduce"]} == set()
    old = Amos.from_entries(registry, 0.1, scaling_eta="start", scaling_slots="shared").param_groups
    assert {g["eta"] for g in old if g["reduce"] == (0,)} == {1.0, 2.0, 0.125}
    assert AmosConfig(lr=0.1).slots(registry["read_out.s_z.scale"]) == {"v": (64,), "b": (64,)}
    overridden = Registry(model, eta_overrides=[EtaOverride(role=Role.SCALING, axes=("vocab",), eta=0.3)])
    kept = Amos.from_entries(overridden, 0.1, scaling_eta="start").param_groups
    assert 0.3 in {g["eta"] for g in kept}


def test_a_signed_alpha_that_starts_below_0_has_the_eta_of_its_size() -> None:
    """The layer declares 1 / 4 for alpha, and the trained tensor is alpha times -s_scale / .05."""
    alpha = {"init": -0.05, "signed": True}
    model: Any = build_model("ngpt", vocab_size=64, d_model=64, n_layers=4, n_heads=4, alpha=alpha)
    scaling = model.blocks[3].mlp_residual.alpha
    entry = next(e for e in Registry(model) if e.owner is scaling)
    assert entry.eta == pytest.approx(0.25 * 64**-0.5 / 0.05)
    assert scaling().detach().tolist() == pytest.approx([-0.05] * 64)
    assert build_optimizer(model, "amos", lr=0.1).param_groups


def test_slots_of_scalings_are_no_memory() -> None:
    """Within 51 % of AdamW's with momentum, at the paper's size."""
    model = build_model("ngpt-0.5b", device="meta")
    amos, adamw = AmosConfig(lr=0.1, momentum=0.9), AdamWConfig(lr=0.1)
    registry = Registry(model)
    share = sum(amos.state_bytes(e) or 0 for e in registry) / sum(adamw.state_bytes(e) or 0 for e in registry)
    assert 0.5 < share < 0.51
