"""The coordinate checks of GPT, nGPT and WeSaR under the rules that speak of them, over width and depth.

    python -m benchmarks.coordinates                          the table, about a minute on one core
    python -m benchmarks.coordinates --models ngpt --factor 2 a part of it, over a smaller range

Base size: width 64, 2 blocks (nGPT over depths: 4), heads of 16, a vocabulary of 256; the batch is drawn at
random. Rates are four times those of training, as `zoo coord-check` has them.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from zoo.diagnose.coordinate_axes import DEPTH, WIDTH, Axis
from zoo.diagnose.coordinates import CoordinateCheck, ModuleCheck, check_coordinates
from zoo.run.config import RunConfig, load_config

BASE = {"embed": 64, "heads": 64, "kv_heads": 64, "mlp": 256}
ADAMW = {"type": "adamw", "lr": 3e-3}
MUON = {"type": "muon", "adjust": "shape", "lr": 5e-3, "rest": ADAMW}
SIDES: Mapping[str, tuple[dict[str, Any], dict[str, dict[str, Any]]]] = {
    "gpt": (
        {"init": "small", "optimizer": ADAMW},
        {
            "none": {},
            "mup": {"type": "mup", "base": BASE},
            "completep": {"type": "completep", "base": BASE | {"layers": 2}},
        },
    ),
    "gpt, muon": (
        {"init": "small", "optimizer": MUON},
        {"none": {}, "spectral": {"type": "spectral", "base": BASE}},
    ),
    "wesar": (
        {"init": "small", "reparam": "wesar", "optimizer": {"type": "adamw", "lr": 2.5e-4}},
        {
            "none": {},
            "mup": {"type": "mup", "base": BASE},
            "completep": {"type": "completep", "base": BASE | {"layers": 2}},
        },
    ),
    "ngpt": (
        {"init": "ngpt", "optimizer": ADAMW | {"weight_decay": 0.0}},
        {
            "none": {},
            "nugpt": {"type": "nugpt", "base": {"embed": 64, "layers": 2}},
            "nugpt, full": {"type": "nugpt", "base": {"embed": 64, "layers": 2}, "alignment": "full"},
        },
    ),
}
"""Of each side its settings, and the rules that are tried."""
SMALLEST = {WIDTH.name: 64, DEPTH.name: 2}
DEEP = 4
"""Blocks of the shallowest nGPT over depths: alpha is 1 / blocks, and with 2 a block is half the model."""


def configuration(side: str, rule: str, layers: int) -> RunConfig:
    """The run whose outputs are compared, at the base size."""
    settings, rules = SIDES[side]
    kind = "ngpt" if side == "ngpt" else "gpt"
    model: dict[str, Any] = {"type": kind, "vocab_size": 256, "d_model": 64, "n_layers": layers, "n_heads": 4}
    model["d_mlp"] = BASE["mlp"]
    if kind == "ngpt":  # the starts that are best at the base size (docs/results/ngpt-starts.md)
        model |= {"alpha": {"init": 1 / layers}, "s_z": {"init": math.sqrt(64)}}
    transfer = dict(rules[rule])
    if "layers" in transfer.get("base", {}):
        transfer["base"] = transfer["base"] | {"layers": layers}
    return load_config(settings | {"model": model} | ({"transfer": transfer} if transfer else {}))


def check(side: str, rule: str, axis: Axis, factor: int) -> CoordinateCheck:
    """One check over a range of sizes."""
    layers = DEEP if side == "ngpt" and axis is DEPTH else SMALLEST[DEPTH.name]
    smallest = layers if axis is DEPTH else SMALLEST[axis.name]
    return check_coordinates(configuration(side, rule, layers), [smallest, smallest * factor], axis)


def row(side: str, rule: str, found: CoordinateCheck) -> str:
    """A line of the table."""
    passing = sum(module.passes for module in found.modules)
    sizes = f"{found.axis.name} {found.sizes[0]}-{found.sizes[-1]}"
    judged = [module for module in found.modules if not module.may_shrink]
    extremes = " | ".join(_extreme(judged, sign) for sign in (1, -1))
    return f"| {side} | {rule} | {sizes} | {passing} of {len(found.modules)} | {extremes} |"


def _extreme(modules: Sequence[ModuleCheck], sign: int) -> str:
    """The largest or the smallest factor of all steps, and whose it is."""
    factor, name = max((sign * factor, module.name) for module in modules for factor in module.factors)
    return f"{sign * factor:.2f} {name}"


def table(models: Sequence[str], axes: Sequence[Axis], factor: int) -> Iterator[str]:
    """The lines of the table, each when it is known."""
    yield "| model | rule | from-to | modules that pass | grows most | shrinks most |"
    yield "|---|---|---|---|---|---|"
    for side in models:
        for axis in axes:
            for rule in SIDES[side][1]:
                yield row(side, rule, check(side, rule, axis, factor))


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--models", nargs="+", choices=SIDES, default=list(SIDES))
    options.add_argument("--axes", nargs="+", choices=list(SMALLEST), default=list(SMALLEST))
    options.add_argument("--factor", type=int, default=8, help="the largest size over the smallest")
    given = options.parse_args()
    axes = [axis for axis in (WIDTH, DEPTH) if axis.name in given.axes]
    for line in table(given.models, axes, given.factor):
        print(line, flush=True)


if __name__ == "__main__":
    main()
