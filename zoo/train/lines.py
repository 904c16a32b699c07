"""The output of training without a progress bar: a line per log interval, or every record as JSON."""

from __future__ import annotations

import json
import time
from typing import TextIO

from rich.console import Console

from zoo.run.loggers import Logger, Record
from zoo.utils.measures import CROSS_ENTROPY, LOSSES, MEASURES, Measure, with_perplexity
from zoo.utils.progress import format_duration
from zoo.utils.untyped import JsonObject


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
                text = f"loss {record['cross_entropy']:.4f}, lr {record['lr']:.3g}, {speed}{self._left(step)}"
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
        self._stream.write(json.dumps(record) + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Do nothing, because every line has been flushed."""
