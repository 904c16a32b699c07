"""Greedy generation with zoo and with transformers: the same weights, the same tokens.

    python -m benchmarks.generation
    python -m benchmarks.generation --dtype bfloat16
    python -m benchmarks.generation --workload large --batches 1 --rounds 5

A side is represented by its faster mode: eager, or with a cache of fixed size and a compiled step. zoo has a
third one, `default`, which compiles by itself after 2,048 tokens of a shape. Before the rounds every
contender generates its first tokens (`--start`) with an empty cache of the compiler; their time includes
compilations.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.contenders import WORKLOADS
from benchmarks.harness import Contender, Ratio, fastest, interleave, parser, peak_memory, serve, write

SIDES = ("zoo", "hf")
MODES = ("eager", "compiled")
COMPILE = {"eager": False, "compiled": True, "default": None}


def weights(workload: str, folder: Path) -> None:
    """Write a random model of the workload's size as transformers and zoo both open it."""
    from zoo import build_model
    from zoo.hub.export import export_model

    w = WORKLOADS[workload]
    sizes: dict[str, Any] = {
        "vocab_size": w.vocab,
        "d_model": w.width,
        "n_layers": w.layers,
        "n_heads": w.heads,
    }
    # A read-out with some contrast, so that rounding does not decide which token is the likeliest.
    model = build_model("gpt", **sizes, d_mlp=w.mlp, init={"type": "gpt2", "std": 0.1})
    export_model(model, folder, context=w.context)


def zoo(folder: Path, mode: str, new: int, dtype: torch.dtype) -> tuple[Any, Callable[[Tensor], Tensor]]:
    """Ours: the model, and what continues prompts by `new` tokens."""
    from zoo import generate, load_model

    model = load_model(folder, dtype=dtype)
    return model, lambda prompt: generate(model, prompt, new, temperature=0, compile=COMPILE[mode])


def hf(folder: Path, mode: str, new: int, dtype: torch.dtype) -> tuple[Any, Callable[[Tensor], Tensor]]:
    """Theirs, with a growing cache, or with a static one and a compiled step, which a CPU has to ask for."""
    from transformers import AutoModelForCausalLM, CompileConfig

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    options: dict[str, Any] = {"max_new_tokens": new, "do_sample": False, "pad_token_id": 0}
    if mode == "compiled":
        compile_config: Any = CompileConfig(mode="default")
        compile_config._compile_all_devices = True
        options |= {"cache_implementation": "static", "compile_config": compile_config}

    def run(prompt: Tensor) -> Tensor:
        tokens: Tensor = model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
        return tokens

    return model, run


def worker(options: Namespace) -> None:
    """Generate with one contender, as often as asked."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(
        options.folder / f"{options.side}-{options.mode}-{options.batch}"
    )
    dtype = getattr(torch, options.dtype)
    model, run = {"zoo": zoo, "hf": hf}[options.side](options.folder, options.mode, options.new, dtype)
    shape = (options.batch, options.prompt)
    vocab = WORKLOADS[options.workload].vocab
    prompt = torch.randint(vocab, shape, generator=torch.Generator().manual_seed(0))
    start = time.perf_counter()
    tokens = run(prompt)
    first = time.perf_counter() - start
    for _ in range(options.new, options.start, options.new):
        run(prompt)
    begun = time.perf_counter() - start

    def once() -> float:
        start = time.perf_counter()
        run(prompt)
        return time.perf_counter() - start

    about = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "first_s": round(first, 1),
        f"first {options.start} steps s": round(begun, 1),
        "peak_rss_mib": peak_memory(),
        "tokens": tokens[:, options.prompt :].tolist(),
    }
    serve(about, once)


def row(c: Contender, batch: int, new: int, first: Contender) -> dict[str, Any]:
    """A line of the table; `same` is the share of tokens that are those of the first contender."""
    seconds = statistics.median(c.rounds)
    tokens, expected = (torch.tensor(side.about["tokens"]) for side in (c, first))
    about = {key: value for key, value in c.about.items() if key != "tokens"}
    return {
        "contender": c.name,
        "tokens/s": round(batch * new / seconds, 1),
        "ms/step": round(1000 * seconds / new, 2),
        **about,
        "same tokens": f"{(tokens == expected).float().mean():.0%}",
    }


def compare(options: Namespace, folder: Path) -> None:
    """Start the contenders, measure them in turns and write the result."""
    weights(options.workload, folder)
    shared = ["benchmarks.generation", "--worker", "--workload", options.workload, "--folder", str(folder)]
    shared += ["--prompt", str(options.prompt), "--new", str(options.new)]
    shared += ["--dtype", options.dtype, "--start", str(options.start)]
    contenders = {
        (side, mode, batch): Contender.start(
            f"{side} {mode}, batch {batch}",
            [*shared, "--side", side, "--mode", mode, "--batch", str(batch)],
            options.keep_memory,
        )
        for batch in options.batches
        for side in SIDES
        for mode in (*options.modes, *(["default"] if side == "zoo" else []))
    }
    interleave(list(contenders.values()), options.rounds, options.repetitions)
    for contender in contenders.values():
        contender.stop()

    def side(name: str, batch: int) -> list[Contender]:
        return [c for (s, m, b), c in contenders.items() if (s, b) == (name, batch) and m != "default"]

    ratios = [
        ratio
        for b in options.batches
        for ratio in (
            Ratio.of(f"batch {b}: zoo / transformers", *(fastest(side(s, b)) for s in SIDES)),
            Ratio.of(
                f"batch {b}: zoo by default, after its first tokens / transformers",
                contenders["zoo", "default", b],
                fastest(side("hf", b)),
            ),
        )
    ]
    rows = [row(c, b, options.new, side("zoo", b)[0]) for (_, _, b), c in contenders.items()]
    for c in contenders.values():
        del c.about["tokens"]
    command = "python -m benchmarks.generation " + " ".join(sys.argv[1:])
    title = f"Generation, {options.workload} ({options.dtype}, cpu)"
    bf16 = "-bf16" if options.dtype == "bfloat16" else ""
    write(
        options.name or f"generation-{options.workload}{bf16}-cpu",
        title,
        command,
        list(contenders.values()),
        rows,
        ratios,
    )


def main() -> None:
    """Read the options; a worker measures itself, the parent compares."""
    options = parser(__doc__ or "")
    options.add_argument("--workload", choices=WORKLOADS, default="small")
    options.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    options.add_argument("--modes", choices=MODES, nargs="+", default=MODES)
    options.add_argument("--prompt", type=int, default=128, help="tokens of the prompts")
    options.add_argument("--new", type=int, default=128, help="tokens to add")
    options.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    options.add_argument(
        "--start", type=int, default=2176, help="steps before the rounds, which are timed too"
    )
    options.add_argument("--repetitions", type=int, default=3, help="per turn, besides one to warm up")
    for name in ("--side", "--mode"):
        options.add_argument(name, help=argparse.SUPPRESS)
    options.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    options.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--worker", action="store_true", help="used by the parent process")
    given = options.parse_args()
    if given.worker:
        worker(given)
        return
    with tempfile.TemporaryDirectory() as folder:
        compare(given, Path(folder) / "model")


if __name__ == "__main__":
    main()
