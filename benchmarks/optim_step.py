"""The optimizer step alone, on GPT-2-small's tensors: Amos against torch's fused AdamW and SGD.

python -m benchmarks.optim_step

Fused SGD with and without momentum moves exactly the bytes that Amos has to, and so is its limit.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch
from torch import nn

from benchmarks.harness import Contender, Ratio, fastest, interleave, parser, serve, write

LAYERS, WIDTH, VOCABULARY, CONTEXT = 12, 768, 50257, 1024

Build = Callable[[nn.Module, str], torch.optim.Optimizer]


def gpt2() -> nn.Module:
    """A container of GPT-2-small's tensors, (out, in), read-out tied: 124 M parameters, never run."""
    model = nn.ModuleList([nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)])
    for _ in range(LAYERS):
        model.append(nn.LayerNorm(WIDTH))
        model.extend([nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)])
        model.append(nn.LayerNorm(WIDTH))
        model.extend([nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)])
    model.append(nn.LayerNorm(WIDTH))
    return model


def amos(momentum: float | None, fused: bool) -> Build:
    """Ours, with the slots of kernels and embeddings shared over one axis."""

    def build(model: nn.Module, device: str) -> torch.optim.Optimizer:
        from zoo import Amos

        return Amos.for_module(model, lr=1e-3, momentum=momentum, fused=fused)

    return build


def sgd(momentum: float) -> Build:
    """torch's fused SGD."""
    return lambda model, device: torch.optim.SGD(model.parameters(), lr=1e-4, momentum=momentum, fused=True)


CONTENDERS: dict[str, Build] = {
    "adamw-fused": lambda model, device: torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True),
    "sgd-fused-momentum": sgd(0.9),
    "sgd-fused": sgd(0.0),
    "amos-momentum-fused": amos(0.9, fused=True),
    "amos-fused": amos(None, fused=True),
    "amos-momentum-eager": amos(0.9, fused=False),
    "amos-eager": amos(None, fused=False),
}
LEAST_BYTES = {"adamw": 28, "momentum": 20, "plain": 12}
"""Per parameter: read p and g, write p, and read and write each slot of full size."""


def least_bytes(name: str) -> int:
    """What an update cannot avoid to move, bytes per parameter."""
    return LEAST_BYTES["adamw" if "adamw" in name else "momentum" if "momentum" in name else "plain"]


def work(name: str, device: str) -> None:
    """Be the contender `name`."""
    with torch.device(device):
        model = gpt2()
    for p in model.parameters():
        p.grad = torch.randn_like(p).mul_(0.01)
    optimizer = CONTENDERS[name](model, device)

    def once() -> float:
        start = time.perf_counter()
        optimizer.step()
        if device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    first = once()
    slots = itertools.chain.from_iterable(state.items() for state in optimizer.state.values())
    state_bytes = sum(t.nbytes for slot, t in slots if slot != "step" and torch.is_tensor(t))
    parameters = sum(p.numel() for p in model.parameters())
    serve({"parameters": parameters, "first_step_s": first, "state_bytes": state_bytes}, once)


def rows(contenders: Sequence[Contender]) -> list[dict[str, str]]:
    """The table."""
    lines = []
    for c in contenders:
        median, parameters = statistics.median(c.rounds), c.about["parameters"]
        lines.append(
            {
                "contender": c.name,
                "ms": f"{1e3 * median:.1f}",
                "time / adamw-fused": str(Ratio.of("", c, contenders[0])),
                "state bytes per parameter": f"{c.about['state_bytes'] / parameters:.3g}",
                "least bytes per parameter": str(least_bytes(c.name)),
                "GB/s of those": f"{least_bytes(c.name) * parameters / median / 1e9:.0f}",
                "first step, s": f"{c.about['first_step_s']:.2f}",
            }
        )
    return lines


def main() -> None:
    """Measure all contenders in turns."""
    options = parser(__doc__ or "")
    options.add_argument("--worker", choices=CONTENDERS)
    given = options.parse_args()
    if given.worker:
        work(given.worker, given.device)
        return
    names = [
        n for n in CONTENDERS if given.device == "cpu" or not n.startswith(("amos-momentum-f", "amos-f"))
    ]
    contenders = [
        Contender.start(
            n, ["benchmarks.optim_step", "--worker", n, "--device", given.device], given.keep_memory
        )
        for n in names
    ]
    interleave(contenders, given.rounds, repetitions=5, warmup=2)
    for contender in contenders:
        contender.stop()
    by_name = {c.name: c for c in contenders}
    adamw = by_name["adamw-fused"]
    best = [
        fastest([c for n, c in by_name.items() if n in pair])
        for pair in (
            ("amos-momentum-fused", "amos-momentum-eager"),
            ("amos-fused", "amos-eager"),
        )
    ]
    ratios = [
        Ratio.of("Amos with momentum", best[0], adamw),
        Ratio.of("Amos without momentum", best[1], adamw),
        Ratio.of("Amos with momentum against its limit", best[0], by_name["sgd-fused-momentum"]),
        Ratio.of("Amos without momentum against its limit", best[1], by_name["sgd-fused"]),
    ]
    command = " ".join(["python -m benchmarks.optim_step", *sys.argv[1:]])
    name = given.name or f"optim-step-{given.device}"
    title = "The optimizer step on GPT-2-small's tensors"
    write(name, title, command, contenders, rows(contenders), ratios, given.device)


if __name__ == "__main__":
    main()
