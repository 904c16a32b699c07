"""The output of training without a progress bar: a line per log interval, or every record as JSON."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO, TextIO

from rich.console import Console

from zoo.run.loggers import Logger, Record
from zoo.train.records import json_line
from zoo.utils.measures import CROSS_ENTROPY, LOSSES, MEASURES, Measure, with_perplexity
from zoo.utils.progress import format_duration
from zoo.utils.untyped import JsonObject

CLOSED = "the output was closed by its reader: training saves and stops; go on with --resume"
"""The message when nobody reads the lines any more."""


def validation_in_words(measured: JsonObject, judged: Measure = CROSS_ENTROPY) -> str:
    """A validation loss in nats per target, with the bits per byte or the accuracy where they are known.

    Args:
        measured: the values of a validation by the names of their measures.
        judged: the measure that selects the best checkpoint, which is shown as well.
    """
    bits = measured.get("bits_per_byte")
    text = f"{measured['cross_entropy']:.4f}"
    text += "" if bits is None else f" ({bits:.4f} bits/byte)"
    known = with_perplexity(measured)
    shown = [name for name in dict.fromkeys(("accuracy", judged.name)) if name in known]
    others = [name for name in shown if name not in LOSSES]
    return ", ".join([text, *(f"{MEASURES[name].title} {known[name]:.4f}" for name in others)])


class TrainingLines(Logger):
    """Lines for people: the step, the loss, the learning rate, the speed and the remaining time."""

    def __init__(
        self, console: Console, start: int, steps: int, unit: str, judged: Measure = CROSS_ENTROPY
    ) -> None:
        """Begin to measure the time.

        Args:
            console: where to print.
            start: number of steps done before.
            steps: total number of steps.
            unit: unit of the speed, in the plural.
            judged: the measure that selects the best checkpoint, which is shown as well.
        """
        self._console, self._start, self._steps, self._unit = console, start, steps, unit
        self._judged = judged
        self._begin = time.monotonic()

    def write(self, record: Record) -> None:
        """Print a line for model sizes, losses and spikes; measurements of matrices are not printed."""
        step = record["step"]
        match record["kind"]:
            case "size":
                text = f"{record['parameters']:,} parameters"
            case "train":
                speed = f"{record['timing']['tokens_per_second']:,.0f} {self._unit}/s"
                loss = record["cross_entropy"]
                shown = "not a number" if loss is None else f"{loss:.4f}"
                text = f"loss {shown}, lr {record['lr']:.3g}, {speed}{self._left(step)}"
            case "validation":
                text = f"validation loss {validation_in_words(record, self._judged)}"
            case "spike":
                text = f"loss spike, {record['action']}"
            case _:
                return
        line = f"step {step}/{self._steps}: {text}"
        self._console.print(line, soft_wrap=True, highlight=False, markup=False)

    def _left(self, step: int) -> str:
        """The time that the remaining steps take at the speed of this session, evaluations included."""
        per_step = (time.monotonic() - self._begin) / max(1, step - self._start)
        return f", {format_duration(per_step * (self._steps - step))} left" if step < self._steps else ""

    def close(self) -> None:
        """Do nothing, because every line has been flushed."""


class RecordLines(Logger):
    """The records of metrics.jsonl as they are written there, for programs."""

    def __init__(self, stream: TextIO) -> None:
        """Write to `stream`, which stays open."""
        self._stream = stream

    def write(self, record: Record) -> None:
        """Write and flush a record as one line of JSON."""
        self._stream.write(json_line(record))
        self._stream.flush()

    def close(self) -> None:
        """Do nothing, because every line has been flushed."""


class WhileRead(Logger):
    """Another logger, until the reader of its stream closes it, as `head` does; then training is to stop."""

    def __init__(self, shown: Logger, stream: IO[str], stop: Callable[[], None]) -> None:
        """Show records as before.

        Args:
            shown: the logger that writes to `stream`.
            stream: the stream, which stays open.
            stop: a function that asks training to save and stop.
        """
        self._shown, self._stream, self._stop = shown, stream, stop
        self._is_read = True

    def write(self, record: Record) -> None:
        """Show a record, unless the reader is gone."""
        if not self._is_read:
            return
        try:
            self._shown.write(record)
        except BrokenPipeError:
            self._is_read = False
            self._stop()
            _discard(self._stream)
            try:
                print(CLOSED, file=sys.stderr, flush=True)
            except BrokenPipeError:
                _discard(sys.stderr)

    def close(self) -> None:
        """Close the other logger."""
        self._shown.close()


def _discard(stream: IO[str]) -> None:
    """Discard what is still written to a stream without a reader, also when Python flushes it at its end."""
    with suppress(OSError):  # a stream that is no file has nothing to discard
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
