"""The coordinate check over widths and depths: the standard parameterisation fails, rules pass."""

from __future__ import annotations

import math
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import zoo
from pages import DOCS, sections

from benchmarks.alignment import exponents, gains, weighted
from benchmarks.coordinates import configuration
from zoo import build_model, build_optimizer, save_model
from zoo.diagnose.coordinate_axes import DEPTH, WIDTH, Axis, block_names, names_at
from zoo.diagnose.coordinates import MAX_CHANGE, TOLERANCE, ModuleCheck, _exponent, check_coordinates
from zoo.optim.mars import MARSConfig
from zoo.optim.muon import MuonConfig
from zoo.report.coordinates import verdict_of
from zoo.run.config import load_config
from zoo.run.first_weights import initial_model
from zoo.utils.errors import ConfigError

BASE = {"embed": 32, "heads": 32, "kv_heads": 32, "mlp": 128}
SETTINGS: dict[str, Any] = {
    "model": {"type": "gpt", "vocab_size": 64, "d_model": 32, "n_layers": 2, "n_heads": 4, "d_mlp": 128},
    "init": "small",
    "optimizer": {"type": "adamw", "lr": 3e-3},
}
MUON = {"type": "muon", "adjust": "shape", "lr": 0.005, "rest": {"type": "adamw", "lr": 3e-3}}
RULES: dict[str, dict[str, Any]] = {
    "mup": {"transfer": {"type": "mup", "base": BASE}},
    "completep": {"transfer": {"type": "completep", "base": BASE | {"layers": 2}}},
    "spectral": {"transfer": {"type": "spectral", "base": BASE}, "optimizer": MUON},
    "wesar": {
        "transfer": {"type": "mup", "base": BASE},
        "reparam": "wesar",
        "optimizer": {"type": "adamw", "lr": 2.5e-4},
    },
}


def test_the_standard_parameterisation_fails() -> None:
    """What ends a branch grows, and so does the stream."""
    check = check_coordinates(load_config(SETTINGS), [32, 256], seeds=2)
    words = {module.name: module.word for module in check.modules}
    assert not check.passes
    assert words["blocks.0.mlp.down"] == words["blocks.1"] == "grows"


def test_the_standard_parameterisation_fails_in_depth() -> None:
    """The branches add up: the stream grows with their number, and muP says nothing of it."""
    for rule in ({}, RULES["mup"]):
        check = check_coordinates(load_config(SETTINGS | rule), [2, 16], DEPTH, seeds=2)
        words = {module.name: module.word for module in check.modules}
        assert not check.passes
        assert words["blocks.1"] == "grows"
        assert words["norm"] == words["embedding"] == "flat"


def test_completep_passes_in_depth() -> None:
    """Only ends of branches shrink, of which there are eight times as many."""
    check = check_coordinates(load_config(SETTINGS | RULES["completep"]), [2, 16], DEPTH, seeds=2)
    assert check.passes, [(m.name, m.factors) for m in check.modules if not m.passes]
    shrinking = {module.name for module in check.modules if module.word == "shrinks"}
    ends = ("attention", "attention.o", "mlp", "mlp.down")
    assert shrinking == {f"blocks.{i}.{end}" for i in (0, 1) for end in ends}
    down = next(module for module in check.modules if module.name == "blocks.1.mlp.down")
    assert down.factors[0] == pytest.approx(1 / 8, rel=0.15)


def test_blocks_are_compared_at_the_same_share_of_the_depth() -> None:
    model = initial_model(load_config(SETTINGS, ["model.n_layers=8"])).model
    names = names_at(model, ["blocks.0", "blocks.1"])
    blocks = list(model.layers)
    assert (names["blocks.0"], names["blocks.1"]) == (blocks[3], blocks[7])
    assert names["blocks.1.mlp.down"] is blocks[7].get_submodule("mlp.down")
    assert "blocks.2" not in names
    assert names_at(model, block_names(model)) == {name: m for name, m in model.named_modules() if name}


def test_of_normalised_outputs_the_movement_is_measured() -> None:
    """nGPT: every output has one norm, and moves further in a wider model; nuGPT's rates take that out.

    Its exponent of the width is -3/4, and with all terms of one sign (alignment: full) -1.
    """
    model = SETTINGS["model"] | {"type": "ngpt", "s_z": {"init": 32**0.5}, "alpha": {"init": 0.5}}
    settings: dict[str, Any] = {"model": model, "optimizer": {"type": "adamw", "lr": 3e-3, "weight_decay": 0}}

    def moved(**rule: Any) -> dict[str, float]:
        config = load_config(
            settings | ({"transfer": {"base": {"embed": 32, "layers": 2}} | rule} if rule else {})
        )
        check = check_coordinates(config, [32, 256], seeds=2, steps=2)
        assert check.movement
        assert list(check.steps) == [2]
        return {module.name: module.factors[0] for module in check.modules}

    none, measured, full = moved(), moved(type="nugpt"), moved(type="nugpt", alignment="full")
    assert none["embedding"] == pytest.approx(8**0.5, rel=0.05)  # entries of one size, rows of unit norm
    assert measured["embedding"] == pytest.approx(1, rel=0.1)
    for name in ("blocks.0.attention.q", "blocks.0.attention.o"):
        assert none[name] > 3
        assert none[name] > 2.5 * measured[name] > 2.5 * full[name]
        assert 1 / 1.25 < full[name] < 1.2
    with pytest.raises(ConfigError, match="1 step; the outputs of this model are normalised"):
        check_coordinates(load_config(settings), [32, 64], steps=1)


@pytest.mark.parametrize("rule", RULES)
def test_rules_pass(rule: str) -> None:
    """Within a factor of 1.2 over an eightfold width, but for the logits, which shrink."""
    check = check_coordinates(load_config(SETTINGS | RULES[rule]), [32, 256], seeds=2)
    assert check.passes, [(m.name, m.factors) for m in check.modules if not m.passes]
    assert [module.name for module in check.modules if module.word == "shrinks"] == ["read_out"]


def test_nugpt_passes_with_the_exponent_of_the_first_steps() -> None:
    """Over an eightfold width with m^-.92, over depths from 16 blocks on; plain nGPT passes neither."""
    ranges: list[tuple[Axis, list[int]]] = [(WIDTH, [64, 512]), (DEPTH, [16, 32])]
    for axis, sizes in ranges:
        layers = sizes[0] if axis is DEPTH else 2
        for rule, passes in (("none", False), ("nugpt, .92", True)):
            check = check_coordinates(configuration("ngpt", rule, layers), sizes, axis, seeds=1)
            assert check.movement
            assert check.passes == passes, [(m.name, m.factors) for m in check.failing]


def test_parameters_are_no_outputs() -> None:
    """A vector of scalings has no input; the outputs that it scales are compared."""
    check = check_coordinates(configuration("ngpt", "nugpt", 1), [64, 128], seeds=1, steps=2)
    names = {module.name for module in check.modules}
    assert {"read_out", "blocks.0.attention_residual", "embedding"} <= names
    assert not {name for name in names if name.endswith((".s_z", ".s_qk", ".s_u", ".s_nu", ".alpha"))}


@pytest.mark.parametrize("tied", [False, True])
def test_lookups_are_measured_with_the_constant_that_multiplies_them(tied: bool) -> None:
    """Times sqrt(d): under muP the stream starts alike at every width; a table of one scale makes it grow."""
    model = SETTINGS["model"] | {"scaled_embedding": True, "tied": tied}
    found = {}
    for name, rule in (("mup", RULES["mup"]), ("none", {})):
        config = load_config(SETTINGS | {"model": model, "init": "gpt2"} | rule)
        check = check_coordinates(config, [32, 128], seeds=1, steps=1)
        found[name] = check.modules[0]
        assert found[name].name == "embedding"
        deeper = check_coordinates(config, [2, 4], DEPTH, seeds=1, steps=1)
        assert deeper.modules[0].factors == pytest.approx([1], rel=0.05)  # the constant stays the same
    assert found["mup"].factors == pytest.approx([1], rel=0.05)
    assert found["none"].factors == pytest.approx([4**0.5], rel=0.05)


def test_calls_of_a_module_are_checked_apart() -> None:
    """BERT with relative positions maps the stream and a table of distances to keys and values."""
    position = {"type": "relative", "length": 8}
    model = {"type": "bert", "vocab_size": 64, "d_model": 32, "n_layers": 1, "n_heads": 4}
    settings = {"model": model | {"position": position}, "optimizer": {"type": "adamw", "lr": 3e-3}}

    def checked(biases: str) -> dict[str, ModuleCheck]:
        config = load_config(settings, [f"model.position.biases={biases}"])
        return {m.name: m for m in check_coordinates(config, [32, 64], seeds=1, steps=2).modules}

    twice, once = checked("twice"), checked("once")  # with "once" the map is no module for the table
    assert twice.keys() - once.keys() == {f"blocks.0.attention.{map_} (call 2)" for map_ in "kv"}
    for map_ in ("blocks.0.attention.k", "blocks.0.attention.v"):
        first, second = twice[map_], twice[f"{map_} (call 2)"]
        assert first.sizes[0] == once[map_].sizes[0]
        assert first.sizes[0] != second.sizes[0]
        assert first.change == second.change
        assert first.alignment is not None
        assert second.alignment is not None  # the table, which is a parameter, has moved


def test_exponents_by_hand() -> None:
    """All terms of one sign: 1; random signs: 1/2."""
    signs = torch.randn(512, 1024, generator=torch.Generator().manual_seed(0)).sign()
    ones = torch.ones(512, 1024)
    assert _exponent(ones, torch.ones(7, 1024)) == pytest.approx(1.0)
    assert _exponent(signs, torch.ones(7, 1024)) == pytest.approx(0.5, abs=0.02)


def test_how_much_of_an_update_adds_up_over_a_training() -> None:
    """Gains that grow as m^a, weighted by the fall of the loss; and those of a model, which lie near 1."""
    found = exponents({"q": 2.0, "o": 3.0}, {"q": 2.0 * 8, "o": 3.0 * 8**0.5}, 8)
    assert found == pytest.approx({"q": 1.0, "o": 0.5})
    assert weighted([1.0, 1.0, 0.5], [4.0, 2.0, 1.0]) == pytest.approx((2 * 1.0 + 1 * 0.75) / 3)
    drawn = torch.randint(64, (3, 4, 33), generator=torch.Generator().manual_seed(0))
    config = configuration("ngpt", "nugpt", 2)
    small, large = (
        list(gains(config, width, 2, lambda step: (drawn[step, :, :-1], drawn[step, :, 1:])))
        for width in (64, 128)
    )
    assert [step for step, _, _ in small] == [1, 2]
    of_maps = exponents(small[0][2], large[0][2], 2)
    assert len(of_maps) == 14
    assert all(0.3 < a < 1.3 for a in of_maps.values())


def test_a_width_keeps_the_size_of_heads() -> None:
    model = load_config(SETTINGS).model
    assert model is not None
    wide: Any = WIDTH.resized(model, 128)
    assert (wide.d_model, wide.n_heads, wide.d_mlp, wide.head_size) == (128, 16, 512, 8)
    with pytest.raises(
        ConfigError, match=r"width 36: model\.n_heads would be 4\.5; expected a multiple of 8"
    ):
        WIDTH.resized(model, 36)


def test_a_checkpoint_has_one_size(tmp_path: Path) -> None:
    """It was called damaged: its tensors did not belong to the other sizes."""
    save_model(build_model("gpt-tiny"), tmp_path / "model")
    config = load_config(
        {"model": {"from": str(tmp_path / "model")}, "optimizer": {"type": "adam", "lr": 0.1}}
    )
    with pytest.raises(
        ConfigError, match=r"starts from .*model, whose weights have one size; expected a mod"
    ):
        check_coordinates(config, [8, 16])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "model: {type: gpt, vocab_size: 64, d_model: 32, n_layers: 1, n_heads: 4}\n"
        "optimizer: {type: adamw, lr: 3e-3}\n"
    )
    page = tmp_path / "page"
    zoo("coord-check", path, "--widths", "32,128", "--seeds", "1", "--out", page, status=1)
    assert "modules fail: blocks.0.attention.q" in capsys.readouterr().out
    assert "blocks.0.mlp.down" in (page / "coordinates.html").read_text()
    for option, bad, message in (
        ("--widths", "32", "widths 32; expected two different widths or more"),
        ("--widths", "", "--widths '': expected numbers"),
        ("--widths", "32,x", "--widths '32,x': expected numbers"),
        ("--widths", "36,32", "width 36: model.n_heads would be 4.5; expected a multiple of 8"),
        ("--widths", "0,32", "width 0: model.d_model would be 0; expected a multiple of 8"),
        ("--steps", "0", "0 steps; expected 1 to 1000"),
        ("--seeds", "1001", "1001 seeds; expected 1 to 1000"),
        ("--lr", "-1", "lr -1; expected a positive number"),
        ("--lr", "nan", "lr nan; expected a positive number"),
    ):
        zoo("coord-check", path, option, bad, status=2)
        assert message in capsys.readouterr().err
    zoo("coord-check", path, "--depths", "1,2", "--seeds", "1", "--steps", "1", "--out", page)
    assert "All modules pass." in capsys.readouterr().out
    assert "Outputs over the depth" in (page / "coordinates.html").read_text()
    zoo("coord-check", path, "--depths", "1,2", "--widths", "32,64", status=2)
    assert "--widths and --depths: expected one of them" in capsys.readouterr().err
    for config, option in (
        ("lstm-tiny", "depth"),
        ("resnet18-digits", "depth"),
        ("resnet18-digits", "width"),
    ):
        zoo("coord-check", config, f"--{option}s", "32,64", status=2)
        assert f"coord-check: {option}s are those of model." in capsys.readouterr().err
    zoo("coord-check", path, "transfer={type: mup, base: {embed: 32, heads: 4}}", status=2)
    assert "transfer.base.heads: value 4; expected a multiple of 8" in capsys.readouterr().err


def test_the_page_of_the_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example of docs/transfer.md passes under its rule, over both axes, and fails without it."""
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "transfer.md").read_text("utf-8")
    (example,) = re.findall(r"^```yaml\n# wide\.yaml\n(.*?)^```$", page, re.M | re.S)
    Path("wide.yaml").write_text(example, encoding="utf-8")
    commands = sections("transfer.md")["Checking it"].commands
    assert len(commands) == 3
    for command in commands:  # depths at the base width, and widths at the base depth
        base = ["model.d_model=64", "model.n_heads=2", "model.n_layers=4"]
        zoo(*shlex.split(command), *base, status=int("transfer=none" in command))
        assert "is too large" not in capsys.readouterr().out


def test_a_rate_that_hides_the_rule() -> None:
    """GPT-2's small start: outputs shrink towards those of a wide model, and at a smaller rate not at all."""
    rule = RULES["mup"] | {"init": "gpt2"}
    check = check_coordinates(load_config(SETTINGS | rule), [32, 64, 128, 256], seeds=2)
    assert {module.word for module in check.failing} == {"shrinks"}
    assert check.rate_hides_rule
    down = next(module for module in check.modules if module.name == "blocks.0.mlp.down")
    doublings = [wide / narrow for narrow, wide in pairwise(down.sizes[-1])]
    assert doublings == sorted(doublings)
    said = verdict_of(check)[-1]
    advised = re.fullmatch(r".* width 32 the weights of .* Expected --lr (\S+) or less\.", said)
    assert advised
    assert check.largest_lr == pytest.approx(float(advised[1]), rel=0.5)
    again = check_coordinates(load_config(SETTINGS | rule), [32, 256], seeds=2, lr=float(advised[1]))
    assert again.passes, [(m.name, m.factors) for m in again.failing]
    assert (
        max(m.change for m in again.modules if m.change is not None) < 1.1 * MAX_CHANGE
    )  # nearly in proportion


def test_changes_that_do_not_add_up() -> None:
    """A product of three outputs, of matrices whose changes have signs of their own, beside its limit."""
    draw = torch.Generator().manual_seed(0)
    numbers = torch.randn(3, 2, 10**6, generator=draw, dtype=torch.float64)
    narrow, wide = ((numbers[:, 0] + c * numbers[:, 1]).prod(0) for c in (MAX_CHANGE, 0.0))
    assert (narrow.square().mean() / wide.square().mean()).sqrt().item() == pytest.approx(TOLERANCE, rel=0.02)


def test_a_rate_at_which_nothing_is_learnt() -> None:
    """Without a rule as well; outputs that are no numbers do not pass."""
    for lr in (10.0, 1e30):
        check = check_coordinates(load_config(SETTINGS), [32, 64], seeds=1, lr=lr)
        assert not check.learns
        assert not check.passes
        assert verdict_of(check)[-1].startswith(
            f"The learning rate {lr:g} is too large: the loss at width 32 rises from 4."
        )
    assert len(check.failing) == len(check.modules)  # no output is a number


def test_rates_of_parts_are_those_of_training() -> None:
    """The first step of Adam moves every entry by its learning rate, and that of Amos by xi eta."""
    q = [f"blocks.{i}.attention.q" for i in (0, 1)]

    def changes(optimizer: str, *overrides: str) -> list[float]:
        config = load_config(SETTINGS, [f"optimizer={optimizer}", *overrides])
        found = {m.name: m.change for m in check_coordinates(config, [8, 16], seeds=1, steps=2).modules}
        return [change for name in q if (change := found[name]) is not None]

    adam = "{type: adamw, lr: 1e-3, weight_decay: 0}"
    first, second = changes(adam)
    assert changes(adam, "layer_decay=0.5") == pytest.approx([first / 4, second / 2], rel=1e-4)
    assert changes(adam, "freeze=[{depth: [0, 1]}]") == pytest.approx([0, second], rel=1e-4)
    amos = "{type: amos, lr: 1e-3}"
    first, second = changes(amos)
    overrides = "eta_overrides=[{role: linear, factor: 2}]"
    assert changes(amos, overrides) == pytest.approx([2 * first, 2 * second], rel=1e-2)
    with pytest.raises(ConfigError, match=r"freeze\[0\] .* matches nothing"):
        changes(adam, "freeze=[{depth: [4, 4]}]")


def test_all_rates_of_an_optimizer_change_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Muon has a rate of its own for the read-out, MARS for vectors: both are multiplied with the first."""
    built: list[torch.optim.Optimizer] = []

    def record(model: Any, *arguments: Any, **options: Any) -> torch.optim.Optimizer:
        built.append(build_optimizer(model, *arguments, **options))
        return built[-1]

    monkeypatch.setattr("zoo.diagnose.coordinates.build_optimizer", record)
    check_coordinates(load_config(SETTINGS | {"optimizer": MUON}), [8, 16], seeds=1, steps=1)
    assert len(built) == 2
    for optimizer in built:
        assert {group["lr"] for group in optimizer.param_groups} == {4 * 0.005, 4 * 3e-3}
    mars = MARSConfig(lr=1e-3, lr_1d=5e-3)
    assert mars.at_rate(3e-3).lr_1d == pytest.approx(15e-3)
    assert MuonConfig(lr=1e-3).at_rate(3e-3).others.lr == 3e-3


def test_weight_normalization_starts_as_in_training() -> None:
    """With `start: forward` every unit begins with a standard deviation of 1; the rows' start was checked."""
    settings = SETTINGS | {"reparam": "weight_norm"}
    check = check_coordinates(load_config(settings), [16, 32], steps=1, seeds=1)
    first = [m for m in check.modules if m.change is not None][:7]  # behind them, means are not near 0
    for module in first:  # the mean absolute value of a normal number is .8
        assert module.sizes[0] == pytest.approx((0.8, 0.8), abs=0.1), module.name


@pytest.mark.parametrize(("name", "key"), [("bert-tiny", "dropout"), ("lstm-tiny", "hidden_dropout")])
def test_without_a_step_outputs_stay(name: str, key: str) -> None:
    """At a rate of next to nothing they change neither by dropout nor by an LSTM's carried state."""
    config = load_config(name, [f"model.{key}=0.5", "optimizer={type: adamw, lr: 1e-3}"])
    for module in check_coordinates(config, [16, 32], seeds=1, steps=2, lr=1e-30).modules:
        assert module.sizes[0] == pytest.approx(module.sizes[1])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("bert-tiny", "model.zero_start=true"),  # a matrix of zeros has no size to compare with
        ("gpt-tiny", "optimizer={type: amos, lr: 0.01, clip_value: by targets}"),
    ],
)
def test_what_training_takes_is_checked(name: str, change: str) -> None:
    config = load_config(name, [change, "schedule=constant"])
    check = check_coordinates(config, [16, 32], seeds=1, steps=3)
    assert all(math.isfinite(size) for module in check.modules for sizes in module.sizes for size in sizes)


def test_other_models() -> None:
    """Blocks of a decoder have the names of the smallest; an LSTM has a memory that grows, and streams."""
    deep = check_coordinates(load_config("t5-tiny"), [2, 4], DEPTH, seeds=1, steps=2)
    names = {module.name for module in deep.modules}
    assert {"encoder_blocks.1.mlp.down", "decoder_blocks.0.cross.o", "decoder_norm"} < names
    assert {"embedding", "embedding (call 2)"} < names  # of the encoder and of the decoder
    assert not any(name.endswith("blocks.2") for name in names)
    wide = check_coordinates(load_config("lstm-tiny"), [16, 32], seeds=1, steps=2)
    assert [module.name for module in wide.modules] == ["embedding", "lstm", "read_out"]
    lstm: Any = load_config("lstm-tiny").model
    assert WIDTH.resized(lstm, 32).model_dump()["d_memory"] == 2 * lstm.d_memory
