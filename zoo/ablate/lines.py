"""The lines of a ladder: a CSV with a row for every run that has ended, so that run folders may be lost."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from zoo.ablate.identity import digest, portable_settings
from zoo.ablate.outcome import Outcome
from zoo.ablate.run_metrics import read_run_metrics
from zoo.ablate.scale.runs import FinishedRun, read_rows, run_of_row
from zoo.run.config import RunConfig
from zoo.utils.atomic import write_text
from zoo.utils.errors import ConfigError
from zoo.utils.measures import find_measure

COLUMNS = (
    *("variant", "size", "tokens", "seed", "rate", "loss", "bits_per_byte", "flops", "spikes", "data"),
    *("trunk", "run", "config", "commit", "machine", "error"),
)

Key = tuple[str, float, float, int, float | None]
"""What tells the runs of a table apart: variant, size, tokens, seed, rate."""


def key_of(run: FinishedRun) -> Key:
    """The key of a row."""
    return run.variant, run.size, run.tokens, run.seed, run.rate


def config_hash(config: RunConfig) -> str:
    """A digest of all settings that a result depends on, which is the same wherever the files lie."""
    return digest(portable_settings(config))[:16]


@dataclass(frozen=True)
class RunLine:
    """A row.

    Attributes:
        run: as a verdict reads it.
        config: see `config_hash`.
        error: why the run ended before its last step; "": it did not.
    """

    run: FinishedRun
    config: str
    error: str


class Lines:
    """The rows of a CSV, and those that are added to it."""

    def __init__(self, file: Path) -> None:
        """Read the file, if it is there.

        Raises:
            DataError: the file cannot be read, or a row is not as `add` writes it.
            ConfigError: the file has other columns.
        """
        self.file = file
        self._rows: list[Mapping[str, str]] = []
        self._lines: dict[Key, RunLine] = {}
        if not file.exists():
            return
        names, rows = read_rows(file)
        if tuple(names) != COLUMNS:
            raise ConfigError(f"{file}:1: expected the columns {','.join(COLUMNS)}, which `zoo sweep` writes")
        for number, row in rows:
            self._take(row, f"{file}:{number}")

    @property
    def runs(self) -> dict[Key, FinishedRun]:
        """The runs, as a verdict reads them."""
        return {key: line.run for key, line in self._lines.items()}

    def outcome(self, key: Key, config: RunConfig, steps: int) -> Outcome | None:
        """How a run has ended; None if it has no line.

        Args:
            key: of the run.
            config: of the run.
            steps: of the run.

        Raises:
            ConfigError: the line is that of a run with other settings.
        """
        line = self._lines.get(key)
        if line is None:
            return None
        if line.config != config_hash(config):
            raise ConfigError(
                f"{line.run.place}: config: value {line.config}: the sweep file now stands for a run with "
                f"other settings, {config_hash(config)}; expected the sweep file of these lines, or another "
                "`lines`"
            )
        if line.error:
            return Outcome(ended=True, error=line.error)
        return Outcome(steps, {steps: line.run.loss}, ended=True)

    def add(self, key: Key, config: RunConfig, folder: Path, outcome: Outcome, trunk: str) -> None:
        """Add the line of a run that has ended, unless it is there.

        Args:
            key: of the run.
            config: of the run.
            folder: of the run.
            outcome: of the run.
            trunk: the id of the run whose first steps it shares, or "".
        """
        if key in self._lines:
            return
        metrics = read_run_metrics(folder)
        loss = math.inf if outcome.error else outcome.losses[max(outcome.losses)]
        bits = metrics.final(find_measure("bits_per_byte"))
        variant, size, tokens, seed, rate = key
        row: dict[str, object] = {
            "variant": variant,
            "size": f"{size:.0f}",
            "tokens": f"{tokens:.0f}",
            "seed": seed,
            "rate": "" if rate is None else repr(rate),
            "loss": repr(loss),
            "bits_per_byte": "" if bits is None else repr(bits),
            "flops": repr(metrics.validation.total["flops"]) if "flops" in metrics.validation.total else "",
            "spikes": metrics.spikes,
            "data": metrics.data or "",
            "trunk": trunk,
            "run": config.name,
            "config": config_hash(config),
            "commit": metrics.environment.get("git_commit") or "",
            "machine": metrics.environment.get("processor") or "",
            "error": outcome.error or "",
        }
        if metrics.environment.get("device", "cpu") != "cpu":
            row["machine"] = metrics.environment["device"]
        self._take({name: str(value) for name, value in row.items()}, f"{self.file}:{len(self._rows) + 2}")
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.file, text.getvalue())

    def _take(self, row: Mapping[str, str], place: str) -> None:
        run = run_of_row(place, dict(row), self.file.parent)
        before = self._lines.get(key_of(run))
        if before is not None:
            raise ConfigError(f"{place}: this run stands at {before.run.place} already; expected it once")
        self._rows.append(row)
        self._lines[key_of(run)] = RunLine(run, row["config"], row["error"])
