"""What is measured of a model, against numbers known by construction, by hand or by torch.linalg."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from test_grid import TINY
from torch import Tensor
from torch.nn import functional as F

from zoo import build_model, split
from zoo.config.registry import MODELS, REPARAMS
from zoo.diagnose.conditioning import MatrixSpectrum, condition_numbers, matrix_spectra, singular_values
from zoo.diagnose.embeddings import (
    SAMPLE_SIZE,
    covariance_eigenvalues,
    dot_products,
    embedding_tables,
    sample_rows,
)
from zoo.diagnose.entropy import attention_entropy, entropy, probabilities
from zoo.diagnose.locations import locate_parameters
from zoo.diagnose.summary import summarise
from zoo.diagnose.vectors import ScaleVector, scale_vectors
from zoo.models import Model
from zoo.nn.attention import MultiHeadAttention
from zoo.spec import Role, declared

GPT: dict[str, Any] = {"vocab_size": 40, "d_model": 12, "n_layers": 3, "n_heads": 3, "d_mlp": 20}
WITHOUT_ATTENTION = {"lstm", "resnet"}


def tiny(name: str, reparam: Any = "none", **fields: Any) -> Model:
    if reparam == "multipliers":
        reparam = {"type": reparam, "skip_normalised": True}
    return build_model(name, **{**TINY[name], **fields}, reparam=reparam, seed=1).eval()


def only(found: list[MatrixSpectrum], label: str, layer: int) -> MatrixSpectrum:
    (one,) = [c for c in found if (c.location.label, c.location.layer) == (label, layer)]
    return one


PAIRS = {(name, reparam) for name in MODELS.choices for reparam in REPARAMS.choices}
NOTHING_TO_MULTIPLY = {("resnet", "multipliers"), ("lstm", "residual")}
"""All outputs of a ResNet's matrices are normalised next, and an LSTM has no ends of residual branches."""


@pytest.mark.parametrize(("name", "reparam"), sorted(PAIRS - NOTHING_TO_MULTIPLY))
def test_every_model_can_be_looked_at(name: str, reparam: str) -> None:
    """Whatever is registered: numbers for all it has, and no error for what it has not."""
    model = tiny(name, reparam)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    *inputs, _ = model.example(2, 8)
    logits = model(*inputs)
    found = attention_entropy(model, *inputs)
    assert bool(found) == (name not in WITHOUT_ATTENTION)
    for e in found:
        assert (e.heads >= 0).all()
        assert (e.heads <= e.uniform + 1e-6).all()
    matrices = matrix_spectra(model)
    assert matrices
    for c in matrices:
        assert (c.singular_values[:, :-1] >= c.singular_values[:, 1:]).all()
        assert (c.condition_numbers >= 1).all()
    assert bool(embedding_tables(model)) == (name != "resnet")
    assert all(v.values.isfinite().all() for v in scale_vectors(model))
    assert torch.equal(model(*inputs), logits), "looking changes nothing"
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


def test_layers_and_labels() -> None:
    """Every parameter once; the same labels in every layer; gates are parts of what they stand before."""
    model = build_model("gpt", **GPT, reparam="wesar", seed=0)
    found = locate_parameters(model)
    assert [place.name for place in found] == [p.name for p in declared(model)]
    layers = [[p.label for p in found if p.layer == i and not p.added] for i in (1, 2, 3)]
    assert layers[0] == layers[1] == layers[2]
    assert layers[0][:4] == ["attention.q", "attention.k", "attention.v", "attention.o"]
    assert [p.label for p in found if p.layer == 0 and not p.added] == [
        "embedding",
        "norm",
        "read_out.matrix",
    ]
    assert {p.spec.role for p in found if p.added} == {Role.GATE}
    two_stacks = tiny("t5", n_layers=2, n_decoder_layers=3)
    assert {p.layer for p in locate_parameters(two_stacks)} == set(range(6))


def test_condition_numbers_of_known_matrices() -> None:
    diagonal = torch.diag(torch.tensor([4.0, 1.0, 2.0], dtype=torch.float64))
    assert condition_numbers(singular_values(diagonal, None, None)).item() == pytest.approx(4)
    halves = torch.cat([torch.eye(2), torch.diag(torch.tensor([1.0, 7.0]))]).double()
    assert condition_numbers(singular_values(halves, 0, 2)).tolist() == pytest.approx([1, 7])
    assert condition_numbers(singular_values(halves.T, 1, 2)).tolist() == pytest.approx([1, 7])
    assert condition_numbers(singular_values(torch.zeros(2, 2).double(), None, None)).isnan().all()
    assert (
        condition_numbers(singular_values(torch.diag(torch.tensor([1.0, 0.0])).double(), None, None))
        .isinf()
        .all()
    )


@pytest.mark.parametrize(("rows", "columns"), [(8, 16), (64, 16)])
def test_a_matrix_that_has_lost_rank_has_an_infinite_condition_number(rows: int, columns: int) -> None:
    """The rounding of the decomposition left a smallest singular value of 1e-16 of the largest."""
    matrix = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)).double()
    assert condition_numbers(singular_values(matrix, None, None)).isfinite().all()
    matrix[1], matrix[:, 1] = matrix[0], matrix[:, 0]
    assert condition_numbers(singular_values(matrix, None, None)).isinf().all()


def test_condition_numbers_of_heads() -> None:
    """Against torch.linalg.cond of slices taken by hand, with grouped queries, before and after."""
    model = build_model("gpt", **{**GPT, "n_heads": 6, "n_kv_heads": 3, "d_model": 24}, seed=2)
    found = matrix_spectra(model)
    block = model.get_submodule("blocks.1")
    for label, heads, dim in [
        ("attention.q", 6, 0),
        ("attention.k", 3, 0),
        ("attention.o", 6, 1),
    ]:
        weight = block.get_submodule(label).get_parameter("weight").detach().double()
        unit = F.normalize(weight, dim=1 - dim)
        c = only(found, label, 2)
        for measured, matrix in [(c.condition_numbers, weight), (c.renormalised_condition_numbers, unit)]:
            expected = [torch.linalg.cond(part).item() for part in torch.split(matrix, 4, dim)]
            assert len(expected) == heads
            assert measured.tolist() == pytest.approx(expected)
        torch.testing.assert_close(c.vector_norms, weight.norm(dim=1 - dim))
    mlp = only(found, "mlp.down", 3)
    weight = model.get_submodule("blocks.2.mlp.down").get_parameter("weight").detach().double()
    assert mlp.condition_numbers.tolist() == pytest.approx([torch.linalg.cond(weight).item()])


def test_a_model_on_the_sphere_is_renormalised_already() -> None:
    for c in matrix_spectra(tiny("ngpt", n_layers=2)):
        torch.testing.assert_close(c.vector_norms, torch.ones_like(c.vector_norms), atol=1e-6, rtol=0)
        torch.testing.assert_close(c.singular_values, c.renormalised, atol=1e-6, rtol=0)


def test_the_tensor_that_the_layer_uses_is_what_counts() -> None:
    """A method in front of the weights changes no condition number and no norm of a vector."""
    model = build_model("gpt", **GPT, seed=3)
    plain = matrix_spectra(model), embedding_tables(model)
    split(model, "wesar")
    for a, b in zip(plain[0], matrix_spectra(model), strict=True):
        torch.testing.assert_close(a.singular_values, b.singular_values, rtol=1e-6, atol=1e-9)
    for c, d in zip(plain[1], embedding_tables(model), strict=True):
        torch.testing.assert_close(c.norms, d.norms, rtol=1e-6, atol=0)


def test_eigenvalues_of_a_constructed_embedding() -> None:
    """Columns that are orthogonal, centred and of norm sqrt(n - 1) s have eigenvalues s^2."""
    n = 8
    frequencies = torch.arange(1, 4) * 2 * math.pi / n
    columns = torch.cos(torch.arange(n)[:, None] * frequencies).double()
    columns = columns / columns.norm(dim=0) * math.sqrt(n - 1)
    scaled = columns * torch.tensor([1.0, 6.0, 2.0]).double() + 5  # a mean does not count
    assert covariance_eigenvalues(scaled).tolist() == pytest.approx([9, 1, 1 / 4])
    few = covariance_eigenvalues(torch.randn(3, 10, generator=torch.Generator().manual_seed(0)).double())
    assert few[0].isinf(), "two of ten eigenvalues differ from 0, so the median is 0"


def test_dot_products_are_those_of_all_pairs() -> None:
    vectors = torch.randn(5, 3, generator=torch.Generator().manual_seed(1)).double()
    by_hand = [(vectors[i] @ vectors[j]).item() for i in range(5) for j in range(i + 1, 5)]
    assert dot_products(vectors).tolist() == pytest.approx(by_hand)
    many = torch.arange(SAMPLE_SIZE + 5).double()[:, None]
    drawn = sample_rows(many)
    assert len(set(drawn.flatten().tolist())) == len(drawn) == SAMPLE_SIZE
    assert torch.equal(drawn, sample_rows(many))
    assert sample_rows(vectors) is vectors


def test_embeddings_of_a_model() -> None:
    untied = embedding_tables(build_model("gpt", **GPT, seed=0))
    assert [e.location.label for e in untied] == ["embedding", "read_out.matrix"]
    (tied,) = embedding_tables(build_model("gpt", **GPT, tied=True, seed=0))
    assert (len(tied.norms), len(tied.eigenvalues), len(tied.dot_products)) == (40, 12, 40 * 39 // 2)


def test_scalings_are_those_that_take_effect() -> None:
    """s * s_init / s_scale, and |alpha|."""
    model = tiny("ngpt", n_layers=2)
    alpha = model.get_submodule("blocks.1.mlp_residual.alpha").get_parameter("scale")
    with torch.no_grad():
        alpha.fill_(-2 * 8**-0.5)  # minus twice its start
    found = {(v.location.layer, v.location.label): v for v in scale_vectors(model)}
    assert found[2, "mlp_residual.alpha"].values.tolist() == pytest.approx([2 * 0.05] * 8)
    assert found[1, "attention_residual.alpha"].values.tolist() == pytest.approx([0.05] * 8)
    assert found[1, "attention.qk.s_qk"].values.tolist() == pytest.approx([1.0] * 8)
    assert found[0, "read_out.s_z"].values.tolist() == pytest.approx([1.0] * 24)
    fixed = scale_vectors(tiny("ngpt", s_u={"kind": "fixed"}))
    assert "mlp.s_u" not in {v.location.label for v in fixed}


def test_gates_are_among_the_factors() -> None:
    found: list[ScaleVector] = scale_vectors(tiny("gpt", "wesar"))
    gates = [v for v in found if v.location.spec.role is Role.GATE]
    assert len(gates) == 9
    assert all(v.values.item() == pytest.approx(v.location.spec.start) for v in gates)


def test_entropy_by_hand() -> None:
    p = torch.tensor([[0.25] * 4, [1, 0, 0, 0], [0.5, 0.5, 0, 0]])
    assert entropy(p).tolist() == pytest.approx([math.log(4), 0, math.log(2)])


def zeroed(name: str) -> Model:
    """A model whose queries are zeros, so that every head looks at all it sees alike."""
    model = tiny(name)
    with torch.no_grad():
        for attention in model.modules():
            if isinstance(attention, MultiHeadAttention):
                attention.q.get_parameter("weight").zero_()
    return model


@pytest.mark.parametrize(("name", "visible"), [("gpt", [1, 2, 3, 4, 5, 6]), ("bert", [6] * 6)])
def test_uniform_attention_has_the_entropy_log_t(name: str, visible: list[int]) -> None:
    expected = sum(map(math.log, visible)) / len(visible)
    for found in attention_entropy(zeroed(name), torch.arange(12).reshape(2, 6)):
        assert found.uniform == pytest.approx(expected)
        assert found.heads.tolist() == pytest.approx([expected] * 2, abs=1e-6)


@pytest.mark.parametrize("name", ["gpt", "bert"])
def test_padding_does_not_count_for_the_entropy(name: str) -> None:
    """Two texts in one batch have the means over their tokens, whatever is behind the shorter one."""
    model = zeroed(name)
    tokens, mask = torch.arange(12).reshape(2, 6), torch.arange(6) < torch.tensor([[6], [4]])
    inputs = (tokens,) if name == "gpt" else (tokens, torch.zeros_like(tokens), mask)
    seen = [*range(1, 7), *range(1, 5)] if name == "gpt" else [6] * 6 + [4] * 4
    expected = sum(map(math.log, seen)) / len(seen)
    for found in attention_entropy(model, *inputs, mask=mask):
        assert found.uniform == pytest.approx(expected)
        assert found.heads.tolist() == pytest.approx([expected] * 2, abs=1e-6)


def test_attention_outside_of_the_layers_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that states no layers ended in a KeyError."""
    model, tokens = zeroed("gpt"), torch.arange(12).reshape(2, 6)
    stated = attention_entropy(model, tokens)
    monkeypatch.setattr(type(model), "fsdp_units", ())
    found = attention_entropy(model, tokens)
    assert [(e.layer, e.label) for e in found] == [(0, f"blocks.{i}.attention") for i in range(len(stated))]
    assert all(torch.equal(a.heads, b.heads) for a, b in zip(stated, found, strict=True))


def reference(attention: MultiHeadAttention, x: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(h)) of causal attention without positions, in float64, heads one by one."""
    q, k = (x.double() @ m.get_parameter("weight").double().T for m in (attention.q, attention.k))
    heads = []
    for i in range(attention.n_heads):
        group = i * attention.n_kv_heads // attention.n_heads
        mine = q[..., i * attention.head_size :][..., : attention.head_size]
        theirs = k[..., group * attention.head_size :][..., : attention.head_size]
        scores = mine @ theirs.mT * attention.scale
        future = torch.ones(scores.shape[-2:]).triu(1).bool()
        heads.append(scores.masked_fill(future, -math.inf).softmax(-1))
    return torch.stack(heads, 1)


def test_probabilities_against_a_softmax_written_out() -> None:
    """Of grouped queries, with more keys than a head has entries."""
    sizes: dict[str, Any] = {**GPT, "n_heads": 6, "n_kv_heads": 3, "d_model": 24}
    attention = build_model("gpt", **sizes, seed=4).get_submodule("blocks.0.attention")
    assert isinstance(attention, MultiHeadAttention)
    x = torch.randn(2, 11, 24, generator=torch.Generator().manual_seed(0)) * 40
    with torch.no_grad():
        p = probabilities(attention.attend, *attention.project(x))
        expected = reference(attention, x)
    assert expected.max() > 0.9, "not close to uniform"
    torch.testing.assert_close(p.double(), expected, atol=1e-6, rtol=1e-4)


def test_summary_by_hand() -> None:
    found = summarise(torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
    assert (found["mean"], found["min"], found["median"], found["max"]) == (3, 1, 2.5, 6)
    assert found["std"] == pytest.approx(math.sqrt((4 + 1 + 0 + 9) / 4))
