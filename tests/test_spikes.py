"""Loss spikes: found, blamed, left out or gone back for; all of it the same after a kill."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from command_line import zoo as zoo_command
from rich.console import Console
from tiny_runs import assert_same, kill, of_kind, tiny, tiny_fields

import zoo.train.step
from zoo.ablate.run_metrics import read_run_metrics
from zoo.checkpoint.model import find_checkpoint
from zoo.checkpoint.safetensors import read_tensors
from zoo.data.dataset import Batch
from zoo.run.config import load_config
from zoo.run.train_config import SpikeConfig
from zoo.train.loop import TrainingLoop
from zoo.train.prefetch import Prefetcher
from zoo.train.run import train
from zoo.train.spikes import Detector, Spike
from zoo.utils.errors import ConfigError, DivergenceError

BAD = 45
SEEN = ("train.steps=60", "train.spikes.window=20")


def judged(losses: list[float], norms: list[float] | None = None, **settings: Any) -> list[Spike]:
    detector = Detector(SpikeConfig(**settings), {})
    pairs = zip(losses, norms or [1.0] * len(losses), strict=True)
    found = (detector.judge(step, loss, norm) for step, (loss, norm) in enumerate(pairs, 1))
    return [spike for spike in found if spike]


def noise(count: int, seed: int = 0) -> list[float]:
    return [float(x) for x in np.random.default_rng(seed).normal(3.0, 0.1, count)]


def test_normal_noise_is_no_spike_and_z_is_its_standard_deviations() -> None:
    """Of 2,000 normal numbers about `tail` lie beyond 3; none beyond 6."""
    assert not judged(noise(2000))
    tail = 2000 * (1 - NormalDist().cdf(3))
    assert 0.3 * tail < len(judged(noise(2000), threshold=3.0)) < 3 * tail
    (spike,) = judged([*noise(100), 4.0])
    assert (spike.at, spike.what, spike.value) == (101, "loss", 4.0)
    assert spike.depth == pytest.approx(4.0 - np.median(noise(100)))
    quantiles = [NormalDist(3.0, 0.1).inv_cdf((i + 0.5) / 201) for i in range(201)]
    (spike,) = judged([*quantiles, 4.0], window=201)
    assert spike.z == pytest.approx(10, rel=1e-2)  # the median of 201 absolute values is no limit


def test_a_falling_loss_is_no_spike() -> None:
    assert not judged([5 * math.exp(-step / 50) + x for step, x in enumerate(noise(400))])


def test_a_gradient_spikes_by_its_logarithm() -> None:
    norms = [math.exp(x - 3.0) for x in noise(100)]
    (spike,) = judged([3.0] * 101, [*norms, 5.0])
    assert (spike.what, spike.value, spike.depth) == ("grad_norm", 5.0, 0.0)
    assert not judged([3.0] * 101, [*norms, 1.3])


def test_steps_that_follow_each_other_are_one_spike() -> None:
    found = judged([*noise(50), 9.0, 8.0, *noise(5), 9.0])
    assert [(s.at, s.episode, s.length) for s in found] == [(51, 1, 1), (52, 1, 2), (58, 2, 1)]


def test_a_new_level_becomes_the_usual_one() -> None:
    found = judged([*noise(100), *(x + 2 for x in noise(300))], window=100)
    assert 30 <= len(found) <= 60


def test_nothing_is_judged_by_too_few_steps_but_what_is_no_number() -> None:
    assert not judged([*noise(19), 100.0])
    assert len(judged([*noise(20), 100.0])) == 1
    (spike,) = judged([3.0, math.nan])
    assert (spike.value, spike.z, spike.depth) == (None, None, None)


def spoil(monkeypatch: pytest.MonkeyPatch, *places: int) -> list[int]:
    """Let one batch or several be noise in place of text; returns all that are asked for."""
    original, asked = Prefetcher.batch, []

    def batch(self: Prefetcher, order: Any) -> Batch:
        asked.append(order.step)
        tokens, targets = original(self, order)
        if order.step in (places or (BAD,)):
            targets = torch.randint(0, 256, targets.shape, generator=torch.Generator().manual_seed(1))
        return tokens, targets

    monkeypatch.setattr(Prefetcher, "batch", batch)
    return asked


def weights(run: Path) -> dict[str, torch.Tensor]:
    return read_tensors(find_checkpoint(run) / "model.safetensors")[0]


def test_log_takes_the_step_and_names_a_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch)
    run = train(tiny(tmp_path, *SEEN)).folder
    off = train(tiny(tmp_path, "train.steps=60", "train.spikes=null", "name=off")).folder
    (line,) = of_kind(run, "spike")
    assert (line["step"], line["at"], line["action"], line["episode"]) == (BAD + 1, BAD + 1, "log", 1)
    matrices = of_kind(run, "monitor")[3]["matrices"]
    assert line["update_rise"] == pytest.approx(
        line["update_ratio"] / matrices[line["culprit"]]["update_ratio"]
    )
    assert not of_kind(off, "spike")
    left, right = weights(run), weights(off)
    assert all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("optimizer", ["adamw", "amos", "muon"])
def test_skip_leaves_weights_and_slots_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    spoil(monkeypatch)
    changes = [f"optimizer={{type: {optimizer}, lr: 0.01}}", "train.checkpoint_every=1", "train.keep_last=20"]
    run = train(tiny(tmp_path, *changes, *SEEN, "train.spikes.action=skip")).folder
    (line,) = of_kind(run, "spike")
    assert (line["step"], line["action"]) == (BAD + 1, "skip")
    assert line["culprit"]
    folders = [run / f"checkpoints/step-{step:08d}" for step in (BAD, BAD + 1, BAD + 2)]
    for file in ("model", "optimizer"):
        before, after, next_ = (read_tensors(f / f"{file}.safetensors")[0] for f in folders)
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert not all(torch.equal(after[name], next_[name]) for name in before)


@pytest.mark.parametrize("clip", ["zclip", "adagc"])
def test_skip_leaves_statistics_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clip: str
) -> None:
    """Those of the clipping, of Assumption 1 and of the update ratios, with a measurement at the spike."""
    spoil(monkeypatch)
    at_spike = ["train.checkpoint_every=1", "train.keep_last=20", "train.monitor_every=23"]
    clipping = f"train.clip={{type: {clip}, warmup: 10}}"
    settings = [*at_spike, clipping, "train.diagnose_every=60", "train.spikes.action=skip"]
    run = train(tiny(tmp_path, *SEEN, *settings)).folder
    assert [line["step"] for line in of_kind(run, "spike")] == [BAD + 1]
    before, after, next_ = (
        json.loads((run / f"checkpoints/step-{step:08d}/state.json").read_text("utf-8"))
        for step in (BAD, BAD + 1, BAD + 2)
    )
    assert before["clip"] == after["clip"] != next_["clip"]
    assert before["spikes"]["usual"] == after["spikes"]["usual"] != {}
    (measured,) = of_kind(run, "diagnose")
    assert measured["gradients"] == 59


def test_a_rollback_stays_where_the_detector_is_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = spoil(monkeypatch)
    fixed = "schedule={type: constant, warmup: 0}"
    run = train(tiny(tmp_path, *SEEN, fixed, "train.spikes.action=rollback")).folder
    for steps in (70, 80):  # the second session has nothing but what the first one saved
        off = tiny(tmp_path, fixed, f"train.steps={steps}", "train.spikes=null")
        train(off, resume=True)
    assert asked == [*range(BAD + 1), *range(BAD + 1, 86)]
    assert [line["at"] for line in of_kind(run, "spike")] == [BAD + 1]
    state = json.loads((run / "checkpoints/step-00000080/state.json").read_text("utf-8"))
    assert state["spikes"]["episode"] == 1


@pytest.mark.parametrize(
    "changes",
    [
        ("model.attention={qk_clip: 50.0}",),
        ("model={type: lstm, vocab_size: 256, d_model: 12, streams: 4}", "data.objective.type=stream"),
    ],
    ids=["qk-clip", "lstm"],
)
def test_a_batch_that_is_left_out_leaves_no_trace_in_buffers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: tuple[str, ...]
) -> None:
    """Its forward pass has written to them: QK-clip's largest logits, the state that an LSTM carries."""
    spoil(monkeypatch)
    update, found = TrainingLoop._update, []

    def watched(self: TrainingLoop, result: Any, buffers: Sequence[torch.Tensor]) -> Spike | None:
        before = [buffer.clone() for buffer in self.parts.model.buffers()]
        spike = update(self, result, buffers)
        if spike is not None:
            now = list(self.parts.model.buffers())
            found.append((buffers, before, now))
            assert all(torch.equal(a, b) for a, b in zip(buffers, now, strict=True))
        return spike

    monkeypatch.setattr(TrainingLoop, "_update", watched)
    train(tiny(tmp_path, *changes, *SEEN, "train.spikes.action=skip"))
    ((at_first, after_forward, _),) = found
    assert any(not torch.equal(a, b) for a, b in zip(at_first, after_forward, strict=True))


def test_a_stop_is_kept_over_a_rollback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch)
    spoiled = Prefetcher.batch

    def batch(self: Prefetcher, order: Any) -> Batch:
        if order.step == BAD:
            signal.raise_signal(signal.SIGTERM)
        return spoiled(self, order)

    monkeypatch.setattr(Prefetcher, "batch", batch)
    result = train(tiny(tmp_path, *SEEN, "train.spikes.action=rollback"))
    assert [line["at"] for line in of_kind(result.folder, "spike")] == [BAD + 1]
    assert (result.step, result.signalled) == (41, True)


def test_rollback_goes_back_and_leaves_the_batches_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = spoil(monkeypatch)
    settings = "train.spikes={action: rollback, cool_steps: 4, cool_factor: 0.1}"
    records = StringIO()
    config = tiny(tmp_path, *SEEN, settings, "schedule={type: constant, warmup: 0}")
    run = train(config, records=records).folder
    assert asked == [*range(BAD + 1), *range(BAD + 1, BAD + 21)]
    (line,) = of_kind(run, "spike")
    assert (line["step"], line["at"], line["action"]) == (40, BAD + 1, "rollback")
    assert [r for r in map(json.loads, records.getvalue().splitlines()) if r["kind"] == "spike"] == [line]
    rates = {r["step"]: r["lr"] for r in of_kind(run, "train")}
    assert list(rates) == list(range(1, 61))
    assert [step for step, rate in rates.items() if rate < 9e-3] == [41, 42, 43, 44]
    assert (rates[40], rates[41], rates[45]) == (1e-2, 1e-3, 1e-2)


def test_a_second_spike_in_a_row_goes_back_further_at_half_that_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, BAD, BAD + 4)  # after going back to 45 batch 50 comes at step 49
    settings = "train.spikes={action: rollback, cool_steps: 10}"
    changes = [
        "train.checkpoint_every=15",
        "train.eval_every=15",
        "train.keep_last=3",
        "schedule={type: constant, warmup: 0}",
    ]
    run = train(tiny(tmp_path, *SEEN, settings, *changes, "train.steps=50")).folder
    assert [(r["step"], r["at"]) for r in of_kind(run, "spike")] == [(45, 46), (30, 49)]
    rates = {r["step"]: r["lr"] for r in of_kind(run, "train")}
    assert {step: rate for step, rate in rates.items() if rate < 9e-3} == dict.fromkeys(range(31, 41), 2.5e-3)
    assert [r["step"] for r in of_kind(run, "train")] == list(range(1, 51))


def test_a_run_that_was_stopped_goes_back_to_the_same_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint of a stop, after step 44, is none that an uninterrupted run could go back to."""
    spoil(monkeypatch)
    changes = (*SEEN, "train.spikes={action: rollback, cool_steps: 4}", "train.keep_last=1")
    whole = train(tiny(tmp_path, *changes, "name=whole")).folder
    stopped = train(tiny(tmp_path, *changes, "name=stopped"), until=44)
    assert (stopped.step, stopped.finished) == (44, False)
    again = train(tiny(tmp_path, *changes, "name=stopped"), resume=True).folder
    assert [(r["step"], r["at"]) for r in of_kind(again, "spike")] == [(40, BAD + 1)]
    assert_same(whole, again)


@pytest.mark.parametrize("call", [25, 55])
def test_a_run_that_goes_back_is_the_same_after_a_kill(tmp_path: Path, call: int) -> None:
    """Killed before it went back, or after. Pages of random letters are among the text."""
    fields = tiny_fields(
        tmp_path, steps=60, spikes={"action": "rollback", "window": 20, "threshold": 8.0, "cool_steps": 5}
    )
    letters = np.random.default_rng(0).integers(33, 127, 400, dtype=np.uint8).tobytes().decode()
    (tmp_path / "noise.txt").write_text(letters, encoding="utf-8")
    fields["data"]["corpus"]["paths"].append(str(tmp_path / "noise.txt"))
    whole = train(load_config({**fields, "name": "whole"}))
    spikes = of_kind(whole.folder, "spike")
    assert "rollback" in {spike["action"] for spike in spikes}
    kill({**fields, "name": "killed"}, "step", "global_norm", call=call)
    resumed = train(load_config({**fields, "name": "killed"}), resume=True)
    assert resumed.finished
    assert_same(whole.folder, resumed.folder)


@pytest.mark.parametrize("action", ["skip", "rollback"])
def test_a_loss_that_is_no_number_is_got_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    original, calls = zoo.train.step.Stepper.backward, [0]

    def backward(self: Any, *args: Any) -> torch.Tensor:
        calls[0] += 1
        sums = original(self, *args)
        if calls[0] in (5, 30):  # at 5 there is no checkpoint to go back to
            sums[0] = math.nan
        return sums

    monkeypatch.setattr(zoo.train.step.Stepper, "backward", backward)
    result = train(tiny(tmp_path, f"train.spikes.action={action}"))
    assert result.finished
    assert [r["action"] for r in of_kind(result.folder, "spike")] == ["skip", action]


def test_a_number_that_is_not_finite_is_null(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON has no NaN; every reader of the lines copes with null."""
    original, calls = zoo.train.step.Stepper.backward, [0]

    def backward(self: Any, *args: Any) -> torch.Tensor:
        calls[0] += 1
        sums = original(self, *args)
        if calls[0] == 5:
            sums[0] = math.nan
        return sums

    monkeypatch.setattr(zoo.train.step.Stepper, "backward", backward)
    lines, shown = StringIO(), StringIO()
    settings = ("train.spikes={action: skip, window: 20}", "train.monitor_every=5", "train.loggers=[]")
    config = tiny(tmp_path, *settings)
    run = train(config, until=20, console=Console(file=shown)).folder
    assert "loss not a number, lr" in shown.getvalue()

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    text = (run / "metrics.jsonl").read_text(encoding="utf-8")
    records = [json.loads(line, parse_constant=refuse) for line in text.splitlines()]
    (fifth,) = (record for record in records if (record["kind"], record["step"]) == ("train", 5))
    assert fifth["cross_entropy"] is None and fifth["loss"] is None
    (run / "metrics.jsonl").write_text(text.replace("null", "NaN"), encoding="utf-8")  # an earlier version
    assert train(config, resume=True, records=lines).finished
    for written in (lines.getvalue(), (run / "metrics.jsonl").read_text(encoding="utf-8")):
        assert [json.loads(line, parse_constant=refuse) for line in written.splitlines()]
    assert math.isnan(read_run_metrics(run).training.values[4])
    zoo_command("report", run, "--out", tmp_path / "page")
    zoo_command("inspect", run)


def test_it_ends_when_nothing_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = zoo.train.step.Stepper.backward, [0]

    def backward(self: Any, *args: Any) -> torch.Tensor:
        calls[0] += 1
        sums = original(self, *args)
        return sums * math.nan if calls[0] > 25 else sums

    monkeypatch.setattr(zoo.train.step.Stepper, "backward", backward)
    with pytest.raises(DivergenceError, match="after going back 2 times the loss spikes again"):
        train(tiny(tmp_path, "train.spikes={action: rollback, at_most: 2}"))
    calls[0] = 0
    with pytest.raises(DivergenceError, match="20 steps in a row were left out"):
        train(tiny(tmp_path, "train.spikes={action: skip, window: 20}", "train.steps=60", "name=other"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("train.spikes.cool_steps=5", "cool_steps without effect: the action is log, not rollback"),
        ("train.spikes.window=5", "train.spikes.window: value 5"),
        ("train.spikes.acton=skip", "did you mean 'action'"),
        ("train.spikes.action=stop", "train.spikes.action: value 'stop'"),
    ],
)
def test_bad_settings(tmp_path: Path, change: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tiny(tmp_path, change)
    assert message in str(caught.value)
