"""RPE BERT of the Amos paper against numbers recorded from the authors' model code (tests/golden/rpe)."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from zoo import build_model, load_model, save_model
from zoo.init import Registry
from zoo.models.bert import BERT
from zoo.run.config import load_config
from zoo.spec import Role
from zoo.utils.errors import ConfigError

GOLDEN = np.load(Path(__file__).parent / "golden" / "rpe" / "edge.npz")
SIZES: dict[str, Any] = {"vocab_size": 29, "d_model": 16, "n_layers": 2, "n_heads": 2}
PLACES = {"query": "q", "key": "k", "value": "v", "out": "o"}


def their_names(name: str) -> tuple[str, bool]:
    """Our parameter's name over there, and whether it is transposed."""
    fixed = {
        "embedding.token.weight": "token.embedding",
        "embedding.segment.weight": "segment.embedding",
        "embedding.norm.scale": "embed_norm.scale",
        "embedding.norm.bias": "embed_norm.bias",
        "head.transform.weight": "head.kernel",
        "head.transform.bias": "head.bias",
        "head.norm.scale": "head_norm.scale",
        "head.norm.bias": "head_norm.bias",
        "head.bias": "head.token_bias",
    }
    if name in fixed:
        return fixed[name], name == "head.transform.weight"
    _, layer, part, *rest = name.split(".")
    if part.endswith("_residual"):
        return f"layer{layer}.{part.removesuffix('_residual')}_norm.{rest[-1]}", False
    if rest[0] == "relative":
        return f"layer{layer}.relpos", False
    ours = {**{v: k for k, v in PLACES.items()}, "up": "mlp1", "down": "mlp2"}[rest[0]]
    leaf = {"weight": "kernel", "bias": "bias"}[rest[1]]
    return f"layer{layer}.{ours}.{leaf}", leaf == "kernel"


def filled(dtype: torch.dtype, **fields: Any) -> BERT:
    position = {"type": "relative", "length": 9, **fields.pop("position", {})}
    sizes: dict[str, Any] = {
        "vocab_size": 29,
        "d_model": 16,
        "n_layers": 2,
        "n_heads": 2,
        "d_mlp": 24,
        "n_segments": 1,
    }
    model = build_model("bert", **sizes, position=position, **{"gelu": "tanh", **fields}).to(dtype)
    for name, parameter in model.named_parameters():
        theirs, transposed = their_names(name)
        values = torch.from_numpy(GOLDEN[f"w.{theirs}"])
        parameter.data.copy_(values.T if transposed else values)
    assert isinstance(model, BERT)
    return model.eval()


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    ids, segments, mask = (torch.from_numpy(GOLDEN[key]) for key in ("ids", "segments", "mask"))
    return ids, segments, mask.bool()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-4)])
def test_hidden_states_logits_loss_and_gradients(dtype: torch.dtype, tolerance: float) -> None:
    model = filled(dtype)
    h = model.embedding(inputs()[0], inputs()[1])
    seen = inputs()[2][:, None, None]
    for i, block in enumerate([None, *model.blocks]):
        h = h if block is None else block(h, None, seen)
        np.testing.assert_allclose(h.detach().numpy(), GOLDEN[f"hidden{i}"], atol=tolerance, rtol=0)
    np.testing.assert_allclose(model(*inputs()).detach().numpy(), GOLDEN["logits"], atol=tolerance, rtol=0)
    labels, weight = torch.from_numpy(GOLDEN["labels"]), torch.from_numpy(GOLDEN["loss_weight"])
    loss = model.loss(*inputs(), labels.masked_fill(weight == 0, -1))
    loss.total.backward()  # type: ignore[no-untyped-call]
    assert loss.cross_entropy.item() == pytest.approx(float(GOLDEN["loss"]), abs=tolerance)
    for name, parameter in model.named_parameters():
        theirs, transposed = their_names(name)
        expected = GOLDEN[f"grad.{theirs}"]
        assert parameter.grad is not None
        found = parameter.grad.numpy()
        np.testing.assert_allclose(found, expected.T if transposed else expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize(
    ("biases", "gelu", "key"),
    [
        ("twice", "exact", "alt.logits_bias_released_gelu_erf"),
        ("once", "tanh", "alt.logits_bias_once_gelu_tanh"),
        ("once", "exact", "alt.logits_bias_once_gelu_erf"),
    ],
)
@torch.no_grad()
def test_the_other_readings(biases: str, gelu: str, key: str) -> None:
    model = filled(torch.float64, position={"biases": biases}, gelu=gelu)
    np.testing.assert_allclose(model(*inputs()).numpy(), GOLDEN[key], atol=1e-9, rtol=0)


def test_a_text_longer_or_shorter_than_the_table() -> None:
    """Beyond R - 1 all distances are the same; pair by pair, in float64."""
    model = filled(torch.float64).blocks[0].get_submodule("attention")
    assert hasattr(model, "relative")
    generator = torch.Generator().manual_seed(0)
    for time in (5, 14):
        x = torch.randn(1, time, 16, generator=generator, dtype=torch.float64)
        w = {name: p.detach() for name, p in model.named_parameters()}
        row = (torch.arange(time) - torch.arange(time)[:, None]).clamp(-8, 8) + 8
        table = w["relative.weight"][row]
        q, k, v = (x @ w[f"{m}.weight"].T + w[f"{m}.bias"] for m in "qkv")
        k, v = (
            part[:, None] + table @ w[f"{m}.weight"].T + w[f"{m}.bias"] for m, part in (("k", k), ("v", v))
        )
        q, k, v = (part.reshape(*part.shape[:-1], 2, 8) for part in (q, k, v))
        p = (torch.einsum("binh,bijnh->bnij", q, k) / 8**0.5).softmax(-1)
        y = torch.einsum("bnij,bijnh->binh", p, v).flatten(2) @ w["o.weight"].T + w["o.bias"]
        torch.testing.assert_close(model(x, None, None), y, atol=1e-12, rtol=1e-12)


def test_the_table_of_the_released_code_at_12_x_768() -> None:
    model = build_model("rpe-base", device="meta")
    tables = [p.numel() for name, p in model.named_parameters() if "relative" in name]
    assert len(tables) == 12
    assert sum(tables) == 12 * 255 * 768  # 2.35 M


AT_ZERO = {"query", "value", "mlp2", "head"}
"""The kernels that the released model starts at 0, as the golden file names them."""


def test_what_starts_at_zero_in_the_released_model() -> None:
    """All kernels of these kinds and nothing else; the logits are then 0, and the loss is ln V."""
    model = build_model("rpe-base", d_model=24, n_layers=2, vocab_size=50).eval()
    for name, parameter in model.named_parameters():
        theirs = their_names(name)[0]
        if theirs.endswith((".kernel", "embedding", "relpos")):
            assert (parameter == 0).all() == (theirs.split(".")[-2] in AT_ZERO), name
    tokens, targets = model.example(2, 12)
    assert model.loss(tokens, targets).total.item() == pytest.approx(math.log(50), abs=1e-6)
    trunk = model.recipe.model.model_dump()
    classifier = build_model({"model": {"type": "classifier", "trunk": trunk, "classes": 3}})
    assert not classifier.get_parameter("head.linear.weight").any()


def test_a_zero_start_has_no_direction_to_normalise() -> None:
    for reparam in ("weight_norm", "sigma_reparam"):
        with pytest.raises(
            ConfigError, match=r"blocks.0.attention.q.weight starts at 0 \(model.zero_start\)"
        ):
            build_model("bert", reparam=reparam, zero_start=True, **SIZES)


def test_slots_of_the_released_table() -> None:
    """v and b are (2 R - 1, 1) there; the paper's rule is one number for the table (A.8)."""
    config = load_config("rpe-base-amos")
    registry = Registry(build_model("rpe-base-amos", device="meta"), eta_overrides=config.eta_overrides)
    tables = [e for e in registry if e.spec.role is Role.POSITION]
    assert {(e.eta, e.slot_shape("one_axis"), e.slot_shape("dense")) for e in tables} == {
        (0.5, (255, 1), (255, 1))
    }
    papers = [e for e in Registry(build_model("rpe-base", device="meta")) if e.spec.role is Role.POSITION]
    assert {(e.eta, e.slot_shape("one_axis")) for e in papers} == {(0.5, (1, 1))}
    overrides = load_config({"eta_overrides": [{"role": "position", "reduce": ["embbed"]}]}).eta_overrides
    with pytest.raises(ConfigError, match=r"reduce: no axis 'embbed' .* did you mean 'embed'"):
        Registry(build_model("rpe-base", device="meta"), eta_overrides=overrides)


def test_shaws_form_under_its_old_name(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    model = build_model("bert", **SIZES, position={"type": "relative", "distance": 3})
    assert "now called 'shaw'" in caplog.text
    assert model.recipe.model.position.type == "shaw"
    assert load_model(save_model(model, tmp_path)).recipe == model.recipe
