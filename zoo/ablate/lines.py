"""The lines of a ladder: a CSV with a row for every run that has ended, which replaces its run folder."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from zoo.ablate.identity import digest, portable_settings
from zoo.ablate.outcome import Outcome
from zoo.ablate.run_metrics import read_run_metrics
from zoo.ablate.scale.runs import FinishedRun, loss_of_row, read_rows, run_of_row
from zoo.run.config import RunConfig
from zoo.utils.atomic import write_text
from zoo.utils.errors import ConfigError, DataError
from zoo.utils.measures import CROSS_ENTROPY, Measure, find_measure
from zoo.utils.untyped import Json

COLUMNS = (
    *("variant", "size", "tokens", "seed", "rate", "loss", "bits_per_byte", "flops", "spikes", "data"),
    *("parameters", "configured_rate", "passes", "overlap", "second_key", "range", "objective"),
    *("trunk", "run", "config", "commit", "machine", "bfloat16_product", "worker_seconds", "error"),
)
ADDED = (
    *("worker_seconds", "bfloat16_product", "parameters", "configured_rate", "passes", "overlap"),
    *("second_key", "range", "objective"),
)
"""Columns that older files do not have, in the order in which they were added."""

Key = tuple[str, float, float, int, float | None, float | None]
"""The key that identifies a run in a table: variant, size, tokens, seed, and the tuned values."""


def tuned_values(point: Mapping[str, Json]) -> tuple[float | None, float | None]:
    """The tuned values of a run in a ladder: the rate, which is the first key, and the second key."""
    rate, second, *_ = (*map(float, point.values()), None, None)
    return rate, second


def config_hash(config: RunConfig) -> str:
    """A digest of all settings that a result depends on, independent of the paths of files."""
    return digest(portable_settings(config))[:16]


@dataclass(frozen=True)
class RunLine:
    """A line of a run that has ended.

    Attributes:
        run: the run in the form that a verdict reads.
        row: text by column.
        seconds: wall-clock time of training in a worker, without evaluations; None: it is not known.
    """

    run: FinishedRun
    row: Mapping[str, str]
    seconds: float | None

    @classmethod
    def of(cls, row: Mapping[str, str], place: str) -> Self:
        """Read a row of a file of lines.

        Raises:
            DataError: A value is no number, or out of range.
        """
        run = run_of_row(place, dict(row), Path())
        text = row["worker_seconds"]
        try:
            return cls(run, row, float(text) if text else None)
        except ValueError:
            raise DataError(f"{place}: worker_seconds: value {text!r}: expected a number") from None

    @property
    def key(self) -> Key:
        """The key of the run."""
        rate = float(self.row["rate"]) if self.row["rate"] else None
        return self.run.variant, self.run.size, self.run.tokens, self.run.seed, rate, self.run.second_key

    @property
    def measure(self) -> Measure | None:
        """The measure in the column `loss`, which is that of the sweep; None if the run diverged."""
        return loss_of_row(self.row) if math.isfinite(self.run.loss) else None

    def of_measure(self, measure: Measure) -> FinishedRun:
        """The run with its loss in another measure.

        Args:
            measure: the measure, one of `zoo.utils.measures.LOSSES`.

        Raises:
            DataError: The line does not have it, although the run has a loss.
        """
        if self.measure in (measure, None):
            return self.run
        if not (text := self.row.get(measure.name)):
            raise DataError(
                f"{self.run.place}: the line has no {measure.name}; expected the metric of its sweep, "
                f"{self.measure and self.measure.name}"
            )
        return replace(self.run, loss=float(text))

    @property
    def name(self) -> str:
        """The id of the run."""
        return self.row["run"]

    def outcome(self, steps: int, measure: Measure) -> Outcome:
        """The outcome of the run, which has `steps` steps, by a measure.

        Raises:
            DataError: The line does not have the measure.
        """
        if error := self.row["error"]:
            return Outcome(ended=True, error=error)
        return Outcome(steps, {steps: self.of_measure(measure).loss}, ended=True)


class Lines:
    """The lines in a CSV, to which lines can be added."""

    def __init__(
        self,
        file: Path,
        others: Sequence[Path] = (),
        drawn: tuple[float, float] | None = None,
        measure: Measure = CROSS_ENTROPY,
    ) -> None:
        """Read the files that exist.

        Args:
            file: the file of the lines.
            others: files of other ladders, whose lines represent runs with the same settings.
            drawn: the range from which a random search of this ladder draws the rate; None: a grid.
            measure: the measure of the sweep, one of `zoo.utils.measures.LOSSES`.

        Raises:
            DataError: A file cannot be read, or a row does not have the form that `add` writes.
            ConfigError: A file has other columns.
        """
        self.file, self.others, self._drawn, self._measure = file, tuple(others), drawn, measure
        self._lines: dict[Key, RunLine] = {}
        for line in _read(file):
            self._take(line)
        self._others = {line.row["config"]: line for other in others for line in _read(other)}

    def __iter__(self) -> Iterator[RunLine]:
        """The lines, in the order of the file."""
        return iter(self._lines.values())

    def runs(self, measure: Measure) -> dict[Key, FinishedRun]:
        """The runs by their keys, in the form that a verdict reads, see `RunLine.of_measure`."""
        return {key: line.of_measure(measure) for key, line in self._lines.items()}

    def outcome(self, key: Key, config: RunConfig, steps: int) -> Outcome | None:
        """The outcome of a run; None if it has no line.

        Args:
            key: the key of the run.
            config: the configuration of the run.
            steps: the number of steps of the run.

        Raises:
            ConfigError: The line belongs to a run with other settings, or has the loss of another metric.
            DataError: The line of another ladder does not have the metric of this one.
        """
        line = self._lines.get(key)
        if line is None:
            other = self._other(config)
            return None if other is None else other.outcome(steps, self._measure)
        if line.row["config"] != config_hash(config):
            plugins = ", with its plugins," if config.plugins else ""
            raise ConfigError(
                f"{line.run.place}: config: value {line.row['config']}: the sweep file{plugins} now "
                f"stands for a run with other settings, {config_hash(config)}; expected the sweep file of "
                "these lines, or another `lines`"
            )
        if line.measure is not None and line.measure != self._measure:
            raise ConfigError(
                f"{line.run.place}: loss: value {line.row['loss']}: the line has {line.measure.name}, and "
                f"the sweep now compares by {self._measure.name}; expected the metric of these lines, or "
                "another `lines`"
            )
        return line.outcome(steps, self._measure)

    def is_shared(self, line: RunLine) -> bool:
        """Whether another ladder has the run of a line of this one, so that it was not trained again."""
        return line.row["config"] in self._others

    def _other(self, config: RunConfig) -> RunLine | None:
        """The line of another file for a run with these settings."""
        return self._others.get(config_hash(config)) if self._others else None

    def _taken_over(self, line: RunLine) -> dict[str, str]:
        """The columns of a line of another file, with the loss by the metric of this sweep."""
        return {**line.row, "loss": repr(line.of_measure(self._measure).loss)}

    def require_data(self, fingerprint: str, *former: str) -> None:
        """Check that the lines, and those of other ladders, are of runs that read the data prepared here.

        A sweep that goes on elsewhere may find another corpus under the same settings: that of Python's
        library differs between versions.

        Args:
            fingerprint: the fingerprint of the prepared data.
            *former: the fingerprints that earlier versions gave the same data.

        Raises:
            DataError: A line has another fingerprint.
        """
        for line in (*self, *self._others.values()):
            if (before := line.row["data"]) not in ("", fingerprint, *former):
                raise DataError(
                    f"{line.run.place}: data: value {before}: the data prepared here are {fingerprint}; "
                    "expected the files that the runs of these lines have read, or another `lines`"
                )

    def add(self, key: Key, config: RunConfig, folder: Path, outcome: Outcome, trunk: str) -> None:
        """Add the line of a run that has ended, unless it exists.

        Args:
            key: the key of the run.
            config: the configuration of the run.
            folder: the run folder.
            outcome: the outcome of the run.
            trunk: the id of the run whose first steps the run shares, or "".
        """
        if key in self._lines:
            return
        other = self._other(config)
        known = _measured(config, folder, outcome, trunk) if other is None else self._taken_over(other)
        of_key = _columns_of(key, self._drawn)
        self._take(RunLine.of({**known, **of_key}, f"{self.file}:{len(self._lines) + 2}"))
        self._write()

    def correct(self, correction: Callable[[RunLine], Mapping[str, str]]) -> int:
        """Replace columns of the lines.

        Args:
            correction: a function from a line to its new columns, none of which belongs to its key.

        Returns:
            The number of lines that have changed.
        """
        changed = 0
        for key, line in self._lines.items():
            row = {**line.row, **correction(line)}
            if row != line.row:
                self._lines[key] = RunLine.of(row, line.run.place)
                changed += 1
        if changed:
            self._write()
        return changed

    def _write(self) -> None:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(line.row for line in self)
        write_text(self.file, text.getvalue())

    def _take(self, line: RunLine) -> None:
        before = self._lines.setdefault(line.key, line)
        if before is not line:
            raise ConfigError(
                f"{line.run.place}: this run stands at {before.run.place} already; expected it once"
            )


def _read(file: Path) -> Iterator[RunLine]:
    """The lines of a file; none if the file does not exist."""
    if not file.exists():
        return
    names, rows = read_rows(file)
    versions = [[name for name in COLUMNS if name not in ADDED[count:]] for count in range(len(ADDED) + 1)]
    if names not in versions:
        raise ConfigError(f"{file}:1: expected the columns {','.join(COLUMNS)}, which `zoo sweep` writes")
    for number, row in rows:
        yield RunLine.of({**dict.fromkeys(ADDED, ""), **row}, f"{file}:{number}")


def _columns_of(key: Key, drawn: tuple[float, float] | None) -> dict[str, str]:
    """The columns of the key of a run, and of the range that its rate was drawn from, as texts."""
    variant, size, tokens, seed, rate, second_key = key
    return {
        "variant": variant,
        "size": f"{size:.0f}",
        "tokens": f"{tokens:.0f}",
        "seed": str(seed),
        "rate": "" if rate is None else repr(rate),
        "second_key": "" if second_key is None else repr(second_key),
        "range": "" if drawn is None else f"{drawn[0]!r} {drawn[1]!r}",
    }


def _measured(config: RunConfig, folder: Path, outcome: Outcome, trunk: str) -> dict[str, str]:
    """The columns that are read from a run folder, as texts."""
    metrics = read_run_metrics(folder)
    total = metrics.validation.total if len(metrics.validation) else {}
    seconds = total.get("seconds", math.nan)
    bits = None if outcome.error else metrics.final(find_measure("bits_per_byte"))
    row: dict[str, object] = {
        "loss": repr(math.inf if outcome.error else outcome.losses[max(outcome.losses)]),
        "bits_per_byte": "" if bits is None else repr(bits),
        "flops": repr(total["flops"]) if total.get("flops") else "",  # 0 before the first step
        "spikes": metrics.spikes,
        "data": metrics.data or "",
        "objective": metrics.objective_text,
        "trunk": trunk,
        "run": config.name,
        "config": config_hash(config),
        **asdict(metrics.making),
        "worker_seconds": "" if math.isnan(seconds) else f"{seconds:.1f}",
        "error": outcome.error or "",
        "parameters": metrics.parameters or "",
        "passes": metrics.passes or "",
        "overlap": "" if metrics.overlap is None else metrics.overlap,
        "configured_rate": "" if config.optimizer is None else repr(config.optimizer.lr),
    }
    return {name: str(value) for name, value in row.items()}
