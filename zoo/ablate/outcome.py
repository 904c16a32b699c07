"""What a run folder tells a sweep: whose run it is, how far it is, how it ended."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from zoo.ablate.identity import run_id
from zoo.run.config import load_config
from zoo.utils.atomic import write_text
from zoo.utils.errors import ConfigError
from zoo.utils.run_folder import RunFolder


@dataclass(frozen=True)
class Outcome:
    """How far a run is.

    Attributes:
        step: of the last line it wrote.
        losses: validation loss by step.
        ended: whether it has all its steps, or cannot get there.
        error: why it cannot, one line; None if it can.
    """

    step: int = 0
    losses: Mapping[int, float] = field(default_factory=dict)
    ended: bool = False
    error: str | None = None

    def loss(self, step: int) -> float | None:
        """The validation loss at a step; infinite for a failed run, None if it is not known yet."""
        return math.inf if self.error is not None else self.losses.get(step)


def read_outcome(folder: Path) -> Outcome:
    """Read a run folder and check that nobody has changed it.

    Args:
        folder: of a run of a sweep, named by the run's id; it need not exist.

    Raises:
        ConfigError: it is not a run, not the one its name says, or not as the run left it.
    """
    if not _has_begun(folder):
        return Outcome()
    run = RunFolder(folder)
    if not run.exists:
        raise ConfigError(f"{folder}: exists and is not a run (no {run.CONFIG}); move it away")
    _require_own_config(folder)
    record = verify(folder)
    lines = run.read_metrics() if run.metrics.is_file() else []
    return Outcome(
        step=max((line["step"] for line in lines), default=0),
        losses={line["step"]: line["cross_entropy"] for line in lines if line["kind"] == "validation"},
        ended=record is not None,
        error=record["error"] if record else None,
    )


def verify(folder: Path) -> dict[str, str] | None:
    """Check that a run that has ended is as it was then.

    Args:
        folder: of a run.

    Returns:
        What vouches for it (record.json); None while it has not ended, and for a run of no sweep.

    Raises:
        ConfigError: its configuration or its metrics were edited.
    """
    run = RunFolder(folder)
    record = _read_record(run)
    if record is None:
        return None
    _require_own_config(folder)
    if record["metrics"] != _checksum(run):
        raise ConfigError(
            f"{run.metrics}: was edited after the run had ended: it is not what "
            f"{run.record.name} vouches for. Restore it, or delete the folder to train the run again"
        )
    return record


def _require_own_config(folder: Path) -> None:
    found = run_id(load_config(folder))
    if found != folder.name:
        raise ConfigError(
            f"{RunFolder(folder).config}: was edited, or the folder renamed: it is the configuration of the "
            f"run {found}. Restore it, or delete the folder to train the run again"
        )


def write_record(folder: Path, error: str | None = None) -> None:
    """Vouch for what a run that has ended wrote down.

    Args:
        folder: the run folder.
        error: why it ended before its last step, if it did: it would do so again.
    """
    run = RunFolder(folder)
    write_text(run.record, json.dumps({"error": error, "metrics": _checksum(run)}) + "\n")


def _has_begun(folder: Path) -> bool:
    """Whether there is more than what a run leaves that was killed while it wrote its first file."""
    return folder.exists() and any(path.suffix != ".partial" for path in folder.iterdir())


def _read_record(run: RunFolder) -> dict[str, str] | None:
    path = run.record
    if not path.is_file():
        return None
    try:
        record: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
        record["error"], record["metrics"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: was edited; delete the folder to train the run again") from error
    return record


def _checksum(run: RunFolder) -> str:
    path = run.metrics
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
