"""How often a training step waits for its device: the reads of its numbers are counted on the meta device.

What a run on a GPU does with numbers that it reads a step later is shown on a processor, where they are read
later although they are there.
"""

from __future__ import annotations

import math
import os
import signal
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_spikes import BAD, SEEN, spoil, weights
from tiny_runs import assert_same, of_kind, reproducible, tiny
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import zoo.train.loop
from zoo import build_model, build_optimizer, load_model
from zoo.config.registry import CLIPS, OPTIMIZERS
from zoo.data import Batch
from zoo.optim.clip import Clip
from zoo.run.config import load_config
from zoo.train.async_copy import AsyncHostCopy
from zoo.train.distributed import World
from zoo.train.run import train
from zoo.train.step import Stepper
from zoo.utils.errors import DivergenceError

SIZES: dict[str, Any] = {"vocab_size": 50, "d_model": 16, "n_layers": 2, "n_heads": 2, "d_mlp": 32}
WITHOUT_FUSED: dict[str, dict[str, Any]] = {
    "adamw": {"fused": False},
    "adam": {"fused": False},
    "muon": {"rest": {"type": "adamw", "lr": 0.01, "fused": False}},
    "normuon": {"rest": {"type": "adamw", "lr": 0.01, "fused": False}},
}
"""torch's fused kernels do not know the meta device."""

WAITS_WITHIN_TORCH = {"soap"}
"""Optimizers whose operators wait for a GPU, which cannot be seen on the meta device."""

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
        step.update(step.gradient(batch, lambda: False), pending=True)
    return step, batch


@pytest.fixture(autouse=True)
def no_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """The meta device has none."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)


@pytest.mark.parametrize("model", ["gpt", "ngpt"])
@pytest.mark.parametrize("kind", [*OPTIMIZERS.choices])
def test_a_step_reads_nothing(model: str, kind: str) -> None:
    """Its measurements are read together, when the first of them is asked for."""
    step, batch = stepper(model, {"type": kind, "lr": 0.01, **WITHOUT_FUSED.get(kind, {})})
    with Reads() as reads:
        result = step.gradient(batch, lambda: False)
    assert not reads.names
    with Reads() as reads:
        step.update(result, pending=True)
    waits = OPTIMIZERS[kind](lr=0.01).waits_for is not None and kind not in WAITS_WITHIN_TORCH
    assert len(reads.names) == waits, reads.names
    with Reads() as reads:
        assert (result.loss, result.grad_norm, result.stop, result.is_finite) == (2.0, 1.0, True, True)
    assert len(reads.names) == 1


@pytest.mark.parametrize("model", ["gpt", "ngpt"])
def test_leaving_out_a_step_reads_nothing(model: str) -> None:
    """Of Amos with momentum, which decides for three tensors of each parameter."""
    step, batch = stepper(model, {"type": "amos", "lr": 0.01, "momentum": 0.9})
    result = step.gradient(batch, lambda: False)
    with Reads() as reads:
        step.update(result, pending=True)
    assert not reads.names


@pytest.mark.parametrize("clip", ["norm", "zclip", "adagc"])
def test_clipping_reads_what_it_says(clip: str) -> None:
    config = CLIPS[clip]()
    step, batch = stepper("gpt", {"type": "lion", "lr": 0.01})
    step = replace(step, clip=config.build(1.0))
    result = step.gradient(batch, lambda: False)
    with Reads() as reads:
        step.update(result, pending=True)
    assert len(reads.names) == (config.waits_for is not None)


def test_a_number_of_targets_is_read() -> None:
    options = {"type": "amos", "lr": 0.01, "clip_value": "by targets"}
    step, batch = stepper("gpt", options)
    result = step.gradient(batch, lambda: False)
    with Reads() as reads:
        step.update(result, pending=True)
    assert len(reads.names) == 1
    config = load_config({"optimizer": options}).optimizer
    assert config is not None
    assert config.waits_for == "the number of targets"


def test_a_read_would_be_counted() -> None:
    number = torch.zeros(2, device="meta")
    with Reads() as reads:
        number.tolist()
        number[0].item()
        bool(number[0] > 0)
        torch.empty(2).copy_(number)
        number.cpu()
    assert len(reads.names) == 5


def behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run on the processor read numbers when a run on a GPU does."""
    monkeypatch.setattr(zoo.train.loop, "can_copy_async", lambda device: True)


def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Write down what a run asks for, in its order."""
    made: list[str] = []

    def written_down(kind: type, name: str) -> None:
        original = getattr(kind, name)

        def call(self: Any, *args: Any, **options: Any) -> Any:
            made.append(name)
            return original(self, *args, **options)

        monkeypatch.setattr(kind, name, call)

    written_down(Stepper, "gradient")
    written_down(Stepper, "update")
    written_down(AsyncHostCopy, "read")
    return made


QUIET = ("train.log_every=10", "train.diagnose_every=null", "train.monitor_every=null")


def test_numbers_are_read_when_the_next_gradient_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = train(tiny(tmp_path, *QUIET, "name=waiting")).folder
    behind(monkeypatch)
    made = calls(monkeypatch)
    run = train(tiny(tmp_path, *QUIET)).folder
    start, end = ["gradient", "read", "update", "gradient", "update"], ["gradient", "read", "update", "read"]
    later, again = ["gradient", "read", "update"], ["gradient", "update"]
    assert made == start + later * 7 + end + (again + later * 8 + end) * 3
    assert_same(waiting, run)


def test_a_step_that_is_looked_at_is_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step is logged: the run is that of a processor, also where it stops and goes on."""
    waiting = train(tiny(tmp_path, "name=waiting")).folder
    behind(monkeypatch)
    train(tiny(tmp_path), until=13)
    assert_same(waiting, train(tiny(tmp_path), resume=True).folder)


@pytest.mark.parametrize("kind", ["adamw", "soap", "amos"])
def test_a_number_that_is_not_finite_ends_the_run_as_where_it_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Also of SOAP, whose factorisations refuse such numbers."""
    original, count = Stepper.backward, [0]

    def backward(self: Any, *args: Any) -> Tensor:
        sums = original(self, *args)
        count[0] += 1
        if count[0] == 23:
            sums[0] = math.nan
            for parameter in self.model.parameters():
                parameter.grad.mul_(math.nan)
        return sums

    monkeypatch.setattr(Stepper, "backward", backward)
    told = {}
    for name in ("waiting", "behind"):
        count[0] = 0
        changes = [f"optimizer={{type: {kind}, lr: 0.01}}", f"name={name}"]
        with pytest.raises(DivergenceError) as caught:
            train(tiny(tmp_path, *QUIET, *changes))
        told[name] = str(caught.value).replace(name, "run")
        assert all(p.isfinite().all() for p in load_model(tmp_path / "runs" / name).parameters())
        behind(monkeypatch)
    assert told["waiting"].startswith("step 23: the loss is nan, the norm of its gradient nan")
    assert "step-00000020" in told["waiting"]
    assert told["behind"] == told["waiting"]
    assert reproducible(tmp_path / "runs/behind") == reproducible(tmp_path / "runs/waiting")


def test_a_spike_is_logged_a_step_later_without_the_matrix_that_moved_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch)
    changes = (*QUIET, *SEEN, "train.eval_every=60", "train.checkpoint_every=60")
    waiting = train(tiny(tmp_path, *changes, "name=waiting")).folder
    behind(monkeypatch)
    run = train(tiny(tmp_path, *changes)).folder
    (expected,), (found,) = of_kind(waiting, "spike"), of_kind(run, "spike")
    assert found["at"] == BAD + 1
    assert found == {**expected, "culprit": None, "update_ratio": None, "update_rise": None}
    assert all(torch.equal(weights(run)[name], tensor) for name, tensor in weights(waiting).items())


@pytest.mark.parametrize("action", ["skip", "rollback"])
def test_a_step_that_may_be_left_out_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    behind(monkeypatch)
    made = calls(monkeypatch)
    train(tiny(tmp_path, *QUIET, f"train.spikes.action={action}"))
    assert made == ["gradient", "read", "update"] * 40


def test_a_signal_is_heard_a_step_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = train(tiny(tmp_path, *QUIET, "name=waiting")).folder
    behind(monkeypatch)
    original = Stepper.gradient

    def gradient(self: Stepper, *args: Any) -> Any:
        count.append(0)
        if len(count) == 15:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, *args)

    count: list[int] = []
    monkeypatch.setattr(Stepper, "gradient", gradient)
    stopped = train(tiny(tmp_path, *QUIET))
    assert (stopped.step, stopped.signalled) == (16, True)
    assert_same(waiting, train(tiny(tmp_path, *QUIET), resume=True).folder)
