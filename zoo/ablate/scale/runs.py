"""Tables of finished runs from any source, one row each, on which a verdict across scale is based."""

from __future__ import annotations

import csv
import io
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from zoo.ablate.scale.items import ItemScores
from zoo.ablate.scale.scores import (
    CLUSTERS,
    ITEMS,
    check_outcomes,
    cluster_column,
    outcome_columns,
    read_outcomes,
)
from zoo.ablate.scale.speeds import Speeds
from zoo.ablate.scale.speedup import Cells
from zoo.utils.errors import DataError, did_you_mean
from zoo.utils.files import JSON_BYTES, read_text
from zoo.utils.measures import CROSS_ENTROPY, MEASURES, Measure

REQUIRED = ("variant", "size", "tokens", "seed", "loss")
OPTIONAL = (
    *("rate", "flops", "seconds", ITEMS, "horizon", "trunk", "data", "passes", "overlap", "spikes"),
    *("objective", "parameters", "configured_rate", "second_key", "range"),
    *("commit", "machine", "bfloat16_product"),
)
COUNTS = ("size", "tokens", "horizon", "parameters")
"""The columns whose numbers may end in K, M or B."""
RECORDED = ("run", "config", "worker_seconds", "error", "bits_per_byte")
"""Further columns that `zoo sweep` writes, see `zoo.ablate.lines`; a verdict does not read them."""
SUFFIXES = {"K": 1e3, "M": 1e6, "B": 1e9}
AGAIN = " again"
"""Suffix of the name of a variant that is the baseline with other seeds, as a check (A/A)."""
LONGEST_FIELD = 2**27
"""Largest number of characters of a field, enough for the scores of ten million questions."""
SAME_SIZE = 1e-3
"""Relative difference of sizes or budgets below which they are refused as an oversight."""
SAME_RATE = 1e-6
"""The same of rates, where a computed one may lie next to one that was tried."""


@dataclass(frozen=True)
class Making:
    """The code and the machine that trained a run; "" stands for what is not known.

    Attributes:
        commit: the commit of the code.
        machine: a name of the processor or of the accelerator.
        bfloat16_product: what computed the products of matrices in bfloat16, see `zoo.train.environment`.
    """

    commit: str = ""
    machine: str = ""
    bfloat16_product: str = ""

    @property
    def accelerator(self) -> str:
        """The name of the accelerator, which multiplies bfloat16 by itself; "" stands for a processor."""
        return self.machine if self.bfloat16_product == self.machine else ""


@dataclass(frozen=True)
class FinishedRun:
    """A run that has ended: a row of the table that `zoo verdict` reads.

    Attributes:
        variant: name of the variant.
        size: number of parameters of the model.
        tokens: number of training tokens, to the end of the run's own schedule.
        seed: seed of the run.
        loss: final validation loss, see `RunTable.loss`.
        rate: learning rate.
        flops: floating point operations of the whole run.
        seconds: training time of the whole run.
        outcomes: the scores of questions by the name of the outcome, in the order in which the table names
            them; None where this run has none.
        tuning: whether the run was used to choose the rate; None: it is not known, and inferred from the
            table.
        final: whether the run is one of the comparison, which may have chosen the rate as well; None: it is
            not known, and inferred from the table.
        stopped: whether halving stopped the run because others were better; its loss is infinite here.
        trunk: name of the shared run from which a branch was cooled down.
        data: a name or fingerprint of the order of the training data and of the validation set.
        objective: what was predicted, such as the next token or masked ones; "": it is not known.
        passes: number of passes over the training data.
        overlap: share of the validation text that is in the training text.
        spikes: number of spikes of the loss.
        disturbed: whether the seconds are left out because the speed varied too much.
        place: file and line of the row.
        parameters: number of parameters of the run's own model, if `size` is that of the baseline's.
        second_key: the value of the setting that was tuned besides the rate, such as the weight decay.
        drawn: the lowest and the highest rate that could be drawn, if a random search drew the rate
            log-uniformly; None: it did not.
        broken: the files of the run that could not be read to their end.
        making: the code and the machine that trained the run.
    """

    variant: str
    size: float
    tokens: float
    seed: int
    loss: float
    rate: float | None = None
    flops: float | None = None
    seconds: float | None = None
    outcomes: Mapping[str, ItemScores | None] = field(default_factory=dict)
    trunk: str = ""
    data: str = ""
    objective: str = ""
    passes: float | None = None
    overlap: float | None = None
    spikes: int = 0
    place: str = ""
    disturbed: bool = False
    tuning: bool | None = None
    final: bool | None = None
    stopped: bool = False
    parameters: float | None = None
    second_key: float | None = None
    drawn: tuple[float, float] | None = None
    broken: str = ""
    making: Making = Making()

    @property
    def point(self) -> tuple[float | None, float | None]:
        """The tuned values: the rate and the second key."""
        return self.rate, self.second_key


@dataclass(frozen=True)
class RunTable:
    """The finished runs of all variants, which are compared across sizes.

    Attributes:
        runs: the runs in the order of the file.
        speeds: speeds that were measured side by side; None if there are none.
        left_out: runs that are no part of the comparison because of their rates, and are only named.
        loss: the loss of the runs, one of `zoo.utils.measures.LOSSES`.
        by_parabola: whether the rates of the comparison were computed from parabolas through those that were
            tried, as in ladders of zoo. Such a rate is rounded, and may be one that was tried. False: it is
            not known, so that a rate that was tried counts as the best point of a grid.
    """

    runs: tuple[FinishedRun, ...]
    speeds: Speeds | None = None
    left_out: tuple[FinishedRun, ...] = ()
    loss: Measure = CROSS_ENTROPY
    by_parabola: bool = False

    @property
    def variants(self) -> list[str]:
        """The names of the variants, in the order in which they first appear."""
        return list(dict.fromkeys(run.variant for run in self.runs))

    def of(self, variant: str) -> list[FinishedRun]:
        """The runs of a variant."""
        return [run for run in self.runs if run.variant == variant]

    def require_variant(self, name: str) -> None:
        """Check that the table has runs of a variant.

        Raises:
            DataError: There is no such variant.
        """
        if name not in self.variants:
            raise DataError(f"no variant called '{name}'{did_you_mean(name, self.variants)}")

    def left_out_of(self, variant: str) -> list[FinishedRun]:
        """The runs of a variant that are only named."""
        return [run for run in self.left_out if run.variant == variant]


def cells(runs: Iterable[FinishedRun]) -> dict[float, Cells]:
    """Final losses by size, then by (tokens, seed)."""
    sizes: dict[float, dict[tuple[float, int], float]] = defaultdict(dict)
    for run in runs:
        sizes[run.size][run.tokens, run.seed] = run.loss
    return dict(sizes)


def read_runs(file: Path, cluster: str | None = None) -> RunTable:
    """Read a CSV of runs: variant, size, tokens, seed, loss and any of the columns `OPTIONAL`.

    Numbers of the columns `COUNTS` may end in K, M or B. `items` contains the scores of all questions, at
    most 1 each, separated by blanks, or the name of a file of samples, relative to the table and optionally
    with the metric (`samples.jsonl#acc`); `clusters` contains the names of the questions' clusters. With
    several outcomes the columns are ``items:NAME`` and ``clusters:NAME``, and the first one is judged.
    `horizon` is the number of tokens at which the schedule of the run ends; the other columns are those of
    `FinishedRun`.

    Args:
        file: the table.
        cluster: the field of the questions in files of samples that names their cluster.

    Raises:
        DataError: The file cannot be read, a column is missing or unknown, a value is no number or out of
            range, or rows contradict each other; the message names file, line, column and value.
    """
    names, rows = read_rows(file)
    _check_columns(file, names)
    runs = [run_of_row(f"{file}:{line}", row, file.parent, cluster) for line, row in rows]
    if not runs:
        raise DataError(f"{file}: no rows; expected one per run")
    check_names(file, rows)
    check_runs(runs)
    of_ladder = "config" in names  # the lines of `zoo sweep`
    return RunTable(tuple(runs), loss=only_loss(runs, [row for _, row in rows]), by_parabola=of_ladder)


def loss_of_row(row: Mapping[str, str]) -> Measure:
    """The loss in the column `loss` of a line that `zoo sweep` has written: the metric of the sweep.

    Bits per byte have a column of their own, which has the same number only in the lines of a sweep that
    compares by them.
    """
    bits = MEASURES["bits_per_byte"]
    return bits if row.get(bits.name) == row["loss"] else CROSS_ENTROPY


def only_loss(runs: Sequence[FinishedRun], rows: Sequence[Mapping[str, str]]) -> Measure:
    """The loss that all rows have; those of runs that diverged have none.

    Args:
        runs: the runs.
        rows: the texts of the columns of each run.

    Raises:
        DataError: Rows have different ones.
    """
    found = {loss_of_row(row): run for run, row in zip(runs, rows, strict=True) if math.isfinite(run.loss)}
    if len(found) > 1:
        (one, first), (other, second) = found.items()
        raise DataError(
            f"{second.place}: loss: value {second.loss:g} in {other.short_unit}, and {first.loss:g} of "
            f"{first.place} in {one.short_unit}; expected lines of sweeps with the same metric"
        )
    return next(iter(found), CROSS_ENTROPY)


def read_rows(file: Path) -> tuple[Sequence[str], list[tuple[int, dict[str, str]]]]:
    """The columns of a CSV, and its rows with the numbers of their lines.

    Raises:
        DataError: The file cannot be read, fields are not separated by commas, or a row has another number
            of fields than the header.
    """
    try:
        csv.field_size_limit(LONGEST_FIELD)
        text = read_text(file, JSON_BYTES, DataError).removeprefix("\ufeff")
        reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        names = reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise DataError(f"{file}: cannot be read as CSV: {error}") from error
    if len(names) == 1 and (other := next((mark for mark in ";\t|" if mark in names[0]), "")):
        raise DataError(f"{file}:1: columns separated by {other!r}: {names[0]!r}; expected commas")
    for line, row in rows:
        if None in row or None in row.values():
            raise DataError(f"{file}:{line}: another number of fields than the header has, {len(names)}")
    return names, rows


def check_runs(runs: Sequence[FinishedRun]) -> None:
    """Refuse runs that contradict each other.

    Raises:
        DataError: A run occurs twice with different results, two sizes of a variant are nearly the same,
            or runs have scores of different items.
    """
    seen: dict[tuple[object, ...], FinishedRun] = {}
    for run in runs:
        key = (run.variant, run.size, run.tokens, run.seed, *run.point)
        before = seen.setdefault(key, run)
        if before is not run:
            raise DataError(
                f"{run.place}: the run of variant '{run.variant}', size {run.size:g}, tokens {run.tokens:g}, "
                f"seed {run.seed} stands at {before.place} already (loss {before.loss:.12g}, here "
                f"{run.loss:.12g}); expected one row per run"
            )
    for variant in dict.fromkeys(run.variant for run in runs):
        of_variant = [run for run in runs if run.variant == variant]
        _require_apart(f"variant '{variant}': sizes", {run.size for run in of_variant}, "of one size")
        for size in {run.size for run in of_variant}:
            here = [run for run in of_variant if run.size == size]
            what = f"variant '{variant}', size {size:g}"
            _require_apart(f"{what}: budgets", {run.tokens for run in here}, "of one budget")
            rates = {run.rate for run in here if run.rate is not None}
            _require_apart(f"{what}: rates", rates, "of one rate", SAME_RATE)
            _check_size(what, here)
    for name in dict.fromkeys(name for run in runs for name in run.outcomes):
        found = [(run.place, run.outcomes.get(name)) for run in runs]
        check_outcomes(name, [(place, scores) for place, scores in found if scores is not None])


def _require_apart(what: str, values: set[float], runs: str, same: float = SAME_SIZE) -> None:
    share = "thousandth" if same == SAME_SIZE else "millionth"
    for small, large in pairwise(sorted(values)):
        if large / small - 1 < same:
            raise DataError(
                f"{what} {small:.12g} and {large:.12g} are the same to a {share}; expected numbers that "
                f"differ, or one number for runs {runs}"
            )


def _check_size(what: str, runs: Sequence[FinishedRun]) -> None:
    without = [run for run in runs if run.rate is None]
    if 0 < len(without) < len(runs):
        raise DataError(
            f"{without[0].place}: {what}: no rate, but other runs of this size have one; expected the rate "
            "of all runs or of none"
        )
    for run in runs:
        if run.second_key is not None and run.rate is None:
            raise DataError(f"{run.place}: {what}: second_key without a rate; expected both")
    for column, values in (
        ("second_key", [run.second_key for run in runs]),
        ("range", [run.drawn for run in runs]),
    ):
        if None in values and set(values) != {None}:
            place = runs[values.index(None)].place
            raise DataError(
                f"{place}: {what}: no {column}, but other runs of this size have one; expected that of all "
                "runs or of none"
            )
    trunks: dict[str, int] = {}
    for run in runs:
        if run.trunk and trunks.setdefault(run.trunk, run.seed) != run.seed:
            raise DataError(
                f"{run.place}: trunk {run.trunk}: seeds {trunks[run.trunk]} and {run.seed} are branches of "
                "one run, not independent runs; expected one seed for all branches of a trunk"
            )


def _check_columns(file: Path, names: Sequence[str]) -> None:
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        raise DataError(
            f"{file}:1: no column {', '.join(missing)} in {','.join(names)!r}; expected "
            f"{', '.join(REQUIRED)}, separated by commas, or their names here (--columns {missing[0]}=NAME)"
        )
    outcomes = outcome_columns(names)
    clusters = [cluster_column(name) for name in outcomes]
    known = (*REQUIRED, *OPTIONAL, *RECORDED, *outcomes, *clusters)
    for name in names:
        if name.partition(":")[0] == CLUSTERS and name not in clusters:
            raise DataError(
                f"{file}:1: {name}: there are no scores whose questions have these clusters; expected a "
                f"column '{ITEMS}{name.removeprefix(CLUSTERS)}'"
            )
        if name not in known:
            raise DataError(
                f"{file}:1: unknown column '{name}'{did_you_mean(name, REQUIRED + OPTIONAL)} (with --columns "
                "loss=loss, columns of other names are ignored)"
            )
    if len(set(names)) < len(names):
        raise DataError(f"{file}:1: a column is there twice: {', '.join(names)}")


def check_names(
    file: Path,
    rows: Sequence[tuple[int, dict[str, str]]],
    column: str = "run",
    beside: Sequence[str] = (),
) -> None:
    """Refuse a run with several rows, whose losses were read before the end of its schedule.

    Args:
        file: the table, for the message.
        rows: its rows with the numbers of their lines.
        column: the column with the names of runs, which may be missing.
        beside: further columns by which runs of the same name are told apart.

    Raises:
        DataError: Two rows are of the same run.
    """
    seen: dict[tuple[str, ...], int] = {}
    for line, row in rows:
        name = row.get(column, "").strip()
        key = (name, *(row[other].strip() for other in beside))
        before = seen.setdefault(key, line) if name else line
        if before != line:
            raise DataError(
                f"{file}:{line}: {column}: value {name!r} stands in line {before} already: a ladder is not "
                "read inside one run; expected a run per row, each to the end of its own schedule"
            )


def whole(value: float) -> bool:
    """Whether a number is a whole one of at least 0."""
    return 0 <= value < math.inf and value == int(value)


def number_of(
    place: str, row: Mapping[str, str], name: str, good: Callable[[float], bool], expected: str
) -> float:
    """Parse the number of a column.

    Args:
        place: place of the row.
        row: text by column.
        name: name of the column; those of `COUNTS` may end in K, M or B.
        good: whether a number is in range.
        expected: the range in words.

    Raises:
        DataError: The text is no number, or out of range.
    """
    text = row[name].strip()
    try:
        value = parse_count(text)
    except ValueError:
        value = math.nan
    if name not in COUNTS and text[-1:].upper() in SUFFIXES:
        value, expected = math.nan, f"{expected}; K, M and B are for {', '.join(COUNTS)}"
    if not good(value):
        raise DataError(f"{place}: {name}: value {text!r}: expected {expected}")
    return value


def run_of_row(place: str, row: dict[str, str], folder: Path, cluster: str | None = None) -> FinishedRun:
    """Parse a run from the texts of its columns.

    Args:
        place: place of the row.
        row: text by column.
        folder: the folder that names of files are relative to.
        cluster: the field of the questions in files of samples that names their cluster.

    Raises:
        DataError: A value is no number, or out of range, or a file of samples cannot be read.
    """

    def number(name: str, good: Callable[[float], bool], expected: str) -> float:
        return number_of(place, row, name, good, expected)

    def optional(name: str, good: Callable[[float], bool], expected: str) -> float | None:
        return number(name, good, expected) if row.get(name, "").strip() else None

    def positive(name: str) -> float | None:
        return optional(name, lambda v: 0 < v < math.inf, "a number above 0")

    seed = number("seed", whole, "an integer of at least 0")
    size, tokens = (
        number(name, lambda v: 0 < v < math.inf, "a number above 0") for name in ("size", "tokens")
    )
    loss = number("loss", lambda v: v > 0, "a loss above 0, or inf for a run that diverged")
    horizon = positive("horizon")
    if horizon is not None and abs(horizon / tokens - 1) > SAME_SIZE:
        raise DataError(
            f"{place}: horizon: the schedule ends at {horizon:g} tokens, the loss is that at "
            f"{tokens:g}; a ladder is not read inside one run: expected a run per budget, each "
            "to the end of its own schedule"
        )
    overlap = optional("overlap", lambda v: 0 <= v <= 1, "a share, between 0 and 1")
    spikes = optional("spikes", whole, "an integer of at least 0")
    variant = row["variant"].strip()
    if not variant:
        raise DataError(f"{place}: variant: empty; expected a name")
    if not variant.isprintable():
        raise DataError(f"{place}: variant: value {variant!r}: expected a name without invisible characters")
    return FinishedRun(
        variant=variant,
        size=size,
        tokens=tokens,
        seed=int(seed),
        loss=loss,
        rate=positive("rate") or positive("configured_rate"),
        flops=positive("flops"),
        seconds=positive("seconds"),
        outcomes=read_outcomes(place, row, folder, cluster),
        trunk=row.get("trunk", "").strip(),
        data=row.get("data", "").strip(),
        objective=row.get("objective", "").strip(),
        passes=positive("passes"),
        overlap=overlap,
        spikes=int(spikes or 0),
        place=place,
        parameters=positive("parameters"),
        second_key=positive("second_key"),
        drawn=_range(place, row.get("range", "").strip()),
        making=Making(*(row.get(name, "").strip() for name in ("commit", "machine", "bfloat16_product"))),
    )


def _range(place: str, text: str) -> tuple[float, float] | None:
    """The ends of the range of a random search; None without a text."""
    if not text:
        return None
    try:
        low, high = map(float, text.split())
    except ValueError:
        low = high = math.nan
    if not 0 < low < high < math.inf:
        raise DataError(
            f"{place}: range: value {text!r}: expected the lowest and the highest rate of a log-uniform "
            "random search, separated by a blank, for instance 1e-4 1e-2"
        )
    return low, high


def parse_count(text: str) -> float:
    """Parse a number that may end in K, M or B: 1.5M is 1,500,000. It has no other digits than 0 to 9.

    Raises:
        ValueError: The text is no such number.
    """
    if "_" in text or not text.isascii():  # Python reads 1_5 as 15
        raise ValueError(f"{text!r} is no number")
    factor = SUFFIXES.get(text[-1:].upper(), 1.0)
    return round(float(text[:-1]) * factor, 3) if factor > 1 else float(text)


def parse_counts(text: str, place: str) -> tuple[float, ...]:
    """Parse numbers separated by commas, see `parse_count`.

    Args:
        text: the text.
        place: the place of the text, for the message.

    Raises:
        DataError: A part of the text is no number above 0, or there is none.
    """
    values = []
    for part in text.split(","):
        try:
            values.append(parse_count(part.strip()))
        except ValueError:
            values.append(math.nan)
        if not 0 < values[-1] < math.inf:
            raise DataError(
                f"{place}: value {part.strip()!r}: expected numbers above 0, for instance 0.2M,0.4M"
            )
    return tuple(values)


def format_count(count: float) -> str:
    """A count in short form: 6.4M."""
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= 0.9995 * limit:
            return f"{count / limit:.3g}{unit}"
    return f"{count:.3g}"


def format_counts(counts: Iterable[float]) -> str:
    """Several counts, each in the form of `format_count`."""
    return ", ".join(map(format_count, counts))
