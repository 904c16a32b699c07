"""Training batches that a thread prepares while the model is trained on the previous batch."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Self

import torch

from zoo.data.dataset import Batch, BatchSpec, Dataset


class Prefetcher:
    """A context manager that prepares the training batches of a data set ahead of time.

    A batch is a pure function of its `BatchSpec`, so that making it early changes no number.
    """

    def __init__(self, dataset: Dataset, device: torch.device) -> None:
        """Start no thread yet.

        Args:
            dataset: the source of the batches.
            device: the device that trains. For a GPU the batches are in pinned memory, which can be copied
                while the GPU computes.
        """
        self._dataset, self._pin = dataset, device.type == "cuda"
        self._thread = ThreadPoolExecutor(1)
        self._made: dict[BatchSpec, Future[Batch]] = {}

    def batch(self, spec: BatchSpec) -> Batch:
        """This rank's part of a training batch, on the CPU; the thread then begins the next one."""
        following = replace(spec, step=spec.step + 1)
        batch = self._made.pop(spec, None) or self._thread.submit(self._make, spec)
        self._made = {following: self._thread.submit(self._make, following)}
        return batch.result()

    def _make(self, spec: BatchSpec) -> Batch:
        batch = self._dataset.train_batch(spec)
        return tuple(tensor.pin_memory() for tensor in batch) if self._pin else batch

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(cancel_futures=True)
