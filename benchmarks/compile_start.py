"""The first training step of a compiled model: with an empty cache of the compiler, and with a filled one.

    python -m benchmarks.compile_start                      # 134M parameters, 12 blocks, bf16
    python -m benchmarks.compile_start --workload small     # 11M parameters, 6 blocks
    python -m benchmarks.compile_start --peers              # transformers and litgpt besides, the whole loss

Each contender starts in a process of its own with a cache of its own: once cold, then `--warm` times with
what the first start has compiled. The seconds are those of the first step, from the batch to the updated
weights, without imports and without building the model. Then the steps of all contenders are timed in turns.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

from benchmarks.contenders import PEERS, WORKLOADS
from benchmarks.harness import Contender, Ratio, interleave, parser, write
from benchmarks.train_step import PRECISIONS


def start(name: str, mode: str, options: Namespace, cache: Path) -> Contender:
    """A process that has taken its first step, with the compiler's cache in a folder."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
    shared = ["benchmarks.train_step", "--worker", "--workload", options.workload]
    shared += ["--precision", options.precision, "--device", options.device]
    return Contender.start(f"{name} {mode}", [*shared, "--contenders", f"{name}:{mode}"], options.keep_memory)


def measured(name: str, mode: str, options: Namespace, cache: Path) -> Contender:
    """The contender of the last warm start, which knows the seconds of all starts."""
    cold = start(name, mode, options, cache)
    cold.stop()
    warm: list[float] = []
    for number in range(options.warm):
        contender = start(name, mode, options, cache)
        warm.append(contender.about["first_step_s"])
        if number + 1 < options.warm:
            contender.stop()
    about: dict[str, Any] = {key: contender.about[key] for key in ("parameters", "peak_rss_mib")}
    contender.about = {
        "first step, s, empty cache": cold.about["first_step_s"],
        "filled cache": round(statistics.median(warm), 2),
        **about,
    }
    print(f"{contender.name}: {contender.about}", file=sys.stderr, flush=True)
    return contender


def main() -> None:
    """Start the contenders one after the other, then time their steps in turns."""
    options = parser(__doc__ or "")
    options.add_argument("--workload", choices=WORKLOADS, default="large")
    options.add_argument("--precision", choices=PRECISIONS, default="bf16")
    options.add_argument("--peers", action="store_true", help="transformers and litgpt besides")
    options.add_argument("--warm", type=int, default=2, help="starts with a filled cache")
    options.add_argument("--steps", type=int, default=2, help="per turn, besides one to warm up")
    given = options.parse_args()
    if given.warm < 1:
        raise SystemExit(f"--warm {given.warm}: expected 1 or more")
    sides = [("zoo-gpt", "compiled"), ("zoo-gpt", "blocks"), *((p, "compiled") for p in PEERS if given.peers)]
    with tempfile.TemporaryDirectory() as caches:
        contenders = [measured(*side, given, Path(caches, "-".join(side))) for side in sides]
        interleave(contenders, given.rounds, given.steps)
        for contender in contenders:
            contender.stop()
    whole, blocks = contenders[:2]
    rows = [
        {"contender": c.name, **c.about, "ms/step": round(1000 * statistics.median(c.rounds), 1)}
        for c in contenders
    ]
    name = given.name or f"compile-start-{given.workload}-{given.precision}-{given.device}"
    title = f"The first step of a compiled model, {given.workload} ({given.precision}, {given.device})"
    command = "python -m benchmarks.compile_start " + " ".join(sys.argv[1:])
    write(name, title, command, contenders, rows, [Ratio.of("step", blocks, whole)], given.device)


if __name__ == "__main__":
    main()
