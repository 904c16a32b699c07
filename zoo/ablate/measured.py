"""What a run folder tells about a run, finished or not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from zoo.ablate.curve import Curve, Numbers, read_curve
from zoo.run.config import RunConfig, load_config, plain
from zoo.utils.errors import ZooError
from zoo.utils.run_folder import RunFolder


@dataclass(frozen=True)
class Measured:
    """A run as it was measured; None is what was not.

    Attributes:
        folder: of the run.
        config: as written at its start.
        validation: cross entropy on held-out examples.
        training: cross entropy of batches, before the step on them.
        step_seconds: median seconds of a training step over log lines; the first line is left out,
            if there are others: it holds the compilation.
        tokens_per_second: the same of the speed.
        peak_memory: bytes, the highest of all log lines.
        parameters: number of them.
        optimizer_bytes: of the optimizer's state.
        spikes: how many there were of the loss or of the gradient, see `zoo.train.spikes`.
        spike_depth: how far the loss rose above its median in the highest of them, in nats per target;
            infinite where it was no number.
        monitors: steps, and by measurement (`zoo.train.monitor`) and matrix the values; NaN where a
            measurement was missing.
        environment: the last session's, see `zoo.train.environment`.
        data: fingerprint of the data, from the last checkpoint.
        sample: text it generated.
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
    monitors: tuple[Numbers, Mapping[str, Mapping[str, Numbers]]]
    environment: Mapping[str, Any]
    data: str | None
    sample: str | None

    @property
    def final(self) -> float | None:
        """The last validation loss."""
        return float(self.validation.loss[-1]) if len(self.validation) else None

    @property
    def best(self) -> float | None:
        """The lowest validation loss."""
        return float(self.validation.loss.min()) if len(self.validation) else None

    @property
    def complete(self) -> bool:
        """Whether all its steps are done."""
        train = self.config.train
        return train is not None and max([0, *self.validation.steps, *self.training.steps]) >= train.steps


def measure(folder: Path) -> Measured:
    """Read a run folder.

    Args:
        folder: made by `zoo train`.

    Raises:
        ZooError: not a run folder, or one with a file that zoo did not write.
    """
    run = RunFolder(folder)
    records = run.read_metrics()
    config = load_config(run.required().config)
    kinds = {kind: _of(records, kind) for kind in ("train", "validation", "size", "spike", "monitor")}
    flops = _flops(config)
    size = kinds["size"][0] if kinds["size"] else {}
    laps = [line["timing"]["tokens_per_second"] for line in kinds["train"]]
    speed = float(np.median(laps[1:] or laps)) if laps else None
    memory = [line["timing"].get("peak_memory") for line in kinds["train"]]
    checkpoint, sessions = run.checkpoint(), run.read_sessions()
    return Measured(
        folder=run,
        config=config,
        validation=read_curve(kinds["validation"], kinds["train"], flops),
        training=read_curve(kinds["train"], kinds["train"], flops),
        step_seconds=_per_step(kinds["train"][0]) / speed if speed else None,
        tokens_per_second=speed,
        peak_memory=max((m for m in memory if m is not None), default=None),
        parameters=size.get("parameters"),
        optimizer_bytes=size.get("optimizer_bytes"),
        spikes=len({line["episode"] for line in kinds["spike"]}),
        spike_depth=max((inf if s["depth"] is None else s["depth"] for s in kinds["spike"]), default=None),
        monitors=_monitors(kinds["monitor"]),
        environment=sessions[-1] if sessions else {},
        data=None if checkpoint is None else checkpoint.data,
        sample=run.sample.read_text(encoding="utf-8") if run.sample.is_file() else None,
    )


def _of(records: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [record for record in records if record["kind"] == kind]


def _per_step(line: Mapping[str, Any]) -> float:
    """Tokens of a step."""
    return float(line["tokens"] / line["step"])


def _flops(config: RunConfig) -> int:
    """Operations of training per target."""
    if config.model is None or config.data is None:
        raise ZooError(f"{config.name}: {RunFolder.CONFIG} has no model or no data; it is not that of a run")
    return _flops_of(json.dumps(plain([config.model, config.reparam])), config.data.length)


@cache
def _flops_of(architecture: str, length: int) -> int:
    """Counted once for all runs of an architecture: model and reparameterisation as JSON."""
    from zoo.checkpoint.recipe import declare
    from zoo.run.explanation import flops_per_target
    from zoo.run.factory import recipe_of

    model, reparam = json.loads(architecture)
    return flops_per_target(declare(recipe_of(load_config({"model": model, "reparam": reparam}))), length)[1]


def _monitors(lines: Sequence[Mapping[str, Any]]) -> tuple[Numbers, dict[str, dict[str, Numbers]]]:
    """The measurements of the monitor, by what is measured and by matrix."""
    steps = np.array([line["step"] for line in lines], dtype=np.float64)
    rows = [line["matrices"] for line in lines]
    measurements = dict.fromkeys(key for row in rows for values in row.values() for key in values)
    matrices = dict.fromkeys(matrix for row in rows for matrix in row)
    return steps, {
        key: {m: np.array([row.get(m, {}).get(key) for row in rows], dtype=np.float64) for m in matrices}
        for key in measurements
    }
