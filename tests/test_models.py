"""What the architectures promise: shapes, caches, options that do something, ranges as declared."""

from __future__ import annotations

import copy
import functools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo import build_model
from zoo.checkpoint.recipe import Recipe, assemble
from zoo.config.registry import INITS
from zoo.evaluation.likelihood import log_likelihoods
from zoo.init import AmosInit
from zoo.models import (
    Decoder,
    DecoderConfig,
    GPT2Config,
    GPTConfig,
    NeoXConfig,
    NGPTConfig,
    PostGPTConfig,
    hypersphere,
)
from zoo.nn.linear import Linear
from zoo.nn.loss import IGNORE_INDEX
from zoo.nn.norm import unit
from zoo.nn.residual import Riemannian, Slerp
from zoo.nn.rope import rotate, rotation
from zoo.nn.rope_scaling import LinearScaling, Llama3Scaling, LongRopeScaling, YarnScaling
from zoo.nn.scaling import AlphaConfig, ScalingConfig
from zoo.reparam import NoReparam
from zoo.spec import Module
from zoo.utils.errors import ConfigError, DataError

SIZES: dict[str, Any] = {"vocab_size": 61, "d_model": 32, "n_layers": 2, "n_heads": 4}
VARIANTS = {
    "gpt": GPTConfig(**SIZES),
    "gpt-options": GPTConfig(**SIZES, mlp="gelu", n_kv_heads=2, qk_norm=True, tied=True),
    "gpt-more-options": GPTConfig(
        **SIZES, d_head=6, qkv_bias=True, rope_scaling=Llama3Scaling(factor=4, context=8)
    ),
    "gpt-norms-after": GPTConfig(**SIZES, norms="after", attention={"qk_norm": "all_heads"}),
    "gpt-norms-both": GPTConfig(
        **SIZES, norms="both", centred_norms=True, scaled_embedding=True, mlp="geglu", tied=True
    ),
    "gpt2": GPT2Config(**SIZES, context=16),
    "neox": NeoXConfig(**SIZES),
    "neox-serial": NeoXConfig(**SIZES, parallel=False, rope_fraction=0.5, tied=True, gelu="tanh"),
    "ngpt": NGPTConfig(**SIZES),
    "ngpt-options": NGPTConfig(**SIZES, n_kv_heads=2, tied=True, d_head=6),
}


def build(config: DecoderConfig, seed: int = 0) -> Decoder:
    init = INITS[config.default_init]()
    model = assemble(Recipe(model=config, init=init, reparam=NoReparam()), seed)
    assert isinstance(model, Decoder)
    return model


@pytest.mark.parametrize("name", VARIANTS)
def test_causal(name: str) -> None:
    """A later token changes no earlier logit."""
    model = build(VARIANTS[name])
    tokens, _ = model.example(2, 12)
    changed = tokens.clone()
    changed[:, 8:] += 1
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :8], after[:, :8])
    assert not torch.allclose(before[:, 8:], after[:, 8:])


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("pieces", [[1] * 12, [5, 1, 6], [12]])
def test_cache_gives_the_same_logits(name: str, pieces: list[int]) -> None:
    model = build(VARIANTS[name])
    tokens, _ = model.example(2, 12)
    cache = model.cache(2, 12)
    logits = torch.cat([model(piece, cache) for piece in torch.split(tokens, pieces, 1)], 1)
    torch.testing.assert_close(logits, model(tokens), atol=1e-5, rtol=1e-5)
    with pytest.raises(DataError, match="1 more do not fit the cache: 12 of 12 positions are used"):
        model(tokens[:, :1], cache)


@pytest.mark.parametrize("wrong", [61, -1])
@pytest.mark.parametrize("name", VARIANTS)
def test_ids_without_a_vector(name: str, wrong: int) -> None:
    model = build(VARIANTS[name])
    with pytest.raises(DataError, match=rf"embedding \(vocab\): id {wrong} has no vector; expected 0 to 60$"):
        model(torch.tensor([[1, wrong, 2]]))


@pytest.mark.parametrize("name", VARIANTS)
def test_loss_is_cross_entropy_of_the_logits(name: str) -> None:
    model = build(VARIANTS[name])
    tokens, targets = model.example(2, 12)
    logits = model(tokens).double()
    parts = model.loss(tokens, targets, z_loss=0.1)
    cross_entropy = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    log_z = 0.1 * logits.logsumexp(-1).square().mean()
    assert parts.cross_entropy.item() == pytest.approx(cross_entropy.item(), rel=1e-5)
    assert parts.z_loss.item() == pytest.approx(log_z.item(), rel=1e-5)
    assert parts.total.item() == pytest.approx((cross_entropy + log_z).item(), rel=1e-5)


def test_grouped_queries_are_repeated_heads() -> None:
    """A grouped model equals one whose key and value heads are written out."""
    grouped = build(GPTConfig(**SIZES, n_kv_heads=2))
    full = build(GPTConfig(**SIZES))
    state = grouped.state_dict()
    for key, tensor in state.items():
        if tensor.shape[0] == 16:
            state[key] = tensor.unflatten(0, (2, 8)).repeat_interleave(2, 0).flatten(0, 1)
    full.load_state_dict(state)
    tokens, _ = grouped.example(2, 12)
    torch.testing.assert_close(full(tokens), grouped(tokens), atol=1e-5, rtol=1e-5)


def test_tied_read_out_follows_the_embedding() -> None:
    model = copy.deepcopy(build(GPTConfig(**SIZES, tied=True)))
    tokens, _ = model.example(1, 8)
    before = model(tokens)
    with torch.no_grad():
        model.get_parameter("embedding.weight")[60] += 1.0  # a token that is not among the inputs
    after = model(tokens)
    assert torch.equal(before[..., :60], after[..., :60])
    assert not torch.allclose(before[..., 60], after[..., 60])


ABLATIONS: dict[str, dict[str, Any]] = {
    **{
        f"{field} {kind}": {field: {"kind": kind}}
        for field in ("s_qk", "s_u", "s_nu", "s_z", "alpha")
        for kind in ("scalar", "fixed")
    },
    "s_qk init": {"s_qk": {"init": 0.33, "scale": 1.0}},
    "s_u scale": {"s_u": {"scale": 0.1}},
    "alpha signed": {"alpha": {"signed": True}},
    "no qk norm": {"qk_norm": False},
    "riemannian": {"update": "riemannian"},
    "slerp": {"update": "slerp"},
    "tied": {"tied": True},
}


def _steps(config: NGPTConfig) -> list[float]:
    """Losses of four steps in which some alphas turn negative."""
    model = build(config)
    for block in model.blocks:
        for name, p in block.named_parameters():
            if "alpha" in name:
                p.data[:: max(1, p.numel() // 2)] -= 0.3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    tokens, targets = model.example(2, 12)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = model.loss(tokens, targets).total
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_every_ablation_changes_the_training() -> None:
    """No ignored knob: each ablation of the paper gives other losses than the others.

    But one scalar for all of u cannot do anything in front of a Norm; building it says so.
    """
    default = _steps(NGPTConfig(**SIZES))
    seen = {"default": default}
    for name, fields in ABLATIONS.items():
        losses = _steps(NGPTConfig(**{**SIZES, **fields}))
        assert all(map(math.isfinite, losses)), name
        for other, reference in seen.items():
            if (name, other) == ("s_u fixed", "s_u scalar"):
                assert losses == reference
                continue
            assert losses != reference, f"'{name}' trains like '{other}'"
        seen[name] = losses


def test_a_scalar_in_front_of_a_norm_is_announced_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hypersphere, "_warn_once", functools.cache(hypersphere._warn_once.__wrapped__))
    for _ in range(2):
        build(NGPTConfig(**SIZES, s_u={"kind": "scalar"}))
    assert [r.message for r in caplog.records] == [
        "ngpt: one scalar s_u changes nothing, the MLP's output is normalised"
    ]


@pytest.mark.parametrize(
    ("alpha", "message"),
    [
        ({"init": 0.0}, "init is 0, .*its gradient would always be 0; expected another number"),
        ({"init": 0.0, "kind": "scalar", "signed": True}, "init is 0"),
        ({"init": math.nan}, r"alpha\.init: value NaN: expected 'auto' or a finite number"),
        ({"init": -math.inf, "kind": "fixed"}, r"alpha\.init: value -Infinity: expected 'auto' or a finite"),
        ({"kind": "fixed", "scale": 0.5}, "`scale` has no effect with kind: fixed"),
    ],
    ids=str,
)
def test_scalings_that_cannot_be_trained_are_refused(alpha: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_model("ngpt", **SIZES, alpha=alpha)


def test_the_forget_gate_needs_a_number() -> None:
    with pytest.raises(ConfigError, match=r"forget_bias: value NaN: expected a finite number"):
        build_model("lstm", vocab_size=8, d_model=4, d_memory=4, forget_bias=math.nan)


def test_fixed_scalings_have_no_parameters() -> None:
    names = {
        n
        for n, _ in build(
            NGPTConfig(**SIZES, alpha={"kind": "fixed"}, s_z={"kind": "fixed"})
        ).named_parameters()
    }
    assert not {n for n in names if "alpha" in n or "s_z" in n}


def _sphere_points() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    h, target = (unit(torch.randn(3, 5, 16, generator=generator, dtype=torch.float64)) for _ in range(2))
    return h, target


def test_slerp_is_exact_in_float64() -> None:
    """Its angle too, so that gradients can be checked against differences."""
    generator = torch.Generator().manual_seed(0)
    h, target = (unit(torch.randn(3, 16, generator=generator).double()) for _ in range(2))
    angle = torch.acos((h * target).sum(-1, keepdim=True))
    expected = (torch.sin(0.7 * angle) * h + torch.sin(0.3 * angle) * target) / torch.sin(angle)
    moved = Slerp(16, AlphaConfig(kind="scalar")).move(h, target, 0.3)
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-15)


def test_slerp_reaches_the_angle() -> None:
    """SLERP by alpha turns h by alpha times the angle to its target, and stays on the sphere."""
    h, target = _sphere_points()
    moved = Slerp(16, AlphaConfig(kind="scalar")).move(h, target, 0.3)
    angle = torch.acos((h * target).sum(-1))
    torch.testing.assert_close(moved.norm(dim=-1), torch.ones(3, 5, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(torch.acos((h * moved).sum(-1)), 0.3 * angle, atol=1e-5, rtol=0)


def test_riemannian_step_is_tangent() -> None:
    h, target = _sphere_points()
    step = Riemannian(16, AlphaConfig()).move(h, target, 0.3) - h
    torch.testing.assert_close((step * h).sum(-1), torch.zeros(3, 5, dtype=torch.float64), atol=1e-12, rtol=0)


def test_rope_is_a_rotation() -> None:
    """Norms stay, and a product of two rotated vectors depends on their distance alone."""
    x, y = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(0))
    rope = rotation(torch.arange(20), 8, 10000.0)
    xs, ys = (rotate(t.expand(1, 20, 1, 8), rope) for t in (x, y))
    torch.testing.assert_close(xs.norm(dim=-1), x.norm().expand(1, 20, 1))
    near, far = (xs[0, 5] * ys[0, 2]).sum(), (xs[0, 17] * ys[0, 14]).sum()
    torch.testing.assert_close(near, far)


def test_rope_of_bfloat16_rounds_once() -> None:
    """The rotation is that of float64, rounded to bfloat16; float32 stays what it was."""
    x = torch.randn(2, 40, 3, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
    angles = torch.arange(40)[:, None] * torch.tensor(
        [10000 ** (-i / 8) for i in range(8)], dtype=torch.float64
    )
    first, second = x.double().chunk(2, -1)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    expected = torch.cat((first * cos - second * sin, first * sin + second * cos), -1)
    found = rotate(x, rotation(torch.arange(40), 16, 10000.0))
    assert found.dtype == torch.bfloat16
    assert (found == expected.bfloat16()).double().mean() > 0.999


def test_rope_scaling() -> None:
    """Linear scaling moves positions closer; Llama 3's leaves fast rotations and slows slow ones."""
    where = torch.arange(40)
    cos, sin = rotation(where, 32, 10000.0)
    closer = rotation(where, 32, 10000.0, LinearScaling(factor=4))
    torch.testing.assert_close(closer[0][::4], cos[:10])
    torch.testing.assert_close(closer[1][::4], sin[:10])
    frequency = 10000.0 ** (-torch.arange(16) / 16)
    scaled = Llama3Scaling(factor=8, context=1000)(frequency, 10000.0, 1)
    turns = 1000 * frequency / (2 * math.pi)
    assert torch.equal(scaled[turns > 4], frequency[turns > 4])
    torch.testing.assert_close(scaled[turns < 1], frequency[turns < 1] / 8)
    between = (turns > 1) & (turns < 4)
    assert between.any()
    assert ((scaled < frequency) & (scaled > frequency / 8))[between].all()


def test_yarn_slows_what_turns_seldom() -> None:
    """Ramps between the pairs of 32 turns and of one turn; the scores grow by the square of the magnitude."""
    frequency = 10000.0 ** (-torch.arange(32) / 32)
    scaling = YarnScaling(factor=4, context=1000)
    scaled, turns = scaling(frequency, 10000.0, 1), 1000 * frequency / (2 * math.pi)
    ratio = scaled / frequency
    assert torch.equal(ratio[turns > 45], torch.ones(int((turns > 45).sum())))
    torch.testing.assert_close(ratio[turns < 0.7], torch.full((int((turns < 0.7).sum()),), 0.25))
    between = ratio[(turns > 1) & (turns < 32)].diff()
    torch.testing.assert_close(between, between[:1].expand_as(between))  # linear in the number of the pair
    cos, sin = rotation(torch.arange(9), 64, 10000.0, scaling)
    torch.testing.assert_close(cos**2 + sin[:, 1] ** 2, torch.full_like(cos, (0.1 * math.log(4) + 1) ** 2))


def test_longrope_chooses_by_the_length_that_a_cache_allows() -> None:
    """One cache holds keys of one kind of rotation: token by token is the same as at once, long or short."""
    scaling = LongRopeScaling(short=(1.0,) * 4, long=(2.0,) * 4, context=8, factor=2)
    model = build(GPTConfig(**SIZES, rope_scaling=scaling)).eval()
    tokens = model.example(1, 12)[0]
    cache = model.cache(1, 12)
    parts = torch.cat([model(tokens[:, i : i + 1], cache) for i in range(12)], 1)
    torch.testing.assert_close(parts, model(tokens), rtol=1e-4, atol=1e-5)
    short = build(GPTConfig(**SIZES, rope_scaling=scaling.model_copy(update={"context": 12})))
    assert not torch.allclose(short(tokens), model(tokens))
    with pytest.raises(ValueError, match=r"rope_scaling.long has 4 factors, but 3 pairs are rotated"):
        GPTConfig(**SIZES, d_head=6, rope_scaling=scaling.model_copy(update={"short": (1.0,) * 3}))


def test_longrope_goes_by_the_text_and_not_by_its_padding() -> None:
    """Beside a longer text a short one has its own loss, likelihood and class."""
    scaling = {"type": "longrope", "factor": 4.0, "context": 8, "short": [1.0] * 4, "long": [3.0] * 4}
    fields: dict[str, Any] = {**SIZES, "d_head": 8, "rope_scaling": scaling}
    model: Any = build_model("gpt", **fields, seed=0).eval()
    tokens = torch.arange(6)[None] % SIZES["vocab_size"]
    padded = F.pad(tokens, (0, 9))
    targets = F.pad(tokens, (0, 9), value=IGNORE_INDEX)
    assert model.loss(padded, targets).total.item() == pytest.approx(model.loss(tokens, tokens).total.item())
    short, long = ([1, 2, 3], [4]), (list(range(12)), [5])
    alone, beside = (log_likelihoods(model, pairs, 16, 2)[0][0] for pairs in ([short], [short, long]))
    assert alone == pytest.approx(beside)
    classifier = build_model("classifier", trunk={"type": "gpt", **fields}, classes=2, seed=0).eval()
    mask = torch.arange(15)[None] < 6
    torch.testing.assert_close(classifier(padded, None, mask), classifier(tokens))


def test_blocks_that_do_not_rotate_and_entries_that_are_not_rotated() -> None:
    """Without rotation and without a mask of its own, a permuted past changes nothing (NoPE)."""
    none = build(GPTConfig(**{**SIZES, "n_layers": 1}, rope_blocks=(False,)))
    tokens = none.example(1, 8)[0]
    permuted = tokens[:, [3, 1, 0, 2, 4, 5, 6, 7]]
    torch.testing.assert_close(none(permuted)[:, 4:], none(tokens)[:, 4:])
    some = build(GPTConfig(**SIZES, rope_blocks=(True, False)))
    first, second = some.ropes(torch.arange(8))
    assert first is not None and second is None
    assert not torch.allclose(some(permuted)[:, 4:], some(tokens)[:, 4:])
    x = torch.randn(1, 8, 2, 8)
    turned = rotate(x, rotation(torch.arange(8), 4, 10000.0))
    assert torch.equal(turned[..., 4:], x[..., 4:])
    torch.testing.assert_close(turned[..., :4], rotate(x[..., :4], rotation(torch.arange(8), 4, 10000.0)))


def test_windows_may_have_a_base_of_their_own() -> None:
    fields: dict[str, Any] = {"rope_base": 1e6, "rope_window_base": 1e4, "attention": {"window": [4, None]}}
    model = build(GPTConfig(**SIZES, **fields))
    local, whole = model.ropes(torch.arange(8))
    assert local is not None and whole is not None
    torch.testing.assert_close(local[0], rotation(torch.arange(8), 8, 1e4)[0])
    torch.testing.assert_close(whole[0], rotation(torch.arange(8), 8, 1e6)[0])


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_scaling_starts_at_init_whatever_its_scale(scale: float) -> None:
    """s_scale changes how fast a scaling learns, not where it starts."""
    config = NGPTConfig(**SIZES, s_qk=ScalingConfig(init=0.33, scale=scale))
    model, reference = build(config), build(NGPTConfig(**SIZES, s_qk=ScalingConfig(init=0.33, scale=1.0)))
    tokens, _ = model.example()
    torch.testing.assert_close(model(tokens), reference(tokens))


# The declared ranges are rounded numbers of Amos' Table 1. Two stand apart:
#  * down: SwiGLU of unit normals has standard deviation 0.596, the table's sqrt(1/2) is for plain
#    activations; on nGPT the same, times 1/sqrt(d).
#  * o: attention averages values, the more the later the token; the declared std is that of one value.
LOOSER = {"down": 0.35, "o": 1.0}


@pytest.mark.parametrize("name", ["gpt", "gpt-gelu", "gpt-post", "gpt2", "neox", "ngpt"])
def test_activations_have_the_declared_std(name: str) -> None:
    sizes = {"vocab_size": 256, "d_model": 256, "n_layers": 2, "n_heads": 4}
    config = {
        "gpt": GPTConfig(**sizes),
        "gpt-gelu": GPTConfig(**sizes, mlp="gelu"),
        "gpt-post": PostGPTConfig(**sizes),
        "gpt2": GPT2Config(**sizes),
        "neox": NeoXConfig(**sizes),
        "ngpt": NGPTConfig(**sizes),
    }[name]
    model = assemble(Recipe(model=config, init=AmosInit(), reparam=NoReparam()), 0)
    assert isinstance(model, Decoder)
    measured: dict[str, tuple[float, float, float, float]] = {}

    def watch(path: str, module: Linear) -> None:
        spec = module.specs["weight"]
        module.register_forward_hook(
            lambda _m, i, o: measured.__setitem__(
                path,
                (
                    i[0].square().mean().sqrt().item(),
                    spec.input_std,
                    (o / i[1] if len(i) > 1 else o).square().mean().sqrt().item(),
                    spec.output_std,
                ),
            )
        )

    for path, module in model.named_modules():
        if isinstance(module, Linear):
            watch(path, module)
    tokens = torch.randint(256, (4, 64), generator=torch.Generator().manual_seed(1))
    hidden = model.hidden_states(tokens)
    owner: Module = model.embedding if model.read_out.tied else model.read_out.matrix
    spec, logits = owner.specs["weight"], F.linear(hidden, model.read_out.weight())  # before s_z, in nGPT
    in_std, out_std = (x.square().mean().sqrt().item() for x in (hidden, logits))
    measured["read_out"] = in_std, spec.input_std, out_std, spec.output_std
    assert len(measured) == 2 * (6 if name in ("gpt-gelu", "gpt-post", "gpt2", "neox") else 7) + 1
    for path, (in_std, in_declared, out_std, out_declared) in measured.items():
        tolerance = LOOSER.get(path.rsplit(".", 1)[-1], 0.25)
        assert abs(in_std / in_declared - 1) < tolerance, (
            f"{path}: input std {in_std:.3f}, declared {in_declared:.3f}"
        )
        assert abs(out_std / out_declared - 1) < tolerance, (
            f"{path}: output std {out_std:.3f}, declared {out_declared:.3f}"
        )


def test_no_more_tokens_than_positions() -> None:
    model = build(VARIANTS["gpt2"])
    tokens, _ = model.example(1, 16)
    cache = model.cache(1, 20)
    model(tokens, cache)
    with pytest.raises(DataError, match="tokens: 17 of them, but there are 16 positions"):
        model(tokens[:, :1], cache)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.zeros(4, dtype=torch.int64), r"expected \(batch, time\) integers, got shape \(4,\)"),
        (torch.zeros(2, 4), r"got shape \(2, 4\) of torch.float32"),
    ],
)
def test_bad_tokens(tokens: Tensor, message: str) -> None:
    with pytest.raises(DataError, match=message):
        build(VARIANTS["gpt"])(tokens)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_heads": 5}, "d_model 32 is not divisible by n_heads 5"),
        ({"n_heads": 32}, r"d_model / n_heads = 1 is odd"),
        ({"n_kv_heads": 3}, "n_heads 4 is not divisible by n_kv_heads 3"),
        ({"d_modle": 3}, "d_modle"),
        ({"n_layers": 0}, "n_layers"),
        ({"d_head": 7}, "d_head = 7 is odd, but RoPE rotates pairs"),
        ({"rope_fraction": 0.4}, r"rope_fraction \* d_model / n_heads, rounded down, = 3 is odd"),
        ({"rope_fraction": 0.1}, "rope_fraction 0.1 of 8 entries is none"),
        ({"rope_window_base": 100.0}, "rope_window_base has no effect without a window"),
        (
            {"rope_window_base": 100.0, "attention": {"window": 4}, "rope_blocks": [False]},
            "rope_window_base has no effect: no block with a window is among rope_blocks",
        ),
        (
            {
                "rope_window_base": 100.0,
                "attention": {"window": 4},
                "rope_scaling": {"type": "linear", "factor": 2},
            },
            "rope_scaling has no effect: .* only for those without a window",
        ),
        (
            {"rope_blocks": [False], "rope_scaling": {"type": "linear", "factor": 2}},
            "rope_scaling has no effect",
        ),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        (
            {"rope_scaling": {"type": "yarn", "factor": 2, "context": 64}, "rope_base": 1.0},
            "rope_base 1.0: expected more than 1 with rope_scaling of type yarn",
        ),
        ({"attention": {"window": 2**63}}, "less than or equal to 2147483647"),
        (
            {"rope_scaling": {"type": "llama3", "factor": 8, "low_turns": 4}},
            "low_turns 4.0 is not below high_turns",
        ),
    ],
)
def test_impossible_sizes(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GPTConfig(**{**SIZES, **fields})


@pytest.mark.parametrize("d_model", [32, 160])
def test_an_empty_batch(d_model: int) -> None:
    """Heads of 16 have a kernel of their own, heads of 80 are matrix products."""
    model = build_model("gpt", vocab_size=53, d_model=d_model, n_layers=1, n_heads=2)
    assert model(torch.zeros(0, 7, dtype=torch.int64)).shape == (0, 7, 53)
