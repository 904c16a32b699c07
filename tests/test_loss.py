"""The chunked loss is the textbook loss, and smaller."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from zoo.nn.loss import LossParts, linear_cross_entropy
from zoo.utils.errors import DataError, ZooError

CHUNKS = (None, 1, 5, 13, 100)


def example(
    tokens: int = 13, vocab: int = 17, width: int = 6, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """Hidden states, weight, scale (all with gradients) and targets, two of them ignored."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((tokens, width), (vocab, width), (vocab,))
    tensors = [torch.randn(s, generator=generator, dtype=dtype).requires_grad_() for s in shapes]
    targets = torch.randint(vocab, (tokens,), generator=generator)
    targets[[0, 3]] = -1
    return [*tensors, targets]


def reference(
    hidden: Tensor, weight: Tensor, scale: Tensor | None, targets: Tensor, z_loss: float
) -> LossParts:
    """The loss as it is written down, with all logits at once."""
    logits = hidden @ weight.T
    if scale is not None:
        logits = logits * scale
    cross_entropy = F.cross_entropy(logits, targets, ignore_index=-1)
    z = z_loss * logits.logsumexp(-1)[targets != -1].square().mean()
    return LossParts(cross_entropy + z, cross_entropy, z)


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("z_loss", (0.0, 0.3))
@pytest.mark.parametrize("scaled", (False, True))
def test_equals_the_textbook(chunk: int | None, z_loss: float, scaled: bool) -> None:
    hidden, weight, scale, targets = example()
    inputs = [hidden, weight, scale] if scaled else [hidden, weight]
    factor = scale if scaled else None
    ours = linear_cross_entropy(hidden, weight, targets, scale=factor, z_loss=z_loss, chunk=chunk)
    theirs = reference(hidden, weight, factor, targets, z_loss)
    torch.testing.assert_close(list(ours), list(theirs), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        torch.autograd.grad(3 * ours.total, inputs),
        torch.autograd.grad(3 * theirs.total, inputs),
        rtol=1e-11,
        atol=1e-12,
    )


@pytest.mark.parametrize("chunk", CHUNKS)
def test_with_a_bias(chunk: int | None) -> None:
    hidden, weight, bias, targets = example()
    ours = linear_cross_entropy(hidden, weight, targets, bias=bias, z_loss=0.3, chunk=chunk).total
    logits = hidden @ weight.T + bias
    z = 0.3 * logits.logsumexp(-1)[targets != -1].square().mean()
    theirs = F.cross_entropy(logits, targets, ignore_index=-1) + z
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    inputs = (hidden, weight, bias)
    expected = torch.autograd.grad(3 * theirs, inputs)
    torch.testing.assert_close(torch.autograd.grad(3 * ours, inputs), expected, rtol=1e-11, atol=1e-12)


def test_gradcheck() -> None:
    hidden, weight, scale, targets = example(tokens=5, vocab=4, width=3)
    targets[:] = torch.tensor([-1, 2, 0, 3, 3])
    assert torch.autograd.gradcheck(
        lambda h, w, s: linear_cross_entropy(h, w, targets, scale=s, z_loss=0.1, chunk=2).total,
        (hidden, weight, scale),
    )


@pytest.mark.parametrize("frozen", (0, 1))
def test_a_frozen_side_gets_no_gradient(frozen: int) -> None:
    hidden, weight, _, targets = example()
    (hidden, weight)[frozen].requires_grad_(False)
    trained = (weight, hidden)[frozen]
    expected = torch.autograd.grad(reference(hidden, weight, None, targets, 0.1).total, trained)
    torch.autograd.backward(linear_cross_entropy(hidden, weight, targets, z_loss=0.1, chunk=4).total)
    torch.testing.assert_close(trained.grad, expected[0])
    assert (hidden, weight)[frozen].grad is None


def test_evaluation_forms_no_gradient() -> None:
    hidden, weight, scale, targets = example()
    with Largest() as training:
        trained = linear_cross_entropy(hidden, weight, targets, scale=scale, z_loss=0.1, chunk=4)
    with torch.no_grad(), Largest() as evaluation:
        parts = linear_cross_entropy(hidden, weight, targets, scale=scale, z_loss=0.1, chunk=4)
    assert not parts.total.requires_grad
    assert "aten.scatter_add_.default" in training.operations - evaluation.operations
    torch.testing.assert_close(list(parts[:3]), [part.detach() for part in trained[:3]])


def test_parts_are_told_apart() -> None:
    hidden, weight, _, targets = example()
    parts = linear_cross_entropy(hidden, weight, targets, z_loss=0.1)
    assert parts.total.requires_grad
    assert not parts.cross_entropy.requires_grad and not parts.z_loss.requires_grad
    assert linear_cross_entropy(hidden, weight, targets).z_loss == 0
    torch.testing.assert_close(parts.total.detach(), parts.cross_entropy + parts.z_loss)


def test_nothing_counted_is_zero() -> None:
    hidden, weight, _, targets = example()
    parts = linear_cross_entropy(hidden, weight, torch.full_like(targets, -1), z_loss=0.1, chunk=4)
    torch.autograd.backward(parts.total)
    assert all(part == 0 for part in parts[:3])
    assert hidden.grad is not None and not hidden.grad.any()
    assert weight.grad is not None and not weight.grad.any()


def test_a_single_number_scales_all_logits() -> None:
    hidden, weight, _, targets = example()
    scale = torch.tensor([1.7], dtype=torch.float64, requires_grad=True)
    ours = linear_cross_entropy(hidden, weight, targets, scale=scale).total
    theirs = reference(hidden, weight, scale, targets, 0.0).total
    torch.testing.assert_close(torch.autograd.grad(ours, scale), torch.autograd.grad(theirs, scale))


def test_autocast() -> None:
    """Half-precision products, gradients in the inputs' dtypes, close to the exact result."""
    hidden, weight, scale, targets = example(tokens=40, vocab=50, width=32, dtype=torch.float32)
    exact = reference(hidden, weight, scale, targets, 0.01)
    with torch.autocast("cpu", torch.bfloat16), Largest() as largest:
        ours = linear_cross_entropy(hidden.bfloat16(), weight, targets, scale=scale, z_loss=0.01, chunk=16)
    assert all(part.dtype == torch.float32 for part in ours[:3])
    assert largest.matmul_dtypes == {torch.bfloat16}
    torch.testing.assert_close(list(ours), list(exact), rtol=0.02, atol=0)
    inputs = (hidden, weight, scale)
    for got, expected in zip(
        torch.autograd.grad(ours.total, inputs), torch.autograd.grad(exact.total, inputs), strict=True
    ):
        assert got.dtype == torch.float32
        assert (got - expected).norm() < 0.02 * expected.norm()


def test_meta_tensors_have_no_autocast() -> None:
    """The operations of a loss can be counted, and those of its backward pass."""
    hidden, weight = (torch.empty(n, 4, device="meta", requires_grad=True) for n in (6, 9))
    targets = torch.zeros(6, dtype=torch.int64, device="meta")
    torch.autograd.backward(linear_cross_entropy(hidden, weight, targets).total)
    assert hidden.grad is not None and hidden.grad.is_meta


def test_autocast_leaves_float64_alone() -> None:
    hidden, weight, _, targets = example()
    with torch.autocast("cpu", torch.bfloat16):
        ours = linear_cross_entropy(hidden, weight, targets).total
    torch.testing.assert_close(ours, reference(hidden, weight, None, targets, 0.0).total)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile warns of itself
@pytest.mark.parametrize("precision", (torch.float32, torch.bfloat16))
def test_compiles_without_a_graph_break(precision: torch.dtype) -> None:
    hidden, weight, scale, targets = example(dtype=torch.float32)

    def gradients(h: Tensor, w: Tensor, s: Tensor) -> Tensor:
        with torch.autocast("cpu", precision, enabled=precision != torch.float32):
            return linear_cross_entropy(h, w, targets, scale=s, z_loss=0.1, chunk=5).total

    def grads(function: Any) -> tuple[Tensor, ...]:
        return torch.autograd.grad(function(hidden, weight, scale), (hidden, weight, scale))

    tolerance = 1e-5 if precision == torch.float32 else 0.05
    torch.testing.assert_close(
        grads(torch.compile(gradients, fullgraph=True)), grads(gradients), rtol=tolerance, atol=tolerance
    )


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches what is computed: the largest tensor made, the operations, the matmuls' dtypes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.entries = 0
        self.operations: set[str] = set()
        self.matmul_dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.entries = max([self.entries, *(t.numel() for t in made)])
        self.operations.add(str(func))
        if func in (torch.ops.aten.mm.default, torch.ops.aten.linear.default):
            self.matmul_dtypes |= {t.dtype for t in made}
        return result


@pytest.mark.parametrize("z_loss", (0.0, 0.1))
def test_never_holds_all_logits(z_loss: float) -> None:
    """At 32 000 words no tensor is larger than the weight, forward and backward, by default."""
    tokens, vocab, width = 200, 32_000, 100
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, width, generator=generator, requires_grad=True)
    weight = torch.randn(vocab, width, generator=generator, requires_grad=True)
    targets = torch.randint(vocab, (tokens,), generator=generator)
    with Largest() as usual:
        torch.autograd.backward(F.cross_entropy(hidden @ weight.T, targets))
    with Largest() as ours:
        torch.autograd.backward(linear_cross_entropy(hidden, weight, targets, z_loss=z_loss).total)
    assert usual.entries == tokens * vocab
    assert ours.entries == weight.numel() == tokens * vocab / 2


@pytest.mark.parametrize(
    ("change", "message"),
    (
        ({"hidden": torch.zeros(2, 3, 6)}, r"hidden \(n, d\)"),
        ({"weight": torch.zeros(17, 5)}, r"hidden \(n, d\)"),
        ({"targets": torch.zeros(13)}, "int64 targets"),
        ({"targets": torch.zeros(12, dtype=torch.int64)}, r"shape \(13,\)"),
        ({"scale": torch.zeros(6)}, r"scale of shape \(17,\)"),
        ({"chunk": 0}, "chunk is 0"),
        ({"z_loss": -1e-4}, "z_loss is -0.0001, expected 0 or more"),
    ),
)
def test_refuses(change: dict[str, Any], message: str) -> None:
    hidden, weight, _, targets = example()
    with pytest.raises(ZooError, match=message):
        linear_cross_entropy(**{"hidden": hidden, "weight": weight, "targets": targets} | change)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("trained", (True, False))
@pytest.mark.parametrize("wrong", (17, 10**9, -100, -2))
def test_targets_outside_the_vocabulary_are_refused(wrong: int, trained: bool, dtype: torch.dtype) -> None:
    """-100, which other libraries ignore, is no target either: it would be counted."""
    hidden, weight, _, targets = example(dtype=dtype)
    targets[5] = wrong
    message = f"targets: id {wrong}; expected 0 to 16, or -1 for positions that are left out"
    with torch.set_grad_enabled(trained), pytest.raises(DataError, match=message):
        linear_cross_entropy(hidden, weight, targets)


def test_no_targets_at_all_are_no_mistake() -> None:
    hidden, weight, _, targets = example()
    assert linear_cross_entropy(hidden[:0], weight, targets[:0]).total == 0
