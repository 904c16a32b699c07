"""The share of a GPU's peak, where one is known."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tiny_runs import tiny

from zoo.data.dataset import Batch, BatchSpec
from zoo.run.job import Job
from zoo.train import utilisation
from zoo.train.clock import Clock
from zoo.train.distributed import World
from zoo.train.prefetch import Prefetcher
from zoo.train.run import train
from zoo.train.utilisation import peak_flops, peak_share
from zoo.utils.run_folder import RunFolder

PEAK = 1e9
CPU = World(0, 2, torch.device("cpu"))


def test_the_wait_for_data_is_part_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that stands still but for this wait."""
    original, now = Prefetcher.batch, [0.0]

    def wait(self: Prefetcher, spec: BatchSpec) -> Batch:
        now[0] += 2.0
        return original(self, spec)

    monkeypatch.setattr(Prefetcher, "batch", wait)
    monkeypatch.setattr("zoo.train.clock.time", SimpleNamespace(perf_counter=lambda: now[0]))
    run = train(tiny(tmp_path, "schedule.warmup=0", steps=3)).folder
    timings = [r["timing"] for r in RunFolder(run).read_metrics() if r["kind"] == "train"]
    assert [timing["seconds"] for timing in timings] == [2.0, 4.0, 6.0]
    assert {timing["tokens_per_second"] for timing in timings} == {4 * 16 / 2.0}


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L400", None),
        ("NVIDIA H100 of tomorrow", None),
    ],
)
def test_peaks_by_name(monkeypatch: pytest.MonkeyPatch, name: str, peak: float | None) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert peak_flops(torch.device("cuda"), "bf16") == peak
    assert peak_flops(torch.device("cuda"), "fp32") is peak_flops(torch.device("cpu"), "bf16") is None


def test_mfu_is_operations_over_the_peak_of_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job.of(tiny(tmp_path))
    assert peak_share(job, CPU, 16) is None and Clock(None).mfu is None
    assert "mfu" not in Clock(None).lap()
    monkeypatch.setattr(utilisation, "peak_flops", lambda device, precision: PEAK)
    share = peak_share(job, CPU, 16)
    # 6 operations for each weight of a matrix and each token: per layer 4 d^2 of attention and 3 d d_mlp of
    # the MLP, and the head. Attention itself (all of it, 16 keys): 2 products of 16 d each, of which torch
    # counts the backward pass as 2 or 2.5 times the forward pass.
    d, mlp, layers, vocab, time = 16, 32, 2, 256, 16
    matrices = 6 * (layers * (4 * d * d + 3 * d * mlp) + vocab * d)
    scores = layers * 4 * time * d
    assert share is not None
    assert matrices + 3 * scores <= round(share * PEAK * 2) <= matrices + 3.5 * scores
    clock = Clock(share)
    with clock.step(100):
        pass
    assert clock.mfu == clock.tokens_per_second * share == clock.lap()["mfu"]
