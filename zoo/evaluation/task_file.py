"""Mistakes in the file and the data of a task that lm-evaluation-harness does not report, or not in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeAlias

from lm_eval.api.registry import AGGREGATION_REGISTRY
from lm_eval.config.task import TaskConfig

from zoo.utils.errors import did_you_mean

HarnessTask: TypeAlias = Any
"""A task or group of lm-evaluation-harness. Any: the package has no types, and need not be installed."""

STRUCTURE = {"task", "tag", "group", "task_list", "include", "class"}
"""Keys of a task file that are no settings of the task."""
METRICS = {
    "loglikelihood": {"perplexity", "acc"},
    "loglikelihood_rolling": {"word_perplexity", "byte_perplexity", "bits_per_byte"},
    "multiple_choice": {
        *("acc", "acc_norm", "acc_bytes", "acc_mutual_info"),
        *("f1", "mcc", "exact_match", "brier_score", "likelihood"),
    },
}
"""The metrics that the harness computes for each output type but `generate_until`, which has all others."""
LOCAL_FORMATS = ("json", "csv", "parquet", "text")
"""Values of `dataset_path` that stand for files, which `dataset_kwargs` names."""


def mistake_in(settings: Mapping[str, object]) -> str | None:
    """Find the first key of a task file that is unknown or missing.

    Only for a file with which the harness has failed: what is missing here may be found in another way.

    Args:
        settings: the content of the file of a single task, with that of the files that it includes.

    Returns:
        A sentence about the mistake; None if there is none, or if the task is a class.
    """
    if "class" in settings:
        return None
    known = {field.name for field in fields(TaskConfig)} | STRUCTURE
    for key in settings:
        if key not in known:
            return f"no key called '{key}'{did_you_mean(key, known)}"
    kind = settings.get("output_type", "generate_until")
    wanted = {
        "dataset_path": settings.get("custom_dataset") is None,
        "dataset_kwargs": settings.get("dataset_path") in LOCAL_FORMATS,
        "test_split": settings.get("validation_split") is None,
        "doc_to_text": settings.get("use_prompt") is None,
        "doc_to_target": settings.get("use_prompt") is None,
        "doc_to_choice": kind == "multiple_choice" and settings.get("use_prompt") is None,
    }
    missing = [key for key, is_wanted in wanted.items() if is_wanted and settings.get(key) is None]
    return f"no key '{missing[0]}' in its file; expected one with output_type {kind}" if missing else None


def unknown_aggregation(task: HarnessTask) -> str | None:
    """A sentence about the first metric whose aggregation does not exist; None if there is none."""
    for metric in task.get_config("metric_list") or ():
        name = metric.get("aggregation")
        if isinstance(name, str) and name not in AGGREGATION_REGISTRY:
            close = did_you_mean(name, AGGREGATION_REGISTRY)
            return f"metric {metric['metric']} has no aggregation called '{name}'{close}"
    return None


def misplaced_metric(task: HarnessTask) -> str | None:
    """A sentence about the first metric that the harness does not compute for the task's output type.

    Such a metric is left out without a word, or ends in an error after all questions were answered.

    Returns:
        The sentence; None if there is no such metric, or if the task computes scores by code of its own.
    """
    if task.get_config("process_results") is not None:
        return None
    kind = task.OUTPUT_TYPE
    of_others = set().union(*METRICS.values()) - {"exact_match"}
    for metric in getattr(task, "_metric_fn_list", {}):
        computed = metric in METRICS[kind] if kind in METRICS else metric not in of_others
        if not computed and metric != "bypass":
            known = ", ".join(sorted(METRICS.get(kind, {"exact_match", "bleu", "chrf", "ter"})))
            return f"metric {metric} is not computed for output_type {kind}; expected one of {known}"
    return None


def unanswered(task: HarnessTask, limit: int | None) -> str | None:
    """Find the first question of a multiple-choice task whose answer is none of its choices.

    Args:
        task: a task that has been loaded. One that computes scores by code of its own has no mistake here.
        limit: number of questions that are asked; None: all of them.

    Returns:
        A sentence about the question; None if there is none.
    """
    if task.OUTPUT_TYPE != "multiple_choice" or task.get_config("process_results") is not None:
        return None
    for number, question in task.doc_iterator(limit=limit):
        choices = task.doc_to_choice(question)
        answer = task.doc_to_text(question) if task.multiple_input else task.doc_to_target(question)
        if not choices:
            return f"question {number + 1} has no choices"
        for one in answer if isinstance(answer, list) else [answer]:
            if one not in (range(len(choices)) if isinstance(one, int | float) else choices):
                return (
                    f"the answer of question {number + 1} is {one!r}, which is none of its choices; expected "
                    f"a number from 0 to {len(choices) - 1}, or the text of a choice"
                )
    return None


def shows_its_answer(task: HarnessTask) -> bool:
    """Whether the solved examples in front of a question may contain that question itself.

    The harness leaves out the question that is asked only if the key `fewshot_split` names the test split.
    Rolling likelihoods of whole texts have no solved examples.
    """
    examples, get = getattr(task, "fewshot_cfg", None), task.get_config
    if examples is None or task.OUTPUT_TYPE == "loglikelihood_rolling":
        return False
    asked = get("test_split") or get("validation_split")
    if examples.split is not None:
        return bool(examples.split == asked != get("test_split"))
    source = get("training_split") or get("validation_split") or get("test_split")
    return examples.samples is None and source == asked


def is_local(task: HarnessTask, folder: Path | None) -> bool:
    """Whether a task is that of a file in a folder of the user's."""
    metadata = task.get_config("metadata")
    source = metadata.get("config_source") if isinstance(metadata, dict) else None
    return folder is not None and source is not None and Path(source).is_relative_to(folder.resolve())
