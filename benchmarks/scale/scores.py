"""Scores of models on further texts: a line of a CSV for every model, so that run folders may go.

The runs of the longest budget at the two largest sizes of a question are scored as by `zoo eval RUN
--perplexity`, and the checkpoint that a question of fine-tuning begins with.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.scale.questions import Question
from benchmarks.scale.source import NAME
from zoo.ablate.lines import Lines, RunLine
from zoo.ablate.sweep import Sweep
from zoo.data.files import read_text
from zoo.evaluation.perplexity_report import perplexity
from zoo.utils.atomic import write_text
from zoo.utils.errors import ConfigError, DataError

RUN = "run"
"""The first column: the id of a run, or the name of the checkpoint's folder. Each text has a further one."""
LARGEST = 2
"""The number of sizes whose runs are scored, from the largest one down."""

Scores = dict[str, Mapping[str, float]]
"""Nats per token by text, by run."""


def scores_file(lines: Path) -> Path:
    """The CSV beside the lines of the runs."""
    return lines.with_name(f"{lines.stem}-scores.csv")


def read_scores(file: Path, texts: Sequence[str]) -> Scores:
    """The scores in a file; none if there is no file.

    Args:
        file: the file.
        texts: the names of the texts, in the order of the columns.

    Raises:
        ConfigError: The file has other columns, or a run twice.
        DataError: A value is no number.
    """
    found: Scores = {}
    if not file.exists():
        return found
    with file.open(encoding="utf-8", newline="") as text:
        rows = csv.DictReader(text)
        if rows.fieldnames != [RUN, *texts]:
            raise ConfigError(f"{file}:1: expected the columns {','.join([RUN, *texts])}")
        for row in rows:
            place = f"{file}:{rows.line_num}"
            if row[RUN] in found:
                raise ConfigError(f"{place}: run: value {row[RUN]!r} stands twice; expected it once")
            try:
                found[row[RUN]] = {name: float(row[name]) for name in texts}
            except (TypeError, ValueError):
                raise DataError(f"{place}: {' and '.join(texts)}: expected numbers") from None
    return found


def all_scores(question: Question, sweep: Sweep) -> Scores:
    """The scores of a question's runs, also of those whose lines were taken over from other questions."""
    assert sweep.lines is not None  # every question has lines
    found: Scores = {}
    for file in (*sweep.lines.others, sweep.lines.file):
        found |= read_scores(scores_file(file), question.texts)
    return found


def scored_lines(sweep: Sweep, lines: Lines) -> list[RunLine]:
    """The lines of the runs that are scored."""
    largest = {float(size.params): size.budgets[-1] for size in sweep.ladder[-LARGEST:]}
    return [line for line in lines if line.run.tokens == largest.get(line.run.size) and not line.row["error"]]


def score(question: Question, sweep: Sweep, texts: Mapping[str, Path]) -> Iterator[str]:
    """Score the runs that have no score yet and whose folders exist.

    Args:
        question: the question; without texts nothing is scored.
        sweep: its sweep.
        texts: the files of the texts by name.

    Yields:
        For each run that was scored, a sentence with its scores.
    """
    assert sweep.lines is not None  # every question has lines
    if not question.texts:
        return
    lines = Lines(sweep.lines.file)  # as they are now
    own, known = scores_file(lines.file), all_scores(question, sweep)
    scores = read_scores(own, question.texts)
    folders = {NAME: sweep.out / NAME} if question.fine_tunes else {}
    folders |= {line.name: sweep.runs / line.name for line in scored_lines(sweep, lines)}
    for run, folder in folders.items():
        if run in known or not folder.is_dir():
            continue
        report, _ = perplexity(folder, [_with_line_feeds(texts[name], sweep.out) for name in question.texts])
        found = zip(question.texts, report.scores, strict=False)  # the total of several texts comes last
        scores[run] = {name: s.nats / s.tokens for name, s in found}
        _write(own, question.texts, scores)
        yield f"{run}: " + ", ".join(f"{nats:.4f} ({name})" for name, nats in scores[run].items())


def _with_line_feeds(text: Path, folder: Path) -> Path:
    """The text, or a copy of it in a folder if its lines end with carriage returns.

    The training text has none, so that a score with them would measure little else.
    """
    content = read_text(text)
    if "\r\n" not in content:
        return text
    copy = folder / text.name
    write_text(copy, content.replace("\r\n", "\n"))
    return copy


def _write(file: Path, texts: Sequence[str], scores: Scores) -> None:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, [RUN, *texts], lineterminator="\n")
    writer.writeheader()
    writer.writerows({RUN: run, **of_run} for run, of_run in scores.items())
    write_text(file, text.getvalue())
