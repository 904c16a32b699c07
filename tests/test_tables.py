"""The papers' tables, literally, out of the declarations."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from zoo.checkpoint.recipe import Recipe, declare
from zoo.init import He, Init, Registry, Small
from zoo.init.registry import EtaOverride
from zoo.models import DecoderConfig, GPT2Config, GPTConfig, Model, ModelConfig, NGPTConfig
from zoo.reparam import NoReparam, Reparam, ResidualScaling, WeSaR
from zoo.spec import ParamSpec, Role
from zoo.utils.errors import ConfigError


def meta(config: ModelConfig, init: Init | None = None, reparam: Reparam | None = None) -> Model:
    return declare(Recipe(model=config, init=init or He(), reparam=reparam or NoReparam()))


WESAR_TABLE_1 = {  # name in a block: He and Small as functions of d and N
    "attention.q.weight": (lambda d, n: (1 / d) ** 0.5, lambda d, n: (2 / (5 * d)) ** 0.5),
    "attention.k.weight": (lambda d, n: (1 / d) ** 0.5, lambda d, n: (2 / (5 * d)) ** 0.5),
    "attention.v.weight": (lambda d, n: (1 / d) ** 0.5, lambda d, n: (2 / (5 * d)) ** 0.5),
    "attention.o.weight": (lambda d, n: (1 / (2 * n * d)) ** 0.5, lambda d, n: (2 / (10 * n * d)) ** 0.5),
    "mlp.up.weight": (lambda d, n: (1 / d) ** 0.5, lambda d, n: (2 / (5 * d)) ** 0.5),
    "mlp.down.weight": (lambda d, n: (2 / (8 * n * d)) ** 0.5, lambda d, n: (2 / (10 * n * d)) ** 0.5),
}
SIZES = [(768, 12, 12), (2048, 24, 16)]


@pytest.mark.parametrize(("d", "n", "heads"), SIZES)
@pytest.mark.parametrize("column", [0, 1])
def test_wesar_table_1_backbones(d: int, n: int, heads: int, column: int) -> None:
    init = (He(), Small())[column]
    config = GPTConfig(vocab_size=32000, d_model=d, n_layers=n, n_heads=heads, mlp="gelu")
    registry = Registry(meta(config, init), init)
    for name, columns in WESAR_TABLE_1.items():
        assert registry[f"blocks.{n - 1}.{name}"].sigma == pytest.approx(columns[column](d, n), rel=1e-12)
    assert registry["read_out.matrix.weight"].sigma == pytest.approx(
        WESAR_TABLE_1["attention.q.weight"][column](d, n), rel=1e-12
    )
    sigma_e = registry["embedding.weight"].sigma
    assert sigma_e is not None and sigma_e == pytest.approx(
        WESAR_TABLE_1["attention.q.weight"][column](d, n), rel=1e-12
    )
    assert registry["embedding.weight"].spec.scale * sigma_e == pytest.approx(1.0), (
        "the stream starts with std 1"
    )


@pytest.mark.parametrize(("d", "n", "heads"), SIZES)
@pytest.mark.parametrize("column", [0, 1])
def test_wesar_table_1_gates(d: int, n: int, heads: int, column: int) -> None:
    """One sigma for every matrix; gate times sigma is the backbone's; the embedding's gate is 158."""
    init, sigma = (He(), Small())[column], math.sqrt(4e-5)
    config = GPTConfig(vocab_size=32000, d_model=d, n_layers=n, n_heads=heads, mlp="gelu")
    registry = Registry(meta(config, init, WeSaR()), init)
    matrices = [e.sigma for e in registry if e.sigma is not None]
    gates = [e for e in registry if e.spec.role is Role.GATE]
    assert len(matrices) == len(gates) == 6 * n + 2
    assert {round(s, 12) for s in matrices} == {round(sigma, 12)}
    for name, columns in WESAR_TABLE_1.items():
        gate = registry[f"blocks.0.{name}_gate"].spec.start
        assert gate is not None and gate * sigma == pytest.approx(columns[column](d, n), rel=1e-12)
    assert registry["embedding.weight_gate"].spec.start == pytest.approx(158, abs=0.5)


def test_residual_scaling_is_a_fixed_gate() -> None:
    config = GPTConfig(vocab_size=32000, d_model=768, n_layers=12, n_heads=12, mlp="gelu")
    registry = Registry(meta(config, He(), ResidualScaling()), He())
    down = registry["blocks.3.mlp.down.weight"]
    assert down.spec.scale == pytest.approx(1 / math.sqrt(24))
    assert down.sigma == pytest.approx(math.sqrt(2 / 3072)), "the backbone without its 1/sqrt(2N)"
    assert not [e for e in registry if e.spec.role is Role.GATE]


NGPT_0_5B = {"vocab_size": 32000, "d_model": 1024, "n_layers": 24, "n_heads": 16}
NGPT_1_0B = {"vocab_size": 32000, "d_model": 1280, "n_layers": 36, "n_heads": 20}


@pytest.mark.parametrize(
    ("config", "millions"),
    [
        (GPTConfig(**NGPT_0_5B), "468.2"),
        (NGPTConfig(**NGPT_0_5B), "468.4"),
        (GPTConfig(**NGPT_1_0B), "1025.7"),
        (NGPTConfig(**NGPT_1_0B), "1026.1"),
        (GPTConfig(vocab_size=32000, d_model=768, n_layers=12, n_heads=12, mlp="gelu"), "134.1"),
        (GPTConfig(vocab_size=32000, d_model=2048, n_layers=24, n_heads=16, mlp="gelu"), "1339.1"),
        (GPTConfig(vocab_size=32000, d_model=5120, n_layers=40, n_heads=40, mlp="gelu"), "12911.0"),
        (GPT2Config(vocab_size=50257, d_model=768, n_layers=12, n_heads=12), "124.4"),
        (GPT2Config(vocab_size=50257, d_model=1600, n_layers=48, n_heads=25), "1557.6"),
    ],
)
def test_parameter_counts(config: DecoderConfig, millions: str) -> None:
    """To the printed digit; the papers truncate."""
    count = sum(e.spec.numel for e in Registry(meta(config)))
    assert f"{math.floor(count / 1e5) / 10:.1f}" == millions


def test_eta_on_the_sphere_and_of_scalings() -> None:
    registry = Registry(meta(NGPTConfig(**NGPT_0_5B)))
    d = 1024
    assert {e.eta for e in registry if e.spec.sphere} == {1 / math.sqrt(d)}
    assert registry["blocks.0.attention.qk.s_qk.scale"].eta == d**-0.5
    alpha, s_z = (registry[n].eta for n in ("blocks.0.attention_residual.alpha.scale", "read_out.s_z.scale"))
    assert alpha * 0.05 / d**-0.5 == pytest.approx(0.25)  # zoo's: where the paper's alpha ends (Figure 6)
    assert s_z / d**-0.5 == pytest.approx(d**0.5)  # Amos' rule: output over input standard deviation
    assert registry["blocks.0.mlp.s_u.scale"].eta == 1.0


def test_sphere_axes_and_amos_slots() -> None:
    registry = Registry(meta(NGPTConfig(**NGPT_0_5B)))
    spheres = {"embedding": 1, "read_out.matrix": 1, "blocks.0.attention.q": 1, "blocks.0.attention.k": 1}
    spheres |= {
        "blocks.0.attention.v": 1,
        "blocks.0.attention.o": 0,
        "blocks.0.mlp.u": 1,
        "blocks.0.mlp.nu": 1,
    }
    spheres |= {"blocks.0.mlp.down": 0}
    assert {
        e.name.removesuffix(".weight"): e.sphere_dim
        for e in registry
        if e.name.removesuffix(".weight") in spheres
    } == spheres
    down, table, alpha = (
        registry[n]
        for n in ("blocks.0.mlp.down.weight", "embedding.weight", "blocks.0.attention_residual.alpha.scale")
    )
    assert [down.slot_shape(mode) for mode in ("none", "one_axis", "dense")] == [
        (1024, 4096),
        (1024, 1),
        (1, 1),
    ]
    assert [table.slot_shape(mode) for mode in ("none", "one_axis", "dense")] == [
        (32000, 1024),
        (32000, 1),
        (32000, 1),
    ]
    # One for every entry of a scaling is zoo's choice.
    assert [alpha.slot_shape(mode) for mode in ("none", "one_axis", "dense")] == [(1024,)] * 3
    assert [alpha.slot_shape(mode, "shared") for mode in ("one_axis", "dense")] == [(1,)] * 2


def test_gate_and_matrix_share_eta() -> None:
    """eta(W) = eta / gate start, and the gate has its start: their product is the model's eta."""
    config = GPTConfig(vocab_size=320, d_model=64, n_layers=2, n_heads=4)
    plain, gated = Registry(meta(config)), Registry(meta(config, He(), WeSaR()))
    kernels = [e for e in plain if e.spec.role is Role.LINEAR]
    assert len(kernels) == 2 * 7 + 1
    for entry in kernels:
        gate = gated[entry.name + "_gate"]
        assert gated[entry.name].eta * gate.eta == pytest.approx(entry.eta, rel=1e-12)


@pytest.mark.parametrize("fields", [{"per": "embed", "numerator": 2.0}, {"eta": math.sqrt(2 / 64)}], ids=str)
@pytest.mark.parametrize("reparam", [NoReparam(), WeSaR()], ids=["none", "wesar"])
def test_an_override_is_about_the_tensor_that_the_layer_uses(
    reparam: NoReparam | WeSaR, fields: dict[str, Any]
) -> None:
    """A trained table times its gate, the scaling of embeddings or that of WeSaR, has the eta asked for."""
    model = meta(GPTConfig(vocab_size=320, d_model=64, n_layers=2, n_heads=4), reparam=reparam, init=Small())
    override = EtaOverride(role=Role.EMBEDDING, **fields)
    registry = Registry(model, eta_overrides=[override])
    table: Any = model.get_submodule("embedding")
    gate = table.reparameterised["weight"].start
    assert gate > 10  # that the test says something
    of_gate = registry["embedding.weight_gate"].eta / gate if isinstance(reparam, WeSaR) else 1.0
    assert registry["embedding.weight"].eta * gate * of_gate == pytest.approx(math.sqrt(2 / 64))


def test_eta_overrides_by_role() -> None:
    """The released BERT code's embeddings have sqrt(2/d) (Amos-*Scale)."""
    model = meta(
        GPTConfig(vocab_size=320, d_model=64, n_layers=2, n_heads=4, tied=True),
        reparam=NoReparam(),
        init=He(embedding_scaling=False),
    )
    override = EtaOverride(role=Role.EMBEDDING, axes=("vocab",), factor=math.sqrt(2))
    assert Registry(model, eta_overrides=[override])["embedding.weight"].eta == pytest.approx(
        math.sqrt(2 / 64)
    )
    with pytest.raises(
        ConfigError,
        match=r"eta_overrides\[0\] \(role conv, axes \[\]\) matches no parameter; there are: embedding",
    ):
        Registry(model, eta_overrides=[EtaOverride(role=Role.CONV, factor=2.0)])
    with pytest.raises(ConfigError, match=r"eta_overrides \[0, 1\] all match embedding.weight"):
        Registry(model, eta_overrides=[override, override])


def test_completeness_names_the_parameters() -> None:
    model = meta(GPTConfig(vocab_size=320, d_model=64, n_layers=1, n_heads=4))
    model.register_parameter("stray", nn.Parameter(torch.empty(3, device="meta")))
    norm: Any = model.get_submodule("norm")
    del norm.scale
    with pytest.raises(
        ValueError, match=r"no declaration for: stray; no parameter for the declaration of: norm.scale"
    ):
        Registry(model)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"axes": ("a", "a")}, r"axes must all be different, got \('a', 'a'\)"),
        ({"axes": ("a",)}, r"2 dimensions \(2, 3\), but axes \('a',\)"),
        ({"fan_in": ("c",)}, r"axis 'c' is not one of \('a', 'b'\)"),
        ({"sphere": "c"}, r"axis 'c' is not one of"),
        ({"role": Role.GATE}, r"a gate needs a start"),
    ],
)
def test_bad_declarations(fields: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"role": Role.LINEAR, "shape": (2, 3), "axes": ("a", "b")}
    with pytest.raises(ValueError, match=message):
        ParamSpec(**{**good, **fields})
