"""The linear map of float32 on a CPU is the linear map."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.kernels import matmul
from zoo.kernels.matmul import ROWS, linear


def example(*shape: int, out: int = 9) -> tuple[Tensor, Tensor]:
    """x of `shape` and W (out, shape[-1]), float32, with gradients."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(*shape, generator=generator)
    return x.requires_grad_(), torch.randn(out, shape[-1], generator=generator).requires_grad_()


@pytest.mark.parametrize("shape", ((ROWS, 5), (2, ROWS, 5), (1, 5), (0, 5), (3, 5, ROWS)))
def test_equals_torch(shape: tuple[int, ...]) -> None:
    x, weight = example(*shape)
    ours, theirs = linear(x, weight), F.linear(x, weight)
    grad = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(
        torch.autograd.grad(ours, (x, weight), grad), torch.autograd.grad(theirs, (x, weight), grad)
    )


@pytest.mark.parametrize("shape", ((ROWS, 5), (1, 5)))
@pytest.mark.parametrize("gate", (0.0, -0.3))
@pytest.mark.parametrize("transposed", (False, True))
def test_a_factor_is_a_factor_of_the_matrix(shape: tuple[int, ...], gate: float, transposed: bool) -> None:
    """Also at 0, where the product tells nothing of its slope."""
    x, weight = example(*shape)
    if transposed:
        weight = weight.detach().mT.contiguous().mT.requires_grad_()
    factor = torch.tensor([gate], requires_grad=True)
    ours, theirs = linear(x, weight, factor), F.linear(x, weight * factor)
    grad = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1))
    inputs = (x, weight, factor)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(
        torch.autograd.grad(ours, inputs, grad), torch.autograd.grad(theirs, inputs, grad)
    )


def test_a_transposed_input() -> None:
    x, weight = example(5, 2 * ROWS, out=7)
    torch.testing.assert_close(linear(x.mT, weight[:, :5]), F.linear(x.mT, weight[:, :5]))


@pytest.mark.parametrize("frozen", (0, 1))
def test_a_frozen_side_gets_no_gradient(frozen: int) -> None:
    inputs = example(ROWS, 5)
    inputs[frozen].requires_grad_(False)
    torch.autograd.backward(linear(*inputs).sum())
    assert inputs[frozen].grad is None and inputs[1 - frozen].grad is not None


def test_what_goes_to_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Float32 with many rows does; float64, single tokens and autocast are torch's business."""
    calls: list[int] = []

    def counted(x: Tensor, weight: Tensor) -> Tensor:
        calls.append(1)
        return F.linear(x, weight)

    monkeypatch.setattr(matmul, "PRODUCT", "onednn")  # on Intel's processors as well
    monkeypatch.setattr(matmul, "_onednn", counted)
    x, weight = (t.detach() for t in example(ROWS, 5))
    linear(x[1:], weight)
    linear(x.double(), weight.double())
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight).dtype == torch.bfloat16
    assert not calls
    linear(x, weight)
    assert calls == [1]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile warns of itself
def test_compiles_without_a_graph_break() -> None:
    x, weight = example(ROWS, 5)

    def grads(function: object) -> tuple[Tensor, ...]:
        return torch.autograd.grad(function(x, weight).square().sum(), (x, weight))  # type: ignore[operator]

    torch.testing.assert_close(grads(torch.compile(linear, fullgraph=True)), grads(linear))
