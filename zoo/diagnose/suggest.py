"""`zoo suggest-lr`: the learning rate of Amos, read off the ratio of Assumption 1.

Amos' initial step is best at alpha = xi eta, where xi is a lower bound of M2(E[g]) / sqrt(E[M2(g)^2])
for all variables (Amos, Lemma 4.3), and the paper reads xi off the curves of that ratio (section A.6). The
ratio depends on the rate it is measured at: steps that are too large make gradients that cancel out. So a
second run is trained at the ratio that the first one found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory

from zoo.diagnose.history import ENOUGH, read_history
from zoo.run.config import RunConfig, load_config
from zoo.run.job import Job
from zoo.train.diagnosis import WINDOW
from zoo.train.run import train
from zoo.utils.errors import ConfigError, ZooError
from zoo.utils.run_folder import RunFolder

NEEDED = "amos"
"""The optimizer whose rate it is."""


@dataclass(frozen=True)
class Reading:
    """What a run says of its learning rate.

    Attributes:
        lr: xi, as it was trained.
        lowest: the lowest ratio of any variable of `ENOUGH` entries in any measurement.
        variable: the one that had it.
        quartile: a quarter of the variables' lowest ratios are below.
        median: half of them are.
        floor: what independent gradients of mean 0 would give.
    """

    lr: float
    lowest: float
    variable: str
    quartile: float
    median: float
    floor: float


@dataclass(frozen=True)
class Suggestion:
    """A learning rate and where it comes from.

    Attributes:
        readings: of each run, in order.
    """

    readings: Sequence[Reading]

    @property
    def lr(self) -> float:
        """A single run's lowest ratio; after a second run, halfway between its rate and its ratio."""
        last = self.readings[-1]
        return math.sqrt(last.lr * last.lowest) if len(self.readings) > 1 else last.lowest

    def __str__(self) -> str:
        """What to print."""
        lines = [
            f"trained at xi = {r.lr:.3g}: the ratio is {r.lowest:.3g} at least ({r.variable}), "
            f"{r.quartile:.3g} for a quarter and {r.median:.3g} for half of the variables; "
            f"independent noise would give {r.floor:.3g}"
            for r in self.readings
        ]
        between = sorted((self.readings[-1].lr, self.readings[-1].lowest))
        spread = f" (between {between[0]:.2g} and {between[1]:.2g})" if len(self.readings) > 1 else ""
        return "\n".join(
            [
                *lines,
                f"suggested: optimizer.lr={self.lr:.2g}{spread}",
                "Assumption 1 of Amos: M2(E[g]) / sqrt(E[M2(g)^2]) >= xi for all variables; the best first "
                "step is then xi eta (Lemma 4.3). A rough guide, which may be several times too high: a "
                "start for a grid, not its end. The paper's rule of thumb is 1 / sqrt(N), with N the "
                "independent batches in the data.",
            ]
        )


def suggest_lr(source: str, overrides: Sequence[str] = (), steps: int | None = None) -> Suggestion:
    """Measure the ratio, in two short runs or in one there is, and read the rate off it.

    Args:
        source: a config file or the name of a shipped one, with Amos; or the folder of a run that was
            trained with Amos, whose own measurements are then used.
        overrides: as for `load_config`.
        steps: of each short run, whose folder is deleted; the schedule stays that of the whole run.
            None: two measurements, or the whole run where it is shorter.

    Raises:
        ConfigError: another optimizer, fewer steps than one measurement needs, or options without effect.
        ZooError: anything the runs need, or a run without measurements.
    """
    if RunFolder(Path(source)).exists:
        given = [*overrides, *([] if steps is None else [f"--steps {steps}"])]
        if given:
            raise ConfigError(f"suggest-lr: {source} is a run: {', '.join(given)} has no effect on it")
        config = load_config(source)
        _check(config)
        return Suggestion([read(Path(source), config)])
    config = load_config(source, overrides)
    _check(config)
    job = Job.of(config)
    steps = min(2 * WINDOW, job.train.steps) if steps is None else steps
    if not WINDOW <= steps <= job.train.steps:
        raise ConfigError(
            f"suggest-lr: {steps} steps; expected {WINDOW}, one measurement, to {job.train.steps} "
            "(train.steps)"
        )
    first = short_run(source, overrides, job.optimizer.lr, steps)
    return Suggestion([first, short_run(source, overrides, first.lowest, steps)])


def short_run(source: str, overrides: Sequence[str], lr: float, steps: int) -> Reading:
    """Train the first steps at a rate, and measure."""
    with TemporaryDirectory() as folder:
        changes = {
            "optimizer.lr": lr,
            "train.runs_dir": folder,
            "train.diagnose_every": WINDOW,
            "train.monitor_every": "null",
            "train.eval_batches": 1,
            "train.keep_last": 1,
        }
        config = load_config(source, [*overrides, *(f"{key}={value}" for key, value in changes.items())])
        return read(train(config, until=steps).folder, config)


def read(run: Path, config: RunConfig) -> Reading:
    """What is written in a run's folder.

    Raises:
        ZooError: nothing was measured.
    """
    history = read_history(run)
    known = {n: [v for v in values if v is not None] for n, (_, values) in history.ratios.items()}
    lowest = {name: min(values) for name, values in known.items() if values}
    if not lowest:
        raise ZooError(
            f"suggest-lr: {run}: nothing was measured; expected lines of kind 'diagnose' in its "
            f"metrics.jsonl (train.diagnose_every), and variables of {ENOUGH} entries or more"
        )
    ordered = sorted(lowest.values())
    quartile, median, _ = quantiles(ordered, n=4, method="inclusive") if len(ordered) > 1 else ordered * 3
    return Reading(
        Job.of(config).optimizer.lr,
        ordered[0],
        min(lowest, key=lowest.__getitem__),
        quartile,
        median,
        next(floor for floor in reversed(history.floor[1]) if floor is not None),
    )


def _check(config: RunConfig) -> None:
    """Refuse what is not trained with Amos."""
    kind = getattr(config.optimizer, "type", None)
    if kind != NEEDED:
        raise ConfigError(
            f"suggest-lr: the optimizer is '{kind}'; expected '{NEEDED}', whose rate Assumption 1 is about: "
            "optimizer={type: amos, lr: 0.01}"
        )
