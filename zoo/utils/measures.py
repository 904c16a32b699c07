"""The measures of runs and their directions, for all of zoo."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from zoo.utils.errors import did_you_mean

TASKS = "tasks"
"""The first part of the names of task scores: ``tasks/TASK/METRIC``."""

LARGEST_NATS = 700.0
"""Largest number of nats whose exponential is a finite float."""


@dataclass(frozen=True)
class Measure:
    """A measure of the quality of a run.

    Attributes:
        name: the name that a user writes: a key of `MEASURES`, ``FILE/KEY`` for one of several validation
            files, or ``tasks/TASK/METRIC`` for a score that `zoo eval --tasks` has recorded.
        title: the name in tables and sentences.
        unit: the unit; empty if there is none.
        lower_is_better: whether smaller values are better.
    """

    name: str
    title: str
    unit: str
    lower_is_better: bool

    def cost(self, value: float) -> float:
        """The value, negated if larger values are better, so that less is always better; its own inverse."""
        return value if self.lower_is_better else -value

    @property
    def is_loss(self) -> bool:
        """Whether the measure is the validation loss, in nats, of the first validation file."""
        return self.name == CROSS_ENTROPY.name

    @property
    def short_unit(self) -> str:
        """The unit of a loss in sentences and at axes: nats, or bits per byte."""
        return "nats" if self.is_loss else self.title

    @property
    def is_task(self) -> bool:
        """Whether the measure is taken after training, by `zoo eval --tasks`."""
        return self.name.startswith(f"{TASKS}/")


CROSS_ENTROPY = Measure("cross_entropy", "loss", "nats per target", lower_is_better=True)

MEASURES: Mapping[str, Measure] = {
    measure.name: measure
    for measure in (
        CROSS_ENTROPY,
        Measure("perplexity", "perplexity", "per target", lower_is_better=True),
        Measure("bits_per_byte", "bits per byte", "bits per byte of text", lower_is_better=True),
        Measure("accuracy", "accuracy", "share of the targets", lower_is_better=False),
        Measure("f1", "F1", "", lower_is_better=False),
        Measure("matthews", "Matthews' correlation", "", lower_is_better=False),
    )
}
"""All measures of a validation by name."""


LOSSES = ("cross_entropy", "bits_per_byte")
"""Measures that fall with training as losses do, on which a verdict over several sizes is based."""

PER_TARGET = frozenset({"cross_entropy", "perplexity"})
"""Measures that are a mean over targets, or follow from one; of texts, these are tokens."""
OF_CLASSIFIERS = frozenset({"cross_entropy", "accuracy", "f1", "matthews"})
OF_TEXTS = frozenset({"cross_entropy", "perplexity", "bits_per_byte"})


def find_measure(name: str) -> Measure:
    """A measure by its name.

    The direction of a task's score is the one that the task itself records with it (`task_measure`); the one
    returned here for such a name is only a placeholder.

    Args:
        name: the name that a user writes, see `Measure`.

    Raises:
        ValueError: There is no such measure.
    """
    if name.startswith(f"{TASKS}/"):
        if name.count("/") < 2 or not all(name.split("/")):
            raise ValueError(f"'{name}': expected {TASKS}/TASK/METRIC, for instance {TASKS}/lambada/acc")
        return task_measure(name, lower_is_better=False)
    file, _, key = name.rpartition("/")
    if key not in MEASURES:
        raise ValueError(f"'{name}' is no measure{did_you_mean(key, MEASURES)}")
    known = MEASURES[key]
    return replace(known, name=name, title=f"{known.title} on {file}") if file else known


def task_measure(name: str, lower_is_better: bool) -> Measure:
    """The score of a task, ``tasks/TASK/METRIC``, with the direction that the task declares."""
    task, metric = name.removeprefix(f"{TASKS}/").rsplit("/", 1)
    return Measure(name, f"{metric} on {task}", "", lower_is_better)


def require_recorded(measure: Measure, recorded: Iterable[str]) -> None:
    """Refuse a measure that is not recorded.

    Args:
        measure: the requested measure.
        recorded: the names of the recorded measures.

    Raises:
        ValueError: The measure is not among `recorded`.
    """
    names = sorted(set(recorded))
    if measure.name not in names:
        known = f"expected one of {', '.join(names)}" if names else "there are no validation examples"
        raise ValueError(f"'{measure.name}' is not recorded; {known}")


def with_perplexity(values: Mapping[str, float]) -> dict[str, float]:
    """The values of a validation and, unless they are those of a classifier, the perplexity.

    Args:
        values: values by the names in `MEASURES`; `cross_entropy` is in nats per target.
    """
    if "accuracy" in values or "cross_entropy" not in values:
        return dict(values)
    return {**values, "perplexity": math.exp(min(values["cross_entropy"], LARGEST_NATS))}
