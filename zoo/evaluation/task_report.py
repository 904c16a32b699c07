"""The scores of tasks as a table and as JSON."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from rich.console import Group
from rich.text import Text

from zoo.utils.atomic import require_file, warned, write_text
from zoo.utils.errors import ZooError
from zoo.utils.extras import install
from zoo.utils.fitting import FittingTable
from zoo.utils.run_folder import RunFolder
from zoo.utils.untyped import Json, JsonObject

log = logging.getLogger("zoo")

COLUMNS = ("task", "examples", "questions", "metric", "value", "± stderr")
LEFT_OUT = ("examples", "questions")
"""The columns that a narrow terminal does not show, the least important one first."""
RESAMPLES = 1000
"""Number of bootstrap resamples for standard errors that have no formula."""


@dataclass(frozen=True)
class TaskScore:
    """The value of one metric of a task or a group.

    Attributes:
        task: name of the task or group.
        metric: name of the metric, such as `acc`.
        filter: name of the harness's filter of the model's answers; `none` if there is no filter.
        value: value of the metric; None if it is not a finite number.
        stderr: standard error of the value; None if it is unknown.
        higher_is_better: whether larger values are better; None if the task does not state it.
        fewshot: number of solved examples in front of each question; None for a group whose tasks differ.
        documents: number of questions; None for a group.
        version: version of the task; None if it has none.
        questions: digest of the questions, without the model's chat template; None for a group.
    """

    task: str
    metric: str
    filter: str
    value: float | None
    stderr: float | None
    higher_is_better: bool | None
    fewshot: int | None
    documents: int | None
    version: str | None
    questions: str | None


@dataclass(frozen=True)
class TaskReport:
    """The scores of a model on tasks of lm-evaluation-harness, with the settings of the evaluation.

    Attributes:
        model: the path that the model was loaded from.
        step: the step of the run's checkpoint; None if the model is not one of a run.
        context: largest number of tokens that the model reads; None: any number.
        limit: largest number of questions of each task; None: all of them.
        harness: version of lm-evaluation-harness.
        chat_template: whether the questions were asked in the model's chat template.
        system: the system message in front of the questions; None: there was none.
        scores: the scores, sorted by task, then by metric.
    """

    model: str
    step: int | None
    context: int | None
    limit: int | None
    harness: str
    chat_template: bool
    system: str | None
    scores: Sequence[TaskScore]

    def to_json(self) -> str:
        """The report as JSON."""
        plain: JsonObject = vars(self) | {"scores": [vars(score) for score in self.scores]}
        return json.dumps(plain, indent=2) + "\n"

    def table(self) -> Group:
        """The report as a table for the terminal, and a note on it."""
        rows = []
        for s in self.scores:
            counts = ("–" if n is None else f"{n:,}" for n in (s.fewshot, s.documents))
            arrow = {True: " ↑", False: " ↓", None: ""}[s.higher_is_better]
            filtered = "" if s.filter == "none" else f" ({s.filter})"
            figures = (_figure(n) for n in (s.value, s.stderr))
            rows.append([s.task, *counts, f"{s.metric}{filtered}{arrow}", *figures])
        table = FittingTable("", COLUMNS, rows, LEFT_OUT, [*LEFT_OUT, *COLUMNS[-2:]], lines=False)
        notes = [] if self.limit is None else [f"Only the first {self.limit} of each task: for trying out."]
        return Group(table, *map(Text, notes))


def tasks(
    path: Path,
    names: Sequence[str],
    *,
    task_path: Path | None = None,
    limit: int | None = None,
    num_fewshot: int | None = None,
    contexts: Sequence[int] = (),
    batch_size: int | None = None,
    tokenizer: Path | None = None,
    device: str = "auto",
    out: Path | None = None,
    chat_template: bool = False,
    system: str | None = None,
    show: Callable[[TaskReport], object] | None = None,
) -> tuple[TaskReport, list[Path]]:
    """Evaluate a model on tasks of lm-evaluation-harness without the network, and write the report.

    Args:
        path: a run, one of its checkpoints, a .safetensors file, or a folder in the hub's format.
        names: names of tasks, groups or tags; at least one.
        task_path: a folder with task files, to which paths of data in them are relative.
        limit: number of questions of each task, for trying out; None: all of them.
        num_fewshot: number of solved examples in front of each question; None: the task's own setting.
        contexts: the largest number of tokens that the model reads, at most one number; empty: the context of
            its training.
        batch_size: number of requests in a batch; None: 8.
        tokenizer: the folder of the tokenizer; None: the one that is stored with the model.
        device: name of the device, see `find_device`.
        out: the .json file to write; None: ``tasks.json`` in the run folder, or in the working directory if
            `path` is not a run; if that cannot be written, a warning says so.
        chat_template: whether questions are asked in the model's chat template, with solved examples as
            earlier turns of the conversation.
        system: the system message in front of the questions; None: there is none.
        show: a function that receives the report before it is written.

    Returns:
        The report, and the files that were written.

    Raises:
        ZooError: The model, a task or a setting cannot be used, or lm-evaluation-harness is not installed;
            nothing is written then.
        CheckpointError: `out` cannot be written.
    """
    require_harness()
    rules = [
        (bool(names), "no tasks; expected one or more names"),
        (limit is None or limit >= 1, f"limit is {limit}; expected at least 1"),
        (len(contexts) < 2, f"contexts are {list(contexts)}; expected one with tasks"),
        (system is None or chat_template, "a system message has no effect without the chat template"),
        (num_fewshot is None or num_fewshot >= 0, f"num_fewshot is {num_fewshot}; expected 0 or more"),
    ]
    for holds, problem in rules:
        if not holds:
            raise ZooError(f"eval: {problem}")
    is_named = out is not None
    if out is None:
        out = (RunFolder(path) if RunFolder(path).exists else RunFolder(Path())).tasks
    if out.suffix != ".json":
        raise ZooError(f"eval: {out}: expected a name that ends in .json")
    if is_named:
        require_file(out)
    from lm_eval.evaluator import evaluate

    from zoo.evaluation.harness import UNLIMITED, ZooLM
    from zoo.evaluation.offline import offline
    from zoo.evaluation.perplexity import BATCH_SIZE
    from zoo.evaluation.tasks import explained_scores, load_tasks, questions_digest, require_known
    from zoo.evaluation.warnings_only import warnings_only

    with warnings_only():
        require_known(names, task_path)
    checkpoint = RunFolder(path).checkpoint() if RunFolder(path).exists else None
    at_once = BATCH_SIZE if batch_size is None else batch_size
    model = ZooLM(path, tokenizer, next(iter(contexts), None), device, at_once)
    with offline(), warnings_only():
        loaded = load_tasks(names, task_path, fewshot=num_fewshot, limit=limit, context=model.context)
        questions = {name: questions_digest(task) for name, task in loaded["tasks"].items()}
        if chat_template:
            model.apply_chat_template(
                [{"role": "user", "content": "a"}]
            )  # raises the error of an unusable template
        with explained_scores(list(loaded["tasks"]), task_path, model):
            results = evaluate(
                model,
                loaded,
                limit=limit,
                log_samples=False,
                bootstrap_iters=RESAMPLES,
                system_instruction=system,
                apply_chat_template=chat_template,
                fewshot_as_multiturn=chat_template,
            )
    report = TaskReport(
        model=str(path),
        step=None if checkpoint is None else checkpoint.named_step,
        context=None if model.context == UNLIMITED else model.context,
        limit=limit,
        harness=version("lm_eval"),
        chat_template=chat_template,
        system=system,
        scores=[
            score for name in results["results"] for score in _scores(name, results, questions.get(name))
        ],
    )
    for name, task in loaded["tasks"].items():
        scored = {score.metric for score in report.scores if score.task == name}
        if missing := [metric for metric in task.higher_is_better() if metric not in scored]:
            log.warning(
                "eval: task '%s': no score of %s, which the harness does not compute for output_type %s",
                name,
                ", ".join(missing),
                task.OUTPUT_TYPE,
            )
    if show is not None:
        show(report)
    with warned(unless=is_named):
        write_text(out, report.to_json())
        return report, [out]
    return report, []


def require_harness() -> None:
    """Check that lm-evaluation-harness is installed.

    Raises:
        ZooError: The package lm_eval is missing.
    """
    if find_spec("lm_eval") is None:
        raise ZooError(f"eval: --tasks needs lm-evaluation-harness: {install('eval')}")


def _scores(name: str, results: JsonObject, questions: str | None) -> Iterator[TaskScore]:
    """The scores of a task or group; the harness calls them `metric,filter` and `metric_stderr,filter`."""
    numbers = {key: value for key, value in results["results"][name].items() if "," in key}
    documents = results["n-samples"].get(name)
    unversioned = results["versions"].get(name) in (None, "Yaml")
    for key, value in numbers.items():
        metric, _, filtered = key.partition(",")
        if metric.endswith("_stderr"):
            continue
        yield TaskScore(
            task=name,
            metric=metric,
            filter=filtered,
            value=_number(value),
            stderr=_number(numbers.get(f"{metric}_stderr,{filtered}")),
            higher_is_better=results["higher_is_better"].get(name, {}).get(metric),
            fewshot=results["n-shot"].get(name),
            documents=None if documents is None else documents["effective"],
            version=None if unversioned else str(results["versions"][name]),
            questions=questions,
        )


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}" if value < 1e6 else f"{value:.2e}"


def _number(value: Json) -> float | None:
    """A finite number, or None."""
    is_number = isinstance(value, int | float | np.number) and math.isfinite(value)
    return float(value) if is_number else None
