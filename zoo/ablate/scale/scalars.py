"""Runs in event files of TensorBoard, or in scalars that it has exported as CSV: one per folder or file."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from zoo.ablate.scale.runs import (
    OPTIONAL,
    REQUIRED,
    SUFFIXES,
    RunTable,
    check_runs,
    number_of,
    read_rows,
    run_of_row,
    whole,
)
from zoo.utils.errors import DataError, did_you_mean
from zoo.utils.extras import install

EVENTS = "events.out.tfevents.*"
HEADER = ["Wall time", "Step", "Value"]
"""The header of a scalar that TensorBoard has exported as CSV."""
TEXTS = ("variant", "items", "trunk", "data", "objective", "range", "commit", "machine", "bfloat16_product")
"""The columns that hold texts; a part of a name that stands for another one is a number."""
NUMBER = rf"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?i:{'|'.join(SUFFIXES)})?"
"""The regular expression of a number; `number_of` refuses the suffixes of other columns than `COUNTS`."""


def read_scalars(
    paths: Sequence[Path], pattern: str, tag: str | None, tokens_per_step: float | None
) -> RunTable:
    """Read event files, or scalars that TensorBoard has exported: one per run, described by its name.

    Args:
        paths: folders with event files, or exported scalars.
        pattern: the pattern of their names, such as ``{variant}-{size}-s{seed}``; ``{}`` stands for a part
            that is not read.
        tag: the name of the loss in event files.
        tokens_per_step: number of tokens per step, to convert the last step to tokens.

    Raises:
        DataError: A name does not match the pattern, the tokens of a step are no number above 0, or a file
            cannot be read.
    """
    fields = re.findall(r"{(\w+)}", pattern)
    known = REQUIRED + OPTIONAL
    for name in fields:
        if name not in known:
            raise DataError(f"--pattern: no column '{name}'{did_you_mean(name, known)}")
    needed = [name for name in ("variant", "size", "seed") if name not in fields]
    if needed or len(set(fields)) < len(fields) or (tokens_per_step is None) == ("tokens" not in fields):
        raise DataError(
            f"--pattern {pattern}: expected {{variant}}, {{size}} and {{seed}}, each once, and either "
            "{tokens} or --tokens-per-step"
        )
    if tokens_per_step is not None and not 0 < tokens_per_step < math.inf:
        raise DataError(f"--tokens-per-step: value {tokens_per_step:g}: expected a number above 0")
    parts = re.split(r"({\w*})", pattern)
    # The second one also matches texts that are no numbers, which are then named with their column.
    texts = ["".join(_regex(part, number) for part in parts) for number in (NUMBER, ".+?")]
    runs = []
    for path in paths:
        name = path.stem if path.is_file() and path.suffix == ".csv" else path.name
        match = next(filter(None, (re.fullmatch(text, name) for text in texts)), None)
        if match is None:
            raise DataError(f"{path}: the name does not match the pattern {pattern}")
        step, loss = _last_exported(path) if path.is_file() else _last_event(path, tag)
        # A loss that was recorded and is no number is that of a run that diverged.
        row = match.groupdict() | {"loss": str(math.inf if math.isnan(loss) else loss)}
        if tokens_per_step is not None:
            row["tokens"] = str(step * tokens_per_step)
        broken = [] if path.is_file() else [str(file) for file in _event_files(path) if _is_broken(file)]
        runs.append(replace(run_of_row(str(path), row, path.parent), broken=", ".join(broken)))
    check_runs(runs)
    return RunTable(tuple(runs))


def _regex(part: str, number: str) -> str:
    """The regular expression of a part of a pattern; ``{}`` is any text, which is not read.

    Args:
        part: the part.
        number: the regular expression of the columns that are numbers.
    """
    if part == "{}":
        return ".+?"
    name = part[1:-1]
    return f"(?P<{name}>{'.+?' if name in TEXTS else number})" if part.startswith("{") else re.escape(part)


def _event_files(path: Path) -> list[Path]:
    return sorted(path.rglob(EVENTS))


def _last_event(path: Path, tag: str | None) -> tuple[int, float]:
    """The last step of a scalar in event files, and its value, which is NaN if the run diverged."""
    folders = sorted({file.parent for file in _event_files(path)})
    if not folders:
        raise DataError(f"{path}: no event files ({EVENTS})")
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError as error:
        raise DataError(f"event files need tensorboard: {install('tensorboard')}") from error
    last_values: dict[Path, tuple[int, float]] = {}
    tags: set[str] = set()
    for folder in folders:
        events = EventAccumulator(str(folder))
        events.Reload()
        here: list[str] = events.Tags()["scalars"]
        # TensorFlow 2 and what writes through it store scalars as tensors, with the name of their plugin.
        plugins = {name: data.plugin_data.plugin_name for name, data in events.summary_metadata.items()}
        as_tensors = [name for name in events.Tags()["tensors"] if plugins.get(name) == "scalars"]
        tags |= {*here, *as_tensors}
        if tag in here or tag in as_tensors:
            recorded = events.Scalars(tag) if tag in here else events.Tensors(tag)
            last = max(recorded, key=lambda event: (event.step, event.wall_time))
            value = last.value if tag in here else make_ndarray(last.tensor_proto)
            last_values[folder] = last.step, float(value)
    if not last_values:
        given = "--tag: missing" if tag is None else f"--tag {tag}"
        broken = [f"; {file} ends inside a record" for file in _event_files(path) if _is_broken(file)]
        known = ", ".join(sorted(tags)) or "no scalar"
        raise DataError(f"{path}: {given}: expected one of {known}{''.join(broken)}")
    if len(last_values) > 1:
        raise DataError(
            f"{path}: --tag {tag}: {' and '.join(map(str, last_values))} both have it; expected the "
            "folder of one run"
        )
    return next(iter(last_values.values()))


def _is_broken(file: Path) -> bool:
    """Whether an event file ends inside a record, or holds a damaged one, where TensorBoard stops to read it.

    TensorBoard says so in its debug log only.
    """
    from tensorboard.compat.tensorflow_stub.errors import DataLossError, OutOfRangeError
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New

    reader = PyRecordReader_New(str(file))
    try:
        while True:
            reader.GetNext()
    except OutOfRangeError:  # the regular end
        return False
    except DataLossError:
        return True


def _last_exported(file: Path) -> tuple[int, float]:
    """The last step of a scalar that was exported as CSV, and its value, maybe NaN; 100.0 is the step 100."""
    names, rows = read_rows(file)
    if list(names) != HEADER or not rows:
        raise DataError(
            f"{file}:1: columns {','.join(names)!r} and {len(rows)} rows; expected a scalar that TensorBoard "
            f"has exported: the columns {','.join(HEADER)} and a row"
        )
    _, step, value = HEADER
    steps = {}
    for line, row in rows:
        place = f"{file}:{line}"
        number = number_of(place, row, step, whole, "an integer of at least 0")
        is_nan = row[value].strip().lower() == "nan"
        loss = math.nan if is_nan else number_of(place, row, value, lambda v: not math.isnan(v), "a number")
        steps[int(number)] = loss
    return max(steps.items())
