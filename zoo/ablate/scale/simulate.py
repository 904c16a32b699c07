"""Studies simulated in random worlds: what the power of a design and the properties of the intervals rest on.

A world is a scaling law with random constants; a run's loss is that of its tokens times a factor
exp(noise). The constants are those of this project's own measurements: a run is worth +- 4.5 % tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from zoo.ablate.scale.speedup import Cells, SizeSpeedup, size_speedup

TAU = 0.05
"""Standard deviation of a run, in ln tokens."""
CORRELATION = 0.2
"""Correlation of two sides' runs of one seed."""


@dataclass(frozen=True)
class Design:
    """What is trained of each side.

    Attributes:
        params: parameters of every size.
        tokens: the longest budget of every size.
        seeds: seeds of every size.
        budgets: shares of the longest budget.
    """

    params: tuple[float, ...]
    tokens: tuple[float, ...]
    seeds: tuple[int, ...]
    budgets: tuple[float, ...] = (0.25, 0.5, 1.0)


DESIGN_C = Design(
    (0.2e6, 0.4e6, 0.8e6, 1.6e6, 3.2e6, 6.4e6), (6e6, 7e6, 8e6, 9e6, 10e6, 11e6), (4, 3, 3, 3, 2, 2)
)
"""Six sizes a factor of two apart: the recommended design."""


@dataclass(frozen=True)
class Faults:
    """What may be wrong with a study, all in ln tokens.

    Attributes:
        tuning: standard deviation of the gap between the two sides' tuning errors, drawn for every size.
        off_law: standard deviation of a size's loss off the law, shared by both sides, in nats.
        spikes: share of runs that lose `spike` ln tokens.
        spike: what a spiked run loses.
        trunk: correlation of the budgets of one seed; 0: they are trained separately.
        noise: noise of the smallest and of the largest size.
    """

    tuning: float = 0.0
    off_law: float = 0.0
    spikes: float = 0.0
    spike: float = 0.3
    trunk: float = 0.0
    noise: tuple[float, float] = (TAU, TAU)


def study(
    design: Design, ln_c: Callable[[float], float], random: np.random.Generator, faults: Faults | None = None
) -> list[tuple[Cells, Cells]]:
    """Losses of both sides at every size, in one random world.

    Args:
        design: sizes, budgets and seeds.
        ln_c: the true ln c of a size, from its parameters.
        random: the generator.
        faults: what is wrong with the study.
    """
    faults = faults or Faults()
    irreducible, a, b = random.uniform(0.35, 0.55), random.uniform(0.25, 0.4), random.uniform(0.25, 0.4)
    noises = np.geomspace(*faults.noise, len(design.params))
    sizes: list[tuple[Cells, Cells]] = []
    for params, longest, seeds, tau in zip(design.params, design.tokens, design.seeds, noises, strict=True):
        off = random.normal(0, faults.off_law) if faults.off_law else 0.0
        gap = random.normal(0, faults.tuning) if faults.tuning else 0.0
        shape = (2, len(design.budgets), seeds)
        noise = math.sqrt(CORRELATION) * random.standard_normal(shape[1:])
        noise = noise + math.sqrt(1 - CORRELATION) * random.standard_normal(shape)
        if faults.trunk:
            shared = math.sqrt(CORRELATION) * random.standard_normal(seeds)
            shared = shared + math.sqrt(1 - CORRELATION) * random.standard_normal((2, 1, seeds))
            noise = math.sqrt(faults.trunk) * shared + math.sqrt(1 - faults.trunk) * noise
        lost = faults.spike * (random.random(shape) < faults.spikes)
        sides: list[dict[tuple[float, int], float]] = [{}, {}]
        for side in (0, 1):
            for j, share in enumerate(design.budgets):
                for seed in range(seeds):
                    gain = side * (ln_c(params) + gap) + tau * noise[side, j, seed] - lost[side, j, seed]
                    tokens = longest * share
                    of_tokens = 0.8 * (tokens / 1e6 * math.exp(gain)) ** -b
                    loss = irreducible + 0.25 * (params / 1e6) ** -a + of_tokens + off
                    sides[side][tokens, seed] = loss
        sizes.append((sides[0], sides[1]))
    return sizes


def measured(design: Design, sizes: Sequence[tuple[Cells, Cells]]) -> list[SizeSpeedup]:
    """Every size of a study, fitted by itself."""
    return [
        size_speedup(params, baseline, variant)
        for params, (baseline, variant) in zip(design.params, sizes, strict=True)
    ]
