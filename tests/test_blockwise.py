"""Blockwise attention is causal softmax attention, as exact as torch's own kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.kernels import blockwise
from zoo.kernels.blockwise import blockwise_attention
from zoo.nn import attention

Attend = Callable[[Tensor, Tensor, Tensor, float], Tensor]


def example(time: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """q, k, v (all with gradients) and the gradient of the output, (2, time, 3, 8) each."""
    generator = torch.Generator().manual_seed(0)
    tensors = [
        torch.randn(2, time, 3, 8, generator=generator, dtype=torch.float64).to(dtype) for _ in range(4)
    ]
    return [t.requires_grad_() for t in tensors[:3]] + tensors[3:]


def fused(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """torch's kernel, on the same layout."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale).transpose(1, 2)


def results(attend: Attend, q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> list[Tensor]:
    """The output and the three gradients."""
    y = attend(q, k, v, 0.7)
    return [y.detach(), *torch.autograd.grad(y, (q, k, v), grad)]


@pytest.mark.parametrize("time", (2, 127, 128, 129, 300))
def test_equals_torch(time: int) -> None:
    inputs = example(time)
    torch.testing.assert_close(
        results(blockwise_attention, *inputs), results(fused, *inputs), rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize(("time", "window"), [(20, 1), (129, 7), (300, 128), (300, 140), (300, 299)])
def test_a_window_equals_torch_with_a_mask(time: int, window: int) -> None:
    """The first keys of a block are those of its first query's window."""
    inputs = example(time)
    seen = torch.ones(time, time, dtype=torch.bool).tril().triu(1 - window)

    def masked(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale).transpose(1, 2)

    def ours(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        return blockwise_attention(q, k, v, scale, window)

    torch.testing.assert_close(results(ours, *inputs), results(masked, *inputs), rtol=1e-10, atol=1e-12)


def test_gradcheck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockwise, "BLOCK", 3)
    inputs = [t[:, :, :1, :4].detach().requires_grad_() for t in example(7)[:3]]
    assert torch.autograd.gradcheck(lambda q, k, v: blockwise_attention(q, k, v, 0.7), inputs)


@pytest.mark.parametrize("autocast", (False, True))
def test_bfloat16_is_as_exact_as_torch(autocast: bool) -> None:
    """Errors against float64 at most twice those of the fused kernel, which computes in float32."""
    inputs = example(300, torch.bfloat16)
    doubles = [t.detach().double().requires_grad_(t.requires_grad) for t in inputs]
    exact = results(fused, *doubles)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        ours, theirs = results(blockwise_attention, *inputs), results(fused, *inputs)
    for mine, its, truth in zip(ours, theirs, exact, strict=True):
        assert mine.dtype == torch.bfloat16
        assert (mine - truth).norm() < 2 * (its - truth).norm()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile warns of itself
def test_meta_tensors_have_no_autocast() -> None:
    q, k, v = (torch.empty(2, 7, 2, 4, device="meta", requires_grad=True) for _ in range(3))
    y = blockwise_attention(q, k, v, 0.5)
    torch.autograd.backward(y.sum())
    assert y.is_meta and q.grad is not None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile warns of itself
def test_compiles_without_a_graph_break() -> None:
    inputs = example(130, torch.float32)
    compiled = torch.compile(blockwise_attention, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(results(compiled, *inputs), results(blockwise_attention, *inputs))


def test_short_sequences_take_it_with_grouped_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """One key head for three query heads: the same as torch's kernel."""
    q, k, v, grad = example(20)
    k, v = k[:, :, :1], v[:, :, :1]
    calls: list[int] = []

    def counted(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
        calls.append(1)
        return blockwise_attention(q, k, v, scale, window)

    monkeypatch.setattr(attention, "short_attention", counted)
    ours = results(attention.causal_attention, q, k, v, grad)
    monkeypatch.setattr(attention, "LONGEST", 0)
    torch.testing.assert_close(ours, results(attention.causal_attention, q, k, v, grad))
    assert calls == [1]
