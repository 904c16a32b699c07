"""Simulated studies in random worlds, for the power of a design and the properties of the intervals.

A world is a scaling law with random constants; a run's loss is that of its tokens times a factor exp(noise).
The constants are this project's own measurements: the noise of a run is equivalent to +- 4.5 % of its tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from zoo.ablate.scale.speedup import SizeSpeedup, size_speedups
from zoo.utils.arrays import Array

TAU = 0.05
"""Standard deviation of a run, in ln tokens."""
KAPPA = 0.24
"""Curvature over the learning rate, in ln tokens per (ln rate)^2."""
CORRELATION = 0.2
"""Correlation of two sides' runs of one seed."""


@dataclass(frozen=True)
class Design:
    """The runs of each side in a study.

    Attributes:
        params: number of parameters of every size.
        tokens: the longest budget of every size.
        seeds: number of seeds of every size.
        budgets: shares of the longest budget, at every size.
        budgets_by_size: shares of the longest budget of every size, if they differ; empty: `budgets`.
    """

    params: tuple[float, ...]
    tokens: tuple[float, ...]
    seeds: tuple[int, ...]
    budgets: tuple[float, ...] = (0.25, 0.5, 1.0)
    budgets_by_size: tuple[tuple[float, ...], ...] = ()

    @property
    def shares(self) -> tuple[tuple[float, ...], ...]:
        """The shares of the longest budget, for every size."""
        return self.budgets_by_size or (self.budgets,) * len(self.params)


@dataclass(frozen=True)
class Faults:
    """The faults of a study, all in ln tokens.

    Attributes:
        tuning: standard deviation of the gap between the two sides' tuning errors, drawn for every size.
        off_law: standard deviation of a size's loss off the law, shared by both sides, in nats.
        spikes: share of runs that lose `spike` ln tokens.
        spike: ln tokens that a spiked run loses.
        trunk: correlation of the budgets of one seed; 0: they are trained separately.
        noise: noise of the smallest and of the largest size.
    """

    tuning: float = 0.0
    off_law: float = 0.0
    spikes: float = 0.0
    spike: float = 0.3
    trunk: float = 0.0
    noise: tuple[float, float] = (TAU, TAU)


def simulate(
    design: Design,
    ln_c: Callable[[float], float],
    random: np.random.Generator,
    studies: int,
    faults: Faults | None = None,
    tau: float | None = None,
) -> list[Array]:
    """Simulate the losses of both sides at every size, each study in a random world of its own.

    Args:
        design: sizes, budgets and seeds.
        ln_c: the true ln c of a size, from its parameters.
        random: the generator.
        studies: number of simulated studies.
        faults: the faults of the studies.
        tau: noise of a run, in ln tokens; None: that of `faults`.

    Returns:
        For every size an array (studies, 2, budgets, seeds), the baseline's losses first.
    """
    faults = faults or Faults()
    # (studies, side, budget, seed)
    irreducible = random.uniform(0.35, 0.55, (studies, 1, 1, 1))
    a, b = random.uniform(0.25, 0.4, (2, studies, 1, 1, 1))
    ends = faults.noise if tau is None else (tau, tau)
    noises = np.linspace(*ends, len(design.params)) if 0 in ends else np.geomspace(*ends, len(design.params))
    sizes = []
    columns = (design.params, design.tokens, design.seeds, noises, design.shares)
    for params, longest, seeds, noise, shares in zip(*columns, strict=True):
        shape = (studies, 2, len(shares), seeds)
        off = faults.off_law * random.standard_normal((studies, 1, 1, 1))
        gap = faults.tuning * random.standard_normal((studies, 1, 1, 1))
        errors = _correlated(random, shape)
        if faults.trunk:
            shared = _correlated(random, (studies, 2, 1, seeds))
            errors = math.sqrt(faults.trunk) * shared + math.sqrt(1 - faults.trunk) * errors
        lost = faults.spike * (random.random(shape) < faults.spikes)
        side = np.arange(2).reshape(1, 2, 1, 1)
        gain = side * (ln_c(params) + gap) + noise * errors - lost
        tokens = longest / 1e6 * np.reshape(shares, (1, 1, -1, 1)) * np.exp(gain)
        sizes.append(irreducible + 0.25 * (params / 1e6) ** -a + 0.8 * tokens**-b + off)
    return sizes


def _correlated(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Standard normal errors, correlated by `CORRELATION` between the two sides (the second axis)."""
    shared = random.standard_normal((shape[0], 1, *shape[2:]))
    independent = random.standard_normal(shape)
    errors: Array = math.sqrt(CORRELATION) * shared + math.sqrt(1 - CORRELATION) * independent
    return errors


def measured(design: Design, losses: Sequence[Array]) -> list[list[SizeSpeedup]]:
    """The sizes of every study, each fitted by itself."""
    columns = [
        size_speedups(params, [longest * share for share in shares], of_size)
        for params, longest, shares, of_size in zip(
            design.params, design.tokens, design.shares, losses, strict=True
        )
    ]
    return [list(sizes) for sizes in zip(*columns, strict=True)]
