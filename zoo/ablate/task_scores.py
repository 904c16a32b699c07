"""The scores of tasks that `zoo eval --tasks` has written into run folders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from zoo.utils.errors import ZooError, did_you_mean
from zoo.utils.files import JSON_BYTES, read_json
from zoo.utils.measures import TASKS, Measure, task_measure
from zoo.utils.run_folder import RunFolder
from zoo.utils.untyped import Json


@dataclass(frozen=True)
class RecordedScore:
    """A score that `zoo eval --tasks` has written into tasks.json.

    Attributes:
        value: the score; None if it is not a finite number.
        higher_is_better: whether larger values are better; None if the task does not state it.
        step: the step of the run's checkpoint; None in files of earlier versions.
        limit: largest number of questions; None: all of them.
        fewshot: number of solved examples in front of each question; None for groups of tasks.
        chat_template: whether the questions were asked in the model's chat template.
        system: the system message in front of the questions; None: there was none.
        questions: digest of the questions; None for groups of tasks, and in files of earlier versions.
    """

    value: float | None
    higher_is_better: bool | None
    step: int | None = None
    limit: int | None = None
    fewshot: int | None = None
    chat_template: bool = False
    system: str | None = None
    questions: str | None = None


def task_scores(run: RunFolder) -> dict[str, RecordedScore]:
    """The scores in a run's tasks.json, by ``tasks/TASK/METRIC``; empty without such a file.

    A score behind a filter of the harness is called ``tasks/TASK/METRIC,FILTER``.

    Raises:
        ZooError: `zoo eval` did not write the file.
    """
    if not run.tasks.is_file():
        return {}
    content: Json = read_json(run.tasks, JSON_BYTES, ZooError)
    try:
        scores = {}
        for s in content["scores"]:
            filtered = "" if s["filter"] == "none" else f",{s['filter']}"
            name = f"{TASKS}/{s['task']}/{s['metric']}{filtered}"
            scores[name] = RecordedScore(
                s["value"],
                s["higher_is_better"],
                content.get("step"),
                content.get("limit"),
                s.get("fewshot"),
                content.get("chat_template", False),
                content.get("system"),
                s.get("questions"),
            )
        return scores
    except (KeyError, TypeError) as error:
        raise ZooError(f"{run.tasks}: is not as `zoo eval --tasks` wrote it: {error!r}") from error


def recorded_task(name: str, runs: Iterable[RunFolder]) -> Measure:
    """A task's score as a measure, with the direction that the runs have recorded.

    Args:
        name: ``tasks/TASK/METRIC``.
        runs: the runs that are compared.

    Raises:
        ZooError: No run has recorded the score, or the task does not state which direction is better.
    """
    known: dict[str, RecordedScore] = {}
    for run in runs:
        known |= task_scores(run)
    if name not in known:
        task = name.split("/")[1]
        how = f"; zoo eval RUN --tasks {task} records it for each run"
        raise ZooError(f"metric: no run has recorded '{name}'{did_you_mean(name, known) if known else how}")
    direction = known[name].higher_is_better
    if direction is None:
        raise ZooError(f"metric: '{name}': the task does not say whether more or less of it is better")
    return task_measure(name, lower_is_better=not direction)
