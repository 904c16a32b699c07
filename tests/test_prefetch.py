"""Batches that are made ahead are those of the data set, whatever is asked for next."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from zoo.data.dataset import Batch, BatchSpec, Dataset
from zoo.train.prefetch import Prefetcher
from zoo.utils.errors import DataError

LAST = 9


class Counting(Dataset):
    """A batch holds its step; there is none after `LAST`."""

    def __init__(self) -> None:
        self.made: list[tuple[int, bool]] = []
        self.changed = threading.Semaphore(0)

    def train_batch(self, spec: BatchSpec) -> Batch:
        self.made.append((spec.step, threading.current_thread() is threading.main_thread()))
        self.changed.release()
        if spec.step > LAST:
            raise DataError("there are no more")
        return (torch.tensor([spec.seed, spec.step]),)

    def validation_batches(self, spec: BatchSpec, max_batches: int | None) -> Iterator[Batch] | None:
        return None


def test_they_are_those_of_the_data_set_and_made_in_a_thread() -> None:
    dataset = Counting()
    with Prefetcher(dataset, torch.device("cpu")) as batches:
        for step, new in ((3, 2), (4, 1), (7, 2), (8, 1), (LAST, 1)):  # as after a rollback, some are skipped
            (found,) = batches.batch(BatchSpec(1, step, 2))
            assert found.tolist() == [1, step]
            for _ in range(new):  # the next one is made although nobody asks for it
                assert dataset.changed.acquire(timeout=10)
        assert dataset.made == [(step, False) for step in (3, 4, 5, 7, 8, 9, 10)]
        with pytest.raises(DataError, match="no more"):
            batches.batch(BatchSpec(1, LAST + 1, 2))
