"""The noise with which the power of a ladder is simulated: that of its runs, or otherwise an assumed one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean

from zoo.ablate.execute import planner_of, settled_plan
from zoo.ablate.ladder_plan import table_of
from zoo.ablate.outcome import Outcome
from zoo.ablate.scale.measure import paired
from zoo.ablate.scale.simulate import KAPPA, TAU
from zoo.ablate.scale.tuned import sides_of
from zoo.ablate.scale.tuning import Parabola, random_gap, tuning_gap
from zoo.ablate.sweep import Sweep


@dataclass(frozen=True)
class Noise:
    """The noise of a ladder, from which the power of its design is computed.

    Attributes:
        tau: standard deviation of a run, in ln tokens; None: no runs show it, and `TAU` is assumed.
        kappa: curvature over the learning rate, in ln tokens per (ln rate)^2; None: likewise, `KAPPA`.
        runs: number of runs that have ended.
    """

    tau: float | None
    kappa: float | None
    runs: int

    @property
    def of_run(self) -> float:
        """The standard deviation of a run that is simulated."""
        return TAU if self.tau is None else self.tau

    @property
    def curvature(self) -> float:
        """The curvature over the learning rate that is simulated."""
        return KAPPA if self.kappa is None else self.kappa

    def of_tuning(self, sweep: Sweep) -> float:
        """The standard deviation of ln c that tuning alone makes at a size, simulated by the sweep's rule.

        It is 0 if nothing is tuned, or two keys at random. Of two keys that are tuned in turn it is that of
        the first one, the rate.
        """
        tune = sweep.tune
        if tune is None:
            return 0.0
        sd, seeds = self.of_run, len(tune.seeds)
        if tune.grid is not None:
            rates = sweep.ladder[0].sides[0].grids(tune.keys)[tune.keys[0]]
            parabola = Parabola(math.log(rates[len(rates) // 2]), 0.0, self.curvature)
            return tuning_gap(parabola, rates, sd=sd, seeds=seeds, per_token=1.0, interpolated=True)
        if tune.random is None or tune.drawn is None or len(tune.keys) > 1:
            return 0.0
        parabola = Parabola(fmean(map(math.log, tune.drawn)), 0.0, self.curvature)
        return random_gap(parabola, tune.drawn, tune.random.trials, sd=sd, seeds=seeds, per_token=1.0)

    @property
    def text(self) -> str:
        """Which noise it is, in a sentence."""
        ended = f"measured in the {self.runs} runs of this ladder that have ended"
        assumed = "assumed, as measured in one study of .23M parameters"
        parts = [
            (f"tau {self.of_run:.3g}", self.tau is not None),
            (f"kappa {self.curvature:.3g}", self.kappa is not None),
        ]
        by_source = {ended: [what for what, known in parts if known]}
        by_source[assumed] = [what for what, known in parts if not known]
        told = [f"{' and '.join(names)}, {source}" for source, names in by_source.items() if names]
        return f"Noise: {'; '.join(told)}."


def noise_of(sweep: Sweep, outcomes: dict[str, Outcome] | None = None) -> Noise:
    """The noise of a ladder, by its runs that have ended, or by their lines.

    Args:
        sweep: a ladder.
        outcomes: outcomes by id that are known already, to which those that are read are added.

    Raises:
        ZooError: A run folder was edited.
    """
    outcomes = {} if outcomes is None else outcomes
    planned = settled_plan(sweep, planner_of(sweep), outcomes).runs
    table = table_of(sweep, planned, outcomes)
    ended = sum(not run.stopped for run in table.runs)
    sides = sides_of(table)
    if sweep.baseline not in sides:
        return Noise(None, None, ended)
    # Without another variant the baseline stands on both sides, which changes neither value.
    others = [name for name in sides if name != sweep.baseline] or [sweep.baseline]
    found = [paired(name, sides[sweep.baseline], sides[name]) for name in others]
    taus = [variant.tau for variant in found if variant.tau is not None]
    kappas = [variant.kappa for variant in found if variant.kappa is not None]
    tau = math.sqrt(fmean(tau**2 for tau in taus)) if taus else None
    return Noise(tau or None, fmean(kappas) if kappas else None, ended)
