"""Every fast path has a plain one that computes the same; the version of torch decides which of them runs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.kernels import foreach, matmul, support


def tensors(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in ((3, 4), (5,), ())]


@pytest.mark.parametrize("fast", [True, False])
def test_foreach(monkeypatch: pytest.MonkeyPatch, fast: bool) -> None:
    for name in ("FAST", "NORM"):
        assert getattr(foreach, name), "this version of torch is trusted"
        monkeypatch.setattr(foreach, name, fast)
    ends = tensors(1)
    moved = tensors(0)
    foreach.Many(moved).lerp_(foreach.Many(ends), 0.25)
    expected = [0.75 * a + 0.25 * b for a, b in zip(tensors(0), ends, strict=True)]
    torch.testing.assert_close(moved, expected)
    torch.testing.assert_close(foreach.norms(ends), torch.stack([e.square().sum().sqrt() for e in ends]))
    foreach.Many(moved).copy_(foreach.Many(ends))
    assert all(torch.equal(a, b) for a, b in zip(moved, ends, strict=True))
    found = (
        foreach.Many(tensors(2))
        .add_(foreach.Many(ends), alpha=2)
        .mul_(3)
        .addcdiv_(foreach.Many(tensors(3)), foreach.Many(tensors(4)), value=0.5)
        .clamp_min_(-1)
    )
    for tensor, a, end, b, c in zip(found.tensors, tensors(2), ends, tensors(3), tensors(4), strict=True):
        torch.testing.assert_close(tensor, ((a + 2 * end) * 3 + 0.5 * b / c).clamp_min(-1))


def test_without_onednn_torch_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(matmul.ROWS, 5, generator=generator), torch.randn(7, 5, generator=generator)
    monkeypatch.setattr(matmul, "PRODUCTS", 0)
    assert matmul.ONEDNN, "oneDNN's operators are those that zoo calls"
    fast = [matmul.linear(x, weight), matmul.matmul(x, weight), matmul.PreparedMatrix(weight, 4)(x[:4])]
    monkeypatch.setattr(matmul, "ONEDNN", False)
    plain = [matmul.linear(x, weight), matmul.matmul(x, weight), matmul.PreparedMatrix(weight, 4)(x[:4])]
    assert torch.equal(plain[0], F.linear(x, weight)) and not matmul.PreparedMatrix(weight, 4).onednn
    torch.testing.assert_close(fast, plain)


@pytest.mark.parametrize(
    ("vendor", "product"), [("AuthenticAMD", "onednn"), ("GenuineIntel", "mkl"), (None, "onednn")]
)
def test_the_product_is_chosen_by_the_processor(
    monkeypatch: pytest.MonkeyPatch, vendor: str | None, product: str
) -> None:
    """In training; a matrix that is prepared for generation stays oneDNN's."""
    assert matmul.training_product(vendor) == product
    x, weight, called = torch.ones(matmul.ROWS, 5), torch.ones(7, 5), []

    def counted(x: Tensor, weight: Tensor) -> Tensor:
        called.append(1)
        return F.linear(x, weight)

    monkeypatch.setattr(matmul, "_onednn", counted)
    monkeypatch.setattr(matmul, "PRODUCT", product)
    monkeypatch.setattr(matmul, "PRODUCTS", 0)
    torch.testing.assert_close(matmul.linear(x, weight), F.linear(x, weight))
    assert bool(called) == (product == "onednn") and matmul.PreparedMatrix(weight, 4).onednn


ARGUMENTS = ("self", "batch_size")


@pytest.mark.parametrize(
    ("version", "name", "arguments", "expected"),
    [
        (torch.__version__, "_reorder_linear_weight", ARGUMENTS, True),
        ("2.10.1", "_reorder_linear_weight", ARGUMENTS, False),
        ("3.0.0+cpu", "_reorder_linear_weight", ARGUMENTS, False),
        (torch.__version__, "_reorder_linear_weight", ("self",), False),
        (torch.__version__, "_no_such_operator", ARGUMENTS, False),
    ],
)
def test_an_operator_is_used_where_it_is_what_it_was(
    monkeypatch: pytest.MonkeyPatch, version: str, name: str, arguments: tuple[str, ...], expected: bool
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    assert support.has_operator("mkldnn", name, arguments) is expected
