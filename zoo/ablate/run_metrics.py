"""The measurements of a run, read from its folder, whether the run is finished or not."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, nan
from pathlib import Path

import numpy as np

from zoo.ablate.curve import COSTS, Curve, read_curve
from zoo.ablate.scale.runs import Making
from zoo.ablate.task_scores import task_scores
from zoo.data.files import read_object
from zoo.data.tokenizers.base import DESCRIPTION
from zoo.run.config import RunConfig, load_config
from zoo.run.flops import run_flops
from zoo.utils.arrays import Array
from zoo.utils.errors import ZooError
from zoo.utils.files import CONFIG_BYTES, read_text
from zoo.utils.measures import MEASURES, Measure, with_perplexity
from zoo.utils.run_folder import Record, RunFolder
from zoo.utils.untyped import JsonObject

log = logging.getLogger("zoo")

FEWEST_SPEEDS = 3
"""Number of log lines, the first of which includes compilation, up to which the spread is unknown."""


@dataclass(frozen=True)
class RunMetrics:
    """The metrics of a run; None stands for values that were not measured.

    Attributes:
        folder: the run folder.
        config: the configuration of the run.
        validation: cross entropy on held-out examples.
        training: cross entropy of each logged batch before the optimizer step on it.
        step_seconds: seconds of a training step, the median over log lines. The first line, which includes
            compilation, is left out if there are others.
        tokens_per_second: the training speed, computed in the same way.
        speed_spread: interquartile range of the speeds over their median, without the first line; None with
            fewer than four log lines.
        peak_memory: the highest number of bytes in all log lines.
        parameters: number of parameters.
        optimizer_bytes: size of the optimizer's state.
        spikes: number of spikes of the loss or the gradient, see `zoo.train.spikes`.
        spike_depth: how far the loss rose above its median in the worst spike, in nats per target; infinite
            if the loss was not finite.
        environment: the environment of the last session, see `zoo.train.environment`.
        data: fingerprint of the data, from the last checkpoint.
        sample: the text that the run generated.
        tokenizer: the hash of the tokenizer that is kept with the run.
        passes: how often the training data were read: the tokens of training over those of the data.
        overlap: share of the validation text that occurs in the training text, see `zoo.data.text.overlap`.
        measured: the values of each measure, by its name, at the points of `validation`; NaN where there is
            none.
        diverged: the step and the reason if the last session ended because a number was not finite.
    """

    folder: RunFolder
    config: RunConfig
    validation: Curve
    training: Curve
    step_seconds: float | None
    tokens_per_second: float | None
    peak_memory: int | None
    parameters: int | None
    optimizer_bytes: int | None
    spikes: int
    spike_depth: float | None
    environment: JsonObject
    data: str | None
    sample: str | None
    measured: Mapping[str, Array] = field(default_factory=dict)
    speed_spread: float | None = None
    tokenizer: str | None = None

    @property
    def making(self) -> Making:
        """The code and the machine of the last session."""
        known = {key: str(value or "") for key, value in self.environment.items()}
        device = known.get("device", "cpu")
        return Making(
            known.get("git_commit", ""),
            known.get("processor", "") if device == "cpu" else device,
            known.get("bfloat16_product", ""),
        )

    passes: float | None = None
    overlap: float | None = None
    diverged: str | None = None

    @property
    def objective(self) -> JsonObject:
        """The name and the settings of the training objective, which is that of the validation loss as well.

        It is empty if the run has no data.
        """
        data = self.config.data
        if data is None:
            return {}
        settings = getattr(data, "objective", None)  # only text has a choice
        return {"type": data.objective_name} | ({} if settings is None else settings.model_dump(mode="json"))

    @property
    def objective_text(self) -> str:
        """The objective as JSON, by which runs are compared; "" if the run has no data."""
        return json.dumps(self.objective, sort_keys=True) if self.objective else ""

    def curve(self, measure: Measure) -> Curve:
        """A measure over the course of the run; empty if it was not recorded.

        The scores of tasks are measured once, at the end.
        """
        if measure.is_loss:
            return self.validation
        values = self.measured.get(measure.name, np.full(len(self.validation), nan))
        known = np.isfinite(values)
        points = {name: getattr(self.validation, name)[known] for name in COSTS}
        return Curve(**points, values=values[known])

    def final(self, measure: Measure) -> float | None:
        """The last value of a measure; None if it was not recorded at the last validation."""
        if measure.is_loss:
            return float(self.validation.values[-1]) if len(self.validation) else None
        value = float(self.measured.get(measure.name, [nan])[-1]) if len(self.validation) else nan
        return value if isfinite(value) else None

    def best(self, measure: Measure) -> float | None:
        """The best value of a measure over the course of the run; None if it was not recorded."""
        values = self.curve(measure).values
        return min(map(float, values), key=measure.cost) if len(values) else None

    @property
    def planned_tokens(self) -> float | None:
        """The training targets of all steps of the configuration; None if no step was logged."""
        for curve in (self.validation, self.training):
            if len(curve) and curve.steps[-1] > 0 and self.config.train is not None:
                return float(curve.tokens[-1] * self.config.train.steps / curve.steps[-1])
        return None

    @property
    def complete(self) -> bool:
        """Whether the run has made all its steps and, unless it has none, the validation after the last."""
        train = self.config.train
        steps = self.validation.steps if len(self.validation) else self.training.steps
        return train is not None and max(steps, default=0) >= train.steps


def read_run_metrics(folder: Path) -> RunMetrics:
    """Read the measurements of a run from its folder.

    Args:
        folder: a run folder made by `zoo train`.

    Raises:
        ZooError: `folder` is not a run folder, or one of its files was not written by zoo.
    """
    run = RunFolder(folder)
    records = run.read_metrics()
    config = load_config(run.required().config)
    try:
        return _measured(run, records, config)
    except ZooError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ZooError(f"{run.metrics}: a line is not as zoo wrote it: {error!r}") from error


def _measured(run: RunFolder, records: Sequence[Record], config: RunConfig) -> RunMetrics:
    """The metrics in the lines of metrics.jsonl and in the other files of a run."""
    train, validation, sizes, spikes, diverged = (
        [record for record in records if record["kind"] == kind]
        for kind in ("train", "validation", "size", "spike", "diverged")
    )
    flops = run_flops(config).step
    size = sizes[0] if sizes else {}
    speeds = [record["timing"]["tokens_per_second"] for record in train]
    speed = float(np.median(speeds[1:] or speeds)) if speeds else None
    memory = [record["timing"].get("peak_memory") for record in train]
    tokens = max((r["tokens"] for r in [*train, *validation]), default=0)
    checkpoint, sessions = run.checkpoint(), run.read_sessions()
    return RunMetrics(
        folder=run,
        config=config,
        validation=read_curve(validation, train, flops),
        training=read_curve(train, train, flops),
        step_seconds=train[0]["tokens"] / train[0]["step"] / speed if speed else None,
        tokens_per_second=speed,
        peak_memory=max((m for m in memory if m is not None), default=None),
        parameters=size.get("parameters"),
        optimizer_bytes=size.get("optimizer_bytes"),
        spikes=len({spike["episode"] for spike in spikes}),
        spike_depth=max((inf if s["depth"] is None else s["depth"] for s in spikes), default=None),
        environment=sessions[-1] if sessions else {},
        data=None if checkpoint is None else checkpoint.data,
        sample=read_text(run.sample, CONFIG_BYTES, ZooError) if run.sample.exists() else None,
        measured=_measures(validation) | _scores(run, [record["step"] for record in validation]),
        speed_spread=_spread(speeds[1:]) if len(speeds) > FEWEST_SPEEDS else None,
        tokenizer=_tokenizer(run),
        passes=tokens / size["train_units"] if "train_units" in size else None,
        overlap=size.get("overlap"),
        diverged=f"step {diverged[-1]['step']}: {diverged[-1]['reason']}" if diverged else None,
    )


def _tokenizer(run: RunFolder) -> str | None:
    file = run.tokenizer / DESCRIPTION
    return str(read_object(file).get("hash")) if file.is_file() else None


def _spread(speeds: Sequence[float]) -> float:
    """The interquartile range over the median."""
    low, middle, high = np.percentile(speeds, (25, 50, 75))
    return float((high - low) / middle)


def _measures(validation: Sequence[Record]) -> dict[str, Array]:
    """The values of `MEASURES` in the lines of the validations, also those of each of several files."""
    rows = [measures_of(record) for record in validation]
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: np.array([row.get(name, nan) for row in rows], dtype=np.float64) for name in names}


def measures_of(record: Record) -> dict[str, float]:
    """The values of `MEASURES` in a line of a validation; those of several files as ``FILE/NAME``."""
    sets = {"": record} | {f"{file}/": values for file, values in record.get("by_file", {}).items()}
    return {
        prefix + name: float(value)
        for prefix, values in sets.items()
        for name, value in with_perplexity({k: v for k, v in values.items() if k in MEASURES}).items()
    }


def _scores(run: RunFolder, steps: Sequence[int]) -> dict[str, Array]:
    """The scores of tasks, as values at the last of the validations after `steps`; none of another step."""
    scores = {}
    for name, score in task_scores(run).items():
        if not steps or score.value is None:
            continue
        if score.step not in (None, steps[-1]):
            log.warning(
                "%s: has the scores of step %d, and the run is at step %d; `zoo eval %s --tasks ...` "
                "measures them again",
                *(run.tasks, score.step, steps[-1], run),
            )
            return {}
        scores[name] = np.array([nan] * (len(steps) - 1) + [score.value], dtype=np.float64)
    return scores
