"""QK-norm in its forms, QK-clip after the step, gates, windows and the soft cap, in every decoder."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from two_ranks import on_two_ranks

from zoo import build_model, build_optimizer, generate, load_model, merge, save_model
from zoo.hub.llama import LLAMA
from zoo.init import FreezeRule, Registry, freeze
from zoo.models import Model
from zoo.nn.attention import Attention, causal_attention
from zoo.nn.loss import capped, linear_cross_entropy
from zoo.run.flops import model_flops
from zoo.sampling import left_padded
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
    {"window": 3},
    {"score_cap": 0.5},
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
    if kind == "ngpt" and options.keys() & {"qk_norm", "qk_clip"}:
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
    assert any(name in group.get("param_names", ()) and "ns_steps" in group for group in muon.param_groups)


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


@pytest.mark.parametrize(
    "rule",
    [{"axes": ["heads", "embed"]}, {"axes": ["kv_heads", "embed"]}, {"roles": ["bias"], "axes": ["heads"]}],
    ids=str,
)
def test_a_clip_of_what_is_frozen_is_refused(rule: dict[str, Any]) -> None:
    """Of queries, keys or their biases alone as well."""
    model = build_model("gpt2", **SIZES, attention={"qk_clip": 100.0})
    freeze(model, [FreezeRule(**rule)])
    with pytest.raises(ConfigError, match="qk_clip changes W_q and W_k, which are frozen; expected one of"):
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


@pytest.mark.parametrize("kind", [*DECODERS, "ngpt"])
def test_a_window_hides_what_is_before_it(kind: str) -> None:
    """Through L layers with windows of w keys, a token is seen by the L (w - 1) after it, and no more."""
    model = build_model(kind, **SIZES, attention={"window": 3}).eval()
    tokens = model.example(1, 12)[0]
    changed = tokens.clone()
    changed[:, 2] += 1
    differs = (model(tokens) != model(changed)).any(-1)[0]
    assert differs.nonzero().flatten().tolist() == [2, 3, 4, 5, 6]


def test_a_list_of_windows_is_repeated_over_the_blocks() -> None:
    model = build_model("gpt", **{**SIZES, "n_layers": 5}, attention={"window": [4, None]})
    windows = [m.window for m in model.modules() if isinstance(m, Attention)]
    assert windows == [4, None, 4, None, 4]
    for wrong in ([], [0], 0, -1):
        with pytest.raises(ConfigError, match=r"attention\.window"):
            build_model("gpt", **SIZES, attention={"window": wrong})


def test_padding_and_windows_together() -> None:
    """A text with padding in front is continued as alone."""
    model = build_model("gpt", **SIZES, attention={"window": [3, None]}).eval()
    tokens, mask = left_padded([[5, 6, 7, 8, 9, 1, 2], [8, 3]])
    both = generate(model, tokens, 6, mask=mask, temperature=0.0)
    alone = generate(model, torch.tensor([[8, 3]]), 6, temperature=0.0)
    assert torch.equal(both[1, -6:], alone[0, -6:])


def test_clipping_measures_only_what_the_window_shows() -> None:
    model = build_model("gpt", **SIZES, attention={"window": 2, "qk_clip": 1e-3}).train()
    attention = first(model)
    x = torch.randn(1, 6, 16)
    q, k = attention.qk(*attention.project(x)[:2], model.ropes(torch.arange(6))[0])  # type: ignore[operator]
    z = torch.einsum("bqnh,bknh->bnqk", q, k) * attention.scale
    seen = torch.ones(6, 6, dtype=torch.bool).tril().triu(-1)
    assert attention.clip is not None
    attention.clip.measure(q, k, attention.scale, attention.window)
    torch.testing.assert_close(attention.clip.largest, z.masked_fill(~seen, 0).amax((0, 2, 3)))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", [*DECODERS, "neox"])
def test_clipping_measures_no_padding(kind: str, packed: bool) -> None:
    """A text of 4 tokens with 20 of padding behind it has the largest logits of the text alone."""
    more: dict[str, Any] = {"rope_fraction": 0.5} if kind == "neox" else {}
    largest = []
    for tokens, mask in padded_and_alone():
        model = build_model(kind, **SIZES, **more, attention={"qk_clip": 1e-3})
        documents = [(~mask).long()] if packed else []
        model.loss(tokens, *documents, tokens.masked_fill(~mask, -1))
        largest.append([b for name, b in model.named_buffers() if "clip" in name])
    assert len(largest[0]) == 2
    torch.testing.assert_close(*largest)


def test_clipping_measures_no_padding_of_classified_texts() -> None:
    sizes = {key: size for key, size in SIZES.items() if key != "seed"}
    trunk = {"type": "gpt", **sizes, "attention": {"qk_clip": 1e-3}}
    largest = []
    for tokens, mask in padded_and_alone():
        model = build_model("classifier", trunk=trunk, classes=2, seed=0)
        model.loss(tokens, torch.zeros_like(tokens), mask, torch.tensor([0, 1]))
        largest.append([b for name, b in model.named_buffers() if "clip" in name])
    assert len(largest[0]) == 2
    torch.testing.assert_close(*largest)


def padded_and_alone() -> list[tuple[Tensor, Tensor]]:
    """Two texts with padding behind them, and without it, each with its mask."""
    tokens = torch.randint(31, (2, 24), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(24).expand(2, 24) < 4
    return [(tokens, mask), (tokens[:, :4], mask[:, :4])]


@pytest.mark.parametrize("kind", ["gpt", "neox"])
def test_capped_scores_written_out(kind: str) -> None:
    """Grouped queries, a window and a cap, against the softmax of the formula."""
    options = {"score_cap": 0.3, "score_size": 2.0, "window": 3}
    model = build_model(kind, **SIZES, n_kv_heads=2, rope_fraction=0.5, attention=options)
    attention, x = first(model), torch.randn(2, 6, 16)
    assert attention.scale == 2**-0.5
    q, k, v = attention.project(x)
    k, v = (t.repeat_interleave(2, 2) for t in (k, v))
    z = torch.einsum("bqnh,bknh->bnqk", q, k) * attention.scale
    seen = torch.ones(6, 6, dtype=torch.bool).tril().triu(-2)
    p = (0.3 * (z / 0.3).tanh()).masked_fill(~seen, -math.inf).softmax(-1)
    wanted = torch.einsum("bnqk,bknh->bqnh", p, v)
    torch.testing.assert_close(attention.attend(*attention.project(x)), wanted)
    assert not torch.allclose(attention.attend(*attention.project(x)), attention_without_cap(attention, x))


def test_operations_of_capped_scores_are_counted() -> None:
    """On meta tensors, for which there is no autocast; a cap is elementwise and adds none."""
    plain, capped = (
        build_model("gpt", **SIZES, attention=options, device="meta") for options in ({}, {"score_cap": 0.3})
    )
    assert model_flops(capped, plain.example(1, 6)) == model_flops(plain, plain.example(1, 6))


def attention_without_cap(attention: Attention, x: Tensor) -> Tensor:
    """What the same attention gives uncapped."""
    q, k, v = attention.project(x)
    return causal_attention(q, k, v, attention.scale, window=attention.window)


def test_capped_scores_of_documents_and_of_padding() -> None:
    """Packed as alone, and padded as alone."""
    model = build_model("gpt", **SIZES, attention={"score_cap": 0.5, "window": [3, None]}).eval()
    a, b = torch.tensor([[5, 6, 7, 8, 9]]), torch.tensor([[8, 3, 1]])
    numbers = torch.tensor([[0] * 5 + [1] * 3])
    packed = model.hidden_states(torch.cat([a, b], 1), documents=numbers)  # type: ignore[operator]
    alone = torch.cat([model.hidden_states(t) for t in (a, b)], 1)  # type: ignore[operator]
    torch.testing.assert_close(packed, alone, rtol=1e-5, atol=1e-5)
    tokens, mask = left_padded([a[0].tolist(), b[0].tolist()])
    both = generate(model, tokens, 6, mask=mask, temperature=0.0)
    assert torch.equal(both[1, -6:], generate(model, b, 6, temperature=0.0)[0, -6:])


def test_score_size_is_not_for_unit_vectors() -> None:
    with pytest.raises(ConfigError, match="score_size is not for unit queries"):
        build_model("gpt", **SIZES, attention={"score_size": 2.0, "qk_norm": "unit"})
