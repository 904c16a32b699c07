"""Scores of questions from the samples that lm-evaluation-harness writes with `--log_samples`.

If a question has several choices, its score is the log-probability of the answer. Small models answer near
chance, and progress shows in the log-probability long before it shows in the accuracy.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from zoo.ablate.scale.items import ItemScores
from zoo.utils.errors import DataError, did_you_mean
from zoo.utils.files import TEXT_BYTES, parse_json, read_text
from zoo.utils.untyped import JsonObject

SUFFIX = ".jsonl"


ACCURACY = "acc"
"""The metric of the harness that is 1 for a right answer and 0 for a wrong one."""


class _Sample(NamedTuple):
    """The hash of a question, its score, the name of its cluster, and whether the answer is right."""

    text: str
    score: float
    cluster: str
    right: float | None


def read_samples(file: Path, metric: str | None = None, cluster: str | None = None) -> ItemScores:
    """The scores of one run.

    Args:
        file: samples_TASK_DATE.jsonl, a line per question.
        metric: metric of the task, such as acc; None: the log-probability of the answer if there are choices,
            otherwise the first metric of the task.
        cluster: field of a question (`doc`), such as passage; questions with the same value are a cluster.
            None: questions are independent.

    Returns:
        The scores in the order of the questions' numbers. For a task with several filters they are those of
        the first one.

    Raises:
        DataError: The file cannot be read or was not written by the harness, there is no such metric or
            field, a question occurs twice, or a score is no finite number.
    """
    samples: dict[int, _Sample] = {}
    first_filter: object = None
    lines = io.StringIO(read_text(file, TEXT_BYTES, DataError))  # splitlines would split at U+2028 as well
    for number, line in enumerate(lines, 1):
        place = f"{file}:{number}"
        sample = parse_json(line, place, DataError)
        try:
            question, text, chosen = int(sample["doc_id"]), str(sample["doc_hash"]), sample["filter"]
        except (TypeError, KeyError, ValueError) as error:
            raise DataError(
                f"{place}: no doc_id, doc_hash and filter; expected samples of lm-evaluation-harness"
            ) from error
        first_filter = chosen if not samples else first_filter
        if chosen != first_filter:
            continue
        if question in samples:
            raise DataError(f"{place}: question {question} is there twice; expected the samples of one run")
        group = "" if cluster is None else _cluster(place, sample, cluster)
        right = _right(place, sample) if metric is None else None
        samples[question] = _Sample(text, _score(place, sample, metric), group, right)
    if not samples:
        raise DataError(f"{file}: no samples; expected a line per question")
    ordered = [samples[question] for question in sorted(samples)]
    known = [sample.right for sample in ordered if sample.right is not None]
    return ItemScores(
        tuple(sample.score for sample in ordered),
        hashlib.sha256(" ".join(sample.text for sample in ordered).encode()).hexdigest(),
        () if cluster is None else numbered(sample.cluster for sample in ordered),
        fmean(known) if len(known) == len(ordered) else None,
    )


def numbered(names: Iterable[str]) -> tuple[int, ...]:
    """The number of each name, from 0 in the order of appearance."""
    numbers: dict[str, int] = {}
    return tuple(numbers.setdefault(name, len(numbers)) for name in names)


def _cluster(place: str, sample: JsonObject, field: str) -> str:
    """The value of a field of the question, as text."""
    question = sample.get("doc")
    if not isinstance(question, dict):
        raise DataError(f"{place}: no `doc`, whose field '{field}' names the cluster of the question")
    if field not in question:
        raise DataError(
            f"{place}: doc: no field '{field}'{did_you_mean(field, question)}; expected one of "
            f"{', '.join(map(str, question))}"
        )
    return json.dumps(question[field], sort_keys=True)


def _score(place: str, sample: JsonObject, metric: str | None) -> float:
    """The score of a question."""
    value = _log_probability(sample) if metric is None else None
    if value is None:
        metrics = sample.get("metrics") or ()
        name = metric or next(iter(metrics), "")
        if name not in metrics or name not in sample:
            known = f"one of {', '.join(map(str, metrics))}" if metrics else "samples with `metrics`"
            raise DataError(f"{place}: no metric '{name}'; expected {known}")
        value = sample[name]
    return _number(place, value)


def _right(place: str, sample: JsonObject) -> float | None:
    """Whether the answer is right; None if the sample does not say so, or its score is no log-probability."""
    known = ACCURACY in (sample.get("metrics") or ()) and ACCURACY in sample
    return _number(place, sample[ACCURACY]) if known and _log_probability(sample) is not None else None


def _number(place: str, value: object) -> float:
    """A finite number, which the harness writes as such, as text or as a truth value."""
    try:
        score = float(value if isinstance(value, bool) else str(value))
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise DataError(f"{place}: score {value!r}; expected a finite number")
    return score


def _log_probability(sample: JsonObject) -> object:
    """The log-probability of the right answer; None if the sample lacks those of the choices or its index."""
    choices, target = sample.get("filtered_resps"), str(sample.get("target"))
    if not isinstance(choices, list) or len(choices) < 2 or not target.isdecimal():
        return None
    if int(target) >= len(choices) or not all(isinstance(c, list) and len(c) == 2 for c in choices):
        return None
    answer: object = choices[int(target)][0]
    return answer
