"""A rank draws and reads its own rows: the numbers of a single process, in the memory of a shard."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_runs import ROOT, environment

from zoo import build_model, save_model
from zoo.init.initialise import draw, generator
from zoo.init.schemes import He
from zoo.spec import ParamSpec, Role

RANK = """
import json, os, sys
from pathlib import Path
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from zoo import build_model, load_model
from zoo.checkpoint.recipe import assemble
from zoo.train.distributed import World
from zoo.utils.device import peak_memory

given = json.loads(sys.argv[1])
dist.init_process_group("fake", rank=given["rank"], world_size=given["ranks"], store=FakeStore())
world = World(given["rank"], given["ranks"], torch.device("cpu"), init_device_mesh("cpu", (given["ranks"],)))

def start(recipe, path):
    if path:
        return load_model(path, prepare=world.shard)
    return assemble(recipe, 0, prepare=world.shard)

recipes = [build_model({"model": sizes}, device="meta").recipe for sizes in (given["small"], given["large"])]
start(recipes[0], given["warm"])  # what torch allocates once and for all
Path("/proc/self/clear_refs").write_text("5")
before = peak_memory(world.device)
model = start(recipes[1], given["path"])
parts = [p.to_local() for p in model.parameters()]
print(json.dumps({
    "peak": peak_memory(world.device) - before,
    "shard": sum(p.numel() * 4 for p in parts),
    "whole": sum(p.numel() * 4 for p in model.parameters()),
    "largest": max(p.numel() * 4 for p in model.parameters()),
    "sums": [p.double().sum().item() for p in parts],
}))
"""

RETURNED = {"MALLOC_MMAP_THRESHOLD_": "131072"}
"""Has glibc return every tensor that is freed. Otherwise the first large one that is freed makes it take the
next ones from the heap, which addresses, random in each process, fragment by up to 4 MB."""
SMALL = {"type": "gpt", "vocab_size": 64, "d_model": 32, "n_layers": 1, "n_heads": 2, "d_mlp": 40}
LARGE = {"type": "gpt", "vocab_size": 8192, "d_model": 512, "n_layers": 8, "n_heads": 8, "d_mlp": 1376}


@pytest.mark.parametrize("shape", [(7, 5), (40, 33), (3, 11, 5), (1, 100), (1030,)])
def test_some_rows_have_the_numbers_of_the_whole(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["zoo.init.initialise"], "CHUNK", 64)
    axes = ("out", "in", "width")[: len(shape)]
    spec = ParamSpec(Role.LINEAR, shape, axes, fan_in=axes[1:])
    whole = draw(He(), spec, generator(5, "a"))
    for begin in range(0, shape[0] + 1, max(1, shape[0] // 5)):
        rows = slice(begin, shape[0] - (shape[0] - begin) // 2)
        assert torch.equal(draw(He(), spec, generator(5, "a"), rows), whole[rows])


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads Linux's memory figures")
@pytest.mark.parametrize("loads", [False, True], ids=["drawn", "loaded"])
def test_a_rank_starts_within_its_shard_and_one_tensor(tmp_path: Path, loads: bool) -> None:
    """Issue: at most 1.3 x the shard plus the largest tensor; the fourth of eight ranks."""
    single = build_model({"model": LARGE})
    paths = [""] * 2
    if loads:
        paths = [
            str(save_model(m, tmp_path / f"{i}.safetensors"))
            for i, m in enumerate((build_model({"model": SMALL}), single))
        ]
    given = {"rank": 3, "ranks": 8, "small": SMALL, "large": LARGE, "warm": paths[0], "path": paths[1]}
    command = [sys.executable, "-c", RANK, json.dumps(given)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment() | RETURNED,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert measured["shard"] < measured["whole"] / 7
    assert measured["peak"] <= 1.3 * measured["shard"] + measured["largest"]
    parts = [torch.chunk(p.detach(), 8)[3:4] for p in single.parameters()]
    sums = [part[0].double().sum().item() if part else 0.0 for part in parts]
    assert measured["sums"] == pytest.approx(sums, abs=1e-9)
