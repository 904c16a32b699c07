"""`zoo suggest-lr`: a learning rate for Amos from the ratio of Assumption 1.

Amos' best initial step is alpha = xi eta, where xi is a lower bound of M2(E[g]) / sqrt(E[M2(g)^2]) for all
variables (Amos, Lemma 4.3), and the paper reads xi off the curves of this ratio (section A.6). The ratio
depends on the rate at which it is measured, because too large steps lead to gradients that cancel out.
Therefore a second run is trained at the ratio that the first one measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory

from zoo.diagnose.history import MIN_ENTRIES, RunHistory, read_history
from zoo.run.config import RunConfig, load_config
from zoo.run.job import Job
from zoo.train.diagnosis import WINDOW
from zoo.train.run import train
from zoo.utils.errors import ConfigError, ZooError
from zoo.utils.run_folder import RunFolder


@dataclass(frozen=True)
class RatioMeasurement:
    """The ratio of Assumption 1 in one run; each variable counts with its lowest ratio at any step.

    Attributes:
        lr: xi, the learning rate that the run was trained with: that of the configuration times the factor
            of its transfer rule.
        lowest: the lowest ratio of all variables with `MIN_ENTRIES` entries or more.
        variable: the name of the variable with the lowest ratio.
        quartile: the lower quartile of the variables' ratios.
        median: the median of the variables' ratios.
        floor: the ratio of independent gradients with mean 0.
    """

    lr: float
    lowest: float
    variable: str
    quartile: float
    median: float
    floor: float


@dataclass(frozen=True)
class Suggestion:
    """A learning rate and the measurements that it follows from.

    Attributes:
        measurements: the measurements, in the order of the runs.
        factor: the factor by which the transfer rule multiplies the rate of the configuration.
    """

    measurements: Sequence[RatioMeasurement]
    factor: float = 1.0

    @property
    def lr(self) -> float:
        """The rate for the configuration, whose product with the factor is the suggested xi.

        That xi is the lowest ratio of a single run; with a second run, the geometric mean of its rate and
        ratio.
        """
        last = self.measurements[-1]
        xi = math.sqrt(last.lr * last.lowest) if len(self.measurements) > 1 else last.lowest
        return xi / self.factor

    def __str__(self) -> str:
        """The output of `zoo suggest-lr`."""
        lines = [
            f"trained at xi = {m.lr:.3g}: the ratio is {m.lowest:.3g} at least ({m.variable}), "
            f"{m.quartile:.3g} for a quarter and {m.median:.3g} for half of the variables; "
            f"independent noise would give {m.floor:.3g}"
            for m in self.measurements
        ]
        last = self.measurements[-1]
        low, high = sorted((last.lr / self.factor, last.lowest / self.factor))
        between = f" (between {low:.2g} and {high:.2g})" if len(self.measurements) > 1 else ""
        times = "" if self.factor == 1 else f", which the transfer rule multiplies by {self.factor:.3g}"
        return "\n".join(
            [
                *lines,
                f"suggested: optimizer.lr={self.lr:.2g}{between}{times}",
                "Assumption 1 of Amos: M2(E[g]) / sqrt(E[M2(g)^2]) >= xi for all variables; the best first "
                "step is then xi eta (Lemma 4.3). A rough guide, which may be several times too high: a "
                "start for a grid, not its end. The paper's rule of thumb is 1 / sqrt(N), with N the "
                "independent batches in the data.",
            ]
        )


def suggest_lr(source: str, overrides: Sequence[str] = (), steps: int | None = None) -> Suggestion:
    """Measure the ratio in two short runs, or take it from a run folder, and derive the rate.

    Args:
        source: a config file with Amos or the name of a shipped one; or the folder of a run that was
            trained with Amos, whose own measurements are then used.
        overrides: changes of the configuration, each ``key=value``.
        steps: number of steps of each short run, whose folder is deleted; the schedule stays that of the
            whole run. None: as many as two measurements need, or the whole run if it is shorter.

    Raises:
        ConfigError: The optimizer is not Amos, there are fewer steps than one measurement needs, or options
            are given that have no effect on a run folder.
        ZooError: The runs cannot be trained, or a run folder has no measurements.
    """
    if RunFolder(Path(source)).exists:
        options = [*overrides, *([] if steps is None else [f"--steps {steps}"])]
        if options:
            raise ConfigError(f"suggest-lr: {source} is a run: {', '.join(options)} has no effect on it")
        config = load_config(source)
        _require_amos(config)
        return Suggestion([_read_ratios(Path(source), config)], _factor(config))
    config = load_config(source, overrides)
    _require_amos(config)
    job = Job.of(config)
    if job.train.steps < WINDOW:
        raise ConfigError(
            f"suggest-lr: the run has {job.train.steps} steps, and one measurement needs {WINDOW}; expected "
            f"train.steps={WINDOW} or more"
        )
    steps = min(2 * WINDOW, job.train.steps) if steps is None else steps
    if not WINDOW <= steps <= job.train.steps:
        raise ConfigError(
            f"suggest-lr: {steps} steps; expected {WINDOW}, one measurement, to {job.train.steps} "
            "(train.steps)"
        )
    task, factor = "suggest-lr: run {} of 2", _factor(config)
    first = _train_and_measure(source, overrides, job.optimizer.lr, steps, task.format(1))
    second = _train_and_measure(source, overrides, first.lowest / factor, steps, task.format(2))
    return Suggestion([first, second], factor)


def _train_and_measure(
    source: str, overrides: Sequence[str], lr: float, steps: int, task: str
) -> RatioMeasurement:
    """Train the first steps of a run at a rate, in a temporary folder and without loggers.

    The progress is shown under the name `task`.

    Raises:
        ZooError: The run was stopped, for instance by Ctrl-C, before its last step.
    """
    with TemporaryDirectory() as folder:
        changes = {
            "optimizer.lr": lr,
            "train.runs_dir": json.dumps(folder),
            "train.diagnose_every": WINDOW,
            "train.monitor_every": "null",
            "train.eval_batches": 1,
            "train.keep_last": 1,
            "train.loggers": "[]",
        }
        config = load_config(source, [*overrides, *(f"{key}={value}" for key, value in changes.items())])
        result = train(config, until=steps, task=task)
        if result.step < steps or not result.evaluated:
            raise ZooError(f"suggest-lr: stopped at step {result.step} of {steps}; nothing is suggested")
        return _read_ratios(result.folder, config)


def _read_ratios(run: Path, config: RunConfig) -> RatioMeasurement:
    """Read the ratios that a run measured.

    Raises:
        ZooError: The run has not measured the ratio.
    """
    history = read_history(run)
    ratios = {name: [v for v in values if v is not None] for name, (_, values) in history.ratios.items()}
    lowest = {name: min(values) for name, values in ratios.items() if values}
    if not lowest:
        raise ZooError(
            f"suggest-lr: {run}: nothing was measured; expected lines of kind 'diagnose' in its "
            f"metrics.jsonl (train.diagnose_every), and variables of {MIN_ENTRIES} entries or more"
        )
    ordered = sorted(lowest.values())
    variable = min(lowest, key=lowest.__getitem__)
    quartile, median, _ = quantiles(ordered, n=4, method="inclusive") if len(ordered) > 1 else ordered * 3
    return RatioMeasurement(
        Job.of(config).optimizer.lr * _factor(config),
        ordered[0],
        variable,
        quartile,
        median,
        _floor_at(history, variable, ordered[0]),
    )


def _floor_at(history: RunHistory, variable: str, ratio: float) -> float:
    """The floor of the measurement with a ratio: another one may be of more or fewer gradients."""
    steps, values = history.ratios[variable]
    floors = dict(zip(*history.floor, strict=True))
    floor = next(floors[step] for step, value in zip(steps, values, strict=True) if value == ratio)
    assert floor is not None  # a measurement with ratios has one
    return floor


def _factor(config: RunConfig) -> float:
    """The factor of the learning rate under the transfer rule, which for Amos can only be one of steps."""
    return config.transfer.of_length(Job.of(config).train.steps)


def _require_amos(config: RunConfig) -> None:
    """Refuse a run that is not trained with Amos."""
    optimizer = getattr(config.optimizer, "type", None)
    if optimizer != "amos":
        raise ConfigError(
            f"suggest-lr: the optimizer is '{optimizer}'; expected 'amos', whose rate Assumption 1 is about: "
            "optimizer={type: amos, lr: 0.01}"
        )
