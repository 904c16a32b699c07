"""Tokens per core-hour of a whole sweep of small models, with its imports, compilation and evaluations.

python -m benchmarks.sweep_speed                           fp32 eager, and compiled block by block
python -m benchmarks.sweep_speed --checkout ../zoo-before  with the zoo of another checkout
python -m benchmarks.sweep_speed --width 192 --steps 400   about 1M parameters
python -m benchmarks.sweep_speed --sessions 2              once more, with what the first has compiled

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
SETTINGS: dict[str, dict[str, dict[str, object]]] = {
    "fp32 eager": {},
    "fp32 chosen": {"sweep": {"compile": "auto"}},
    "fp32 compiled": {"train": {"compile": "blocks"}},
    "bf16 chosen": {"sweep": {"compile": "auto"}, "train": {"precision": "bf16"}},
    "bf16 compiled": {"train": {"compile": "blocks", "precision": "bf16"}},
}
"""What each puts into the sweep file, and into its `train`."""


def sweep(
    out: Path, cache: Path, given: argparse.Namespace, setting: dict[str, dict[str, object]]
) -> tuple[int, float]:
    """Run a sweep; returns its tokens and the processor seconds of all its processes."""
    out.mkdir()
    checkout = given.checkout.resolve()
    file = out / "sweep.yaml"
    fields = {
        "base": {
            "extends": "quickstart-gpt",
            "model": {"n_layers": 4, "d_model": given.width},
            "train": {"steps": given.steps, "device": "cpu", **setting.get("train", {})},
        },
        **setting.get("sweep", {}),
        "axes": {"init": ["gpt2", "he"]},
        "seeds": list(range(given.runs // 2)),
        "out": str(out / "sweeps"),
    }
    file.write_text(json.dumps(fields), encoding="utf-8")
    workers = ["--workers", str(given.workers)] if given.workers else []
    variables = {"PYTHONPATH": str(checkout), "TORCHINDUCTOR_CACHE_DIR": str(cache)}
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
    options.add_argument("--sessions", type=int, default=1, help="sweeps one after the other, with one cache")
    options.add_argument("--settings", nargs="*", choices=SETTINGS, default=list(SETTINGS))
    given = options.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    for name in given.settings:
        with tempfile.TemporaryDirectory() as folder:
            cache = Path(given.cache or f"{folder}/cache")
            for session in range(1, given.sessions + 1):
                tokens, seconds = sweep(Path(folder) / f"{session}", cache, given, SETTINGS[name])
                print(
                    f"{name}, session {session}: {tokens:,} tokens in {seconds:,.0f} processor seconds: "
                    f"{tokens / seconds * 3600 / 1e6:,.1f}M tokens per core-hour",
                    flush=True,
                )


if __name__ == "__main__":
    main()
