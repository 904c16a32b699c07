"""A model that is ready gives the logits it gave before, at every number of rows, until it is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from zoo import build_model
from zoo.kernels.matmul import LOOPS, PreparedMatrix
from zoo.models import Model
from zoo.nn.linear import Embedding, Linear, Matrix, matrix
from zoo.nn.prepared import prepared

SIZES: dict[str, Any] = {"vocab_size": 30, "d_model": 16, "n_layers": 2, "n_heads": 4, "seed": 1}
MODELS: list[dict[str, Any]] = [
    {"source": "gpt"},
    {"source": "gpt", "tied": True, "init": "he", "reparam": "wesar"},
    {"source": "gpt", "reparam": "weight_norm"},
    {"source": "gpt", "reparam": "sigma_reparam"},
    {"source": "gpt", "reparam": {"type": "lora", "rank": 2}},
    {"source": "gpt2", "context": 20},
    {"source": "ngpt", "tied": True, "init": "he", "reparam": "wesar"},
]
TOKENS = torch.arange(80).view(4, 20) % 30


def matrices(model: Model) -> list[Matrix]:
    return [module for module in model.modules() if isinstance(module, Matrix)]


def logits(model: Model, tokens: Tensor) -> Tensor:
    out: Tensor = model(tokens)
    return out


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, LOOPS, 4])
@pytest.mark.parametrize("fields", MODELS, ids=str)
def test_the_logits_are_those_of_the_model(fields: dict[str, Any], rows: int) -> None:
    """Of as many rows as it was made ready for, one token each, and of whole texts."""
    model = build_model(**SIZES, **fields).eval()
    texts = [TOKENS[:rows, :1], TOKENS]
    expected = [logits(model, text) for text in texts]
    with prepared(model, rows):
        for text, before in zip(texts, expected, strict=True):
            torch.testing.assert_close(logits(model, text), before, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("scale", [None, 0.5, torch.arange(6.0)], ids=["plain", "number", "vector"])
def test_what_is_compiled_multiplies_by_the_same(rows: int, scale: Tensor | float | None) -> None:
    """Loops for few rows, an opaque product for more."""
    linear = Linear(matrix(("out", 6), ("in", 8)), bias=True)
    for parameter in linear.parameters():
        parameter.normal_(generator=torch.Generator().manual_seed(len(parameter.shape)))
    x = torch.randn(rows, 1, 8, generator=torch.Generator().manual_seed(0))
    expected = linear(x, scale)
    with prepared(linear, rows, compiled=True):
        step = torch.compile(linear, fullgraph=True, backend="eager")
        torch.testing.assert_close(step(x, scale), expected)


@torch.no_grad()
def test_nothing_is_made_again_until_it_ends() -> None:
    """Which is why it is fast, and why changes go unseen."""
    model = build_model("gpt", **SIZES, init="he", reparam="wesar")
    with prepared(model, 4):
        before = logits(model, TOKENS)
        for module in matrices(model)[1:]:
            module.weight.zero_()
        assert torch.equal(logits(model, TOKENS), before)
    assert logits(model, TOKENS).count_nonzero() == 0


@pytest.mark.parametrize("training", [False, True])
def test_the_model_is_left_as_it_was(training: bool) -> None:
    """After an error as well."""
    model = build_model("gpt", **SIZES).train(training)
    with pytest.raises(KeyError), prepared(model, 1):
        assert not model.training
        assert all(m.prepared for m in matrices(model) if isinstance(m, Linear))
        raise KeyError
    assert model.training == training
    assert not any(m.prepared for m in matrices(model))


@pytest.mark.parametrize("tied", [False, True])
def test_a_table_is_laid_out_where_it_is_a_read_out(tied: bool) -> None:
    model = build_model("gpt", **SIZES, tied=tied)
    (table,) = (m for m in matrices(model) if isinstance(m, Embedding))
    with prepared(model, 4):
        assert (table.prepared is not None) == tied


@torch.no_grad()
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("fields", MODELS, ids=str)
def test_bfloat16(fields: dict[str, Any], rows: int, compiled: bool) -> None:
    """The logits are as near to those in float32 as without being made ready."""
    exact = build_model(**SIZES, **fields).eval()
    model = build_model(**SIZES, **fields).to(torch.bfloat16).eval()
    texts = [TOKENS[:rows, :1], TOKENS]
    plain = [logits(model, text).float() for text in texts]
    with prepared(model, rows, compiled=compiled):
        for text, before in zip(texts, plain, strict=True):
            expected = logits(exact, text)
            error = (logits(model, text).float() - expected).norm()
            assert error < 1.5 * (before - expected).norm() + 1e-3 * expected.norm()


@torch.no_grad()
def test_other_dtypes_stay_in_the_layout_they_have() -> None:
    linear = Linear(matrix(("out", 6), ("in", 8))).to(torch.float64)
    linear.weight.normal_(generator=torch.Generator().manual_seed(0))
    x = torch.ones(4, 8, dtype=torch.float64)
    expected = linear(x)
    with prepared(linear, 4):
        assert isinstance(linear.prepared, PreparedMatrix)
        assert linear.prepared.weight.data_ptr() == linear.weight.data_ptr()
        assert torch.equal(linear(x), expected)
