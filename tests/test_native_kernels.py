"""The C++ kernels of the CPU: exact, the same on every number of threads, and replaceable by PyTorch."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import opcheck
from torch.nn import functional as F

from zoo.kernels import native, rotation, softmax
from zoo.kernels import short_attention as kernel
from zoo.kernels.short_attention import plain_attention, plain_gradients, short_attention
from zoo.kernels.softmax import reference_softmax_gradient, softmax_gradient

SHAPES = {
    "one query": (2, 1, 3, 16, None),
    "two": (1, 2, 1, 8, None),
    "a block": (2, 16, 2, 32, None),
    "odd": (2, 37, 3, 24, None),
    "long": (1, 300, 2, 64, None),
    "longest": (1, 512, 1, 5, None),
    "window of one": (1, 20, 2, 16, 1),
    "window": (2, 130, 2, 16, 33),
}


Inputs = tuple[Tensor, Tensor, Tensor, Tensor]


def example(batch: int, time: int, heads: int, size: int, dtype: torch.dtype = torch.float64) -> Inputs:
    """Gradient, q, k and v; q, k and v are slices of one tensor, as a projection leaves them."""
    generator = torch.Generator().manual_seed(time)
    joint = torch.randn(batch, time, 3 * heads * size, dtype=torch.float64, generator=generator)
    grad = torch.randn(batch, time, heads, size, dtype=torch.float64, generator=generator)
    q, k, v = (part.view(batch, time, heads, size).to(dtype) for part in joint.to(dtype).chunk(3, -1))
    return grad.to(dtype), q, k, v


def documents(batch: int, time: int) -> Tensor:
    """A mask by which every query sees about two thirds of the keys, its own among them."""
    random = torch.rand(batch, time, time, generator=torch.Generator().manual_seed(1)) < 2 / 3
    return random | torch.eye(time, dtype=torch.bool)


def attend(inputs: Inputs, window: int | None, mask: Tensor | None) -> list[Tensor]:
    """The output and the gradients of q, k and v."""
    grad, *rest = inputs
    q, k, v = (t.detach().requires_grad_() for t in rest)
    y = short_attention(q, k, v, 0.3, window, mask)
    return [y.detach(), *torch.autograd.grad(y, (q, k, v), grad)]


def fused(inputs: Inputs, seen: Tensor | None) -> list[Tensor]:
    """The same by torch's kernel."""
    grad, q, k, v = (t.detach().transpose(1, 2).requires_grad_() for t in inputs)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=seen is None, scale=0.3)
    return [t.transpose(1, 2) for t in (y, *torch.autograd.grad(y, (q, k, v), grad))]


def expected(inputs: Inputs, window: int | None, mask: Tensor | None) -> list[Tensor]:
    """The same in float64, in PyTorch."""
    grad, q, k, v = (t.double() for t in inputs)
    seen = window or q.shape[1]
    return [plain_attention(q, k, v, mask, 0.3, seen)[0], *plain_gradients(grad, q, k, v, mask, 0.3, seen)]


def test_there_is_a_compiler() -> None:
    """Without one the tests below compare PyTorch with PyTorch."""
    assert native.kind() == "native"


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_attention_is_that_of_float64(
    shape: tuple[int, int, int, int, int | None], masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, time, heads, size, window = shape
    inputs = example(batch, time, heads, size, torch.float32)
    mask = documents(batch, time) if masked else None
    truth = expected(inputs, window, mask)
    for ours, exact in zip(attend(inputs, window, mask), truth, strict=True):
        assert (ours - exact).norm() <= 1e-6 * (exact.norm() + inputs[0].norm())
    monkeypatch.setattr(native, "load_kernels", lambda: None)
    for plain, exact in zip(attend(inputs, window, mask), truth, strict=True):
        assert (plain - exact).norm() <= 1e-6 * (exact.norm() + inputs[0].norm())


def test_plain_attention_is_that_of_torch() -> None:
    """The reference of the tests above, with autograd's gradients."""
    inputs = example(2, 37, 3, 24)
    mask = documents(2, 37)
    seen = (mask & torch.ones(37, 37, dtype=torch.bool).tril().triu(-8)).unsqueeze(1)
    for ours, its in zip(expected(inputs, 9, mask), fused(inputs, seen), strict=True):
        torch.testing.assert_close(ours, its, rtol=1e-10, atol=1e-12)


def test_attention_in_bfloat16_is_as_exact_as_torch() -> None:
    """Errors against float64 at most a tenth above those of torch's kernel, which computes in float32 too."""
    inputs = example(2, 130, 3, 16, torch.bfloat16)
    truth = expected(inputs, None, None)
    for ours, its, exact in zip(attend(inputs, None, None), fused(inputs, None), truth, strict=True):
        assert ours.dtype == torch.bfloat16
        assert (ours - exact).norm() <= 1.1 * (its - exact).norm()


@pytest.mark.parametrize("time", [4, 17])
def test_small_normalisers_make_no_gradient_infinite(time: int) -> None:
    """The last block has rows without a query, whose scores are 0, far above a normaliser of -89."""
    grad, q, k, v = example(1, time, 1, 4, torch.float32)
    q[..., 0], q[..., 1:], k[..., 0] = 1, 0, (-89 - math.log(time)) / 0.3
    truth = expected((grad, q, k, v), None, None)
    for ours, exact in zip(attend((grad, q, k, v), None, None), truth, strict=True):
        assert (ours - exact).norm() <= 1e-4 * (exact.norm() + grad.norm())


def test_large_heads_and_other_dtypes_take_matrix_products(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the kernel was called")

    monkeypatch.setattr(kernel, "_attention", refuse)
    for inputs in (example(1, 9, 1, 8), example(1, 9, 1, kernel.LARGE_HEAD + 1, torch.float32)):
        for ours, exact in zip(attend(inputs, None, None), expected(inputs, None, None), strict=True):
            assert (ours - exact).norm() <= 1e-6 * (exact.norm() + inputs[0].norm())
    monkeypatch.setattr(kernel, "MATRIX_UNITS", True)
    attend(example(1, 9, 1, kernel.SMALL_HEAD + 1, torch.bfloat16), None, None)
    with pytest.raises(AssertionError, match="was called"):
        attend(example(1, 9, 1, kernel.SMALL_HEAD, torch.bfloat16), None, None)


def angles_of(batch: int, time: int, size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines (batch, time, size / 2) and signed sines (batch, time, 2, size / 2) of random angles."""
    angle = torch.randn(batch, time, size // 2, generator=torch.Generator().manual_seed(size))
    return angle.cos().to(dtype), torch.stack((-angle.sin(), angle.sin()), -2).to(dtype)


def rotated(x: Tensor, angles: tuple[Tensor, Tensor], grad: Tensor) -> list[Tensor]:
    """The rotated pairs, the gradient of x, and the gradient of that gradient by `grad`."""
    x, grad = x.detach().requires_grad_(), grad.detach().requires_grad_()
    y = rotation.rotate_pairs(x, *angles)
    (slope,) = torch.autograd.grad(y, x, grad, create_graph=True)
    return [y.detach(), slope.detach(), *torch.autograd.grad(slope, grad, x.detach())]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("size", [2, 6, 16, 24, 32, 64])
def test_rotations_are_those_of_float64(size: int, rows: int, dtype: torch.dtype) -> None:
    """With the same angles for all rows and with those of each, of q, k and v as a projection leaves them."""
    grad, q, _, _ = example(2, 9, 3, size, dtype)
    exact = (t.to(torch.float64) for t in (q, grad))
    x, slope = exact
    truth = rotated(x, angles_of(rows, 9, size, torch.float64), slope)
    for ours, its in zip(rotated(q, angles_of(rows, 9, size, torch.float32), grad), truth, strict=True):
        assert ours.dtype == dtype
        assert (ours - its).norm() <= (2e-7 if dtype == torch.float32 else 2**-8) * its.norm()


def test_a_rotation_in_bfloat16_is_rounded_once() -> None:
    """The kernel gives the bits of PyTorch in float32, rounded, but for sums that lie between two numbers."""
    _, q, _, _ = example(4, 64, 3, 32, torch.bfloat16)
    angles = angles_of(1, 64, 32, torch.float32)
    same = rotation.rotate_pairs(q, *angles) == rotation.plain_rotation(q, *angles)
    assert same.float().mean() >= 0.999


def logits_of(rows: int, vocab: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Logits of widely different sizes, and targets, some of which are ignored."""
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(rows, vocab, generator=generator) * torch.linspace(0.1, 60, rows).unsqueeze(-1)
    targets = torch.randint(vocab, (rows,), generator=generator)
    targets[::5] = -1
    return logits.to(dtype), targets


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab", [1, 15, 16, 100, 4096])
def test_slopes_are_those_of_float64(dtype: torch.dtype, vocab: int, monkeypatch: pytest.MonkeyPatch) -> None:
    logits, targets = logits_of(40, vocab, dtype)
    truth = reference_softmax_gradient(logits.double(), targets, torch.tensor(1e-2))
    tolerance: Any = {"rtol": 2**-8 if dtype == torch.bfloat16 else 1e-5, "atol": 1e-6}
    for ours, exact in zip(softmax_gradient(logits, targets, torch.tensor(1e-2)), truth, strict=True):
        torch.testing.assert_close(ours.double(), exact, **tolerance)
    monkeypatch.setattr(native, "load_kernels", lambda: None)
    for plain, exact in zip(softmax_gradient(logits, targets, torch.tensor(1e-2)), truth, strict=True):
        torch.testing.assert_close(plain.double(), exact, **tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wrong", [50, 60, -2, -100])
def test_a_target_outside_its_row_makes_that_row_nan(wrong: int, dtype: torch.dtype) -> None:
    """As in a compiled graph, where no value is checked; the other rows are as without it."""
    logits, targets = logits_of(4, 50, dtype)
    usual = softmax_gradient(logits, targets, torch.tensor(0.1))
    targets[1] = wrong
    gradient, lse, target_logits = softmax_gradient(logits, targets, torch.tensor(0.1))
    assert gradient[1].isnan().all() and target_logits[1].isnan() and torch.equal(lse, usual[1])
    others = [0, 2, 3]
    assert torch.equal(gradient[others], usual[0][others]) and torch.equal(
        target_logits[others], usual[2][others]
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_make_a_loss_that_is_not(value: float) -> None:
    logits, targets = logits_of(3, 50, torch.float32)
    logits[1, 7] = value
    lse = softmax_gradient(logits, targets, torch.tensor(0.0))[1]
    assert lse.isfinite().tolist() == [True, False, True]


def test_the_same_bits_on_one_thread_and_on_two() -> None:
    inputs = example(2, 70, 3, 16, torch.bfloat16)
    logits, targets = logits_of(64, 300, torch.bfloat16)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append([*attend(inputs, None, None), *softmax_gradient(logits, targets, torch.tensor(0.1))])
    finally:
        torch.set_num_threads(before)
    for one, two in zip(*found, strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("available", [True, False])
def test_operators_are_as_declared(available: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Schemas, and shapes, dtypes and strides on fake tensors, by torch's own check."""
    if not available:
        monkeypatch.setattr(native, "load_kernels", lambda: None)
    grad, q, k, v = example(2, 20, 3, 16, torch.float32)
    _, lse = kernel._attention(q, k, v, None, 0.3, 20)
    operators: tuple[Any, ...] = kernel._attention, kernel._attention_backward, softmax.softmax_gradient
    forward, backward, gradient = operators
    opcheck(forward, (q, k, v, None, 0.3, 20))
    opcheck(backward, (grad, q, k, v, None, lse, 0.3, 20))
    opcheck(gradient, (*logits_of(9, 30, torch.float32), torch.tensor(0.1)))
    rotate: Any = rotation._rotation
    opcheck(rotate, (q, *angles_of(1, 20, 16, torch.float32), True))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile warns of itself
def test_attention_compiles_without_a_graph_break() -> None:
    _, q, k, v = example(2, 20, 3, 16, torch.float32)
    compiled = torch.compile(short_attention, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v, 0.3), short_attention(q, k, v, 0.3))


def test_without_a_compiler_there_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "new"))
    failing = tmp_path / "failing"
    failing.write_text("#!/bin/sh\n[ $1 = --version ] || { echo 'no such header' >&2; exit 1; }\n")
    failing.chmod(0o755)
    for compiler, message in (
        ("there-is-none", "no C++ compiler (there-is-none)"),
        ("'g++", "no C++ compiler ('g++)"),
        (str(failing), "no such header"),
    ):
        monkeypatch.setenv("CXX", compiler)
        with caplog.at_level(logging.WARNING, "zoo"):
            assert native.load_kernels.__wrapped__() is None
        assert message in caplog.text
    assert not list((tmp_path / "new").rglob("*.so"))


def test_without_a_home_there_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with caplog.at_level(logging.WARNING, "zoo"):
        assert native.load_kernels.__wrapped__() is None
    assert "Could not determine home directory" in caplog.text


@pytest.mark.parametrize("command", ["env c++ -g0", ""])
def test_the_command_of_the_compiler(command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It may have arguments, as in "ccache g++", and an empty one is none."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", command)
    assert native.load_kernels.__wrapped__() is not None


def test_a_library_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    assert native.load_kernels.__wrapped__() is not None
    (made,) = tmp_path.rglob("*.so")
    before = made.stat().st_mtime_ns
    assert native.load_kernels.__wrapped__() is not None
    assert [file.stat().st_mtime_ns for file in tmp_path.rglob("*.so")] == [before]
