"""T5: the Amos paper's table, the ranges it declares, and what an encoder-decoder promises."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import T5Config as HFConfig
from transformers import T5ForConditionalGeneration

from zoo.checkpoint.recipe import Recipe, assemble, declare
from zoo.hub.rules import expand
from zoo.hub.t5 import T5 as FAMILY
from zoo.init import AmosInit, Init, Registry, T5Init
from zoo.models import T5, EncoderDecoder, EncoderDecoderConfig, NGPTT5Config, T5Config
from zoo.nn.linear import Linear
from zoo.reparam import NoReparam
from zoo.run.flops import model_flops
from zoo.utils.errors import DataError

LARGE = T5Config(vocab_size=32128, d_model=1024, n_layers=24, n_heads=16, d_head=64, d_mlp=2816)
SMALL = T5Config(vocab_size=32128, d_model=512, n_layers=8, n_heads=6, d_head=64, d_mlp=1024)
TINY = T5Config(vocab_size=61, d_model=32, n_layers=2, n_heads=4, d_mlp=64)
TINY_NGPT = NGPTT5Config(vocab_size=61, d_model=32, n_layers=2, n_heads=4, d_mlp=64)
BOTH = pytest.mark.parametrize("config", [TINY, TINY_NGPT], ids=["t5", "ngpt-t5"])


def build(config: EncoderDecoderConfig, init: Init | None = None) -> EncoderDecoder:
    model = assemble(Recipe(model=config, init=init or AmosInit(), reparam=NoReparam()), 0)
    assert isinstance(model, EncoderDecoder)
    return model


def registry(config: EncoderDecoderConfig, init: Init | None = None) -> Registry:
    return Registry(declare(Recipe(model=config, init=init or AmosInit(), reparam=NoReparam())), init)


@pytest.mark.parametrize("config", [LARGE, SMALL], ids=["large", "small"])
def test_amos_table_3(config: T5Config) -> None:
    """Every variable; the heads of T5-small have fewer entries together than the stream."""
    d, h, m = config.d_model, config.head_size, config.mlp_size
    others, wo = math.sqrt(1 / d), math.sqrt(2 / m)
    out = math.sqrt(1 / (config.n_heads * h))  # 1 / sqrt of the input dimension, which is d in the paper
    attention = {"q": math.sqrt(1 / (h * d)), "k": others, "v": others, "o": out}
    table = {"embedding.weight": 1.0, "read_out.matrix.weight": others}
    for stack, attentions in (("encoder", ["attention"]), ("decoder", ["attention", "cross"])):
        block = f"{stack}_blocks.0"
        table |= {f"{stack}_bias.weight": 0.5, f"{stack}_norm.scale": 1.0}
        table |= {f"{block}.{a}.{name}.weight": eta for a in attentions for name, eta in attention.items()}
        table |= {f"{block}.mlp.u.weight": others, f"{block}.mlp.nu.weight": others}
        table |= {f"{block}.mlp.down.weight": wo}
        table |= {f"{block}.{branch}_residual.norm.scale": 1.0 for branch in (*attentions, "mlp")}
    found = {e.name: e.eta for e in registry(config)}
    first = {name: eta for name, eta in found.items() if "blocks" not in name or "blocks.0." in name}
    assert first == pytest.approx(table, rel=1e-12)
    for name, eta in found.items():
        assert eta == found[".".join("0" if part.isdigit() else part for part in name.split("."))], name


@pytest.mark.parametrize(("config", "count"), [(LARGE, 783_150_080), (SMALL, 76_961_152)])
def test_parameter_counts(config: T5Config, count: int) -> None:
    """Those of the published t5-v1_1-large and -small."""
    assert sum(e.spec.numel for e in registry(config)) == count


def test_the_init_is_theirs() -> None:
    """Measured on a random model of transformers, whose embedding is its read-out as well.

    Its biases of positions start at 1 / sqrt(d), ours in their range.
    """
    config = T5Config(vocab_size=500, d_model=128, n_layers=1, n_heads=4, d_head=16, d_mlp=320)
    torch.manual_seed(0)
    hf = T5ForConditionalGeneration(HFConfig(**FAMILY.to_hf(config)))
    ours = registry(config, T5Init())
    apart = {"read_out.matrix.weight", "encoder_bias.weight", "decoder_bias.weight"}
    drawn = [
        r for r in expand(FAMILY.rules, [e.name for e in ours]) if ours[r.zoo_names[0]].sigma is not None
    ]
    assert len(drawn) == 1 + 7 + 11 + len(apart)
    for r in drawn:
        if r.zoo_names[0] not in apart:
            std = hf.get_parameter(r.hub_name).std().item()
            assert std == pytest.approx(ours[r.zoo_names[0]].sigma, rel=0.03), r.hub_name


def test_the_init_of_the_first_t5_is_theirs() -> None:
    """A table that is also the head starts with 1, as in a model of transformers, and the logits with 1."""
    config = T5Config(
        vocab_size=500, d_model=256, n_layers=1, n_heads=4, d_head=64, d_mlp=512, mlp="relu", tied=True
    )
    torch.manual_seed(0)
    hf = T5ForConditionalGeneration(HFConfig(**FAMILY.to_hf(config)))
    assert hf.lm_head.weight is hf.shared.weight
    model = build(config, T5Init())
    std = hf.shared.weight.std().item()
    assert model.embedding.weight.std().item() == pytest.approx(std, rel=0.03)
    assert std == pytest.approx(1.0, rel=0.03)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        logits = model(*(torch.randint(500, (4, time), generator=generator) for time in (64, 32)))
    assert rms(logits) == pytest.approx(1.0, rel=0.25)


# Where a range is not met, and why. Of `o` what it does to its input is tested instead.
#  * o reads an average of values, the more of them the smaller, while one value is declared.
#  * nGPT's down: SwiGLU of unit normals has standard deviation 0.596, the table's sqrt(1/2) is for plain
#    activations.
RANGES = {"t5": {"down": 0.25}, "ngpt-t5": {"down": 0.35}}


@pytest.mark.parametrize("kind", ["t5", "ngpt-t5"])
@torch.no_grad()
def test_activations_have_the_declared_std(kind: str) -> None:
    sizes: dict[str, Any] = {"vocab_size": 512, "d_model": 256, "n_layers": 2, "n_heads": 4, "d_head": 32}
    model = build(T5Config(**sizes) if kind == "t5" else NGPTT5Config(**sizes))
    measured: dict[str, tuple[Linear, float, float]] = {}

    def watch(path: str, module: Linear) -> None:
        def note(_: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
            plain = output / inputs[1] if len(inputs) > 1 else output  # nGPT's scalings apart
            measured[path] = (module, rms(inputs[0]), rms(plain))

        module.register_forward_hook(note)

    for path, module in model.named_modules():
        if isinstance(module, Linear):
            watch(path, module)
    generator = torch.Generator().manual_seed(1)
    logits = model(*(torch.randint(512, (4, time), generator=generator) for time in (64, 32)))
    assert len(measured) == 2 * (7 + 11)
    for path, (module, read, given) in measured.items():
        spec, last = module.specs["weight"], path.rsplit(".", 1)[-1]
        tolerance = RANGES[kind].get(last, 0.25)
        if last == "o":
            assert given / read == pytest.approx(spec.output_std / spec.input_std, rel=0.25), path
            continue
        assert read == pytest.approx(spec.input_std, rel=tolerance), path
        assert given == pytest.approx(spec.output_std, rel=tolerance), path
    if kind == "t5":
        assert rms(logits) == pytest.approx(1.0, rel=0.25)
        assert rms(model.embedding(torch.arange(512))) == pytest.approx(1.0, rel=0.25)


@torch.no_grad()
def test_scores_have_their_range_without_a_scale() -> None:
    """Queries of standard deviation 1 / sqrt(h) make scores of 1, and the bias of positions adds 0.5."""
    model = build(T5Config(vocab_size=512, d_model=256, n_layers=1, n_heads=8, d_head=32))
    assert isinstance(model, T5)
    x = torch.randn(4, 64, 256, generator=torch.Generator().manual_seed(0))
    for name in ("encoder_blocks.0.attention", "decoder_blocks.0.cross"):
        attention: Any = model.get_submodule(name)
        scores = torch.einsum("bqnh,bknh->bnqk", attention.queries(x), attention.keys_values(x)[0])
        assert attention.scale == 1.0
        assert rms(scores) == pytest.approx(1.0, rel=0.25)
    assert rms(model.encoder_bias.virtual("weight")) == pytest.approx(0.5, rel=0.25)


def rms(x: Tensor) -> float:
    return x.square().mean().sqrt().item()


@BOTH
@torch.no_grad()
def test_what_sees_what(config: EncoderDecoderConfig) -> None:
    """The target sees no later token of itself and all of the source; the source sees all of itself."""
    model = build(config)
    source, prefix, _ = model.example(2, 24)
    before, memory = model(source, prefix), model.encode(source)
    later = prefix.clone()
    later[:, 4:] = 60 - later[:, 4:]
    after = model(source, later)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])
    other = source.clone()
    other[:, -1] = 60 - other[:, -1]
    assert (model.encode(other) != memory).any(-1).all(), "every position of the source sees the last"
    assert (model(other, prefix) != before).any(-1).all(), "every position of the target sees it too"


@BOTH
@torch.no_grad()
def test_the_target_does_not_see_the_order_of_the_source(config: EncoderDecoderConfig) -> None:
    """There are no positions between target and source: the memory may be shuffled, with its mask."""
    model = build(config)
    source, prefix, _ = model.example(2, 12)
    mask = torch.ones_like(source, dtype=torch.bool)
    mask[0, 8:] = False
    memory, order = model.encode(source, mask), torch.randperm(12, generator=torch.Generator().manual_seed(0))
    shuffled = model.decode(prefix, memory[:, order], mask[:, order])
    torch.testing.assert_close(shuffled, model.decode(prefix, memory, mask), atol=1e-5, rtol=1e-5)


@BOTH
@torch.no_grad()
def test_padding_changes_nothing(config: EncoderDecoderConfig) -> None:
    model = build(config)
    source, prefix, _ = model.example(2, 12)
    padded = torch.cat((source, torch.full((2, 5), 3)), 1)
    mask = torch.ones_like(padded, dtype=torch.bool)
    mask[:, 12:] = False
    torch.testing.assert_close(model(padded, prefix, mask), model(source, prefix), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(model(padded, prefix), model(source, prefix), atol=1e-3)


@BOTH
def test_loss_is_cross_entropy_of_the_logits(config: EncoderDecoderConfig) -> None:
    model = build(config)
    source, prefix, targets = model.example(2, 12)
    targets = targets.clone()
    targets[0, 1] = -1
    logits = model(source, prefix).double()[targets != -1]
    parts = model.loss(source, prefix, targets, z_loss=0.1)
    cross_entropy = nn.functional.cross_entropy(logits, targets[targets != -1])
    log_z = 0.1 * logits.logsumexp(-1).square().mean()
    assert parts.cross_entropy.item() == pytest.approx(cross_entropy.item(), rel=1e-5)
    assert parts.total.item() == pytest.approx((cross_entropy + log_z).item(), rel=1e-5)


def test_dropout_is_of_training_alone() -> None:
    config = TINY.model_copy(update={"dropout": 0.5})
    dropped, plain = build(config), build(TINY)
    source, prefix, _ = plain.example(2, 12)
    torch.manual_seed(0)
    first, second = dropped(source, prefix), dropped(source, prefix)
    assert not torch.allclose(first, second)
    assert torch.equal(dropped.eval()(source, prefix), plain(source, prefix))


def test_flops_are_those_of_the_products() -> None:
    """Twice the entries of every matrix per token it reads, and the two products of every attention."""
    model = declare(Recipe(model=TINY, init=AmosInit(), reparam=NoReparam()))
    s, t, d = 64, 16, 32
    attention, mlp = 4 * d * d, 3 * d * 64
    encoder = 2 * (s * (attention + mlp) + 2 * s * s * d)
    cross = t * 2 * d * d + s * 2 * d * d + 2 * t * s * d
    decoder = 2 * (t * (attention + mlp) + 2 * t * t * d + cross)
    assert model_flops(model, model.example(1, s)).forward == 2 * (encoder + decoder + t * 61 * d)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_heads": 5}, "d_model 32 is not divisible by n_heads 5; give d_head"),
        ({"buckets": 6}, "multiple of 4"),
        ({"max_distance": 16}, r"max_distance 16 leaves nothing to the wide buckets: buckets / 2 = 16"),
        ({"max_distance": 10**400}, "max_distance"),
        ({"tied": "no such"}, "tied"),
    ],
)
def test_impossible_sizes(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        T5Config(**{**TINY.model_dump(), **fields})


def test_bad_inputs() -> None:
    model = build(TINY)
    source, prefix, _ = model.example(2, 12)
    with pytest.raises(DataError, match=r"mask: expected bool \(2, 12\) like the tokens, got torch.int64"):
        model(source, prefix, torch.ones_like(source))
    with pytest.raises(DataError, match=r"expected \(batch, time\) integers, got shape \(2, 3\) of torch.f"):
        model(source, prefix.float())
