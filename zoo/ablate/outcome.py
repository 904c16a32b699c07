"""The state of a run of a sweep, read from its folder: its progress, its end, and a check for edits."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from zoo.ablate.identity import run_id
from zoo.ablate.run_metrics import measures_of
from zoo.ablate.scoring import TaskScoring
from zoo.run.config import load_config
from zoo.utils.atomic import write_text
from zoo.utils.errors import ConfigError
from zoo.utils.files import CONFIG_BYTES, read_json
from zoo.utils.measures import CROSS_ENTROPY, Measure
from zoo.utils.run_folder import RunFolder

NO_VALIDATION = "there is no validation loss; a sweep compares them: hold some data out"
"""The reason why a run without validation examples cannot be part of a sweep."""


@dataclass(frozen=True)
class Outcome:
    """The state and the losses of a run, read from its folder.

    Attributes:
        step: the step of the last line in metrics.jsonl.
        losses: the validation losses by step, or values of another measure, negated if larger ones are
            better.
        ended: whether the run has made all its steps, or failed in a way that would repeat itself.
        error: the reason of a failure in one line; None if the run did not fail.
        crashed: whether the run failed for another reason than divergence, so that its result is unknown.
        last_loss: the last validation loss, whatever the measure of the comparison is; None if there is none.
    """

    step: int = 0
    losses: Mapping[int, float] = field(default_factory=dict)
    ended: bool = False
    error: str | None = None
    last_loss: float | None = None
    crashed: bool = False

    def loss(self, step: int) -> float | None:
        """The validation loss at a step; infinite for a run that diverged, None if it is not known."""
        if self.error is not None:
            return None if self.crashed else math.inf
        return self.losses.get(step)


def read_outcome(
    folder: Path, measure: Measure = CROSS_ENTROPY, scoring: TaskScoring | None = None
) -> Outcome:
    """Read a run folder and check that nobody has edited it.

    Args:
        folder: the folder of a run of a sweep, named by the run's id; it need not exist.
        measure: the measure by which the runs are compared.
        scoring: the settings of the score of a task, if that is the measure; the run has ended when it has
            the score.

    Raises:
        ConfigError: `folder` is not a run, its configuration does not match its name, or the metrics were
            edited after the run had ended.
    """
    run = RunFolder(folder)
    if run.is_vacant:
        return Outcome()
    if not run.exists:
        raise ConfigError(f"{folder}: exists and is not a run (no {run.CONFIG}); move it away")
    _require_matching_id(run)
    record = _verified_record(run)
    lines = run.read_metrics() if run.metrics.is_file() else []
    validation = [line for line in lines if line["kind"] == "validation"]
    values = {line["step"]: measures_of(line).get(measure.name) for line in validation}
    error = record["error"] if record else None
    last = max((line["step"] for line in lines), default=0)
    losses = {step: measure.cost(value) for step, value in values.items() if value is not None}
    recorded = measures_of(validation[-1]) if validation else {}
    unknown = record is not None and error is None and measure.name not in recorded
    ended = record is not None
    if scoring is not None:
        score = scoring.recorded(run) if ended and error is None else None
        losses, unknown = {} if score is None else {last: score}, False
        ended = ended and (error is not None or score is not None)
    return Outcome(
        step=last,
        losses=losses,
        ended=ended,
        error=f"its validation has not recorded {measure.name}" if unknown else error,
        crashed=unknown,
        last_loss=validation[-1]["cross_entropy"] if validation else None,
    )


def verify(folder: Path) -> dict[str, str] | None:
    """Check that a run that has ended was not edited since.

    Args:
        folder: a run folder.

    Returns:
        The content of record.json; None for a run that has not ended, or that belongs to no sweep.

    Raises:
        ConfigError: The configuration, the metrics or record.json were edited.
    """
    run = RunFolder(folder)
    if run.record.is_file():
        _require_matching_id(run)
    return _verified_record(run)


def _verified_record(run: RunFolder) -> dict[str, str] | None:
    """The content of record.json after a comparison of the metrics with it; None if there is no such file."""
    if not run.record.is_file():
        return None
    try:
        record: dict[str, str] = read_json(run.record, CONFIG_BYTES, ConfigError)
        record["error"], record["metrics"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{run.record}: was edited; delete the folder to train the run again") from error
    if record["metrics"] != _checksum(run):
        raise ConfigError(
            f"{run.metrics}: was edited after the run had ended: its checksum is not that in "
            f"{run.record.name}. Restore it, or delete the folder to train the run again"
        )
    return record


def _require_matching_id(run: RunFolder) -> None:
    recorded = run_id(load_config(run.config))
    if recorded != run.path.name:
        raise ConfigError(
            f"{run.config}: was edited, or the folder renamed: it is the configuration of the run "
            f"{recorded}. Restore it, or delete the folder to train the run again"
        )


def write_record(folder: Path, error: str | None = None) -> None:
    """Write record.json, which records that a run has ended, with the checksum of its metrics.

    Args:
        folder: the run folder.
        error: the reason why the run ended before its last step, if it did and would do so again.
    """
    run = RunFolder(folder)
    write_text(run.record, json.dumps({"error": error, "metrics": _checksum(run)}) + "\n")


def _checksum(run: RunFolder) -> str:
    return hashlib.sha256(run.metrics.read_bytes()).hexdigest() if run.metrics.is_file() else ""
