"""How often a training step waits for its device: the reads of its numbers are counted on the meta device."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from zoo import build_model, build_optimizer
from zoo.data import Batch
from zoo.optim.clip import Clip
from zoo.train.distributed import World
from zoo.train.step import Stepper

SIZES: dict[str, Any] = {"vocab_size": 50, "d_model": 16, "n_layers": 2, "n_heads": 2, "d_mlp": 32}
WITHOUT_FUSED: dict[str, dict[str, Any]] = {
    "adamw": {"fused": False},
    "muon": {"rest": {"type": "adamw", "lr": 0.01, "fused": False}},
}
"""torch's fused kernels do not know the meta device."""

READS_ITS_SUMS = {"prodigy": 1}
"""Optimizers whose next step depends on sums that the host computes with."""

OF_UNKNOWN_SHAPE = ("nonzero", "masked_select", "_unique2")
"""Operations that wait for a device to say how large their result is."""


class Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not annotate it
    """Counts how often the host reads numbers of the meta device, which are all 1 then."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, options = func._schema.name.removeprefix("aten::"), kwargs or {}
        if not any(isinstance(t, Tensor) and t.is_meta for t in tree_leaves((args, options))):
            return func(*args, **options)
        if name in ("_local_scalar_dense", "is_nonzero", "equal"):
            self.names.append(name)
            return 1
        if name == "_to_copy" and torch.device(options.get("device") or "meta").type == "cpu":
            self.names.append(name)
            return torch.ones(args[0].shape, dtype=options.get("dtype") or args[0].dtype)
        if name == "copy_" and not args[0].is_meta:
            self.names.append(name)
            return args[0].fill_(1)
        assert name not in OF_UNKNOWN_SHAPE, name
        return func(*args, **options)


def stepper(model: str, optimizer: dict[str, Any]) -> tuple[Stepper, Batch]:
    """A stepper with two micro-batches on the meta device, after its first step; and a batch on the CPU."""
    built = build_model(model, **SIZES, device="meta")
    made = build_optimizer(built, optimizer)
    step = Stepper(built, built.loss, made, World(0, 1, torch.device("meta")), 2, "fp32", Clip(1.0), 0.0)
    tokens = torch.zeros(4, 9, dtype=torch.int64)
    batch = (tokens[:, :-1], tokens[:, 1:])
    with Reads():
        step.update(step.gradient(batch, lambda: False))
    return step, batch


@pytest.fixture(autouse=True)
def no_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """The meta device has none."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)


@pytest.mark.parametrize("model", ["gpt", "ngpt"])
@pytest.mark.parametrize("kind", ["adamw", "amos", "adafactor", "muon", "lion", "prodigy"])
def test_a_step_reads_its_measurements_and_nothing_else(model: str, kind: str) -> None:
    """Once, after the backward pass: a spike or a number that is not finite prevents the update."""
    step, batch = stepper(model, {"type": kind, "lr": 0.01, **WITHOUT_FUSED.get(kind, {})})
    with Reads() as reads:
        result = step.gradient(batch, lambda: False)
    assert len(reads.names) == 1
    with Reads() as reads:
        step.update(result)
    assert len(reads.names) == READS_ITS_SUMS.get(kind, 0), reads.names


def test_a_read_would_be_counted() -> None:
    number = torch.zeros(2, device="meta")
    with Reads() as reads:
        number.tolist()
        number[0].item()
        bool(number[0] > 0)
        torch.empty(2).copy_(number)
        number.cpu()
    assert len(reads.names) == 5
