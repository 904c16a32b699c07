"""Weight Normalization, sigma-Reparam and LoRA: against torch's own, and what each promises."""

from __future__ import annotations

import copy
import itertools
import json
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_reparam import SIZES, build
from tiny_runs import assert_same, tiny, tiny_fields
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from zoo import build_model, build_optimizer, load_model, save_model
from zoo import merge as merge_model
from zoo import split as split_model
from zoo.data import map_dataset
from zoo.init import EtaOverride, GPT2Init, He, Init, Registry, Small
from zoo.init.schemes import virtual_eta
from zoo.models import GPTConfig, Model, NGPTConfig
from zoo.nn.linear import Embedding, Linear, matrix
from zoo.reparam import LoRA, NoReparam, Reparam, SigmaReparam, WeightNormalization, start_from_forward
from zoo.reparam.spectral import SpectralNorm
from zoo.run.config import load_config
from zoo.run.explanation import explain
from zoo.run.job import Job
from zoo.sampling import generate
from zoo.spec import MATRICES, Module, ParamSpec, Role, declared
from zoo.train import step
from zoo.train.build import build as build_parts
from zoo.train.distributed import World
from zoo.train.run import train
from zoo.train.start import Start
from zoo.train.step import global_norm
from zoo.utils.errors import ConfigError

EXACT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}
METHODS: list[Reparam] = [
    WeightNormalization(),
    WeightNormalization(sigma2=None),
    SigmaReparam(),
    SigmaReparam(differentiate=True),
    LoRA(rank=2),
    LoRA(rank=2, roles=(Role.EMBEDDING, Role.LINEAR), alpha=5.0),
]


def reparameterised(method: Reparam, module: Module) -> Module:
    """A filled float64 module with the method in front of its weight."""
    method.apply(module, He())
    generator = torch.Generator().manual_seed(0)
    for tensor in module.state_dict().values():
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    module.double()
    for p in list(declared(module)):
        if p.local in module.reparameterised:
            module.reparameterised[p.local].initialise(module, p.local)
    return module


def gradients(y: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Of a function that weighs every entry differently."""
    weights = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view_as(y)
    return torch.autograd.grad((y * weights).sum() + y.square().sum(), tensors)


KERNELS = [
    matrix(("out", 7), ("in", 5)),
    matrix(("out", 4), ("in", 9)),
    ParamSpec(Role.CONV, (6, 4, 3, 2), ("out", "in", "height", "width"), fan_in=("in", "height", "width")),
]


class Kernel(Module):
    """A weight and nothing else."""

    def __init__(self, spec: ParamSpec) -> None:
        super().__init__()
        self.param("weight", spec)


def torchs(layer: Module) -> Any:
    """Torch's layer with the same weight."""
    weight = layer.get_parameter("weight").detach().clone()
    out, into = weight.shape[:2]
    size: Any = tuple(weight.shape[2:])
    theirs = nn.Conv2d(into, out, size, bias=False) if size else nn.Linear(into, out, bias=False)
    theirs.weight = nn.Parameter(weight)
    return theirs


@pytest.mark.parametrize("spec", KERNELS, ids=lambda spec: str(spec.shape))
def test_weight_norm_is_torchs(spec: ParamSpec) -> None:
    layer = reparameterised(WeightNormalization(), Kernel(spec))
    theirs = torchs(layer)
    parametrizations.weight_norm(theirs)
    parametrisation = theirs.parametrizations["weight"]
    v, g = layer.get_parameter("weight"), layer.get_parameter("weight_length")
    with torch.no_grad():
        g.mul_(1.7)
        parametrisation.original0.copy_(g.view_as(parametrisation.original0))
    torch.testing.assert_close(layer.virtual("weight"), theirs.weight, **EXACT)
    d_v, d_g = gradients(layer.virtual("weight"), v, g)
    their_g, their_v = gradients(theirs.weight, parametrisation.original0, parametrisation.original1)
    torch.testing.assert_close(d_v, their_v, **EXACT)
    torch.testing.assert_close(d_g, their_g.flatten(), **EXACT)


@pytest.mark.parametrize("differentiate", [True, False])
@pytest.mark.parametrize("spec", KERNELS, ids=lambda spec: str(spec.shape))
def test_sigma_is_torchs(spec: ParamSpec, differentiate: bool) -> None:
    """The same vectors and as many iterations; undifferentiated, torch's sigma is a constant."""
    layer = reparameterised(SigmaReparam(differentiate=differentiate), Kernel(spec))
    weight, gamma = layer.get_parameter("weight"), layer.get_parameter("weight_gamma")
    theirs = torchs(layer)
    parametrizations.spectral_norm(theirs)
    parametrisation = theirs.parametrizations["weight"]
    u, v = parametrisation[0]._u, parametrisation[0]._v
    u.copy_(layer.get_buffer("weight_u"))
    v.copy_(layer.get_buffer("weight_v"))
    with torch.no_grad():
        for moved in (weight, parametrisation.original):
            moved.add_(torch.linspace(-0.2, 0.3, moved.numel(), dtype=torch.float64).view_as(moved))
    layer.reparameterised["weight"].after_step(layer, "weight")
    virtual = theirs.weight  # in training mode, which moves u and v by one iteration
    torch.testing.assert_close(layer.get_buffer("weight_u"), u, **EXACT)
    torch.testing.assert_close(layer.get_buffer("weight_v"), v, **EXACT)
    if not differentiate:
        virtual = parametrisation.original * (virtual / parametrisation.original).detach()
    constant = gamma.detach().requires_grad_()
    torch.testing.assert_close(layer.virtual("weight"), constant * virtual, **EXACT)
    d_weight, d_gamma = gradients(layer.virtual("weight"), weight, gamma)
    their_weight, their_gamma = gradients(constant * virtual, parametrisation.original, constant)
    torch.testing.assert_close(d_weight, their_weight, **EXACT)
    torch.testing.assert_close(d_gamma, their_gamma, **EXACT)


@pytest.mark.parametrize("differentiate", [True, False])
def test_sigma_converges_to_the_spectral_norm(differentiate: bool) -> None:
    layer = reparameterised(SigmaReparam(differentiate=differentiate), Kernel(KERNELS[0]))
    weight, norm = layer.get_parameter("weight"), layer.reparameterised["weight"]
    assert isinstance(norm, SpectralNorm)
    true = torch.linalg.matrix_norm(weight, 2)
    assert norm.sigma(layer, weight).item() == pytest.approx(true.item(), rel=1e-2)
    for _ in range(200):
        norm.after_step(layer, "weight")
    torch.testing.assert_close(norm.sigma(layer, weight), true, **EXACT)
    gamma = layer.get_parameter("weight_gamma").abs().squeeze()
    torch.testing.assert_close(torch.linalg.matrix_norm(layer.virtual("weight"), 2), gamma, **EXACT)


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("tied", [False, True])
def test_rows_are_the_virtual_tensors(method: Reparam, tied: bool) -> None:
    """A look-up gives the rows of the whole, times the embedding scaling of a table that is a read-out."""
    table = Embedding(("vocab", 6), 4, tied=tied)
    if isinstance(method, LoRA):
        method = method.model_copy(update={"roles": (Role.EMBEDDING,)})
    reparameterised(method, table)
    index = torch.tensor([[0, 5], [2, 2]])
    kept = table.reparameterised["weight"].lookup
    assert (kept != 1.0) == tied
    torch.testing.assert_close(table(index), table.virtual("weight")[index] * kept, **EXACT)


@pytest.mark.parametrize("sigma2", [16e-5, None])
@pytest.mark.parametrize("init", [He(), Small(), GPT2Init()], ids=str)
def test_weight_norm_starts_as_the_backbone(init: Init, sigma2: float | None) -> None:
    """Before a batch is seen, g is the norm of the row: the virtual tensor is what was drawn."""
    method = WeightNormalization(sigma2=sigma2)
    model, backbone = build(method, init=init), build(NoReparam(), init=init)
    tokens, _ = model.example(2, 12)
    torch.testing.assert_close(model(tokens), backbone(tokens), atol=1e-4, rtol=1e-4)
    for entry in Registry(model, init):
        if entry.sigma is not None and sigma2 is not None:
            assert entry.sigma == pytest.approx(math.sqrt(sigma2))
            assert entry.parameter.std().item() == pytest.approx(entry.sigma, rel=0.1)


@pytest.mark.parametrize(
    "fields",
    [
        {"source": "gpt", "init": "he"},
        {"source": "bert", "init": "he"},
        {"source": "bert", "position": {"type": "relative", "length": 5}},
        {"source": "gpt-post"},
    ],
    ids=str,
)
def test_weight_norm_starts_from_the_first_forward_pass(fields: dict[str, Any]) -> None:
    """C.1: every unit's output has standard deviation 1 over batch and time, and with a bias mean 0."""
    model = build_model(**{**SIZES, **fields}, reparam="weight_norm").double()
    tables = {n: p.clone() for n, p in model.named_parameters() if n.startswith("embedding")}
    *inputs, _ = model.example(3, 12)
    seen: dict[Linear, tuple[Tensor, Tensor]] = {}

    def see(module: nn.Module, x: tuple[Tensor, ...], y: Tensor) -> None:
        assert isinstance(module, Linear)
        seen.setdefault(module, (x[0], y))

    for module in model.modules():
        if isinstance(module, Linear):
            module.register_forward_hook(see)
    start_from_forward(model, *inputs)
    seen.clear()
    model.eval()(*inputs)
    assert seen
    for layer, (x, y) in seen.items():
        v = layer.get_parameter("weight").detach()
        t = (x @ (v / v.norm(dim=1, keepdim=True)).T).flatten(0, 1).detach().numpy()
        gain = layer.get_parameter("weight_length").detach().numpy()
        np.testing.assert_allclose(gain, 1 / np.std(t, axis=0), rtol=1e-9)
        given = y.detach().flatten(0, 1).numpy()
        np.testing.assert_allclose(np.std(given, axis=0), 1, rtol=1e-9)
        if layer.has_bias:
            np.testing.assert_allclose(np.mean(given, axis=0), 0, atol=1e-9)
    assert all(torch.equal(model.get_parameter(n), p) for n, p in tables.items() if "head" not in n)


def test_training_starts_weight_norm_from_its_first_batch(tmp_path: Path) -> None:
    """Also in parts and with `rows` for the norms; a resumed run keeps what it has."""
    runs = {}
    for start in ("forward", "rows"):
        config = tiny(
            tmp_path,
            f'reparam={{"type": "weight_norm", "start": "{start}"}}',
            f"name={start}",
            "schedule.warmup=0",
            steps=1,
        )
        assert config.optimizer is not None
        config = config.model_copy(update={"optimizer": config.optimizer.model_copy(update={"lr": 0.0})})
        runs[start] = load_model(train(config).folder)
    ours, rows = (dict(runs[start].named_parameters()) for start in ("forward", "rows"))
    name = "blocks.0.attention.q.weight"
    assert torch.equal(ours[name], rows[name])
    norms = ours[name].norm(dim=1)
    ratio = rows[f"{name}_length"] / norms
    torch.testing.assert_close(ratio, ratio.mean().expand_as(ratio), rtol=1e-5, atol=0)
    ratio = ours[f"{name}_length"] / norms
    assert ratio.std() > 0.01 * ratio.mean()


PAIRS: list[dict[str, Any]] = [
    {"prompt": "ab" * i, "response": "cde" * i, "text": "ab" * i, "label": i % 2} for i in range(1, 9)
]
PADDED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "answers": ({"type": "gpt"}, {"type": "instructions"}),
    "classes": ({"type": "bert"}, {"type": "classification"}),
    "classes of a decoder": ({"type": "gpt"}, {"type": "classification"}),
}


@pytest.mark.parametrize(("model", "data"), PADDED.values(), ids=PADDED)
def test_padding_does_not_count_in_the_first_forward_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: dict[str, Any], data: dict[str, Any]
) -> None:
    """Statistics are over the data (Salimans and Kingma, section 3), however long the rows are made."""
    file = tmp_path / "pairs.jsonl"
    file.write_text("\n".join(map(json.dumps, PAIRS)), encoding="utf-8")
    fields = tiny_fields(tmp_path) | {"reparam": {"type": "weight_norm"}}
    fields["model"] = {**fields["model"], **model}
    if data["type"] == "classification":
        fields["model"] = {"type": "classifier", "trunk": fields["model"], "classes": 2}
    fields["data"] = {**data, "train": str(file), "validation": None, "context": 64}
    job, world = Job.of(load_config(fields)), World(0, 1, torch.device("cpu"))
    models = []
    for multiple in (8, 64):
        monkeypatch.setattr(map_dataset, "PAD_MULTIPLE", multiple)
        models.append(build_parts(job, Start(), world).model)
    short, long = (dict(model.named_parameters()) for model in models)
    for name, parameter in short.items():
        torch.testing.assert_close(parameter, long[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"source": "lstm", "vocab_size": 32},
            "lstm.weight, lstm.projection: not linear maps; expected reparam.start",
        ),
        ({"source": "gpt", **SIZES}, "a unit of blocks.0.attention.q.weight has the same value in all"),
    ],
    ids=str,
)
def test_what_forward_values_cannot_start(fields: dict[str, Any], message: str) -> None:
    model = build_model(**fields, reparam="weight_norm")
    with pytest.raises(ConfigError, match=message):
        start_from_forward(model, torch.ones(2, 5, dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_forward_values_start_a_model_of_low_precision(dtype: torch.dtype) -> None:
    """The gains are those of the same weights in float32, up to the rounding of the inputs."""
    fields: dict[str, Any] = {**SIZES, "reparam": "weight_norm", "init": "he"}
    model = build_model("gpt", **fields).to(dtype)
    exact = copy.deepcopy(model).float()
    tokens = model.example(2, 12)[0]
    for each in (model, exact):
        start_from_forward(each, tokens)
    gains = {name: p for name, p in model.named_parameters() if name.endswith("length")}
    assert gains
    for name, gain in gains.items():
        torch.testing.assert_close(gain.float(), exact.get_parameter(name), rtol=0.1, atol=0.02, msg=name)


class Transposed(Module):
    """y = x W, with W in the layout (in, out)."""

    def __init__(self) -> None:
        super().__init__()
        axes = ("embed", "mlp")
        self.param("weight", ParamSpec(Role.LINEAR, (4, 6), axes, fan_in=("embed",)))


@pytest.mark.parametrize("method", [LoRA(rank=2), WeightNormalization(), SigmaReparam()])
def test_matrices_that_are_no_stacks_of_rows(method: Reparam) -> None:
    """Their entries were grouped into rows that mix outputs, without a word."""
    message = r"weight \(embed x mlp\) sums over embed; expected the axes that are summed over behind all"
    with torch.device("meta"), pytest.raises(ConfigError, match=message):
        method.apply(Transposed(), He())


@pytest.mark.parametrize("method", ["lora", "weight_norm", {"type": "peft"}])
def test_a_model_that_cannot_be_split_is_left_as_it_was(method: str | dict[str, str]) -> None:
    """LoRA froze all parameters, and matrices in front of the refused one were reparameterised."""
    sizes: dict[str, Any] = dict(SIZES)
    model = build_model("gpt", **sizes)
    last = next(p for p in reversed([*declared(model)]) if p.spec.role is Role.LINEAR and not p.spec.tied)
    last.module.specs[last.local] = replace(last.spec, fan_in=last.spec.axes[:1])
    before = {p.name: p.spec for p in declared(model)}
    with pytest.raises(ConfigError, match=f"{last.name} .* behind all others"):
        split_model(model, method)
    assert {p.name: p.spec for p in declared(model)} == before
    assert not any(m.reparameterised for m in model.modules() if isinstance(m, Module))


def test_sigma_reparam_starts_at_spectral_norm_one() -> None:
    """gamma = 1 on every matrix; embedding scaling brings the stream to a standard deviation of 1."""
    model = build(SigmaReparam(), GPTConfig(**{**SIZES, "d_model": 64}))
    for p in list(declared(model)):
        if p.local in p.module.reparameterised and p.spec.role is Role.LINEAR:
            assert torch.linalg.matrix_norm(p.module.virtual(p.local), 2).item() == pytest.approx(1, rel=0.05)
            assert p.parameter.std().item() == pytest.approx(math.sqrt(64e-5), rel=0.1)
    assert model.embedding(torch.arange(64)).std().item() == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("init", [He(embedding_scaling=False), GPT2Init()], ids=str)
def test_lora_starts_as_the_backbone(init: Init) -> None:
    """B is zero: nothing changes, to the bit."""
    model, backbone = build(LoRA(), init=init), build(NoReparam(), init=init)
    tokens, _ = model.example()
    assert torch.equal(model(tokens), backbone(tokens))


@pytest.mark.parametrize("init", [He(), Small(), GPT2Init()], ids=str)
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_the_product_has_the_models_eta(method: Reparam, init: Init) -> None:
    """What Amos drives the parts to is what it would drive the whole to."""
    registry = {e.name: e for e in Registry(build(method, init=init))}
    for p in declared(build(NoReparam(), init=init)):
        if p.spec.role not in MATRICES:
            assert p.name not in registry or registry[p.name].eta == virtual_eta(p.spec)
        elif isinstance(method, WeightNormalization):
            # Unit vectors of n entries have a root mean square of 1 / sqrt(n).
            length = registry[f"{p.name}_length"]
            assert length.eta / math.sqrt(p.spec.fan_in_size) == pytest.approx(virtual_eta(p.spec))
            assert length.spec.shape == p.spec.shape[:1]
        elif isinstance(method, SigmaReparam):
            assert registry[f"{p.name}_gamma"].eta == 1.0
        elif isinstance(method, LoRA) and p.spec.role in method.roles:
            down, up = registry[f"{p.name}_down"], registry[f"{p.name}_up"]
            product = method.alpha / method.rank * math.sqrt(method.rank) * down.eta * up.eta
            assert product == pytest.approx(virtual_eta(p.spec))
            assert p.name not in registry


@pytest.mark.parametrize(
    ("method", "millions"), [("none", 1339.1), ("weight_norm", 1339.6), ("sigma_reparam", 1339.1)]
)
def test_parameters_are_the_papers(method: str, millions: float) -> None:
    """WeSaR, Table 6: a length for every row of the 1.3B model, a gamma for every matrix."""
    model = build_model("wesar-1.3b", reparam=method, device="meta")
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1) == millions


def take_steps(model: Model, count: int, kind: str = "adamw", accumulation: int = 1) -> None:
    optimizer = build_optimizer(model, kind, lr=0.01)
    batch = model.example(2, 12)
    for _ in range(count):
        optimizer.zero_grad()
        for _ in range(accumulation):
            torch.autograd.backward(model.loss(*batch).total / accumulation)
        optimizer.step()


def test_one_power_iteration_per_training_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the parts of the batch, evaluations, and batches in evaluation."""
    iterate, counts = SpectralNorm.iterate, []

    def counted(self: SpectralNorm, module: Module, name: str, times: int) -> None:
        counts.append(times)
        iterate(self, module, name, times)

    monkeypatch.setattr(SpectralNorm, "iterate", counted)
    matrices, steps = 2 + 7 * 2, 6
    config = tiny(tmp_path, "reparam=sigma_reparam", steps=steps, accumulation=4, eval_every=2)
    train(config)
    assert counts == [15] * matrices + [1] * matrices * steps
    model = build(SigmaReparam())
    state = copy.deepcopy(model.state_dict())
    model(*model.example()[:-1])
    model.eval()
    model.loss(*model.example())
    assert all(torch.equal(a, b) for a, b in zip(state.values(), model.state_dict().values(), strict=True))


def test_lora_trains_a_few_parameters() -> None:
    """Rank 2 on every kernel of a GPT of width 128 with two layers: 2 % of what there is."""
    fields: dict[str, Any] = {"vocab_size": 512, "d_model": 128, "n_layers": 2, "n_heads": 4}
    model = build_model("gpt", **fields, reparam={"type": "lora", "rank": 2})
    total = sum(p.numel() for p in build_model("gpt", **fields).parameters())
    registry = Registry(model)
    trained = sum(e.spec.numel for e in registry)
    assert trained == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert sum(p.numel() for p in model.parameters()) == total + trained
    assert trained < 0.03 * total
    config = load_config({"model": {"type": "gpt", **fields}, "reparam": {"type": "lora", "rank": 2}})
    totals = explain(config).totals
    assert (totals.parameters, totals.frozen) == (total + trained, total)
    assert {p.name for p in registry.frozen} == {
        n for n, _ in build_model("gpt", **fields).named_parameters()
    }


@pytest.mark.parametrize("kind", ["adamw", "amos"])
def test_lora_leaves_the_base_alone(kind: str) -> None:
    model = build(LoRA(rank=2))
    before = {p.name: p.parameter.detach().clone() for p in Registry(model).frozen}
    start = {e.name: e.parameter.detach().clone() for e in Registry(model)}
    take_steps(model, 3, kind)
    assert all(torch.equal(p.parameter, before[p.name]) for p in Registry(model).frozen)
    assert all(not torch.equal(e.parameter, start[e.name]) for e in Registry(model))


def test_lora_on_a_sphere_stays_there() -> None:
    """The virtual matrices are on nGPT's sphere, and the frozen ones untouched by its projection."""
    model = build(LoRA(rank=2, roles=(Role.LINEAR, Role.EMBEDDING)), NGPTConfig(**SIZES))
    before = {p.name: p.parameter.detach().clone() for p in Registry(model).frozen}
    take_steps(model, 3)
    for p in Registry(model).frozen:
        assert torch.equal(p.parameter, before[p.name])
        if p.spec.sphere_dim is not None:
            norm = p.module.virtual(p.local).norm(dim=p.spec.sphere_dim)
            torch.testing.assert_close(norm, torch.ones_like(norm), atol=1e-6, rtol=0)
    report = merge_model(model)
    assert report.max_difference <= 1e-6 * report.max_logit


def test_lora_without_a_matrix_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"lora with roles \['conv'\], axes \[\] matches no matrix; there are"
    ):
        build(LoRA(roles=(Role.CONV,)))


def test_what_a_method_adds_is_declared() -> None:
    """As everything else: otherwise no registry is built, and the error has the name."""
    for method, part in ((WeightNormalization(), "length"), (SigmaReparam(), "gamma"), (LoRA(), "up")):
        model = build(method)
        owner = model.get_submodule("blocks.0.attention.q")
        assert isinstance(owner, Module)
        del owner.specs[f"weight_{part}"]
        with pytest.raises(ValueError, match=rf"no declaration for: blocks\.0\.attention\.q\.weight_{part}"):
            Registry(model)


def test_lora_on_vectors_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"reparam\.roles.*bias: not matrices; expected conv, embedding, linear"
    ):
        build_model("gpt-tiny", reparam={"type": "lora", "roles": ["linear", "bias"]})


OVERRIDES: list[tuple[dict[str, Any], float]] = [
    ({"eta": 0.5}, 0.5),
    ({"per": "fan_in", "numerator": 4.0}, (4 / 96) ** 0.5),
    ({"per": "embed", "power": 1.0}, 1 / 32),
]


@pytest.mark.parametrize(("change", "expected"), OVERRIDES)
def test_an_override_of_a_matrix_reaches_the_lengths_of_its_rows(
    change: dict[str, Any], expected: float
) -> None:
    """g has the norm of a row whose entries have the eta of the override."""
    model = build(WeightNormalization(), GPTConfig(**SIZES, d_mlp=96))
    override = EtaOverride(role=Role.LINEAR, axes=("mlp",), **change)
    found, before = Registry(model, None, [override]), Registry(model)
    down, q = "blocks.0.mlp.down.weight", "blocks.0.attention.q.weight"
    assert found[f"{down}_length"].eta == pytest.approx(expected * 96**0.5)
    assert found[down].eta * found[down].spec.scale == pytest.approx(expected)
    assert found[f"{q}_length"].eta == before[f"{q}_length"].eta
    doubled = Registry(model, None, [EtaOverride(role=Role.LINEAR, axes=("mlp",), factor=2.0)])
    assert doubled[f"{down}_length"].eta == pytest.approx(2 * before[f"{down}_length"].eta)


def test_an_override_of_lengths_and_one_of_slots() -> None:
    """An override of the lengths themselves comes first; slots of a matrix are not those of its lengths."""
    model = build(WeightNormalization())
    overrides = [EtaOverride(role=Role.LINEAR, eta=0.5), EtaOverride(role=Role.GATE, eta=3.0)]
    assert Registry(model, None, overrides)["blocks.0.mlp.down.weight_length"].eta == 3.0
    slots = Registry(model, None, [EtaOverride(role=Role.LINEAR, axes=("mlp",), reduce=("mlp",))])
    assert slots["blocks.0.mlp.down.weight_length"] == Registry(model)["blocks.0.mlp.down.weight_length"]


def test_rows_of_zeros_stay_zero() -> None:
    """As tables of other libraries have for padding."""
    model = build_model("gpt", vocab_size=64, d_model=32, n_layers=2, n_heads=4, init="gpt2")
    with torch.no_grad():
        model.get_parameter("embedding.weight")[3] = 0
    report = split_model(model, "weight_norm")
    assert report.max_difference <= 1e-5 * report.max_logit
    take_steps(model, 2)
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("method", [WeightNormalization(), SigmaReparam()], ids=str)
def test_nothing_on_the_sphere_is_announced(
    method: WeightNormalization | SigmaReparam, caplog: pytest.LogCaptureFixture
) -> None:
    model = build(method, NGPTConfig(**SIZES))
    assert len(caplog.records) == 1
    assert f"reparam '{method.type}': nothing on 16 matrices" in caplog.records[0].message
    assert not [m for m in model.modules() if getattr(m, "reparameterised", None)]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_merge_after_training(method: Reparam, tied: bool, tmp_path: Path) -> None:
    """A plain model, trained whole, that a file gives back."""
    model = build(method, GPTConfig(**SIZES, tied=tied))
    take_steps(model, 3)
    plain = build(NoReparam(), GPTConfig(**SIZES, tied=tied))
    report = merge_model(model)
    assert report.max_difference <= 1e-5 * report.max_logit
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert all(p.requires_grad for p in model.parameters())
    assert {e.spec.scale for e in Registry(model)} == {1.0}
    again = load_model(save_model(model, tmp_path / "merged.safetensors"))
    tokens, _ = model.example()
    assert torch.equal(again(tokens), model(tokens))


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_files(method: Reparam, tmp_path: Path) -> None:
    """A file gives back the model with its measurements, and what is trained."""
    model = build(method)
    take_steps(model, 3)
    again = load_model(save_model(model, tmp_path / "model.safetensors"))
    for (name, a), b in zip(model.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    assert [(e.name, e.eta) for e in Registry(again)] == [(e.name, e.eta) for e in Registry(model)]
    take_steps(model, 2)
    take_steps(again, 2)
    tokens, _ = model.example()
    assert torch.equal(again(tokens), model(tokens))


@pytest.mark.parametrize("method", ["wesar", "weight_norm", "lora", "residual"])
def test_split_keeps_the_model(method: str, tmp_path: Path) -> None:
    """A trained plain model takes a method, trains on, is saved, loaded and merged again."""
    model = build_model("gpt", vocab_size=64, d_model=32, n_layers=2, n_heads=4, init="gpt2")
    take_steps(model, 3)
    plain = {name: t.clone() for name, t in model.state_dict().items()}
    report = split_model(model, method)
    assert report.tensors == (4 if method == "residual" else 15 if method == "lora" else 16)
    assert report.max_difference <= 1e-5 * report.max_logit
    copied = copy.deepcopy(model)
    merge_model(copied)
    for name, tensor in copied.state_dict().items():
        torch.testing.assert_close(tensor, plain[name], rtol=1e-5, atol=1e-8)
    take_steps(model, 2)
    again = load_model(save_model(model, tmp_path / "split.safetensors"))
    assert [(e.name, e.eta) for e in Registry(again)] == [(e.name, e.eta) for e in Registry(model)]
    tokens, _ = model.example()
    assert torch.equal(again(tokens), model(tokens))


@pytest.mark.parametrize("method", ["wesar", "weight_norm", "lora", "residual", "multipliers"])
def test_a_split_model_of_bfloat16_computes_in_bfloat16(method: str, tmp_path: Path) -> None:
    """What is added is float32; virtual tensors are rounded, so that the merged model is the same."""
    model = build_model("gpt", vocab_size=64, d_model=32, n_layers=1, n_heads=4, init="gpt2").bfloat16()
    plain = {name for name, _ in model.named_parameters()}
    report = split_model(model, method)
    rounding = torch.finfo(torch.bfloat16).eps * report.max_logit
    assert report.max_difference <= rounding
    tokens, targets = model.example()
    assert model(tokens).dtype == torch.bfloat16
    assert {p.dtype for name, p in model.named_parameters() if name not in plain} <= {torch.float32}
    torch.autograd.backward(model.loss(tokens, targets).total)
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    again = load_model(save_model(model, tmp_path / "model.safetensors"))
    assert (again(tokens) - model(tokens)).abs().max() <= 2 * rounding
    assert merge_model(model).max_difference == 0
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


class CrashError(Exception):
    """What ends a run in the middle of a step."""


@pytest.mark.parametrize("method", ["weight_norm", "sigma_reparam", "lora"])
def test_resume_is_exact(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that crashes and goes on from its checkpoint is the whole run, to the bit."""
    fields = tiny_fields(tmp_path, steps=8, eval_every=4, checkpoint_every=4) | {"reparam": method}
    whole = train(load_config(fields | {"name": "whole"}))
    norms = itertools.count()

    def crashing(tensors: Iterable[Tensor | None]) -> Tensor:
        if next(norms) == 6:
            raise CrashError
        return global_norm(tensors)

    with monkeypatch.context() as patch, pytest.raises(CrashError):
        patch.setattr(step, "global_norm", crashing)
        train(load_config(fields | {"name": "crashed"}))
    resumed = train(load_config(fields | {"name": "crashed"}), resume=True)
    assert_same(whole.folder, resumed.folder)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize(
    ("name", "reparam"),
    [("gpt", kind) for kind in ("wesar", "weight_norm", "sigma_reparam", "lora", "multipliers", "residual")]
    + [("ngpt", "lora"), ("lstm", "none")],
)
def test_a_model_that_is_loaded_in_another_dtype_computes_in_it(
    tmp_path: Path, name: str, reparam: str, dtype: str
) -> None:
    sizes: dict[str, Any] = {} if name == "lstm" else {"n_layers": 1, "n_heads": 2}
    built = build_model(name, vocab_size=53, d_model=32, reparam=reparam, seed=0, **sizes)
    file = save_model(built, tmp_path / "model.safetensors")
    model = load_model(file, dtype=dtype).eval()
    tokens = torch.arange(5)[None]
    expected = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    assert model(tokens).dtype == expected
    assert generate(model, tokens, 3, temperature=0).shape == (1, 8)
    reference = load_model(file).eval()(tokens)
    assert (model(tokens).float() - reference).abs().max() < 0.05 * reference.abs().max()
