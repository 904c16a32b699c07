"""Opening a sharded Hugging Face folder with zoo and with transformers: time and peak memory.

    python -m benchmarks.loading
    python -m benchmarks.loading --dtype bfloat16 --rounds 9

Every repetition is a fresh process that imports the library, then opens the folder and touches every
weight; the time is that of opening and touching, the memory the most that this added to the process's own.
The folder's files are in the page cache for both. Both sides give float32.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.contenders import WORKLOADS, llama_sizes
from benchmarks.harness import ROOT, Contender, Ratio, interleave, parser, serve, write

SIDES = ("zoo", "hf")
SHARDS = 8


def folder_of(options: Namespace, folder: Path) -> None:
    """Write a random Llama of the workload's size in about `SHARDS` files."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**llama_sizes(WORKLOADS[options.workload]))
    model: Any = LlamaForCausalLM(config).to(getattr(torch, options.dtype))
    model.save_pretrained(folder, max_shard_size=sum(p.nbytes for p in model.parameters()) // SHARDS)


def opener(side: str) -> Callable[[Path], torch.nn.Module]:
    """Import a library; what opens a folder with it."""
    if side == "zoo":
        from zoo import load_model
        from zoo.hub.folder import load_folder  # noqa: F401  imported before the clock starts, like theirs

        return load_model
    from transformers import AutoModelForCausalLM, LlamaForCausalLM  # noqa: F401  likewise

    def load(folder: Path) -> torch.nn.Module:
        model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        return model

    return load


def status(key: str) -> int:
    """A figure of this process in bytes, as the kernel counts it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024


def once(side: str, folder: Path) -> dict[str, float]:
    """Open the folder in this process, which has done nothing else yet."""
    load = opener(side)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    before = status("VmRSS")
    start = time.perf_counter()
    model = load(folder)
    checksum = sum(float(p.sum()) for p in model.parameters())
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "peak": status("VmHWM") - before,
        "weights": sum(p.nbytes for p in model.parameters()),
        "checksum": checksum,
    }


def worker(options: Namespace) -> None:
    """Have fresh processes open the folder, as often as asked."""
    found: list[dict[str, float]] = []

    def repeat() -> float:
        command = [sys.executable, "-m", "benchmarks.loading", "--once"]
        command += ["--side", options.side, "--folder", str(options.folder)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
        return found[-1]["seconds"] if options.measure == "seconds" else found[-1]["peak"]

    repeat()
    serve({"weights_mib": found[0]["weights"] // 2**20, "checksum": found[0]["checksum"]}, repeat)


def compare(options: Namespace, folder: Path) -> None:
    """Measure both sides in turns, the time and then the memory, and write the result."""
    folder_of(options, folder)
    shared = ["benchmarks.loading", "--worker", "--folder", str(folder)]
    contenders = {
        (side, measure): Contender.start(
            f"{side} {measure}",
            [*shared, "--side", side, "--measure", measure],
            keep_memory=False,  # it would hide what is handed back
        )
        for measure in ("seconds", "peak")
        for side in SIDES
    }
    interleave(list(contenders.values()), options.rounds, options.repetitions, warmup=0)
    for contender in contenders.values():
        contender.stop()
    assert len({round(c.about["checksum"], 3) for c in contenders.values()}) == 1, "the same weights"
    rows = []
    for side in SIDES:
        seconds, peak = (contenders[side, measure] for measure in ("seconds", "peak"))
        median = statistics.median(peak.rounds)
        rows.append(
            {
                "contender": side,
                "seconds": f"{statistics.median(seconds.rounds):.3f}",
                "peak MiB": round(median / 2**20),
                "weights MiB": seconds.about["weights_mib"],
                "peak / weights": f"{median / 2**20 / seconds.about['weights_mib']:.2f}",
            }
        )
    ratios = [
        Ratio.of(what, *(contenders[side, measure] for side in SIDES))
        for what, measure in (("time", "seconds"), ("peak memory", "peak"))
    ]
    command = "python -m benchmarks.loading " + " ".join(sys.argv[1:])
    title = f"Opening a Hugging Face folder, {options.workload} ({options.dtype}, {SHARDS} shards or so)"
    name = options.name or f"loading-{options.workload}-{options.dtype}"
    write(name, title, command, list(contenders.values()), rows, ratios)


def main() -> None:
    """Read the options; a worker measures itself, the parent compares."""
    options = parser(__doc__ or "")
    options.add_argument("--workload", choices=WORKLOADS, default="large")
    options.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="in the files")
    options.add_argument("--repetitions", type=int, default=1, help="per turn")
    for name in ("--side", "--measure"):
        options.add_argument(name, help=argparse.SUPPRESS)
    options.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--worker", action="store_true", help="used by the parent process")
    given = options.parse_args()
    if given.once:
        print(json.dumps(once(given.side, given.folder)))
    elif given.worker:
        worker(given)
    else:
        with tempfile.TemporaryDirectory() as folder:
            compare(given, Path(folder) / "model")


if __name__ == "__main__":
    main()
