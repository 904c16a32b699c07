"""ResNet: against transformers' own, Amos' Table 7, the ranges it is declared for, what it is built with."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

from zoo import build_model, build_optimizer, merge
from zoo.config.registry import INITS
from zoo.init import Registry
from zoo.models import ResNet
from zoo.models.resnet import DEPTHS, Bottleneck
from zoo.nn.classification import classify
from zoo.nn.conv import Convolution
from zoo.nn.linear import Linear
from zoo.nn.loss import LossParts
from zoo.optim.averages import evaluation_weights
from zoo.optim.schedule_free import ScheduleFreeAdamW
from zoo.run.config import load_config
from zoo.spec import Module, Role
from zoo.utils.errors import ConfigError, DataError, ZooError

TINY = {"classes": 10, "width": 4}


def resnet(**fields: Any) -> ResNet:
    """A ResNet, tiny unless `fields` say otherwise."""
    model = build_model("resnet", **{**TINY, **fields})
    assert isinstance(model, ResNet)
    return model


@pytest.mark.parametrize(
    ("depth", "parameters"),
    [(18, 11_689_512), (34, 21_797_672), (50, 25_557_032), (101, 44_549_160), (152, 60_192_808)],
)
def test_parameters_are_those_everyone_counts(depth: int, parameters: int) -> None:
    """The counts of torchvision's models, which are of the same form."""
    model = resnet(depth=depth, classes=1000, width=64, device="meta")
    assert sum(p.numel() for p in model.parameters()) == parameters


def their_names(ours: ResNet) -> dict[str, str]:
    """What transformers calls the tensors of ours."""
    _, stages = DEPTHS[ours.config.depth]
    places = [(stage, i) for stage, count in enumerate(stages) for i in range(count)]
    convolutions = {"stem": "resnet.embedder.embedder"}
    for block, (stage, i) in enumerate(places):
        theirs = f"resnet.encoder.stages.{stage}.layers.{i}"
        convolutions |= {f"blocks.{block}.{a}": f"{theirs}.layer.{n}" for n, a in enumerate(CONVOLUTIONS)}
        convolutions[f"blocks.{block}.projection"] = f"{theirs}.shortcut"
    names = {"classifier.weight": "classifier.1.weight", "classifier.bias": "classifier.1.bias"}
    for own, theirs in convolutions.items():
        names[f"{own}.conv.weight"] = f"{theirs}.convolution.weight"
        names |= {f"{own}.norm.{a}": f"{theirs}.normalization.{b}" for a, b in NORM.items()}
    return {name: names[name] for name in ours.state_dict()}


CONVOLUTIONS = ("first", "second", "third")
NORM = {"scale": "weight", "bias": "bias", "mean": "running_mean", "variance": "running_var"}


def oracle_of(ours: ResNet) -> transformers.ResNetForImageClassification:
    """transformers' model, float64, with the weights and statistics of ours."""
    kind, stages = DEPTHS[ours.config.depth]
    widths = [ours.config.width * 2**i for i in range(4)]
    model = transformers.ResNetForImageClassification(
        transformers.ResNetConfig(
            embedding_size=widths[0],
            hidden_sizes=[width * kind.expansion for width in widths],
            depths=list(stages),
            layer_type="bottleneck" if kind is Bottleneck else "basic",
            num_labels=ours.config.classes,  # type: ignore[call-arg]
        )
    ).double()
    names, state = their_names(ours), ours.state_dict()
    result = model.load_state_dict({names[name]: tensor for name, tensor in state.items()}, strict=False)
    assert not result.unexpected_keys
    assert all(name.endswith("num_batches_tracked") for name in result.missing_keys)
    return model


def noise(*shape: int, seed: int = 1) -> Tensor:
    """Normal numbers, float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("depth", [18, 50])
def test_transformers_resnet_computes_the_same(depth: int) -> None:
    """Logits, gradients and running statistics in training, then logits in evaluation; float64."""
    ours = resnet(depth=depth, seed=3).double()
    with torch.no_grad():
        for i, parameter in enumerate(ours.parameters()):  # no scale is 1 and no bias 0
            parameter.add_(noise(*parameter.shape, seed=i), alpha=0.1)
    oracle, names = oracle_of(ours).train(), their_names(ours)
    images, labels = noise(5, 3, 70, 66), torch.tensor([0, 3, 9, 3, 1])
    loss = ours.loss(images, labels).total
    expected = F.cross_entropy(oracle(pixel_values=images).logits, labels)
    torch.testing.assert_close(loss, expected, atol=1e-10, rtol=1e-10)
    torch.autograd.backward([loss, expected])
    for name, parameter in ours.named_parameters():
        gradient = oracle.get_parameter(names[name]).grad
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-10, rtol=1e-8, msg=name)
    for name, statistic in ours.named_buffers():
        theirs = oracle.get_buffer(names[name])
        torch.testing.assert_close(statistic, theirs, atol=1e-12, rtol=1e-12, msg=name)
    logits = oracle.eval()(pixel_values=images).logits
    torch.testing.assert_close(ours.eval()(images), logits, atol=1e-10, rtol=1e-10)


def test_amos_table_7() -> None:
    """Every parameter of ResNet-50."""
    registry = Registry(resnet(depth=50, classes=1000, width=64, device="meta"))
    eta = {entry.name: entry.eta for entry in registry}
    table = {"stem.conv.weight": math.sqrt(1 / (3 * 7 * 7))}
    table |= {"classifier.weight": math.sqrt(1 / 2048), "classifier.bias": 0.5}
    normalised = ["stem"]
    into = 64
    for block in range(16):
        stage = sum(block >= first for first in (3, 7, 13))
        width = 64 * 2**stage
        own = f"blocks.{block}"
        normalised += [f"{own}.first", f"{own}.second", f"{own}.third"]
        table[f"{own}.first.conv.weight"] = math.sqrt(1 / into)
        table[f"{own}.second.conv.weight"] = math.sqrt(2 / (width * 3 * 3))
        table[f"{own}.third.conv.weight"] = math.sqrt(2 / width)
        if block in (0, 3, 7, 13):
            normalised.append(f"{own}.projection")
            gain = 2 * math.log(9) if block == 0 else 1
            table[f"{own}.projection.conv.weight"] = math.sqrt(gain / into)
        into = 4 * width
    for own in normalised:
        table |= {f"{own}.norm.scale": 1.0, f"{own}.norm.bias": 0.5}
    assert eta == pytest.approx(table, rel=1e-12)


def test_amos_scale_names_the_projection_after_the_max_pool() -> None:
    """Amos, A.9: sqrt(1 / d) for it; all else stays."""
    model = resnet(depth=50, classes=1000, width=64, device="meta")
    overrides = load_config("resnet50-imagenet-amos-scale").eta_overrides
    plain, scaled = Registry(model), Registry(model, eta_overrides=overrides)
    changed = {b.name: b.eta for a, b in zip(plain, scaled, strict=True) if a.eta != b.eta}
    assert changed == {"blocks.0.projection.conv.weight": math.sqrt(1 / 64)}


def test_amos_shares_slots_over_input_channels_and_space() -> None:
    entry = Registry(resnet(depth=18))["blocks.0.first.conv.weight"]
    assert entry.slot_shape("one_axis") == (4, 1, 1, 1)
    assert entry.slot_shape("dense") == (4, 1, 1, 1)
    assert entry.slot_shape("none") == (4, 4, 3, 3)


AFTER_THE_MAX_POOL = {"blocks.0.first.conv", "blocks.0.projection.conv"}
"""Amos counts the standard deviation of a maximum of 9, 1 / sqrt(2 ln 9), and not its mean, three times
as large; and for `first` not even that (Table 7). Each is normalised next, which removes both."""

DEEP_IN_A_STAGE = {f"blocks.{i}.first.conv" for i in (2, 3, 5, 6, 7, 9, 10, 11, 12, 13, 15)} | {
    f"blocks.{i}.projection.conv" for i in (3, 7, 13)
}
"""Every block adds its variance to the stream until the next projection; Amos takes it for 1. Each is
normalised next."""


@torch.no_grad()
def test_measured_standard_deviations_are_those_declared() -> None:
    """ResNet-50 with the `amos` init: what each layer gives, and how much larger it is than what it read."""
    model = resnet(depth=50, classes=1000, width=64, init="amos")
    names = {module: name for name, module in model.named_modules()}
    outputs: dict[str, float] = {}
    gains: dict[str, float] = {}

    def look(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        assert isinstance(module, Module)
        spec, (read,) = module.specs["weight"], inputs
        gain = output.std() / read.square().mean().sqrt()
        outputs[names[module]] = output.std().item() / spec.output_std
        gains[names[module]] = gain.item() * spec.input_std / spec.output_std

    for module in names:
        if isinstance(module, Convolution | Linear):
            module.register_forward_hook(look)
    model(noise(4, 3, 128, 128).float())
    assert len(outputs) == 1 + 3 * 16 + 4 + 1
    assert [name for name, gain in gains.items() if abs(gain - 1) > 0.25] == []
    exceptions = {name for name, std in outputs.items() if abs(std - 1) > 0.25}
    assert exceptions == AFTER_THE_MAX_POOL | DEEP_IN_A_STAGE


INITS_AND_REPARAMS = [(init, "wesar") for init in sorted(INITS.choices)] + [
    ("he", "none"),
    ("he", "residual"),
]


@pytest.mark.parametrize(("init", "reparam"), INITS_AND_REPARAMS)
def test_gates_merge_exactly(init: str, reparam: str) -> None:
    model = resnet(depth=50, init=init, reparam=reparam)
    for step in range(2):  # running statistics other than those at the start
        torch.autograd.backward(model.loss(*model.example(4 + step, 32)).total)
    gates = sum(entry.spec.role is Role.GATE for entry in Registry(model))
    assert gates == (1 + 3 * 16 + 4 + 1 if reparam == "wesar" else 0)
    report = merge(model)
    assert report.tensors == {"wesar": gates, "none": 0, "residual": 2 * 16}[reparam]
    assert report.max_difference <= 1e-5 * max(1.0, report.max_logit)


def test_residual_scaling_scales_what_ends_a_branch() -> None:
    """y = f(x) / sqrt(n) + x with a normalisation at the end of f: a gate on its scale and its bias."""
    registry = Registry(resnet(depth=18, reparam="residual"))
    gated = {entry.name: entry.spec.scale for entry in registry if entry.spec.scale != 1}
    ends = [f"blocks.{i}.second.norm.{part}" for i in range(8) for part in ("scale", "bias")]
    assert gated == pytest.approx(dict.fromkeys(ends, 1 / math.sqrt(8)))


def test_the_stem_for_small_images_keeps_their_size() -> None:
    model = resnet(depth=18, channels=1, stem_size=3, stem_stride=1, pool_size=1, pool_stride=1)
    sizes: list[tuple[int, ...]] = []
    for block in model.blocks:
        block.register_forward_hook(lambda module, inputs, output: sizes.append(tuple(output.shape[2:])))
    model(noise(2, 1, 8, 8).float())
    assert sizes[::2] == [(8, 8), (4, 4), (2, 2), (1, 1)]
    assert model.config.pooled_std == math.sqrt(1 / 2), "without a max-pool the blocks read a ReLU"


def test_labels_are_smoothed_in_training_alone() -> None:
    logits, labels = noise(6, 10), torch.tensor([1, 2, 3, -1, 5, 6])
    parts = classify(logits, labels, z_loss=0.1, label_smoothing=0.2)
    smooth = F.cross_entropy(logits, labels, ignore_index=-1, label_smoothing=0.2)
    z_loss = 0.1 * logits.logsumexp(-1)[labels != -1].square().mean()
    torch.testing.assert_close(parts, LossParts(smooth + z_loss, smooth, z_loss, *parts[3:]))
    model = resnet(depth=18, label_smoothing=0.2)
    images, labels = model.example(4, 32)
    for training in (True, False):
        model.train(training)
        expected = F.cross_entropy(model(images), labels, label_smoothing=0.2 if training else 0.0)
        torch.testing.assert_close(model.loss(images, labels).total, expected)


def test_statistics_do_not_belong_to_an_average_of_the_weights() -> None:
    """Schedule-Free evaluates x, and the statistics are those of y, at which the gradients are taken."""
    model = resnet(depth=18)
    with pytest.raises(ConfigError, match=r"statistics of stem\.norm are those of the trained weights"):
        build_optimizer(model, "schedule_free", lr=0.1)
    by_hand = ScheduleFreeAdamW(model.parameters())
    with pytest.raises(ConfigError, match="running statistics"), evaluation_weights(by_hand, model):
        pass


def test_accuracy_is_that_of_the_counted_labels() -> None:
    logits = torch.eye(5)
    labels = torch.tensor([0, 1, -1, 0, -1])
    assert classify(logits, labels).accuracy == pytest.approx(2 / 3)
    *parts, predicted = classify(logits, torch.full((5,), -1))
    assert parts == [0, 0, 0, 0]
    assert predicted is not None
    assert predicted.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"depth": 20}, "18, 34, 50, 101 or 152"),
        ({"depth": 18, "stem_size": 4}, "stem_size 4 is even"),
        ({"depth": 18, "pool_size": 2}, "pool_size 2 is even"),
        ({"depth": 18, "pool_size": 1}, "pool_stride 2 is larger than pool_size 1"),
        ({"depth": 18, "stem_size": 1}, "stem_stride 2 is larger than stem_size 1"),
        ({"depth": 18, "label_smoothing": 1.0}, "label_smoothing"),
    ],
)
def test_impossible_sizes(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resnet(**fields)


@pytest.mark.parametrize(
    "images", [torch.zeros(2, 1, 8, 8), torch.zeros(3, 8, 8), torch.zeros(2, 3, 8, 8).long()]
)
def test_images_of_another_shape(images: Tensor) -> None:
    with pytest.raises(DataError, match=r"expected images \(n, 3, height, width\)"):
        resnet(depth=18)(images)


def test_labels_of_another_shape() -> None:
    with pytest.raises(ZooError, match="expected logits"):
        classify(torch.zeros(3, 5), torch.zeros(2, dtype=torch.int64))


def test_training_on_a_single_pixel_is_refused() -> None:
    """Its statistics do not exist; torch's own error is a traceback that names the size of a tensor."""
    image, label = torch.zeros(1, 3, 8, 8), torch.zeros(1, dtype=torch.int64)
    model = resnet(depth=18)
    with pytest.raises(DataError, match=r"a single image, of which one pixel is left.*train\.batch_size"):
        model.loss(image, label)
    model.eval()
    assert model.loss(image, label).total.isfinite()
