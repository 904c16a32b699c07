"""QK-norm in its forms, QK-clip after the step, gated attention and the soft cap, in every decoder."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from two_ranks import on_two_ranks

from zoo import build_model, build_optimizer, load_model, merge, save_model
from zoo.hub.llama import LLAMA
from zoo.init import Registry
from zoo.models import Model
from zoo.nn.attention import Attention
from zoo.nn.loss import capped, linear_cross_entropy
from zoo.spec import Role
from zoo.train.distributed import World
from zoo.utils.errors import CheckpointError, ConfigError
from zoo.utils.sharded import whole

SIZES: dict[str, Any] = {"vocab_size": 31, "d_model": 16, "n_layers": 2, "n_heads": 4, "seed": 0}
DECODERS = ("gpt", "gpt2", "gpt-post")
OPTIONS: list[dict[str, Any]] = [
    *({"qk_norm": kind} for kind in ("head", "all_heads", "unit")),
    {"qk_clip": 1e-3},
    *({"gate": kind} for kind in ("head", "element")),
]


def first(model: Model) -> Attention:
    attention = model.get_submodule("blocks.0.attention")
    assert isinstance(attention, Attention)
    return attention


@pytest.mark.parametrize("kind", [*DECODERS, "ngpt"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_decoder_trains_saves_and_generates_with_it(
    kind: str, options: dict[str, Any], tmp_path: Path
) -> None:
    if kind == "ngpt" and "gate" not in options:
        with pytest.raises(ConfigError, match="not for nGPT"):
            build_model(kind, **SIZES, attention=options)
        return
    model = build_model(kind, **SIZES, attention=options, soft_cap=15.0)
    optimizer = build_optimizer(model, "adamw", lr=0.01)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for _ in range(2):
        optimizer.zero_grad()
        torch.autograd.backward(model.loss(*model.example(2, 8)).total)
        optimizer.step()
    assert all(not torch.equal(p, before[name]) for name, p in model.named_parameters())
    save_model(model, tmp_path / "saved")
    again, tokens = load_model(tmp_path / "saved").eval(), model.example(2, 8)[0]
    model.eval()
    assert torch.equal(again(tokens), model(tokens))
    # With a cache, token by token, as without.
    cache = model.cache(2, 8)  # type: ignore[operator]
    parts = torch.cat([model(tokens[:, i : i + 1], cache) for i in range(8)], 1)
    torch.testing.assert_close(parts, model(tokens), rtol=1e-4, atol=1e-5)


def rms(x: Tensor, scale: Tensor, eps: float = 1e-5) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * scale


def test_the_norms_are_over_heads_or_over_all_of_them() -> None:
    """References written out, on grouped queries and without positions (GPT-2)."""
    x = torch.randn(2, 5, 16)
    for kind in ("head", "all_heads"):
        attention = first(build_model("gpt2", **SIZES, n_kv_heads=2, attention={"qk_norm": kind}))
        with torch.no_grad():
            for p in attention.qk.parameters():
                p.uniform_(0.5, 1.5)
        q, k, _ = attention.project(x)
        found = attention.qk(q, k, None)
        for t, got, name in ((q, found[0], "q_norm"), (k, found[1], "k_norm")):
            scale = attention.qk.get_submodule(name).get_parameter("scale")
            want = rms(t, scale) if kind == "head" else rms(t.flatten(-2), scale).view_as(t)
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    unit = first(build_model("gpt", **SIZES, attention={"qk_norm": "unit"}))
    assert unit.scale == math.sqrt(4)
    q, k = unit.qk(*unit.project(x)[:2], None)
    torch.testing.assert_close(k.norm(dim=-1), torch.ones(2, 5, 4))
    assert unit.specs == {} and unit.q.specs["weight"].normalised


@pytest.mark.parametrize("kind", ["head", "element"])
def test_the_gate_multiplies_what_the_heads_give(kind: str) -> None:
    model = build_model("gpt", **SIZES, attention={"gate": kind})
    attention, x = first(model), torch.randn(2, 5, 16)
    assert attention.output_gate is not None
    q, k, v = attention.project(x)
    y = attention.attend(q, k, v)
    gates = torch.sigmoid(x @ attention.output_gate.get_parameter("weight").T)
    wanted = y * (gates[..., None] if kind == "head" else gates.view_as(y))
    torch.testing.assert_close(attention.gated(y, x), wanted)
    assert attention.output_gate.get_parameter("weight").shape == ((4, 16) if kind == "head" else (16, 16))
    name = "blocks.0.attention.output_gate.weight"
    assert Registry(model)[name].spec.role is Role.LINEAR
    muon = build_optimizer(model, "muon", lr=0.01, split_heads=True)
    assert any(name in group.get("param_names", ()) and "layout" in group for group in muon.param_groups)


def logits_of(attention: Attention, x: Tensor) -> Tensor:
    """Causal logits (batch, heads, time, time), written out."""
    q, k, _ = attention.project(x)
    k = k.repeat_interleave(attention.n_heads // attention.n_kv_heads, 2)
    z = torch.einsum("bqnh,bknh->bnqk", q, k) * attention.scale
    return z.masked_fill(~torch.ones(z.shape[-2:], dtype=torch.bool).tril(), -math.inf)


@pytest.mark.parametrize("n_kv_heads", [4, 2])
@pytest.mark.parametrize("reparam", ["none", "wesar", "multipliers"])
def test_clip_brings_the_largest_logits_to_the_threshold(n_kv_heads: int, reparam: str) -> None:
    """Per head, or per group that shares keys; heads below the threshold keep their matrices."""
    model = build_model(
        "gpt2", **SIZES, n_kv_heads=n_kv_heads, reparam=reparam, init="he", attention={"qk_clip": 100.0}
    )
    optimizer = build_optimizer(model, torch.optim.SGD, lr=1e-12)
    attention, x = first(model), torch.randn(2, 7, 16)
    clip = attention.clip
    assert clip is not None
    clip.threshold = 0.5 * logits_of(attention, x).amax().item()
    attention.train()
    attention(x, None)
    before = logits_of(attention, x).amax((0, 2, 3))
    torch.testing.assert_close(clip.largest, before)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    eta = (
        (clip.threshold / before).clamp_max(1).view(n_kv_heads, -1).amin(1).repeat_interleave(4 // n_kv_heads)
    )
    after = logits_of(attention, x).amax((0, 2, 3))
    torch.testing.assert_close(after, before * eta, rtol=1e-5, atol=1e-6)
    assert after.max() <= clip.threshold * 1.0001 and (eta < 1).any()
    assert not clip.largest.any()
    assert merge(model).max_difference < 1e-4


def test_soft_cap_in_logits_and_loss() -> None:
    """Values and gradients of the chunked loss are those of autograd on the written-out formula."""
    torch.manual_seed(0)
    hidden = torch.randn(11, 5, dtype=torch.float64, requires_grad=True)
    weight = (4 * torch.randn(7, 5, dtype=torch.float64)).requires_grad_()
    bias = torch.randn(7, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([0, 1, 2, -1, 3, 4, 5, 6, -1, 0, 1])
    parts = linear_cross_entropy(hidden, weight, targets, bias=bias, z_loss=1e-2, soft_cap=3.0, chunk=4)
    logits = 3 * torch.tanh((hidden @ weight.T + bias) / 3)
    lse = logits.logsumexp(-1)[targets >= 0]
    expected = F.cross_entropy(logits, targets, ignore_index=-1) + 1e-2 * lse.square().mean()
    torch.testing.assert_close(parts.total, expected)
    for found, want in zip(
        torch.autograd.grad(parts.total, (hidden, weight, bias)),
        torch.autograd.grad(expected, (hidden, weight, bias)),
        strict=True,
    ):
        torch.testing.assert_close(found, want)
    capped_model, free = build_model("gpt", **SIZES, soft_cap=0.1), build_model("gpt", **SIZES)
    tokens = free.example(2, 8)[0]
    torch.testing.assert_close(capped_model(tokens), capped(free(tokens), 0.1))
    assert capped_model(tokens).abs().max() <= 0.1
    assert capped(torch.ones(2, dtype=torch.bfloat16), 15.0).dtype == torch.float32


BAD: list[tuple[dict[str, Any], str]] = [
    ({"attention": {"qk_clip": 100, "qk_norm": "head"}}, "qk_clip has nothing to clip with qk_norm"),
    ({"attention": {"qk_clip": 100}, "qk_norm": True}, "qk_norm: true"),
    ({"attention": {"qk_clip": 0}}, "greater than 0"),
    ({"attention": {"gate": "heads"}}, "gate"),
    ({"attention": {"qk_norm": "rows"}}, "qk_norm"),
    ({"soft_cap": -1.0}, "soft_cap"),
]


@pytest.mark.parametrize(("fields", "message"), BAD, ids=str)
def test_bad_settings_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_model("gpt", **SIZES, **fields)


def test_what_a_clip_cannot_act_on_is_refused() -> None:
    clip = {"qk_clip": 100.0}
    for reparam in ("weight_norm", "sigma_reparam", {"type": "lora", "rank": 2}):
        model = build_model("gpt", **SIZES, attention=clip, reparam=reparam)
        with pytest.raises(ConfigError, match="which their reparameterisation does not"):
            build_optimizer(model, "adamw", lr=0.01)
    model = build_model("gpt", **SIZES, attention=clip, constraint="hyperball")
    with pytest.raises(ConfigError, match="a constraint keeps"):
        build_optimizer(model, "adamw", lr=0.01)


def test_no_other_library_has_it() -> None:
    """An export would lose the gates in silence."""
    config = build_model("gpt", **SIZES, attention={"gate": "head"}, device="meta").config
    with pytest.raises(CheckpointError, match=r"model\.attention"):
        LLAMA.to_hf(config)


def on_ranks(world: World) -> None:
    steps = []
    for sharded in (False, True):
        model = build_model("gpt", **SIZES, n_kv_heads=2, attention={"qk_clip": 1e-4}, d_mlp=7)
        if sharded:
            world.shard(model)
        optimizer = build_optimizer(model, "adamw", lr=1e-3)
        tokens = torch.arange(18).view(2, 9) % 31
        # Each rank sees one sequence; the largest logit is that of both.
        rows = tokens[world.rank : world.rank + 1] if sharded else tokens
        torch.autograd.backward(model.loss(rows[:, :-1], rows[:, 1:]).total)
        optimizer.step()
        steps.append([whole(p.detach()) for p in model.parameters()])
    for a, b in zip(*steps, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_two_ranks_are_one() -> None:
    on_two_ranks(on_ranks)
