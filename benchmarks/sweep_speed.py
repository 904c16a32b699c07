"""Tokens per core-hour of a whole sweep of small models, with its imports, compilation and evaluations.

python -m benchmarks.sweep_speed                           fp32 eager, and compiled block by block
python -m benchmarks.sweep_speed --checkout ../zoo-before  with the zoo of another checkout
python -m benchmarks.sweep_speed --width 192 --steps 400   about 1M parameters

A core-hour is 3600 seconds of processor time of all processes of the sweep, which other processes on the
machine disturb little. The compiler's cache is empty before the first setting unless --cache is given.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import ROOT

PR_SET_CHILD_SUBREAPER = 36
SETTINGS = {
    "fp32 eager": {},
    "fp32 compiled": {"compile": "blocks"},
    "bf16 compiled": {"compile": "blocks", "precision": "bf16"},
}


def sweep(
    out: Path, checkout: Path, given: argparse.Namespace, train: dict[str, object]
) -> tuple[int, float]:
    """Run a sweep; returns its tokens and the processor seconds of all its processes."""
    file = out / "sweep.yaml"
    fields = {
        "base": {
            "extends": "quickstart-gpt",
            "model": {"n_layers": 4, "d_model": given.width},
            "train": {"steps": given.steps, "device": "cpu", **train},
        },
        "axes": {"init": ["gpt2", "he"]},
        "seeds": list(range(given.runs // 2)),
        "out": str(out / "sweeps"),
    }
    file.write_text(json.dumps(fields), encoding="utf-8")
    workers = ["--workers", str(given.workers)] if given.workers else []
    variables = {"PYTHONPATH": str(checkout), "TORCHINDUCTOR_CACHE_DIR": given.cache or str(out / "cache")}
    before = processor_seconds()
    subprocess.run(
        [sys.executable, "-m", "zoo", "sweep", str(file), *workers],
        env={**os.environ, **variables},
        cwd=checkout,
        check=True,
    )
    while True:  # the server that workers are forked from is nobody's child any more: it is ours
        try:
            os.wait()
        except ChildProcessError:
            break
    return given.runs * given.steps * 8 * 256, processor_seconds() - before


def processor_seconds() -> float:
    """The processor time of all processes that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure each setting."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--checkout", type=Path, default=ROOT)
    options.add_argument("--width", type=int, default=64)
    options.add_argument("--steps", type=int, default=120)
    options.add_argument("--runs", type=int, default=8)
    options.add_argument("--workers", type=int)
    options.add_argument("--cache", help="a folder of inductor that is kept")
    options.add_argument("--settings", nargs="*", choices=SETTINGS, default=list(SETTINGS))
    given = options.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    for name in given.settings:
        with tempfile.TemporaryDirectory() as folder:
            tokens, seconds = sweep(Path(folder), given.checkout.resolve(), given, dict(SETTINGS[name]))
        print(
            f"{name}: {tokens:,} tokens in {seconds:,.0f} processor seconds: "
            f"{tokens / seconds * 3600 / 1e6:,.1f}M tokens per core-hour",
            flush=True,
        )


if __name__ == "__main__":
    main()
