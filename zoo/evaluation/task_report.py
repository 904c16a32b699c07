"""Scores of tasks as a table and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from zoo.utils.atomic import write_text
from zoo.utils.errors import ZooError
from zoo.utils.run_folder import RunFolder

RESAMPLES = 1000
"""For the standard errors that are estimated by the bootstrap."""


@dataclass(frozen=True)
class TaskScore:
    """One number of a task or a group.

    Attributes:
        task: its name.
        metric: such as `acc`.
        filter: what was done to the answers before; `none` for nothing.
        value: of the metric; None: no number.
        stderr: its standard error, None if none is known.
        higher_is_better: None if nobody says.
        fewshot: solved examples in front of each question; None for a group of different ones.
        documents: questions; None for a group.
        version: of the task; None: it has none.
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


@dataclass(frozen=True)
class TaskReport:
    """Scores of a model.

    Attributes:
        model: the path it was read from.
        context: tokens that it read at most; None: any number.
        limit: questions of each task at most; None: all.
        harness: version of lm-evaluation-harness.
        scores: by task, then by metric.
    """

    model: str
    context: int | None
    limit: int | None
    harness: str
    scores: Sequence[TaskScore]

    def to_json(self) -> str:
        """For programs."""
        plain: dict[str, Any] = vars(self) | {"scores": [vars(score) for score in self.scores]}
        return json.dumps(plain, indent=2) + "\n"

    def table(self) -> Table:
        """For the terminal."""
        caption = None if self.limit is None else f"Only the first {self.limit} of each task: for trying out."
        table = Table(box=None, caption=caption, caption_justify="left")
        table.add_column("task", style="cyan", overflow="fold")
        for title in ("examples", "questions", "metric", "value", "± stderr"):
            table.add_column(title, justify="left" if title == "metric" else "right")
        for s in self.scores:
            counts = ("–" if n is None else f"{n:,}" for n in (s.fewshot, s.documents))
            arrow = {True: " ↑", False: " ↓", None: ""}[s.higher_is_better]
            filtered = "" if s.filter == "none" else f" ({s.filter})"
            figures = (_figure(n) for n in (s.value, s.stderr))
            table.add_row(s.task, *counts, f"{s.metric}{filtered}{arrow}", *figures)
        return table


def tasks(
    path: Path,
    names: Sequence[str],
    *,
    task_path: Path | None = None,
    limit: int | None = None,
    num_fewshot: int | None = None,
    contexts: Sequence[int] = (),
    batch_size: int = 8,
    tokenizer: Path | None = None,
    device: str = "auto",
    out: Path | None = None,
) -> tuple[TaskReport, list[Path]]:
    """Evaluate a model on tasks of lm-evaluation-harness, and write the report; without the network.

    Args:
        path: a run, one of its checkpoints, a file of zoo, or a folder as on the Hugging Face hub.
        names: of tasks, groups or tags; at least one.
        task_path: a folder with task files, in which paths of data are relative to it.
        limit: only the first questions of each task, for trying out; None: all.
        num_fewshot: solved examples in front of each question; None: as the task says.
        contexts: tokens that the model reads at most, one number; empty: as in its training.
        batch_size: requests at once.
        tokenizer: the tokenizer's folder; None: it is with the model.
        device: where to compute, see `find_device`.
        out: the .json file; None: ``tasks.json`` in the run's folder, or in the working directory if it
            is no run.

    Returns:
        The report, and the files written.

    Raises:
        ZooError: a model, a task or a setting that cannot be used, or no lm-evaluation-harness; nothing
            was written.
    """
    if find_spec("lm_eval") is None:
        raise ZooError("eval: --tasks needs lm-evaluation-harness: pip install 'zoo[eval]'")
    rules = [
        (bool(names), "no tasks; expected one or more names"),
        (limit is None or limit >= 1, f"limit is {limit}; expected at least 1"),
        (len(contexts) < 2, f"contexts are {list(contexts)}; expected one with tasks"),
        (num_fewshot is None or num_fewshot >= 0, f"num_fewshot is {num_fewshot}; expected 0 or more"),
    ]
    for holds, problem in rules:
        if not holds:
            raise ZooError(f"eval: {problem}")
    if out is None:
        out = (RunFolder(path) if RunFolder(path).exists else RunFolder(Path())).tasks
    if out.suffix != ".json":
        raise ZooError(f"eval: {out}: expected a name that ends in .json")
    from lm_eval.evaluator import evaluate

    from zoo.evaluation.alone import alone
    from zoo.evaluation.harness import UNLIMITED, ZooLM
    from zoo.evaluation.quiet import quiet
    from zoo.evaluation.tasks import load_tasks

    model = ZooLM(path, tokenizer, next(iter(contexts), None), device, batch_size)
    with alone(), quiet():
        loaded = load_tasks(names, task_path, fewshot=num_fewshot, limit=limit, context=model.context)
        results = evaluate(model, loaded, limit=limit, log_samples=False, bootstrap_iters=RESAMPLES)
    report = TaskReport(
        model=str(path),
        context=None if model.context == UNLIMITED else model.context,
        limit=limit,
        harness=version("lm_eval"),
        scores=[score for name in results["results"] for score in _scores(name, results)],
    )
    write_text(out, report.to_json())
    return report, [out]


def _scores(name: str, results: Mapping[str, Any]) -> Iterator[TaskScore]:
    """The numbers of a task or group, whose keys are `metric,filter` and `metric_stderr,filter`."""
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
        )


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}" if value < 1e6 else f"{value:.2e}"


def _number(value: Any) -> float | None:
    """A finite number, or None."""
    is_number = isinstance(value, int | float | np.number) and math.isfinite(value)
    return float(value) if is_number else None
