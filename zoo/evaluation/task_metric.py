"""The properties of a task's metric, read before any model is evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from zoo.evaluation.task_report import require_harness
from zoo.utils.errors import ZooError, did_you_mean


@dataclass(frozen=True)
class TaskMetric:
    """A metric of a task.

    Attributes:
        lower_is_better: whether smaller values are better.
        fewshot: number of solved examples in front of each question.
        longest: the longest text whose probability the task asks for.
        questions: the digest of its requests, see `zoo.evaluation.tasks.questions_digest`.
    """

    lower_is_better: bool
    fewshot: int
    longest: str
    questions: str


def task_metric(
    name: str,
    metric: str,
    *,
    task_path: Path | None,
    limit: int | None,
    num_fewshot: int | None,
    context: int | None,
) -> TaskMetric:
    """Read a task with its data, without the network.

    Args:
        name: name of a single task.
        metric: name of one of its metrics, without the filter.
        task_path: a folder with task files, to which paths of data in them are relative.
        limit: number of questions; None: all of them.
        num_fewshot: number of solved examples in front of each question; None: the task's own setting.
        context: largest number of tokens that a model will read; None: any number.

    Raises:
        ZooError: The task or its data cannot be used, it is a group of tasks, it has no such metric, it does
            not state which direction is better, or its generated text leaves no room for a question.
    """
    require_harness()
    from zoo.evaluation.harness import UNLIMITED
    from zoo.evaluation.offline import offline
    from zoo.evaluation.tasks import load_tasks, questions_digest, require_known
    from zoo.evaluation.warnings_only import warnings_only

    with offline(), warnings_only():
        require_known([name], task_path)
        loaded = load_tasks([name], task_path, fewshot=num_fewshot, limit=limit, context=context or UNLIMITED)
    task = loaded["tasks"].get(name)
    if task is None:
        raise ZooError(f"metric: '{name}' is a group of tasks; expected a single one")
    directions: dict[str, bool | None] = task.higher_is_better()
    if metric not in directions:
        raise ZooError(f"metric: task '{name}' has no metric '{metric}'{did_you_mean(metric, directions)}")
    higher = directions[metric]
    if higher is None:
        raise ZooError(f"metric: task '{name}' does not say whether more or less {metric} is better")
    asked = (request.args[1] for request in task.instances if request.request_type == "loglikelihood")
    longest = max(asked, key=lambda text: len(text.encode()), default="")
    fewshot = int(task.get_config("num_fewshot") or 0)
    return TaskMetric(not higher, fewshot, longest, questions_digest(task))
