"""SOAP with small parameters of one shape in one tensor, which is done on a GPU; here on a CPU."""

from collections.abc import Hashable, Sequence

import pytest
import torch
from torch import Tensor, nn

from zoo.kernels import stacks
from zoo.optim import soap
from zoo.optim.skip import skipped_if
from zoo.optim.soap import SOAP, grams
from zoo.optim.stacks import changed

SHAPES = [(6, 6), (6, 40), (5,), (4, 6, 3, 3), (6, 6), (5,), (6, 40), (), (6, 6), (4, 6, 3, 3), ()]
"""Of the gradient every side up to 10 has full rank, so that the bases are determined."""

LATE = 4
"""The parameter that has no gradient in its second step."""

STEPS, TURN = 23, 10
"""The bases turn in the steps 10 and 20, counted from 0. Step `TURN` may be skipped."""


def steps(dtype: torch.dtype, *skipped: int) -> tuple[list[nn.Parameter], SOAP]:
    """Take steps, some of which are skipped because the gradient is not finite."""
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape, dtype=torch.float64).to(dtype)) for shape in SHAPES]
    optimizer = SOAP(parameters, lr=0.01, max_precond_dim=10)
    for step in range(STEPS):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, dtype=torch.float64).to(dtype)
            if step in skipped:
                parameter.grad.fill_(torch.nan)
        if step == 1:
            parameters[LATE].grad = None
        with skipped_if(optimizer, torch.tensor(step in skipped)):
            optimizer.step()
    return parameters, optimizer


@pytest.mark.parametrize("skipped", [(), (3, TURN)], ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-4)])
def test_steps_together_are_those_one_by_one(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, tolerance: float, skipped: tuple[int, ...]
) -> None:
    alone, one_by_one = steps(dtype, *skipped)
    monkeypatch.setattr(stacks, "COPY_COSTS_MORE", frozenset())
    stacked, optimizer = steps(dtype, *skipped)
    for theirs, ours in zip(alone, stacked, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
        expected, state = one_by_one.state[theirs], optimizer.state[ours]
        assert {k: (v.shape, v.dtype) for k, v in state.items()} == {
            k: (v.shape, v.dtype) for k, v in expected.items()
        }
        for name, slot in state.items():
            if name[:2] == "GG" or name == "step":
                torch.testing.assert_close(slot, expected[name], rtol=tolerance, atol=tolerance)


def test_parameters_of_one_shape_are_one_stack_if_they_take_the_same_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = []

    def seen(parameters: Sequence[Tensor], keys: Sequence[Hashable]) -> list[list[int]]:
        members = stacks.alike(parameters, keys)
        sizes.append(sorted(map(len, members)))
        return members

    monkeypatch.setattr(stacks, "COPY_COSTS_MORE", frozenset())
    monkeypatch.setattr(soap, "alike", seen)
    steps(torch.float64)
    assert sizes[0] == [2, 2, 2, 2, 3]
    assert sizes[1] == [2] * 5
    assert sizes[2:] == [[1, 2, 2, 2, 2, 2]] * (STEPS - 2)


@pytest.mark.parametrize("step", [1, TURN], ids=["between turns", "a turn"])
def test_a_skipped_step_changes_no_member_of_a_stack(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    monkeypatch.setattr(stacks, "COPY_COSTS_MORE", frozenset())
    matrices = [nn.Parameter(torch.randn(4, 4)) for _ in range(2)]
    optimizer = SOAP(matrices, lr=0.01)
    for _ in range(step):  # the first one has the number 0
        for matrix in matrices:
            matrix.grad = torch.randn(4, 4)
        optimizer.step()
    tensors = [t for m in matrices for t in (m.detach(), *optimizer.state[m].values()) if t.dim()]
    before = [tensor.clone() for tensor in tensors]
    for matrix in matrices:
        matrix.grad = torch.full((4, 4), torch.inf)
    with skipped_if(optimizer, torch.tensor(True)):
        optimizer.step()
    assert all(map(torch.equal, tensors, before))


def test_a_first_step_that_is_skipped_makes_the_axes_the_bases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "COPY_COSTS_MORE", frozenset())
    matrices = [nn.Parameter(torch.randn(3, 3)) for _ in range(2)]
    optimizer = SOAP(matrices)
    for matrix in matrices:
        matrix.grad = torch.full((3, 3), torch.nan)
    with skipped_if(optimizer, torch.tensor(True)):
        optimizer.step()
    for matrix in matrices:
        assert torch.equal(optimizer.state[matrix]["Q1"].abs(), torch.eye(3).flip(1))


def test_the_products_of_bases_are_kept_until_a_stack_of_them_changes() -> None:
    """Copies back from a stack change the version of a basis; others keep their products."""
    bases = [torch.eye(2), 2 * torch.eye(2), 3 * torch.eye(2)]
    squares = torch.tensor([1.0, 4.0, 9.0])[:, None, None] * torch.eye(2)
    assert torch.equal(grams(bases), squares)
    with changed(None, bases[:2]) as (stack,):
        stack.mul_(2)
    assert torch.equal(grams(bases[:2]), 4 * squares[:2])
    assert torch.equal(grams(bases), torch.cat([4 * squares[:2], squares[2:]]))
    assert torch.equal(grams(bases[::-1]), grams(bases).flip(0))
