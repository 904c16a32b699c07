"""Amos.for_module: the eta of every type of module by the paper's rule, written out here once more."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from zoo import build_model
from zoo.hub.families import FAMILIES
from zoo.hub.rules import expand
from zoo.init import Registry
from zoo.init.infer import infer
from zoo.models import Model
from zoo.optim import Amos
from zoo.utils.errors import ConfigError


def inferred(module: nn.Module, **options: Any) -> dict[str, tuple[float, tuple[int, ...]]]:
    """eta and the shared dimensions of every parameter, by name."""
    groups = Amos.for_module(module, lr=0.01, **options).param_groups
    return {name: (group["eta"], group["reduce"]) for group in groups for name in group["param_names"]}


def etas(module: nn.Module, **options: Any) -> dict[str, float]:
    return {name: eta for name, (eta, _) in inferred(module, **options).items()}


def eta(fan_in: int, input_std: float = 1.0, output_std: float = 1.0) -> float:
    """The paper's rule for kernels (section 2)."""
    return output_std / (input_std * math.sqrt(fan_in))


def vectors(*names: str) -> dict[str, float]:
    """Biases have output_std / 2, scales of normalisations 1."""
    return {name: 0.5 if "bias" in name else 1.0 for name in names}


class Scaled(nn.Module):
    """A module of the user's: a number, a kernel, a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.7))
        self.mix = nn.Parameter(torch.randn(3, 4, generator=torch.Generator().manual_seed(0)))
        self.shift = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.mix.mT * self.temperature + self.shift


X = (2, 5, 8)
LSTM_FIRST, LSTM_SECOND = eta(8 + 3), eta(2 * 3 + 3)
AFTER_RELU = math.sqrt(1 / 2)
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[tuple[int, ...], ...], dict[str, float]]] = {
    "linear": (lambda: nn.Linear(8, 3), (X,), {"weight": eta(8), "bias": 0.5}),
    "bilinear": (
        lambda: nn.Bilinear(8, 4, 3),
        (X, (2, 5, 4)),
        {"weight": eta(8 * 4), "bias": 0.5},
    ),
    "conv2d": (
        lambda: nn.Conv2d(4, 6, (3, 2), groups=2),
        ((2, 4, 7, 7),),
        {"weight": eta(2 * 3 * 2), "bias": 0.5},
    ),
    "transposed": (
        lambda: nn.ConvTranspose2d(4, 6, 4, stride=2, groups=2),
        ((2, 4, 7, 7),),
        {"weight": eta(2 * (4 // 2) ** 2), "bias": 0.5},
    ),
    "transposed1d": (
        lambda: nn.ConvTranspose1d(4, 6, 3),
        ((2, 4, 7),),
        {"weight": eta(4 * 3), "bias": 0.5},
    ),
    "layer_norm": (lambda: nn.LayerNorm((5, 8)), (X,), vectors("weight", "bias")),
    "rms_norm": (lambda: nn.RMSNorm((5, 8)), (X,), vectors("weight")),
    "group_norm": (lambda: nn.GroupNorm(2, 4), ((2, 4, 6),), vectors("weight", "bias")),
    "batch_norm": (lambda: nn.BatchNorm1d(4), ((2, 4, 6),), vectors("weight", "bias")),
    "instance_norm": (
        lambda: nn.InstanceNorm2d(4, affine=True),
        ((2, 4, 6, 6),),
        vectors("weight", "bias"),
    ),
    "attention": (
        lambda: Attention(nn.MultiheadAttention(8, 2, batch_first=True)),
        (X,),
        {"of.in_proj_weight": eta(8), "of.out_proj.weight": eta(8)}
        | vectors("of.in_proj_bias", "of.out_proj.bias"),
    ),
    "cross attention": (
        lambda: Attention(nn.MultiheadAttention(8, 2, kdim=6, vdim=4, add_bias_kv=True, batch_first=True)),
        (X, (2, 7, 6), (2, 7, 4)),
        {"of.q_proj_weight": eta(8), "of.k_proj_weight": eta(6), "of.v_proj_weight": eta(4)}
        | {"of.out_proj.weight": eta(8), "of.bias_k": 1.0, "of.bias_v": 1.0}
        | vectors("of.in_proj_bias", "of.out_proj.bias"),
    ),
    "encoder layer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0),
        (X,),
        {"self_attn.in_proj_weight": eta(8), "self_attn.out_proj.weight": eta(8), "linear1.weight": eta(8)}
        | {"linear2.weight": eta(16, input_std=AFTER_RELU)}
        | vectors("self_attn.in_proj_bias", "self_attn.out_proj.bias", "linear1.bias", "linear2.bias")
        | vectors("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"),
    ),
    "decoder layer": (
        lambda: Memory(nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, bias=False)),
        (X, X),
        {f"of.{name}.in_proj_weight": eta(8) for name in ("self_attn", "multihead_attn")}
        | {f"of.{name}.out_proj.weight": eta(8) for name in ("self_attn", "multihead_attn")}
        | {"of.linear1.weight": eta(8), "of.linear2.weight": eta(16, input_std=AFTER_RELU)}
        | vectors("of.norm1.weight", "of.norm2.weight", "of.norm3.weight"),
    ),
    "lstm": (
        lambda: First(nn.LSTM(8, 4, 2, bidirectional=True, proj_size=3)),
        (X,),
        {f"of.weight_{x}h_l0{way}": LSTM_FIRST for x in "ih" for way in ("", "_reverse")}
        | {f"of.weight_{x}h_l1{way}": LSTM_SECOND for x in "ih" for way in ("", "_reverse")}
        | {f"of.weight_hr_l{layer}{way}": eta(4) for layer in (0, 1) for way in ("", "_reverse")}
        | {f"of.bias_{x}h_l{n}{way}": 0.5 for x in "ih" for n in (0, 1) for way in ("", "_reverse")},
    ),
    "gru": (
        lambda: First(nn.GRU(8, 4)),
        (X,),
        {f"of.weight_{x}h_l0": eta(8 + 4) for x in "ih"} | {f"of.bias_{x}h_l0": 0.5 for x in "ih"},
    ),
    "lstm cell": (
        lambda: Twice(nn.LSTMCell(8, 4)),
        ((5, 8),),
        {f"of.weight_{x}h": eta(8 + 4) for x in "ih"} | {f"of.bias_{x}h": 0.5 for x in "ih"},
    ),
    "rnn cell": (
        lambda: Twice(nn.RNNCell(8, 4)),
        ((5, 8),),
        {f"of.weight_{x}h": eta(8 + 4) for x in "ih"} | {f"of.bias_{x}h": 0.5 for x in "ih"},
    ),
    "weight_norm": (  # the norm of a row of eta's: eta sqrt(fan_in) = 1
        lambda: parametrizations.weight_norm(nn.Linear(8, 3)),
        (X,),
        {"parametrizations.weight.original0": 1.0, "parametrizations.weight.original1": eta(8), "bias": 0.5},
    ),
    "spectral_norm": (
        lambda: parametrizations.spectral_norm(nn.Conv1d(5, 3, 2)),
        (X,),
        {"parametrizations.weight.original": eta(5 * 2), "bias": 0.5},
    ),
    "orthogonal": (
        lambda: parametrizations.orthogonal(nn.Linear(8, 3)),
        (X,),
        {"parametrizations.weight.original": eta(8), "bias": 0.5},
    ),
    "without a rule": (
        Scaled,
        ((2, 4),),
        {"temperature": 1.0, "mix": eta(4), "shift": 0.5},
    ),
}


class First(nn.Module):
    """The first output of a module that has several."""

    def __init__(self, of: nn.Module) -> None:
        super().__init__()
        self.of = of

    def forward(self, *inputs: Tensor) -> Tensor:
        output: Tensor = self.of(*inputs)[0]
        return output


class Memory(First):
    """A module that has one output."""

    def forward(self, *inputs: Tensor) -> Tensor:
        output: Tensor = self.of(*inputs)
        return output


class Twice(First):
    """Two steps of a cell, the second of which reads the state that the first one leaves."""

    def forward(self, *inputs: Tensor) -> Tensor:
        state = self.of(*inputs, self.of(*inputs))
        output: Tensor = state[0] if isinstance(state, tuple) else state
        return output


class Attention(First):
    """Self-attention, or with keys and values of their own."""

    def forward(self, *inputs: Tensor) -> Tensor:
        return super().forward(*(inputs if len(inputs) > 1 else inputs * 3))


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("case", CASES)
def test_eta_and_a_step_of_every_type(case: str) -> None:
    torch.manual_seed(0)
    make, shapes, expected = CASES[case]
    module = make()
    assert etas(module) == pytest.approx(expected)
    optimizer = Amos.for_module(module, lr=0.01)
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    output = module(*(torch.randn(shape) for shape in shapes))
    (output * torch.randn_like(output)).sum().backward()
    optimizer.step()
    for name, parameter in module.named_parameters():
        assert torch.isfinite(parameter).all() and not torch.equal(parameter, before[name]), name


def test_a_layer_without_inputs_is_left_alone() -> None:
    """Its eta was a division by zero."""
    with pytest.warns(UserWarning, match="zero-element"):
        module = nn.Sequential(nn.Linear(0, 5))
    assert etas(module) == pytest.approx({"0.weight": 1.0, "0.bias": 0.5})
    module(torch.empty(2, 0)).sum().backward()
    Amos.for_module(module, lr=0.01).step()


@pytest.mark.parametrize(
    ("make", "dims"),
    [
        (lambda: nn.Linear(8, 3, bias=False), {"one_axis": (1,), "dense": (0, 1), "none": ()}),
        (lambda: nn.Bilinear(8, 4, 3, bias=False), {"one_axis": (1, 2), "dense": (0, 1, 2)}),
        (lambda: nn.Conv2d(4, 6, 3, bias=False), {"one_axis": (1, 2, 3), "dense": (1, 2, 3)}),
        (lambda: nn.ConvTranspose2d(4, 6, 3, bias=False), {"one_axis": (0, 2, 3), "dense": (0, 2, 3)}),
        (lambda: nn.Embedding(9, 4), {"one_axis": (1,), "dense": (1,), "none": ()}),
        (lambda: nn.EmbeddingBag(9, 4), {"one_axis": (1,), "dense": (1,)}),
        (lambda: nn.LayerNorm((3, 4), bias=False), {"one_axis": (0, 1), "dense": (0, 1), "none": ()}),
    ],
)
def test_shared_dimensions(make: Callable[[], nn.Module], dims: dict[str, tuple[int, ...]]) -> None:
    """A kernel shares slots over its inputs and space, a table over its width, the rest wholly (A.8)."""
    for reduction, expected in dims.items():
        assert [reduce for _, reduce in inferred(make(), reduction=reduction).values()] == [expected]


@pytest.mark.parametrize(
    ("module", "shapes", "inside"),
    [
        (nn.Linear(200, 50), [(99, 200)], ...),
        (nn.Bilinear(30, 20, 40), [(99, 30), (99, 20)], ...),
        (nn.Conv2d(30, 40, 3, groups=2), [(9, 30, 12, 12)], ...),
        (
            nn.ConvTranspose2d(30, 40, 4, stride=2, groups=2),
            [(9, 30, 12, 12)],
            (..., slice(4, -4), slice(4, -4)),
        ),
        (nn.ConvTranspose1d(60, 40, 6, stride=3), [(40, 60, 30)], (..., slice(6, -6))),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_weights_of_size_eta_give_outputs_of_std_1(
    module: nn.Module, shapes: list[tuple[int, ...]], inside: Any
) -> None:
    """What the formula for fan_in claims of transposed convolutions and pairs of inputs, measured."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        module.get_parameter("weight").normal_(0, etas(module)["weight"], generator=generator)
        module.get_parameter("bias").zero_()
        output = module(*(torch.randn(shape, generator=generator) for shape in shapes))
    assert output[inside].std().item() == pytest.approx(1, rel=0.03)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.table.weight


def test_a_tied_parameter_is_one_with_the_eta_of_the_kernel() -> None:
    assert inferred(Tied()) == {"table.weight": (1 / math.sqrt(8), (1,))}
    for table in (nn.Embedding(20, 8), nn.EmbeddingBag(20, 8)):
        assert inferred(table) == {"weight": (1.0, (1,))}


def test_a_shared_parameter_is_what_the_module_with_a_rule_says(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.ModuleList([Scaled(), nn.Linear(4, 3)])
    model[1].weight = model[0].mix
    model[1].bias = model[0].shift
    found = inferred(model, overrides={"0.temperature": {"eta": 1.0}})
    assert found == {"0.temperature": (1.0, ()), "1.weight": (0.5, (1,)), "1.bias": (0.5, (0,))}
    assert not caplog.records


def test_frozen_parameters_of_any_kind_are_no_obstacle(caplog: pytest.LogCaptureFixture) -> None:
    """As in torch, they wait for a gradient; nobody is warned of guesses that have no effect."""
    module = Scaled().requires_grad_(False)
    module.quantised = nn.Parameter(torch.zeros(3, dtype=torch.int8), requires_grad=False)
    model = nn.Sequential(nn.Linear(8, 4), module)
    before = [p.detach().clone() for p in module.parameters()]
    optimizer = Amos.for_module(model, lr=0.1)
    model(torch.randn(5, 8)).sum().backward()
    optimizer.step()
    assert not caplog.records
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


def test_one_warning_lists_the_guesses(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Scaled(), nn.PReLU(3))
    Amos.for_module(model, lr=0.1, overrides={"1.mix": {"eta": 0.25, "reduce": ()}})
    (record,) = caplog.records
    message = record.getMessage()
    assert message.endswith(
        "1.temperature (): eta 1, reduced axes []; 1.shift (3,): eta 0.5, reduced axes [0]; "
        "2.weight (3,): eta 1, reduced axes [0]"
    )


def test_overrides_by_name_and_by_class() -> None:
    model = nn.Sequential(Tied(), Scaled(), parametrizations.weight_norm(nn.Conv1d(2, 3, 1)))
    overrides: dict[Any, Any] = {
        "*head.weight": {"eta": 0.1},
        Scaled: {"eta": 0.2, "reduce": ()},
        nn.Conv1d: {"eta": 0.3},
    }
    assert inferred(model, overrides=overrides) == {
        "0.table.weight": (0.1, (1,)),
        "1.temperature": (0.2, ()),
        "1.mix": (0.2, ()),
        "1.shift": (0.2, ()),
        "2.bias": (0.3, (0,)),
        "2.parametrizations.weight.original0": (0.3, (0, 1, 2)),
        "2.parametrizations.weight.original1": (0.3, (1, 2)),
    }
    assert inferred(nn.Linear(4, 3), overrides={"weight": {"reduce": (-1, 0)}})["weight"] == (0.5, (0, 1))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"wieght": {"eta": 1.0}}, r"overrides\['wieght'\] matches no parameter of Linear; .*'weight'"),
        ({nn.Conv1d: {"eta": 1.0}}, r"overrides\[Conv1d\] matches no parameter of Linear; known: Linear"),
        ({"*": {"eta": 1.0}, nn.Linear: {"eta": 2.0}}, r"overrides '\*', Linear all match weight"),
        ({"*": {"etta": 1.0}}, r"overrides\['\*'\]: unknown key 'etta'; did you mean 'eta'"),
        ({"*": {}}, r"overrides\['\*'\] is \{\}, expected a mapping"),
        ({"*": {"eta": 0.0}}, r"eta is 0.0, expected a finite number > 0"),
        ({"*": {"eta": math.inf}}, r"eta is inf, expected"),
        ({"*": {"eta": "1"}}, r"eta is '1', expected"),
        ({"bias": {"reduce": (1,)}}, r"reduce is \(1,\), expected a tuple of dimensions of bias \(3,\)"),
        ({"weight": {"reduce": (1, -1)}}, r"reduce is \(1, -1\), expected"),
        ({"weight": {"reduce": 1}}, r"reduce is 1, expected"),
        ({3: {"eta": 1.0}}, r"overrides\[3\]: expected a pattern of names or a class of modules"),
    ],
)
def test_bad_overrides(overrides: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Amos.for_module(nn.Linear(4, 3), lr=0.1, overrides=overrides)


def test_a_lazy_module_is_told_to_run_first() -> None:
    with pytest.raises(ConfigError, match="weight has no shape yet; call the model before"):
        Amos.for_module(nn.LazyLinear(3), lr=0.1)


ZOO: list[dict[str, Any]] = [
    {"source": "gpt", "tied": True, "init": "he", "reparam": "wesar"},
    {"source": "gpt", "reparam": {"type": "lora", "rank": 2}},
    {"source": "ngpt", "reparam": "sigma_reparam"},
    {"source": "bert"},
]


def zoo_model(**fields: Any) -> nn.Module:
    return build_model(vocab_size=16, d_model=8, n_layers=1, n_heads=2, **fields)


@pytest.mark.parametrize("fields", ZOO, ids=str)
def test_declarations_of_zoo_models_are_used_wherever_they_are(fields: dict[str, Any]) -> None:
    model = zoo_model(**fields)
    declared = {e.name: (e.eta, e.reduce("one_axis")) for e in Registry(model)}
    assert list(inferred(model).items()) == [
        (name, declared[name])
        for group in Amos.from_entries(Registry(model), 0.01).param_groups
        for name in group["param_names"]
    ]
    nested = inferred(nn.Sequential(nn.Linear(3, 3), model))
    assert {n.removeprefix("1."): v for n, v in nested.items() if n.startswith("1.")} == declared


def transformers_ngpt() -> nn.Module:
    from zoo.hub.auto import ZooNGPTConfig, ZooNGPTForCausalLM

    sizes = {"vocab_size": 16, "d_model": 8, "n_layers": 1, "n_heads": 2}
    return ZooNGPTForCausalLM(ZooNGPTConfig(model=sizes))


@pytest.mark.parametrize(
    "make",
    [
        lambda: zoo_model(source="ngpt"),
        lambda: nn.Sequential(zoo_model(source="ngpt")),
        transformers_ngpt,
    ],
    ids=["zoo", "nested", "transformers"],
)
def test_spheres_are_projected_wherever_they_are(make: Callable[[], nn.Module]) -> None:
    model = make()
    inner = next(module for module in model.modules() if isinstance(module, Model))
    optimizer = Amos.for_module(model, lr=0.1)
    for _ in range(2):
        output = model(torch.arange(10).view(2, 5))
        logits = output if isinstance(output, Tensor) else output.logits
        logits.square().sum().backward()
        optimizer.step()
    on_spheres = [entry for entry in Registry(inner) if entry.sphere_dim is not None]
    assert on_spheres
    for entry in on_spheres:
        norms = entry.parameter.norm(dim=entry.sphere_dim)
        torch.testing.assert_close(norms, torch.ones_like(norms), atol=1e-6, rtol=0)


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile warns of itself
def test_compiled_and_data_parallel_models_have_the_names_of_the_model() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    expected = inferred(model)
    parallel = nn.parallel.DistributedDataParallel(model)
    for wrapped in (torch.compile(model), parallel, torch.compile(parallel)):
        assert inferred(wrapped) == expected  # type: ignore[arg-type]  # of a module, compile gives one
    optimizer = Amos.for_module(parallel, lr=0.1)
    before = [p.detach().clone() for p in model.parameters()]
    output = parallel(torch.randn(3, 4))
    (output * torch.randn_like(output)).sum().backward()
    optimizer.step()
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


D, M, H = 16, 48, 8
HUB: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForMaskedLM", {"hidden_size": D, "intermediate_size": M, "num_hidden_layers": 2}),
    "roberta": ("RobertaForMaskedLM", {"hidden_size": D, "intermediate_size": M, "num_hidden_layers": 2}),
    "modernbert": (
        "ModernBertForMaskedLM",
        {"hidden_size": D, "intermediate_size": M, "num_hidden_layers": 2},
    ),
    "t5": ("T5ForConditionalGeneration", {"d_model": D, "d_ff": M, "d_kv": H, "num_layers": 2}),
    "gpt2": ("GPT2LMHeadModel", {"n_embd": D, "n_inner": M, "n_layer": 2, "n_head": 2}),
    "llama": ("LlamaForCausalLM", {"hidden_size": D, "intermediate_size": M, "num_hidden_layers": 2}),
    "qwen3": ("Qwen3ForCausalLM", {"hidden_size": D, "intermediate_size": M, "num_hidden_layers": 2}),
    "phi3": ("Phi3ForCausalLM", {"hidden_size": D, "intermediate_size": M, "num_hidden_layers": 2}),
}
FIXED: dict[str, dict[str, Any]] = {
    "t5": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "num_heads": 2},
    "bert": {"num_attention_heads": 2},
    "roberta": {"num_attention_heads": 2},
    "modernbert": {"num_attention_heads": 2, "pad_token_id": 0},
    "llama": {"num_attention_heads": 2},
    "qwen3": {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": H},
    "phi3": {"num_attention_heads": 2, "pad_token_id": None},
}


def hub_model(kind: str, architecture: str | None = None, **fields: Any) -> Any:
    """A tiny model of transformers with random weights."""
    import transformers

    name, sizes = HUB[kind]
    fields = {**FIXED.get(kind, {}), **fields}
    config = transformers.AutoConfig.for_model(kind, vocab_size=32, **sizes, **fields)
    config.tie_word_embeddings = fields.get("tie_word_embeddings", config.tie_word_embeddings)
    return getattr(transformers, architecture or name)(config)


@pytest.mark.parametrize("kind", sorted(HUB.keys() - {"roberta"}))
def test_models_of_transformers_have_the_etas_of_zoos(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Which come from declarations that know nothing of their names."""
    theirs = hub_model(kind)
    family = next(f for f in FAMILIES if f.architecture == HUB[kind][0])
    found = etas(theirs)
    assert not [r for r in caplog.records if r.name == "zoo"], "nothing is guessed"
    config = family.to_zoo(theirs.config.to_diff_dict(), kind)
    ours = {e.name: e.eta for e in Registry(build_model({"model": config.model_dump()}, device="meta"))}
    expected = {rule.hub_name: {ours[name] for name in rule.zoo_names} for rule in expand(family.rules, ours)}
    found = {
        name: value for name, value in found.items() if name in expected or name not in family.duplicates
    }
    assert {name: len(values) for name, values in expected.items()} == dict.fromkeys(found, 1)
    assert found == pytest.approx({name: value for name, (value,) in expected.items()})


BERT_LAYER, T5_BLOCK = "bert.encoder.layer.1", "decoder.block.1.layer"


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        (
            "bert",
            {},
            {
                "bert.embeddings.word_embeddings.weight": D**-0.5,
                "bert.embeddings.position_embeddings.weight": D**-0.5,
                "bert.embeddings.token_type_embeddings.weight": D**-0.5,
                f"{BERT_LAYER}.attention.output.dense.weight": D**-0.5,
                f"{BERT_LAYER}.intermediate.dense.weight": D**-0.5,
                f"{BERT_LAYER}.output.dense.weight": (2 / M) ** 0.5,
                f"{BERT_LAYER}.output.dense.bias": 0.5,
                f"{BERT_LAYER}.output.LayerNorm.weight": 1.0,
                "cls.predictions.bias": 0.5,
            },
        ),
        (
            "bert",
            {"architecture": "BertForSequenceClassification"},
            {
                "bert.embeddings.word_embeddings.weight": D**-0.5,
                "bert.pooler.dense.weight": D**-0.5,
                "classifier.weight": D**-0.5,
                "classifier.bias": 0.5,
            },
        ),
        (
            "roberta",
            {},
            {
                "roberta.embeddings.position_embeddings.weight": D**-0.5,
                "roberta.encoder.layer.0.output.dense.weight": (2 / M) ** 0.5,
                "roberta.encoder.layer.0.attention.output.dense.weight": D**-0.5,
                "lm_head.bias": 0.5,
            },
        ),
        (
            "t5",
            {},
            {
                "shared.weight": 1.0,
                f"{T5_BLOCK}.0.SelfAttention.q.weight": (1 / (H * D)) ** 0.5,
                f"{T5_BLOCK}.1.EncDecAttention.q.weight": (1 / (H * D)) ** 0.5,
                f"{T5_BLOCK}.0.SelfAttention.k.weight": D**-0.5,
                f"{T5_BLOCK}.2.DenseReluDense.wo.weight": (2 / M) ** 0.5,
                "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": 0.5,
                "decoder.final_layer_norm.weight": 1.0,
                "lm_head.weight": D**-0.5,
            },
        ),
        (  # the states are divided by sqrt(d), the kernel's eta is that of the table
            "t5",
            {"tie_word_embeddings": True, "feed_forward_proj": "relu"},
            {"shared.weight": 1.0, f"{T5_BLOCK}.2.DenseReluDense.wo.weight": (2 / M) ** 0.5},
        ),
        (
            "gpt2",
            {},
            {
                "transformer.h.1.attn.c_attn.weight": D**-0.5,
                "transformer.h.1.mlp.c_proj.weight": (2 / M) ** 0.5,
            },
        ),
    ],
    ids=["bert", "bert-classifier", "roberta", "t5-1.1", "t5-1.0", "gpt2"],
)
def test_models_of_transformers_have_the_etas_of_the_tables(
    kind: str, fields: dict[str, Any], expected: dict[str, float]
) -> None:
    found = etas(hub_model(kind, **fields))
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_gpt2_shares_slots_over_its_inputs_and_every_parameter_moves() -> None:
    """Conv1D stores kernels as (in, out)."""
    model = hub_model("gpt2")
    assert inferred(model)["transformer.h.0.mlp.c_fc.weight"] == (D**-0.5, (0,))
    optimizer = Amos.for_module(model, lr=0.01)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    model(torch.arange(32).view(2, 16)).logits.square().sum().backward()
    optimizer.step()
    assert all(not torch.equal(before[name], p) for name, p in model.named_parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reduction": "dens"}, r"Amos: reduction is 'dens', expected 'none' or 'one_axis' or 'dense'"),
        ({"reduction": None}, r"Amos: reduction is None, expected 'none' or"),
        ({"scaling_eta": "begin"}, r"Amos: scaling_eta is 'begin', expected 'target' or 'start'"),
        ({"scaling_slots": "one"}, r"Amos: scaling_slots is 'one', expected 'shared' or 'entry'"),
    ],
)
def test_an_unknown_choice_is_refused(options: dict[str, Any], message: str) -> None:
    """It counted as the default."""
    with pytest.raises(ConfigError, match=message):
        Amos.from_entries(infer(nn.Linear(3, 4)), 0.1, **options)
