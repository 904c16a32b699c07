"""The optimizer steps of docs/methods.md, ours beside the implementations of pytorch_optimizer, in turns.

python -m benchmarks.successors_step --rounds 2 --starts 4 --name successors-step-cpu

The tensors are those of four of GPT-2's blocks at width 384 and a table of 12,288 rows, 12 M parameters.
SOAP has no basis for a side of that length. Muon and NorMuon train the matrices of the blocks alone.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytorch_optimizer as theirs
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.harness import Contender, Ratio, interleave, parser, serve, write
from zoo.optim.ademamix import AdEMAMix
from zoo.optim.cautious_adamw import CautiousAdamW
from zoo.optim.fixed_norm import keep_norms
from zoo.optim.lion import Lion
from zoo.optim.mars import MARS
from zoo.optim.muon import Muon
from zoo.optim.normuon import NorMuon
from zoo.optim.prodigy import Prodigy
from zoo.optim.schedule_free import ScheduleFreeAdamW
from zoo.optim.soap import SOAP
from zoo.optim.state import state_bytes

LAYERS, WIDTH, VOCABULARY = 4, 384, 12_288

Build = Callable[[list[Tensor]], Optimizer]


def hyperball(tensors: list[Tensor]) -> Optimizer:
    """AdamW behind the rule that keeps the norms of all matrices but the table."""
    optimizer = torch.optim.AdamW(tensors, lr=1e-4, weight_decay=0, fused=True)
    keep_norms(
        optimizer, lambda: ((str(p.shape), p) for p in tensors if p.dim() == 2 and len(p) < VOCABULARY)
    )
    return optimizer


PAIRS: dict[str, tuple[Build, Build | None]] = {
    "adamw": (lambda p: torch.optim.AdamW(p, lr=1e-4, fused=True), None),
    "cautious-adamw": (lambda p: CautiousAdamW(p, lr=1e-4), None),
    "lion": (lambda p: Lion(p, lr=1e-4), lambda p: theirs.Lion(p, lr=1e-4)),
    "cautious-lion": (
        lambda p: Lion(p, lr=1e-4, cautious=True),
        lambda p: theirs.Lion(p, lr=1e-4, cautious=True),
    ),
    "ademamix": (lambda p: AdEMAMix(p, lr=1e-4), lambda p: theirs.AdEMAMix(p, lr=1e-4, alpha=2.0)),
    "schedule-free": (
        lambda p: ScheduleFreeAdamW(p, lr=1e-4),
        lambda p: theirs.ScheduleFreeAdamW(p, lr=1e-4),
    ),
    "prodigy": (lambda p: Prodigy(p), lambda p: theirs.Prodigy(p)),
    "mars": (lambda p: MARS(p, lr=1e-4), lambda p: theirs.MARS(p, lr=1e-4)),
    "soap": (lambda p: SOAP(p, lr=1e-4), lambda p: theirs.SOAP(p, lr=1e-4)),
    "muon": (lambda p: Muon(p, lr=1e-4, adjust="shape"), lambda p: torch.optim.Muon(p, lr=1e-4)),
    "muon-batched": (
        lambda p: Muon(p, lr=1e-4, adjust="shape"),
        lambda p: theirs.Muon([{"params": p, "use_muon": True}], lr=1e-4),
    ),
    "normuon": (
        lambda p: NorMuon(p, lr=1e-4),
        lambda p: theirs.NorMuon([{"params": p, "use_muon": True}], lr=1e-4),
    ),
    "hyperball-adamw": (hyperball, None),
}
"""Name: ours and, where one is installed, another implementation; of Muon there are two."""


def parameters(name: str) -> list[Tensor]:
    """The tensors, with gradients; for methods of hidden matrices those alone."""
    modules: list[nn.Module] = [nn.Embedding(VOCABULARY, WIDTH)]
    for _ in range(LAYERS):
        modules.append(nn.LayerNorm(WIDTH))
        modules += [nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)]
        modules += [nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)]
    hidden = name.startswith(("muon", "normuon"))
    chosen: list[Tensor] = [
        p for m in modules for p in m.parameters() if not hidden or (p.dim() == 2 and len(p) < VOCABULARY)
    ]
    for p in chosen:
        p.grad = torch.randn_like(p).mul_(0.01)
    return chosen


def work(name: str) -> None:
    """Be the contender `name`: "lion/ours" or "lion/theirs"."""
    method, side = name.split("/")
    pair, tensors = PAIRS[method], parameters(method)
    build = pair[0] if side == "ours" else pair[1]
    assert build is not None  # only existing contenders are started
    optimizer = build(tensors)

    def once() -> float:
        start = time.perf_counter()
        optimizer.step()
        return time.perf_counter() - start

    first = once()
    once()
    count = sum(p.numel() for p in tensors)
    serve({"parameters": count, "first_step_s": first, "state_bytes": state_bytes(optimizer)}, once)


def rows(contenders: Sequence[Contender]) -> list[dict[str, str]]:
    """The table."""
    return [
        {
            "contender": c.name,
            "ms": f"{1e3 * statistics.median(c.rounds):.2f}",
            "state bytes per parameter": f"{c.about['state_bytes'] / c.about['parameters']:.3g}",
            "first step, s": f"{c.about['first_step_s']:.2f}",
        }
        for c in contenders
    ]


def measured(method: str, rounds: int, starts: int, keep_memory: bool) -> list[Contender]:
    """Ours and theirs of a method, in turns, in processes that are started again `starts` times.

    On some machines an elementwise step of one process takes a third longer than that of another with the
    same code, for as long as they live, probably by the pages of memory that they got. One process of each
    side would compare two such draws.
    """
    names = [f"{method}/ours"] + [f"{method}/theirs"] * (PAIRS[method][1] is not None)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for start in range(starts):
        sides = [
            Contender.start(name, ["benchmarks.successors_step", "--worker", name], keep_memory)
            for name in (names if start % 2 == 0 else reversed(names))
        ]
        # SOAP's QR step is every tenth: a turn has all of its kinds of steps.
        interleave(sides, rounds, repetitions=10, warmup=1)
        for side in sides:
            side.stop()
            seconds[side.name] += side.rounds
    return [replace(side, rounds=seconds[side.name]) for side in sorted(sides, key=lambda c: c.name)]


def main() -> None:
    """Measure the two sides of every method in turns."""
    options = parser(__doc__ or "")
    options.add_argument("--starts", type=int, default=4, help="times that the processes are started")
    options.add_argument("--worker")
    given = options.parse_args()
    if given.worker:
        work(given.worker)
        return
    contenders = [c for n in PAIRS for c in measured(n, given.rounds, given.starts, given.keep_memory)]
    by_name = {c.name: c for c in contenders}
    ratios = [
        Ratio.of(n, by_name[f"{n}/ours"], by_name[f"{n}/theirs"]) for n, pair in PAIRS.items() if pair[1]
    ]
    name = given.name or "successors-step-cpu"
    command = (
        f"python -m benchmarks.successors_step --rounds {given.rounds} --starts {given.starts} --name {name}"
    )
    title = "The optimizer steps of the successors, beside other implementations"
    write(name, title, command, contenders, rows(contenders), ratios)


if __name__ == "__main__":
    main()
