"""The linear map on a CPU is the linear map, of float32 and of bfloat16."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.library import opcheck
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from zoo import build_model
from zoo.kernels import matmul
from zoo.kernels.matmul import ROWS, linear, multiplies_bfloat16
from zoo.nn.loss import linear_cross_entropy
from zoo.optim.newton_schulz import orthogonal


@pytest.fixture(autouse=True)
def products_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small products of these tests are oneDNN's like large ones."""
    monkeypatch.setattr(matmul, "PRODUCTS", 0)


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
    """Float32 with many rows does; float64, single tokens, autocast and small products are torch's."""
    calls: list[int] = []

    def counted(x: Tensor, weight: Tensor) -> Tensor:
        calls.append(1)
        return F.linear(x, weight)

    monkeypatch.setattr(matmul, "PRODUCT", "onednn")  # on Intel's processors as well
    monkeypatch.setattr(matmul, "BFLOAT16", True)
    monkeypatch.setattr(matmul, "_onednn", counted)
    x, weight = (t.detach() for t in example(ROWS, 5))
    linear(x[1:], weight)
    linear(x.double(), weight.double())
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight).dtype == torch.bfloat16
    monkeypatch.setattr(matmul, "PRODUCTS", x.numel() * len(weight) + 1)
    linear(x, weight)
    assert not calls
    monkeypatch.setattr(matmul, "PRODUCTS", x.numel() * len(weight))
    linear(x, weight)
    assert calls == [1]


def test_the_operators_of_onednn() -> None:
    """They are what torch asks of an operator, with each layout of a matrix."""
    x, weight = (t.detach() for t in example(ROWS, 5))
    for matrix in (weight, weight.mT.contiguous().mT):
        opcheck(torch.ops.zoo.onednn_linear.default, (x, matrix))
    opcheck(torch.ops.zoo.gated_gradients.default, (x @ weight.mT, x, weight, torch.tensor([0.3])))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile warns of itself
def test_compiles_without_a_graph_break() -> None:
    x, weight = example(ROWS, 5)

    def grads(function: object) -> tuple[Tensor, ...]:
        return torch.autograd.grad(function(x, weight).square().sum(), (x, weight))  # type: ignore[operator]

    torch.testing.assert_close(grads(torch.compile(linear, fullgraph=True)), grads(linear))


@pytest.mark.parametrize(
    ("flags", "native"),
    [
        ("fpu avx512f avx512_bf16", True),
        ("avx2 amx_bf16 amx_tile", True),
        ("fp asimd bf16 i8mm", True),
        ("fpu avx2 avx512f avx512_vnni", False),
        (None, True),
    ],
)
def test_instructions_for_bfloat16_are_read_from_the_flags(flags: str | None, native: bool) -> None:
    assert multiplies_bfloat16(flags) is native


@pytest.fixture
def without_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor without instructions for products of bfloat16."""
    monkeypatch.setattr(matmul, "BFLOAT16", False)


def exact(a: Tensor, b: Tensor) -> Tensor:
    """a b of factors rounded to bfloat16, in float64, rounded."""
    return (a.detach().bfloat16().double() @ b.detach().bfloat16().double()).bfloat16()


def assert_rounded(found: Tensor, expected: Tensor) -> None:
    """Equal but for sums that lie between two numbers of bfloat16: the order of sums decides."""
    torch.testing.assert_close(found.bfloat16(), expected, rtol=2**-7, atol=1e-6)
    assert (found.bfloat16() == expected).float().mean() > 0.99


@pytest.mark.usefixtures("without_instructions")
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_products_of_bfloat16_are_rounded_once(dtype: torch.dtype) -> None:
    """Under autocast, and of inputs in bfloat16: outputs and gradients have the dtypes that torch gives."""
    x, weight = (t.detach().to(dtype).requires_grad_() for t in example(3, ROWS, 50, out=40))
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32):
        y = linear(x, weight)
    grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    x_grad, weight_grad = torch.autograd.grad(y, (x, weight), grad)
    assert y.dtype == torch.bfloat16 and x_grad.dtype == weight_grad.dtype == dtype
    assert_rounded(y, exact(x, weight.mT))
    assert_rounded(x_grad, exact(grad, weight))
    assert_rounded(weight_grad, exact(grad.flatten(0, 1).mT, x.flatten(0, 1)))
    for i, expected in enumerate((x_grad, weight_grad)):  # the gradient of one of them alone
        one, other = (t.detach().requires_grad_(i == j) for j, t in enumerate((x, weight)))
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32):
            y = linear(one, other)
        assert torch.equal(torch.autograd.grad(y, (one, other)[i], grad)[0], expected)


def test_only_processors_without_instructions_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not float64, float32 without autocast, or single tokens."""
    calls: list[int] = []

    def counted(a: Tensor, b: Tensor) -> Tensor:
        calls.append(1)
        return a.bfloat16() @ b.bfloat16()

    monkeypatch.setattr(matmul, "rounded_product", counted)
    x, weight = (t.detach() for t in example(ROWS, 5))

    def under_autocast(x: Tensor, weight: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return linear(x, weight)

    monkeypatch.setattr(matmul, "BFLOAT16", True)
    under_autocast(x, weight)
    monkeypatch.setattr(matmul, "BFLOAT16", False)
    linear(x, weight)
    assert under_autocast(x.double(), weight.double()).dtype == torch.float64
    assert under_autocast(x[1:], weight).dtype == torch.bfloat16
    assert not calls
    under_autocast(x, weight)
    assert calls == [1]


@pytest.mark.usefixtures("without_instructions")
def test_the_operator_of_rounded_products() -> None:
    """It is what torch asks of an operator, and counts as much as the product that it stands for."""
    a, b = (t.detach() for t in example(ROWS, 5))
    opcheck(torch.ops.zoo.rounded_product.default, (a, b.mT.contiguous()))
    for weight in (b, b.mT.contiguous().mT):
        opcheck(torch.ops.zoo.rounded_gradients.default, (a @ weight.mT, a, weight))
    a.requires_grad_()
    b.requires_grad_()
    for product, times in ((linear, 1), (lambda a, b: torch.autograd.grad(linear(a, b).sum(), (a, b)), 3)):
        with FlopCounterMode(display=False) as counted, torch.autocast("cpu", torch.bfloat16):
            product(a, b)
        assert counted.get_total_flops() == times * 2 * ROWS * 5 * 9


@pytest.mark.usefixtures("without_instructions")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile warns of itself
def test_rounded_products_compile_to_the_same_bits() -> None:
    x, weight = example(ROWS, 5)

    def grads(function: object) -> tuple[Tensor, ...]:
        with torch.autocast("cpu", torch.bfloat16):
            y = function(x, weight)  # type: ignore[operator]
        return torch.autograd.grad(y.float().square().sum(), (x, weight))

    for ours, eager in zip(grads(torch.compile(linear, fullgraph=True)), grads(linear), strict=True):
        assert torch.equal(ours, eager)


def test_a_model_learns_the_same_without_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss and gradients in bfloat16, beside torch's own products: as near to them as those to float32."""
    torch.manual_seed(0)
    model = build_model("gpt", vocab_size=61, d_model=32, n_layers=2, n_heads=2)
    tokens, targets = model.example(4, 32)

    def gradient(precision: torch.dtype | None, native: bool) -> tuple[float, Tensor]:
        monkeypatch.setattr(matmul, "BFLOAT16", native)
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision is not None):
            loss = model.loss(tokens, targets).total
        loss.backward()  # type: ignore[no-untyped-call]  # torch's
        return loss.item(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    exact_loss, exact_grad = gradient(None, True)
    torch_loss, torch_grad = gradient(torch.bfloat16, True)
    loss, grad = gradient(torch.bfloat16, False)
    assert abs(loss - exact_loss) <= 2 * abs(torch_loss - exact_loss) + 1e-4
    assert (grad - torch_grad).norm() <= 1.5 * (torch_grad - exact_grad).norm()
    assert not torch.equal(grad, exact_grad)


@pytest.mark.usefixtures("without_instructions")
def test_the_loss_rounds_its_products() -> None:
    hidden, weight = example(ROWS, 16, out=40)
    targets = torch.arange(ROWS) % 40
    with torch.autocast("cpu", torch.bfloat16):
        found = linear_cross_entropy(hidden, weight, targets)
    expected = F.cross_entropy(exact(hidden, weight.mT).float(), targets)
    torch.testing.assert_close(found.cross_entropy, expected, rtol=1e-4, atol=1e-4)
    weight_grad = torch.autograd.grad(found.total, weight)[0]
    slopes = (exact(hidden, weight.mT).float().softmax(-1) - F.one_hot(targets, 40)) / ROWS
    assert_rounded(weight_grad, exact(slopes.mT, hidden))


@pytest.mark.parametrize("shape", ((16, 24), (3, 24, 16)))
def test_newton_schulz_rounds_where_instructions_would(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    """Nearer to torch's bfloat16 than either is to float32."""
    matrix = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    found = {}
    for native in (True, False):
        monkeypatch.setattr(matmul, "BFLOAT16", native)
        found[native] = orthogonal(matrix.bfloat16(), 5)
        assert found[native].dtype == torch.bfloat16 and found[native].shape == matrix.shape
    full = orthogonal(matrix, 5)
    apart = (found[True].float() - found[False].float()).norm() / full.norm()
    rounding = (found[True].float() - full).norm() / full.norm()
    assert apart < rounding < 0.03
