"""The tasks of lm-evaluation-harness by name: those of local task files first, then its own."""

from __future__ import annotations

import hashlib
import json
import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, nullcontext
from pathlib import Path
from traceback import extract_tb, walk_tb

import lm_eval.api.task
import numpy as np
from lm_eval.api.registry import METRIC_REGISTRY
from lm_eval.defaults import DEFAULT_OTHER_SEED, DEFAULT_RANDOM_SEED
from lm_eval.tasks import TaskManager

from zoo.evaluation.catalogue import Catalogue
from zoo.evaluation.generation_settings import GenerationSettings
from zoo.evaluation.task_file import (
    HarnessTask,
    is_local,
    misplaced_metric,
    mistake_in,
    shows_its_answer,
    unanswered,
    unknown_aggregation,
)
from zoo.utils.errors import DataError, ZooError, did_you_mean

log = logging.getLogger("zoo")

LoadedTasks = dict[str, dict[str, HarnessTask]]
"""The harness's `tasks` and `groups`, each a dict by name."""


def load_tasks(
    names: Sequence[str], folder: Path | None, *, fewshot: int | None, limit: int | None, context: int
) -> LoadedTasks:
    """Find tasks, read their data and build all their requests, so that errors are reported at once.

    Args:
        names: names of tasks, groups or tags.
        folder: a folder with task files, to which paths of data in them are relative; None: there is none.
        fewshot: number of solved examples in front of each question; None: the task's own setting.
        limit: number of questions of each task; None: all of them.
        context: largest number of tokens that the model reads.

    Returns:
        The tasks and groups, in the form that the harness's `evaluate` takes.

    Raises:
        DataError: The data of a task is not on this machine, a task file has a mistake, or the answer of a
            question of the user's own task is none of its choices.
        ZooError: A name is unknown, or `fewshot` has no effect on a task, is more than its examples, or the
            examples of the user's own task may contain the question that is asked.
    """
    manager = _manager(names, folder)
    loaded: LoadedTasks = {"tasks": {}, "groups": {}}
    # The harness's own command seeds as well, because a task may shuffle.
    random.seed(DEFAULT_RANDOM_SEED)
    np.random.seed(DEFAULT_OTHER_SEED)  # noqa: NPY002
    for name in names:
        settings = _settings(manager, name, folder)
        with nullcontext() if folder is None else chdir(folder), explained(name, folder, settings):
            named = manager.load([name])
        for kind in loaded:
            loaded[kind] |= named.get(kind, {})
    for name, task in loaded["tasks"].items():
        local = is_local(task, folder)
        _prepare(name, task, fewshot, local)
        with explained(name, folder, _settings(manager, name, folder)):
            if task.OUTPUT_TYPE == "generate_until":
                GenerationSettings.from_task(task.config.generation_kwargs, context)
            if local and (problem := unanswered(task, limit)):
                raise DataError(problem)
            task.build_all_requests(limit=limit)
        task.set_fewshot_seed(seed=DEFAULT_OTHER_SEED)
    return loaded


def questions_digest(task: HarnessTask) -> str:
    """The SHA-256 of all requests of a task that `load_tasks` has loaded, in hexadecimal.

    It changes with the questions, their answers, the solved examples in front of them and the settings of a
    generated answer, whatever folder the task is read from.
    """
    requests = [(request.request_type, request.args) for request in task.instances]
    return hashlib.sha256(json.dumps(requests, sort_keys=True, default=str).encode()).hexdigest()


def require_known(names: Sequence[str], folder: Path | None) -> None:
    """Refuse names that no task file has, without parsing those of the harness.

    Args:
        names: names of tasks, groups or tags.
        folder: a folder with task files; None: there is none.

    Raises:
        ZooError: A name is unknown, or `folder` is no folder.
    """
    local = _local(folder)
    others = [name for name in names if local is None or name not in local.all_tasks]
    if not others:
        return
    catalogue = Catalogue()
    for name in others:
        if not catalogue.may_have(name):
            raise _unknown(name, catalogue, local, folder)


def _local(folder: Path | None) -> TaskManager | None:
    """The manager of the local files alone."""
    if folder is None:
        return None
    if not folder.is_dir():
        raise ZooError(f"eval: --task-path {folder}: expected a folder with task files (.yaml)")
    return TaskManager(include_path=folder.resolve(), include_defaults=False)


def _manager(names: Sequence[str], folder: Path | None) -> TaskManager:
    """The manager of the local files alone if they define all names; reading the harness's takes seconds."""
    local = _local(folder)
    if local is not None and all(name in local.all_subtasks for name in names):
        return local
    manager = TaskManager(include_path=None if folder is None else folder.resolve())
    for name in names:
        if name not in manager.all_tasks:
            raise _unknown(name, Catalogue(), local, folder)
    return manager


def _settings(manager: TaskManager, name: str, folder: Path | None) -> Mapping[str, object]:
    """The content of the task file in the folder that defines a single task; empty for any other name."""
    entry = manager.task_index.get(name)
    if folder is None or entry is None or entry.yaml_path is None or entry.cfg is None:
        return {}
    is_single = "group" not in entry.cfg and entry.yaml_path.is_relative_to(folder.resolve())
    return entry.cfg if is_single else {}


def _unknown(name: str, catalogue: Catalogue, local: TaskManager | None, folder: Path | None) -> ZooError:
    """The error about an unknown name, with a similar name, and the tasks and files that exist."""
    problem = f"eval: no task called '{name}'"
    if Path(name).suffix in (".yaml", ".yml"):
        return ZooError(
            f"{problem}; of a task file give the folder, --task-path FOLDER, and --tasks the name behind its "
            "'task:'"
        )
    known = catalogue.names
    if local is None or folder is None:
        looked = (
            f"looked among the {len(known):,} of lm-evaluation-harness; task files of yours: --task-path "
            "FOLDER"
        )
    else:
        there = ", ".join(local.all_tasks) or "none"
        looked = (
            f"looked in {folder} (tasks there: {there}) and among the {len(known):,} of lm-evaluation-harness"
        )
        used = {entry.yaml_path for entry in local.task_index.values()}
        unused = sorted(path.name for path in folder.resolve().rglob("*.yaml") if path not in used)
        if unused:
            looked += f"; not a task, by a mistake in the file or without the key 'task': {', '.join(unused)}"
        known += local.all_tasks
    similar = did_you_mean(name, known)
    return ZooError(problem + (similar if similar.startswith("; did") else "") + f"; {looked}")


def _prepare(name: str, task: HarnessTask, fewshot: int | None, local: bool) -> None:
    """Check the metrics of a task, and check and set the number of its solved examples.

    Args:
        name: the name of the task.
        task: the task.
        fewshot: number of solved examples in front of each question; None: the task's own setting.
        local: whether the task is that of a file of the user's, who can name a split of solved examples.
    """
    metrics = getattr(task, "_metric_fn_list", {})
    for metric, function in metrics.items():
        if function is None and task.config.process_results is None:
            close = did_you_mean(metric, METRIC_REGISTRY)
            raise DataError(f"task '{name}': no metric called '{metric}'{close}")
    if problem := unknown_aggregation(task) or (misplaced_metric(task) if local else None):
        raise DataError(f"task '{name}': {problem}")
    fixed = task.get_config("num_fewshot")
    if fewshot is not None and fixed == 0 != fewshot:
        raise ZooError(
            f"task '{name}': num_fewshot {fewshot} has no effect, as the task itself sets num_fewshot: 0"
        )
    count = (fixed or 0) if fewshot is None else fewshot
    sampler = getattr(task, "sampler", None)
    place = f"task '{name}': num_fewshot is {count}"
    if count and shows_its_answer(task):
        problem = (
            f"{place}, but the task has no split of solved examples, so that they are drawn from its "
            "questions, and the one that is asked may be among them with its answer"
        )
        if local:
            tested = task.config.test_split
            split = f"fewshot_split: {tested}, which leaves that question out" if tested else "another split"
            raise ZooError(
                f"{problem}; expected training_split or fewshot_split in its file, for instance {split}"
            )
        log.warning(f"{problem}; the scores are those of lm-evaluation-harness, and too high")
    if count and sampler is not None:
        # A question that is an example itself is not put in front of itself.
        among = task.fewshot_cfg.split == task.config.test_split
        examples = len(sampler.fewshot_docs())
        most = examples - among
        if examples and count > most:
            raise ZooError(f"{place}, but a question has {most} examples; expected at most {most}")
    task.set_config(key="num_fewshot", value=count)
    task.set_fewshot_seed(seed=DEFAULT_OTHER_SEED)


@contextmanager
def explained(name: str, folder: Path | None, settings: Mapping[str, object]) -> Iterator[None]:
    """Turn any error that a task file, its code or its data raises into one sentence.

    Args:
        name: the name of the task.
        folder: the folder of the user's task files; None: there is none.
        settings: the content of the task's file, in which a mistake is looked for that the harness's error
            may not describe; empty if it is not known.
    """
    try:
        yield
    except ZooError as error:
        raise type(error)(f"task '{name}': {error}") from error
    except Exception as error:
        mistake = mistake_in(settings) if settings else None
        raise DataError(f"task '{name}': {mistake or _reason(error, folder)}") from error


@contextmanager
def explained_scores(names: Sequence[str], folder: Path | None, model: object) -> Iterator[None]:
    """Turn an error that metrics or code of a task raise in an evaluation into one sentence.

    An error of zoo, such as a continuation that is too long, gets the names of the tasks in front.

    Args:
        names: the names of the tasks.
        folder: the folder of their files; None: there is none.
        model: the model that is evaluated, whose own errors are left as they are.
    """
    several = f"tasks {', '.join(names)}" if len(names) > 1 else f"task '{names[0]}'"
    try:
        yield
    except ZooError as error:
        raise type(error)(f"{several}: {error}") from error
    except Exception as error:
        frames = walk_tb(error.__traceback__)
        if any(frame.f_globals.get("__name__") == type(model).__module__ for frame, _ in frames):
            raise
        raise DataError(f"{several}: {_reason(error, folder)}") from error


def _reason(error: BaseException, folder: Path | None) -> str:
    """The cause of an error, in one line."""
    line = " ".join(str(error).split())
    if isinstance(error, ConnectionError):
        return (
            f"its data is not on this machine, and nothing is fetched from the network ({line}); name local "
            "files in a task file of your own: dataset_path: json, dataset_kwargs: {data_files: ...}"
        )
    if isinstance(error, FileNotFoundError) and folder is not None:
        return f"{line}; paths of data are relative to {folder}, the folder of --task-path"
    if error.__cause__ is not None:
        return _reason(error.__cause__, folder)
    if isinstance(error, KeyError) and error.args == (None,):
        return "a metric has no 'aggregation', and the harness knows none for it; expected one, such as mean"
    if isinstance(error, KeyError):
        return f"no {line} in its data, neither a split nor a column"
    frames = extract_tb(error.__traceback__)
    if isinstance(error, IndexError) and frames and frames[-1].filename == lm_eval.api.task.__file__:
        return "the answer of a question is the number of a choice that it does not have; the first one is 0"
    if isinstance(error, StopIteration):
        return "its data is empty"
    kind = type(error).__name__
    if not line:
        return f"{kind}; is something missing in its file, such as doc_to_text?"
    return f"{kind}: {line}{_line_in(folder, error)}"


def _line_in(folder: Path | None, error: BaseException) -> str:
    """The line of a task's own code that raised an error, in brackets; empty if there is none."""
    if folder is None:
        return ""
    frames = reversed(extract_tb(error.__traceback__))
    inside = (frame for frame in frames if Path(frame.filename).is_relative_to(folder.resolve()))
    return next((f" ({frame.filename}:{frame.lineno})" for frame in inside), "")
