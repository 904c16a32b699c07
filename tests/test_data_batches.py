"""Batches are a pure function of (seed, step, rank), and an epoch is complete."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from zoo.data.dataset import Batch, BatchSpec
from zoo.data.objectives.base import Causal
from zoo.data.objectives.batches import windows_per_epoch
from zoo.data.shuffle import ROUNDS, permute
from zoo.data.tokens import TokenFile
from zoo.nn.loss import IGNORE_INDEX
from zoo.utils.errors import DataError

CONTEXT = 8


def batch(
    tokens: TokenFile, *, seed: int, step: int, batch_size: int, context: int, rank: int = 0, world: int = 1
) -> tuple[torch.Tensor, ...]:
    return Causal().train_batch(tokens, BatchSpec(seed, step, batch_size, rank, world), context, 0)


def validation_batches(
    tokens: TokenFile, *, batch_size: int, context: int, batches: int = 1000, rank: int = 0, world: int = 1
) -> Iterator[tuple[torch.Tensor, ...]]:
    return Causal().validation_batches(tokens, BatchSpec(0, 0, batch_size, rank, world), context, 0, batches)


def counting(tmp_path: Path, length: int) -> TokenFile:
    """Tokens 0, 1, 2, ...: a token says where it stands."""
    path = tmp_path / "tokens.bin"
    np.arange(length, dtype="<u4").tofile(path)
    return TokenFile(path, "uint32", length)


@pytest.mark.parametrize("count", [*range(1, 40), 255, 256, 257, 5000])
def test_the_permutation_is_one(count: int) -> None:
    keys = np.arange(1, ROUNDS + 1, dtype=np.uint64)
    images = permute(np.arange(count), count, keys)
    assert sorted(images.tolist()) == list(range(count))


def test_the_permutation_mixes() -> None:
    count, keys = 5000, np.arange(1, ROUNDS + 1, dtype=np.uint64)
    images = permute(np.arange(count), count, keys)
    assert abs(np.corrcoef(np.arange(count), images)[0, 1]) < 0.05
    assert abs(np.corrcoef(images[:-1], images[1:])[0, 1]) < 0.05
    assert not np.array_equal(images, permute(np.arange(count), count, keys + np.uint64(1)))


@pytest.mark.parametrize("length", [9, 16, 17, 80, 83, 801])
@pytest.mark.parametrize("epoch", [0, 3])
def test_an_epoch_has_every_token_once(tmp_path: Path, length: int, epoch: int) -> None:
    tokens = counting(tmp_path, length)
    count = windows_per_epoch(tokens, CONTEXT, CONTEXT + 1)
    assert count == length // CONTEXT
    seen = []
    for step in range(epoch * count, (epoch + 1) * count):
        inputs, targets = batch(tokens, seed=1, step=step, batch_size=1, context=CONTEXT)
        assert torch.equal(targets, (inputs + 1) % length)
        seen += targets.flatten().tolist()
    assert len(seen) == len(set(seen)) == count * CONTEXT  # none twice ...
    assert length - len(seen) < CONTEXT  # ... and fewer than one sequence left out


def test_batches_cross_epochs_without_a_gap(tmp_path: Path) -> None:
    tokens = counting(tmp_path, 83)
    single = [batch(tokens, seed=3, step=i, batch_size=1, context=CONTEXT)[0] for i in range(42)]
    sevens = [batch(tokens, seed=3, step=i, batch_size=7, context=CONTEXT)[0] for i in range(6)]
    assert torch.equal(torch.cat(single), torch.cat(sevens))
    many = batch(tokens, seed=3, step=0, batch_size=42, context=CONTEXT)[0]  # 4 epochs in a batch
    assert torch.equal(many, torch.cat(single))


def test_epochs_differ_in_order_and_offset(tmp_path: Path) -> None:
    tokens = counting(tmp_path, 801)
    starts = [
        batch(tokens, seed=1, step=epoch, batch_size=100, context=CONTEXT)[0][:, 0] for epoch in range(4)
    ]
    offsets = {int(start[0]) % CONTEXT for start in starts}
    assert len(offsets) > 1
    assert not torch.equal(starts[0], starts[1])


def test_a_batch_is_a_pure_function(tmp_path: Path) -> None:
    tokens = counting(tmp_path, 801)

    def at(seed: int, step: int) -> torch.Tensor:
        return batch(tokens, seed=seed, step=step, batch_size=4, context=CONTEXT)[0]

    first = at(0, 5)
    torch.manual_seed(1)
    at(0, 9), at(7, 5)
    assert torch.equal(at(0, 5), first)
    assert not torch.equal(at(0, 6), first)
    assert not torch.equal(at(1, 5), first)


def test_a_batch_never_changes_between_versions(tmp_path: Path) -> None:
    """A checkpoint of yesterday must resume on the sequences of yesterday."""
    inputs, _ = batch(counting(tmp_path, 801), seed=5, step=30, batch_size=4, context=CONTEXT)
    assert inputs[:, 0].tolist() == [113, 458, 546, 578]


@pytest.mark.parametrize("world", [2, 3, 4, 12])
def test_the_ranks_together_are_one_rank(tmp_path: Path, world: int) -> None:
    tokens = counting(tmp_path, 203)
    for step in (0, 1, 2, 77):
        whole = batch(tokens, seed=1, step=step, batch_size=12, context=CONTEXT)
        parts = [
            batch(tokens, seed=1, step=step, rank=rank, world=world, batch_size=12, context=CONTEXT)
            for rank in range(world)
        ]
        for side in (0, 1):
            assert torch.equal(torch.cat([part[side] for part in parts]), whole[side])


def test_types_and_shapes(tmp_path: Path) -> None:
    inputs, targets = batch(counting(tmp_path, 90), seed=0, step=0, batch_size=3, context=CONTEXT)
    assert inputs.shape == targets.shape == (3, CONTEXT)
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.is_contiguous() and targets.is_contiguous()


@pytest.mark.parametrize("length", [9, 64, 65, 203])
def test_validation_reads_the_text_in_order(tmp_path: Path, length: int) -> None:
    tokens = counting(tmp_path, length)
    pairs = list(validation_batches(tokens, batch_size=4, context=CONTEXT))
    targets = torch.cat([targets.flatten() for _, targets in pairs])
    assert targets.tolist() == list(range(1, (length - 1) // CONTEXT * CONTEXT + 1))
    assert all(torch.equal(targets, inputs + 1) for inputs, targets in pairs)


def test_a_limited_validation_is_spread_over_the_text(tmp_path: Path) -> None:
    tokens = counting(tmp_path, 801)
    pairs = list(validation_batches(tokens, batch_size=4, context=CONTEXT, batches=2))
    starts = torch.cat([inputs[:, 0] for inputs, _ in pairs])
    assert starts.tolist() == [0, 96, 200, 296, 400, 496, 600, 696]


def test_what_fills_up_a_batch_keeps_its_inputs(tmp_path: Path) -> None:
    """Also where an objective returns inputs and targets that share their memory."""

    class Views(Causal):
        def examples(self, windows: torch.Tensor, seed: int, first: int, vocab_size: int) -> Batch:
            return windows[:, :-1], windows[:, 1:]

    spec = BatchSpec(0, 0, 2, rank=1, world_size=2)
    ((inputs, targets),) = Views().validation_batches(counting(tmp_path, 9), spec, CONTEXT, 0, None)
    assert inputs.tolist() == [list(range(8))]
    assert (targets == IGNORE_INDEX).all()


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("batches", [1, 2, 1000])
@pytest.mark.parametrize("length", [9, 88, 8 * 11 + 1, 8 * 29 + 1])
def test_any_number_of_ranks_validates_on_the_same_windows(
    tmp_path: Path, length: int, batches: int, world: int
) -> None:
    """Every target of one process counts once; what fills the last batch up has no target."""
    tokens = counting(tmp_path, length)
    alone = list(validation_batches(tokens, batch_size=12, context=CONTEXT, batches=batches))
    ranks = [
        list(validation_batches(tokens, batch_size=12, context=CONTEXT, batches=batches, rank=r, world=world))
        for r in range(world)
    ]
    sizes = [[len(inputs) for inputs, _ in pairs] for pairs in ranks]
    assert all(size == sizes[0] for size in sizes), "a collective call would wait for ever"
    together = [torch.cat(parts) for pair in zip(*ranks, strict=True) for parts in zip(*pair, strict=True)]
    read, targets = torch.cat(together[0::2]), torch.cat(together[1::2])
    counted = (targets != IGNORE_INDEX).all(1)
    assert torch.equal(read[counted], torch.cat([inputs for inputs, _ in alone]))
    assert torch.equal(targets[counted], torch.cat([targets for _, targets in alone]))
    assert (targets[~counted] == IGNORE_INDEX).all() and (~counted).sum() < world


@pytest.mark.parametrize(
    ("length", "fields", "message"),
    [
        (8, {}, r"tokens\.bin: 8 tokens, but one example is made from 9"),
        (90, {"batch_size": 5, "world": 2}, r"a batch of 5 examples does not divide among 2 processes"),
    ],
)
def test_sizes_that_do_not_fit(tmp_path: Path, length: int, fields: dict[str, int], message: str) -> None:
    tokens, sizes = counting(tmp_path, length), {"batch_size": 4, "context": CONTEXT} | fields
    with pytest.raises(DataError, match=message):
        batch(tokens, seed=0, step=0, **sizes)
    with pytest.raises(DataError, match=message):
        next(validation_batches(tokens, **sizes))
