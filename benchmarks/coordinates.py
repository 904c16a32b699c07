"""The coordinate checks of GPT, nGPT and WeSaR under the rules that speak of them, over width and depth.

    python -m benchmarks.coordinates                          the table, about a minute on one core
    python -m benchmarks.coordinates --models ngpt --factor 2 a part of it, over a smaller range
    python -m benchmarks.coordinates --axes depth --blocks 16 --factor 4
                                                              over depths from 16 blocks on
    python -m benchmarks.coordinates --rates                  GPT, three inits and six learning rates, minutes

Base size: width 64, 2 blocks (nGPT over depths: 4, or --blocks), heads of 16, a vocabulary of 256; the batch
is drawn at random. Rates are four times those of training, as `zoo coord-check` has them.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from zoo.diagnose.coordinate_axes import DEPTH, WIDTH, Axis
from zoo.diagnose.coordinates import CoordinateCheck, check_coordinates
from zoo.run.config import RunConfig, load_config

BASE = {"embed": 64, "heads": 64, "kv_heads": 64, "mlp": 256}
ADAMW = {"type": "adamw", "lr": 3e-3}
MUON = {"type": "muon", "adjust": "shape", "lr": 5e-3, "rest": ADAMW}
ALIGNMENT = 0.92
"""The exponent that `benchmarks.alignment` measures in the first step of nGPT on text."""
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
            "nugpt, .92": {"type": "nugpt", "base": {"embed": 64, "layers": 2}, "alignment": ALIGNMENT},
        },
    ),
}
"""Of each side its settings, and the rules that are tried."""
SMALLEST = {WIDTH.name: 64, DEPTH.name: 2}
INITS = ("small", "he", "gpt2")
RATES = (2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3, 8e-3)
"""Learning rates of training; the check has four times these."""
DEEP = 4
"""Blocks of the shallowest nGPT over depths: alpha is 1 / blocks, and with 2 a block is half the model."""


def configuration(side: str, rule: str, layers: int, **changes: Any) -> RunConfig:
    """The run whose outputs are compared, at the base size; `changes` are keys with other values."""
    settings, rules = SIDES[side]
    kind = "ngpt" if side == "ngpt" else "gpt"
    model: dict[str, Any] = {"type": kind, "vocab_size": 256, "d_model": 64, "n_layers": layers, "n_heads": 4}
    model["d_mlp"] = BASE["mlp"]
    if kind == "ngpt":  # the starts that are best at the base size (docs/results/ngpt-starts.md)
        model |= {"alpha": {"init": 1 / layers}, "s_z": {"init": math.sqrt(64)}}
    transfer = dict(rules[rule])
    if "layers" in transfer.get("base", {}):
        transfer["base"] = transfer["base"] | {"layers": layers}
    return load_config(settings | {"model": model} | ({"transfer": transfer} if transfer else {}) | changes)


def check(
    side: str, rule: str, axis: Axis, factor: int, *, blocks: int | None = None, **changes: Any
) -> CoordinateCheck:
    """One check over a range of sizes.

    Args:
        side: the model, a key of `SIDES`.
        rule: the transfer rule of the model.
        axis: width or depth.
        factor: the largest size over the smallest.
        blocks: blocks of the shallowest model over depths; None: `DEEP` for nGPT, 2 for the others.
        changes: changes of the configuration, see `configuration`.
    """
    layers = SMALLEST[DEPTH.name]
    if axis is DEPTH:
        layers = blocks or (DEEP if side == "ngpt" else layers)
    smallest = layers if axis is DEPTH else SMALLEST[axis.name]
    settings = configuration(side, rule, layers, **changes)
    return check_coordinates(settings, [smallest, smallest * factor], axis)


def row(side: str, rule: str, found: CoordinateCheck) -> str:
    """A line of the table."""
    extremes = " | ".join(
        f"{factor:.2f} {name}" for factor, name in (_extreme(found, 1), _extreme(found, -1))
    )
    return f"| {side} | {rule} | {_sizes(found)} | {_passing(found)} of {len(found.modules)} | {extremes} |"


def _sizes(found: CoordinateCheck) -> str:
    """The range of sizes."""
    return f"{found.axis.name} {found.sizes[0]}-{found.sizes[-1]}"


def _passing(found: CoordinateCheck) -> int:
    """The number of modules that pass."""
    return len(found.modules) - len(found.failing)


def _extreme(found: CoordinateCheck, sign: int) -> tuple[float, str]:
    """The largest or the smallest factor of all steps, and whose it is, of modules that may not shrink."""
    judged = [module for module in found.modules if not module.may_shrink]
    factor, name = max((sign * factor, module.name) for module in judged for factor in module.factors)
    return sign * factor, name


def table(models: Sequence[str], axes: Sequence[Axis], factor: int, blocks: int | None) -> Iterator[str]:
    """The lines of the table, each when it is known."""
    yield "| model | rule | from-to | modules that pass | grows most | shrinks most |"
    yield "|---|---|---|---|---|---|"
    for side in models:
        for axis in axes:
            for rule in SIDES[side][1]:
                yield row(side, rule, check(side, rule, axis, factor, blocks=blocks))


def rates_table(axes: Sequence[Axis], factor: int) -> Iterator[str]:
    """The lines of the table of GPT over learning rates, each when it is known.

    A cell has the number of modules that pass and the factor of the one that shrinks most; a row "change"
    the largest change of a matrix at the smallest width, which is the same under all rules.
    """
    yield f"| init | rule | from-to | {' | '.join(f'{rate:g}' for rate in RATES)} |"
    yield "|---" * (3 + len(RATES)) + "|"
    for init in INITS:
        for axis, rule in ((WIDTH, "mup"), (WIDTH, "completep"), (DEPTH, "completep")):
            if axis not in axes:
                continue
            runs: list[dict[str, Any]] = [{"init": init, "optimizer": ADAMW | {"lr": rate}} for rate in RATES]
            found = [check("gpt", rule, axis, factor, **changes) for changes in runs]
            cells = [f"{_passing(each)} ({_extreme(each, -1)[0]:.2f})" for each in found]
            yield f"| {init} | {rule} | {_sizes(found[0])} | {' | '.join(cells)} |"
            if rule == "mup":
                changes = [max(m.change for m in each.modules if m.change is not None) for each in found]
                yield f"| {init} | change | width 64 | {' | '.join(f'{c:.2f}' for c in changes)} |"


def main() -> None:
    """Print a table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--models", nargs="+", choices=SIDES, help="default: all")
    options.add_argument("--axes", nargs="+", choices=list(SMALLEST), default=list(SMALLEST))
    options.add_argument("--factor", type=int, default=8, help="the largest size over the smallest")
    options.add_argument("--blocks", type=int, help="blocks of the shallowest model over depths")
    options.add_argument("--rates", action="store_true", help="GPT with other inits and learning rates")
    given = options.parse_args()
    if given.rates and (given.models or given.blocks):
        options.error("--models and --blocks have no effect beside --rates")
    if given.blocks and DEPTH.name not in given.axes:
        options.error("--blocks has no effect without the axis depth")
    if given.factor < 2:
        options.error(f"--factor: value {given.factor}: expected a whole number of at least 2")
    axes = [axis for axis in (WIDTH, DEPTH) if axis.name in given.axes]
    lines = (
        rates_table(axes, given.factor)
        if given.rates
        else table(given.models or list(SIDES), axes, given.factor, given.blocks)
    )
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    main()
