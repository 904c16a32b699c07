"""A table of finished runs, one row each, whoever made them: what a verdict across scale is read from."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from zoo.ablate.scale.speedup import Cells
from zoo.utils.errors import DataError, did_you_mean

REQUIRED = ("variant", "size", "tokens", "seed", "loss")
OPTIONAL = ("rate", "flops", "seconds", "items")
SAME_SIZE = 1e-3
"""Sizes that differ by less than this share count as one, and are refused as an oversight."""


@dataclass(frozen=True)
class FinishedRun:
    """A finished run.

    Attributes:
        variant: what was compared.
        size: parameters of its model.
        tokens: training tokens, to the end of its own schedule.
        seed: of the run.
        loss: final validation loss, in nats.
        rate: learning rate.
        flops: floating point operations of the whole run.
        seconds: training time of the whole run.
        items: the score of every question, in the same order in all runs.
        place: where the row is written.
    """

    variant: str
    size: float
    tokens: float
    seed: int
    loss: float
    rate: float | None = None
    flops: float | None = None
    seconds: float | None = None
    items: tuple[float, ...] | None = None
    place: str = ""


@dataclass(frozen=True)
class RunTable:
    """Runs of several variants.

    Attributes:
        runs: in the order of the file.
    """

    runs: tuple[FinishedRun, ...]

    @property
    def variants(self) -> list[str]:
        """Their names, in the order in which they first appear."""
        return list(dict.fromkeys(run.variant for run in self.runs))

    def of(self, variant: str) -> list[FinishedRun]:
        """A variant's runs."""
        return [run for run in self.runs if run.variant == variant]


def cells(runs: Iterable[FinishedRun]) -> dict[float, Cells]:
    """Final losses by size, then by (tokens, seed)."""
    sizes: dict[float, dict[tuple[float, int], float]] = defaultdict(dict)
    for run in runs:
        sizes[run.size][run.tokens, run.seed] = run.loss
    return dict(sizes)


def read_runs(file: Path) -> RunTable:
    """Read a CSV of runs: variant, size, tokens, seed, loss, and optionally rate, flops, seconds, items.

    Numbers may end in K, M or B. `items` holds the scores of all questions, separated by blanks.

    Raises:
        DataError: a file that cannot be read, a missing or unknown column, a value that is no number or out
            of range, or rows that contradict each other; the message names file, line, column and value.
    """
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream, strict=True)
            _check_columns(file, reader.fieldnames or ())
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file}: cannot be read as CSV: {error}") from error
    runs = [_run(f"{file}:{line}", row) for line, row in rows]
    if not runs:
        raise DataError(f"{file}: no rows; expected one per run")
    check_runs(runs)
    return RunTable(tuple(runs))


def check_runs(runs: Sequence[FinishedRun]) -> None:
    """Refuse runs that contradict each other.

    Raises:
        DataError: one run is there twice with different results, two sizes of a variant are nearly the same,
            or runs have scores of different numbers of items.
    """
    seen: dict[tuple[str, float, float, int, float | None], FinishedRun] = {}
    for run in runs:
        key = (run.variant, run.size, run.tokens, run.seed, run.rate)
        before = seen.setdefault(key, run)
        if before is not run:
            raise DataError(
                f"{run.place}: the run of variant '{run.variant}', size {run.size:g}, tokens {run.tokens:g}, "
                f"seed {run.seed} stands at {before.place} already (loss {before.loss:g}, here "
                f"{run.loss:g}); expected one row per run"
            )
    for variant in dict.fromkeys(run.variant for run in runs):
        sizes = sorted({run.size for run in runs if run.variant == variant})
        for small, large in pairwise(sizes):
            if large / small - 1 < SAME_SIZE:
                raise DataError(
                    f"variant '{variant}': sizes {small:.0f} and {large:.0f} are the same to a thousandth; "
                    "expected sizes that differ, or one number for runs of one size"
                )
    counts = {len(run.items): run.place for run in runs if run.items is not None}
    if len(counts) > 1:
        places = ", ".join(f"{count} at {place}" for count, place in counts.items())
        raise DataError(f"items: different numbers of scores ({places}); expected the same items in each run")


def _check_columns(file: Path, names: Sequence[str]) -> None:
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        raise DataError(f"{file}:1: no column {', '.join(missing)}; expected {', '.join(REQUIRED)}")
    for name in names:
        if name not in REQUIRED + OPTIONAL:
            raise DataError(f"{file}:1: unknown column '{name}'{did_you_mean(name, REQUIRED + OPTIONAL)}")
    if len(set(names)) < len(names):
        raise DataError(f"{file}:1: a column is there twice: {', '.join(names)}")


def _run(place: str, row: dict[str, str]) -> FinishedRun:
    if None in row or None in row.values():
        raise DataError(f"{place}: another number of fields than the header has")

    def number(name: str, good: Callable[[float], bool], expected: str) -> float:
        text = row[name].strip()
        try:
            value = parse_count(text)
        except ValueError:
            value = math.nan
        if not good(value):
            raise DataError(f"{place}: {name}: value {text!r}: expected {expected}")
        return value

    def positive(name: str) -> float | None:
        if not row.get(name, "").strip():
            return None
        return number(name, lambda v: 0 < v < math.inf, "a number above 0")

    seed = number("seed", lambda v: v >= 0 and v == int(v), "an integer")
    values = {
        name: number(name, lambda v: 0 < v < math.inf, "a number above 0") for name in ("size", "tokens")
    }
    loss = number("loss", lambda v: v > 0, "a loss above 0, or inf for a run that diverged")
    scores = row.get("items", "").split()
    try:
        items = tuple(float(score) for score in scores) or None
    except ValueError as error:
        raise DataError(f"{place}: items: {error}; expected numbers separated by blanks") from error
    if not row["variant"].strip():
        raise DataError(f"{place}: variant: empty; expected a name")
    return FinishedRun(
        row["variant"].strip(),
        values["size"],
        values["tokens"],
        int(seed),
        loss,
        positive("rate"),
        positive("flops"),
        positive("seconds"),
        items,
        place,
    )


def parse_count(text: str) -> float:
    """A number that may end in K, M, B: 1.5M is 1,500,000.

    Raises:
        ValueError: it is none.
    """
    factor = {"K": 1e3, "M": 1e6, "B": 1e9}.get(text[-1:].upper(), 1.0)
    return float(text[:-1] if factor > 1 else text) * factor
