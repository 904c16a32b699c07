"""Scores of questions from the samples that lm-evaluation-harness writes with `--log_samples`.

If a question has several choices, its score is the log-probability of the answer. Small models answer near
chance, and progress shows in the log-probability long before it shows in the accuracy.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

from zoo.utils.errors import DataError
from zoo.utils.files import TEXT_BYTES, parse_json, read_text
from zoo.utils.untyped import JsonObject

SUFFIX = ".jsonl"


def read_samples(file: Path, metric: str | None = None) -> tuple[tuple[float, ...], str]:
    """The scores of one run.

    Args:
        file: samples_TASK_DATE.jsonl, a line per question.
        metric: metric of the task, such as acc; None: the log-probability of the answer if there are choices,
            otherwise the first metric of the task.

    Returns:
        The score of every question in the order of their numbers, and a fingerprint of the questions. For a
        task with several filters, the scores are those of the first one.

    Raises:
        DataError: The file cannot be read or was not written by the harness, there is no such metric, a
            question occurs twice, or a score is no finite number.
    """
    scores: dict[int, tuple[str, float]] = {}
    first_filter: object = None
    for number, line in enumerate(read_text(file, TEXT_BYTES, DataError).splitlines(), 1):
        place = f"{file}:{number}"
        sample = parse_json(line, place, DataError)
        try:
            question, text, chosen = int(sample["doc_id"]), str(sample["doc_hash"]), sample["filter"]
        except (TypeError, KeyError, ValueError) as error:
            raise DataError(
                f"{place}: no doc_id, doc_hash and filter; expected samples of lm-evaluation-harness"
            ) from error
        first_filter = chosen if not scores else first_filter
        if chosen != first_filter:
            continue
        if question in scores:
            raise DataError(f"{place}: question {question} is there twice; expected the samples of one run")
        scores[question] = text, _score(place, sample, metric)
    if not scores:
        raise DataError(f"{file}: no samples; expected a line per question")
    ordered = [scores[question] for question in sorted(scores)]
    digest = hashlib.sha256(" ".join(text for text, _ in ordered).encode()).hexdigest()
    return tuple(score for _, score in ordered), digest


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


def read_items(place: str, text: str, folder: Path) -> tuple[tuple[float, ...] | None, str]:
    """The scores of questions, and a fingerprint of the questions; None and "" without scores."""
    name, _, metric = text.partition("#")
    questions = ""
    items: tuple[float, ...] | None
    if name.endswith(SUFFIX):
        try:
            items, questions = read_samples(folder / name, metric or None)
        except DataError as error:
            raise DataError(f"{place}: items: {error}") from error
    else:
        try:
            items = tuple(float(score) for score in text.split()) or None
        except ValueError as error:
            raise DataError(
                f"{place}: items: {error}; expected numbers separated by blanks, or a file of samples "
                f"({SUFFIX})"
            ) from error
    if items and not all(map(math.isfinite, items)):
        raise DataError(f"{place}: items: not all scores are finite; expected a number per question")
    if items and max(items) > 1:
        raise DataError(
            f"{place}: items: value {max(items):g}: expected scores of at most 1, such as log-probabilities, "
            "or 0 and 1 for wrong and right"
        )
    return items, questions
