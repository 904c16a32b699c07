"""What was measured of a run, read from its folder, whether the run is finished or not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from zoo.ablate.curve import Curve, read_curve
from zoo.run.config import RunConfig, load_config, plain
from zoo.utils.errors import ZooError
from zoo.utils.files import CONFIG_BYTES, read_text
from zoo.utils.run_folder import RunFolder


@dataclass(frozen=True)
class RunMetrics:
    """The metrics of a run; None stands for what was not measured.

    Attributes:
        folder: the run folder.
        config: the configuration of the run.
        validation: cross entropy on held-out examples.
        training: cross entropy of each logged batch before the optimizer step on it.
        step_seconds: seconds of a training step, the median over log lines. The first line, which includes
            compilation, is left out if there are others.
        tokens_per_second: the training speed, likewise.
        peak_memory: bytes, the highest of all log lines.
        parameters: number of parameters.
        optimizer_bytes: size of the optimizer's state.
        spikes: number of spikes of the loss or the gradient, see `zoo.train.spikes`.
        spike_depth: how far the loss rose above its median in the worst spike, in nats per target; infinite
            if the loss was not finite.
        environment: that of the last session, see `zoo.train.environment`.
        data: fingerprint of the data, from the last checkpoint.
        sample: the text that the run generated.
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
    environment: Mapping[str, Any]
    data: str | None
    sample: str | None

    @property
    def final_loss(self) -> float | None:
        """The last validation loss."""
        return float(self.validation.loss[-1]) if len(self.validation) else None

    @property
    def best_loss(self) -> float | None:
        """The lowest validation loss."""
        return float(self.validation.loss.min()) if len(self.validation) else None

    @property
    def complete(self) -> bool:
        """Whether the run has made all its steps."""
        train = self.config.train
        return train is not None and max([0, *self.validation.steps, *self.training.steps]) >= train.steps


def read_run_metrics(folder: Path) -> RunMetrics:
    """Read a run folder.

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


def _measured(run: RunFolder, records: Sequence[dict[str, Any]], config: RunConfig) -> RunMetrics:
    """What the lines of a metrics.jsonl and the other files of a run say."""
    train, validation, sizes, spikes = (
        [record for record in records if record["kind"] == kind]
        for kind in ("train", "validation", "size", "spike")
    )
    flops = _flops_per_target(config)
    size = sizes[0] if sizes else {}
    speeds = [record["timing"]["tokens_per_second"] for record in train]
    speed = float(np.median(speeds[1:] or speeds)) if speeds else None
    memory = [record["timing"].get("peak_memory") for record in train]
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
    )


def _flops_per_target(config: RunConfig) -> int:
    """Floating point operations of training per target."""
    if config.model is None or config.data is None:
        raise ZooError(f"{config.name}: {RunFolder.CONFIG} has no model or no data; it is not that of a run")
    return _training_flops(json.dumps(plain([config.model, config.reparam])), config.data.length)


@cache
def _training_flops(architecture: str, length: int) -> int:
    """Count once for all runs that share model and reparameterisation, which are given as JSON."""
    from zoo.checkpoint.recipe import declare
    from zoo.run.explanation import flops_per_target
    from zoo.run.factory import recipe_of

    model, reparam = json.loads(architecture)
    return flops_per_target(declare(recipe_of(load_config({"model": model, "reparam": reparam}))), length)[1]
