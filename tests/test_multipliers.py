"""Learnable multipliers: their gradients, symmetries, merging, flags and what they refuse."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from zoo import build_model, build_optimizer, load_model, merge, save_model, split
from zoo.hub.export import export_model
from zoo.init import FreezeRule, Registry, freeze
from zoo.models import Model
from zoo.optim.clip import Clip
from zoo.run.config import load_config
from zoo.run.explanation import explain
from zoo.run.redundancy import notes
from zoo.spec import Role
from zoo.train.distributed import World
from zoo.train.step import Stepper, global_norm
from zoo.utils.errors import ConfigError

SIZES: dict[str, Any] = {"vocab_size": 31, "d_model": 16, "n_layers": 2, "n_heads": 2, "seed": 0}
KINDS = {"scalar": ["factor"], "row": ["rows"], "column": ["columns"], "both": ["rows", "columns"]}


def model_with(kind: str = "both", model: str = "gpt", **fields: Any) -> Model:
    return build_model(model, **SIZES, reparam={"type": "multipliers", "kind": kind, **fields})


def shaken(model: Model) -> Model:
    """With factors that are not 1."""
    with torch.no_grad():
        for entry in Registry(model):
            if entry.spec.role == "gate":
                entry.parameter.mul_(torch.rand(entry.parameter.shape) + 0.5)
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_it_starts_as_the_plain_model_and_the_head_has_none(kind: str) -> None:
    model, plain = model_with(kind), build_model("gpt", **SIZES)
    tokens = plain.example(2, 8)[0]
    assert torch.equal(model(tokens), plain(tokens))
    names = {name.rsplit("_", 1)[1] for name, _ in model.named_parameters() if "weight_" in name}
    assert names == set(KINDS[kind])
    assert not any("read_out" in n and "weight_" in n for n, _ in model.named_parameters())
    eta = {entry.name: entry.eta for entry in Registry(model)}
    assert all(eta[entry.name] == entry.eta for entry in Registry(plain))
    assert {value for name, value in eta.items() if "weight_" in name} == {1.0}


def test_gradients_are_those_of_equation_4() -> None:
    """dL/dr = sum_j G W c, dL/dc = sum_i G r W and dL/dW = r G c, G being that of the virtual W."""
    model = shaken(model_with("both"))
    layer = model.get_submodule("blocks.0.mlp.u")
    w, r, c = (layer.get_parameter(n).detach() for n in ("weight", "weight_rows", "weight_columns"))
    twin = build_model("gpt", **SIZES)
    twin.load_state_dict(merged(model).state_dict())
    batch = model.example(2, 8)
    for each in (model, twin):
        torch.autograd.backward(each.loss(*batch).total)
    g = twin.get_parameter("blocks.0.mlp.u.weight").grad
    assert g is not None
    grads = [layer.get_parameter(n).grad for n in ("weight", "weight_rows", "weight_columns")]
    expected = [r[:, None] * g * c, (g * w * c).sum(1), (g * r[:, None] * w).sum(0)]
    for found, want in zip(grads, expected, strict=True):
        torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-6)


def merged(model: Model) -> Model:
    copy = build_model(model.recipe.model_dump())
    copy.load_state_dict(model.state_dict())
    merge(copy)
    return copy


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("init", ["gpt2", "he"])
def test_it_merges_without_a_trace(kind: str, init: str, tmp_path: Path) -> None:
    """With He's embedding scaling as well; what is saved is a plain model."""
    model = shaken(build_model("gpt", **SIZES, init=init, reparam={"type": "multipliers", "kind": kind}))
    report = merge(model)
    assert report.max_difference <= 1e-6 * max(1.0, report.max_logit)
    save_model(model, tmp_path / "plain")
    again = load_model(tmp_path / "plain")
    tokens = model.example(2, 8)[0]
    torch.testing.assert_close(again(tokens), model(tokens), rtol=0, atol=1e-6)
    assert set(again.state_dict()) == set(build_model("gpt", **SIZES).state_dict())


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_opens_in_transformers_with_equal_logits(kind: str, tmp_path: Path) -> None:
    model = shaken(model_with(kind))
    export_model(model, tmp_path / "hub")
    stored = {name for file in (tmp_path / "hub").glob("*.safetensors") for name in load_file(file)}
    assert stored and not any("rows" in name or "columns" in name or "factor" in name for name in stored)
    opened = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hub").double()
    tokens = model.example(2, 8)[0]
    torch.testing.assert_close(opened(tokens).logits, model.double()(tokens), rtol=0, atol=1e-6)


def test_a_split_model_survives_its_file(tmp_path: Path) -> None:
    model = build_model("gpt", **SIZES)
    split(model, {"type": "multipliers", "kind": "both"})
    save_model(shaken(model), tmp_path / "split")
    tokens = model.example(2, 8)[0]
    assert torch.equal(load_model(tmp_path / "split")(tokens), model(tokens))


def test_wesar_is_the_scalar_kind_with_another_start() -> None:
    """The same function; only where gate and matrix start, and so the steps of Adam, differ."""
    scalar = model_with("scalar", read_out=True)
    wesar = build_model("gpt", **SIZES, reparam="wesar")
    tokens = scalar.example(2, 8)[0]
    torch.testing.assert_close(scalar(tokens), wesar(tokens), rtol=1e-5, atol=1e-5)
    assert sum(p.numel() for p in scalar.parameters()) == sum(p.numel() for p in wesar.parameters())


def test_symmetries_are_symmetries_and_explain_lists_them() -> None:
    """Factors that move between the places that are listed leave the outputs as they are."""
    model = shaken(model_with("both"))
    lines = notes(model)
    assert any(
        "rows of blocks.0.attention.v.weight and columns of blocks.0.attention.o.weight" in x for x in lines
    )
    tokens, f = model.example(2, 8)[0], 1.7
    before = model(tokens)
    pairs = [
        ("blocks.0.attention.v.weight_rows", ["blocks.0.attention.o.weight_columns"]),
        ("blocks.0.attention.q.weight_rows", ["blocks.0.attention.k.weight_rows"]),
        ("blocks.1.mlp.u.weight_rows", ["blocks.1.mlp.down.weight_columns"]),
        ("blocks.1.mlp.u.weight_rows", ["blocks.1.mlp.u.weight_columns"]),
        ("blocks.1.mlp_residual.norm.scale", [f"blocks.1.mlp.{n}.weight_columns" for n in ("u", "nu")]),
    ]
    with torch.no_grad():
        for up, down in pairs:
            model.get_parameter(up).mul_(f)
            for name in down:
                model.get_parameter(name).div_(f)
    torch.testing.assert_close(model(tokens), before, rtol=1e-4, atol=1e-5)
    assert not notes(build_model("gpt", **SIZES))
    shown = explain(load_config("gpt-tiny", ["reparam={type: multipliers, kind: row}"])).notes
    assert shown and not any("columns of" in line for line in shown)
    freeze(model, [FreezeRule(roles=(Role.GATE,))])
    assert not notes(model)  # factors that are not trained do not drift


@pytest.mark.parametrize("decays", [False, True])
def test_decay_is_a_choice(decays: bool) -> None:
    model = model_with(decays=decays)
    for entry in Registry(model):
        assert entry.decays == (
            entry.spec.role in ("linear", "embedding") or (decays and "weight_" in entry.name)
        )
    optimizer = build_optimizer(model, "adamw", lr=0.1, weight_decay=0.5)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    rows = model.get_parameter("blocks.0.mlp.u.weight_rows")
    torch.testing.assert_close(rows.detach(), torch.full_like(rows, 0.95 if decays else 1.0))


@pytest.mark.parametrize("clipped", [False, True])
def test_whether_factors_count_in_the_clip_norm(clipped: bool) -> None:
    model = model_with(clipped=clipped)
    unclipped = frozenset(entry.name for entry in Registry(model) if not entry.spec.clipped)
    assert bool(unclipped) != clipped
    sgd = torch.optim.SGD(model.parameters(), lr=0.0)
    world = World(0, 1, torch.device("cpu"))
    step = Stepper(model, model.loss, sgd, world, 1, "fp32", Clip(1e-3), 0.0, unclipped)
    result = step.gradient(model.example(2, 8), lambda: False)
    before = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    sgd.zero_grad = lambda set_to_none=True: None  # type: ignore[method-assign]
    step.update(result)
    counted = [p.grad for name, p in model.named_parameters() if name not in unclipped]
    assert global_norm(counted).item() == pytest.approx(1e-3, rel=1e-2)
    for name in unclipped:
        assert torch.equal(before[name], model.get_parameter(name).grad)  # type: ignore[arg-type]


BAD: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("gpt", {"qk_norm": True}, {}, "blocks.0.attention.q.weight.* normalised next"),
    ("gpt", {"qk_norm": True}, {"kind": "scalar"}, "skip_normalised: true"),
    ("ngpt", {}, {}, "normalised next"),
    ("gpt", {}, {"kind": "rows"}, "kind"),
    ("gpt", {}, {"rank": 3}, "rank"),
]


@pytest.mark.parametrize(("model", "sizes", "fields", "message"), BAD)
def test_bad_settings_are_refused(
    model: str, sizes: dict[str, Any], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build_model(model, **SIZES, **sizes, reparam={"type": "multipliers", **fields})


def test_normalised_matrices_can_be_left_out() -> None:
    model = build_model(
        "gpt", **SIZES, qk_norm=True, reparam={"type": "multipliers", "skip_normalised": True}
    )
    names = [name for name, _ in model.named_parameters()]
    assert "blocks.0.attention.v.weight_rows" in names and "blocks.0.attention.q.weight_rows" not in names
