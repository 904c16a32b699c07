"""Small tensors of one shape are computed with together on a GPU, and the numbers are those of one by one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from zoo.kernels import stacks
from zoo.nn.sphere import project
from zoo.optim.matrices import MatrixLayout
from zoo.optim.muon import Muon
from zoo.optim.normuon import NorMuon
from zoo.optim.skip import skipped_if
from zoo.optim.skip_flag import restored_if

SHAPES = [(6, 4), (6, 4), (4, 6), (6, 4), (4, 6), (8, 8)]


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """A function that decides whether this CPU takes small tensors together, as a GPU does."""

    def decide(yes: bool) -> None:
        monkeypatch.setattr(stacks, "COPY_COSTS_MORE", frozenset() if yes else frozenset({"cpu"}))

    return decide


def tensors(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]


def test_stacks_are_of_one_shape_and_key(together: Callable[[bool], None]) -> None:
    given = tensors(0)
    assert stacks.alike(given) == [[0], [1], [2], [3], [4], [5]]
    together(True)
    assert stacks.alike(given) == [[0, 1, 3], [2, 4], [5]]
    assert stacks.alike(given, [0, 1, 0, 0, 1, 0]) == [[0, 3], [1], [2], [4], [5]]


def test_large_tensors_are_alone_and_stacks_are_limited(
    together: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    together(True)
    monkeypatch.setattr(stacks, "LARGEST", 24)
    monkeypatch.setattr(stacks, "AT_ONCE", 50)
    given = [torch.zeros(6, 4), torch.zeros(6, 4), torch.zeros(6, 4), torch.zeros(5, 5), torch.zeros(5, 5)]
    assert stacks.alike(given) == [[0, 1], [2], [3], [4]]


@pytest.mark.parametrize("skip", [None, torch.tensor(False), torch.tensor(True)])
def test_projection(together: Callable[[bool], None], skip: Tensor | None) -> None:
    dims = [0, 0, 1, 1, -1, -2]
    results = []
    for yes in (False, True):
        together(yes)
        matrices = tensors(1)
        project(zip(matrices, dims, strict=True), skip)
        results.append(matrices)
    assert_close(results[1], results[0], rtol=1e-14, atol=0)
    norms = [matrix.norm(dim=dim) for matrix, dim in zip(results[1], dims, strict=True)]
    unit = skip is None or not skip
    assert all(torch.allclose(norm, torch.ones_like(norm)) == unit for norm in norms)


@pytest.mark.parametrize("skip", [False, True])
def test_restored_tensors(together: Callable[[bool], None], skip: bool) -> None:
    together(True)
    given = [*tensors(2), torch.tensor(3.0), torch.zeros(0), torch.ones(4, 3).T]
    before = [tensor.clone() for tensor in given]
    with restored_if(torch.tensor(skip), given):
        for tensor in given:
            tensor.add_(1)
    assert_close(given, before if skip else [tensor + 1 for tensor in before])


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("optimizer_class", [Muon, NorMuon])
def test_orthogonal_steps(together: Callable[[bool], None], optimizer_class: type[Muon], heads: int) -> None:
    results = []
    for yes in (False, True):
        together(yes)
        parameters = [tensor.requires_grad_() for tensor in tensors(3)]
        layout = MatrixLayout((0,), ((0, heads),) if heads > 1 else ())
        groups = [{"params": parameters[:4], "layout": layout}, {"params": parameters[4:], "lr": 0.01}]
        optimizer = optimizer_class(groups, lr=0.02, dtype=torch.float64)
        for step in range(4):
            for parameter, gradient in zip(parameters, tensors(10 + step), strict=True):
                parameter.grad = gradient * (torch.nan if step == 2 else 1)
            with skipped_if(optimizer, torch.tensor(step == 2) if step else None):
                optimizer.step()
        slots = [slot for parameter in parameters for slot in optimizer.state[parameter].values()]
        results.append([*(parameter.detach() for parameter in parameters), *slots])
    assert all(tensor.isfinite().all() for tensor in results[0])
    assert_close(results[1], results[0], rtol=1e-12, atol=1e-13)
