"""Elementwise work in pieces: every entry once, whatever the shapes and layouts."""

import math

import pytest
import torch

from zoo.kernels.foreach import Many
from zoo.optim import blocks
from zoo.optim.blocks import blocks as pieces
from zoo.optim.blocks import changed_blocks


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "ENTRIES_PER_THREAD", 10)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)


def test_every_entry_is_reached_once() -> None:
    shapes = [(7, 5), (3,), (), (0, 4), (2, 3, 4), (10,)]
    tensors = [torch.zeros(shape) for shape in shapes]
    sizes = []
    for (part,) in pieces(tensors):
        part.add_(1)
        sizes.append(sum(tensor.numel() for tensor in part.tensors))
    assert all(torch.equal(tensor, torch.ones_like(tensor)) for tensor in tensors)
    assert max(sizes) == 10 and len(sizes) <= 10


def test_a_number_comes_with_every_piece_of_its_tensor() -> None:
    tensors = [torch.arange(24.0).view(4, 6), torch.ones(3)]
    factors, sums = [torch.tensor(2.0), torch.tensor(5.0)], [torch.zeros(()), torch.zeros(())]
    for part, factor, total in pieces(tensors, factors, sums):
        part.mul_(factor)
        total.add_(part.sum())
    assert torch.equal(tensors[0], 2 * torch.arange(24.0).view(4, 6))
    assert [total.item() for total in sums] == [2 * 23 * 24 / 2, 15]


def test_other_layouts_are_not_cut() -> None:
    matrix, other = torch.zeros(6, 4).T, torch.arange(24.0).view(4, 6)
    for target, source in pieces([matrix], [other]):
        assert target.tensors[0].shape == (4, 6)
        target.copy_(source)
    assert torch.equal(matrix, other)


def test_other_devices_get_everything_at_once() -> None:
    tensors = [torch.zeros(100, device="meta"), torch.zeros(50, device="meta")]
    ((part,),) = pieces(tensors)
    assert isinstance(part, Many) and len(part.tensors) == 2
    assert not list(pieces([]))


def test_other_devices_are_given_no_more_than_what_is_copied_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "COPIED_AT_ONCE", 40)
    changed = [torch.zeros(100, device="meta"), torch.zeros(5, device="meta")]
    numbers = [torch.zeros(()), torch.ones(())]
    flag = torch.zeros((), dtype=torch.bool, device="meta")
    found = [part for part, _ in changed_blocks(flag, [changed], numbers)]
    assert [sum(tensor.numel() for tensor in part.tensors) for part in found] == [40, 40, 25]
    assert len([*changed_blocks(None, [changed], numbers)]) == 1


@pytest.mark.parametrize("skip", [None, False, True])
def test_what_is_changed_is_put_back(skip: bool | None) -> None:
    tensors, others = [torch.ones(7, 5), torch.ones(3)], [torch.full((7, 5), math.nan), torch.ones(3)]
    flag = None if skip is None else torch.tensor(skip)
    for part, other in changed_blocks(flag, [tensors], others):
        part.add_(other)
    assert tensors[0].isfinite().all() == bool(skip)
    assert torch.equal(tensors[1], torch.full((3,), 1.0 if skip else 2.0))
