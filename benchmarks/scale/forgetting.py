"""Q6: what fine-tuning gains on the new text, and what it forgets of the old one.

The runs of the longest budget, and the checkpoint that all begin with, are scored on two texts, as by
`zoo eval RUN --perplexity`. Scores are lines of a CSV beside those of the runs, so that run folders may go.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import fmean, stdev

from benchmarks.scale.chapters import Chapter, judged
from benchmarks.scale.place import NEW, OLD
from benchmarks.scale.questions import Question
from benchmarks.scale.source import NAME
from zoo.ablate.progress import LadderProgress
from zoo.ablate.sweep import Sweep
from zoo.ablate.table import Column, Table
from zoo.evaluation.perplexity_report import perplexity
from zoo.report.plot import Plot, Series, View
from zoo.report.section import Section
from zoo.utils.atomic import write_text
from zoo.utils.errors import ConfigError, DataError


@dataclass(frozen=True)
class Scored:
    """A line: a model on the two texts.

    Attributes:
        run: the id of the run, or the name of the checkpoint's folder.
        new: nats per token of the new text.
        old: nats per token of the old text.
    """

    run: str
    new: float
    old: float


def scores_file(sweep: Sweep) -> Path:
    """The CSV beside the lines of the runs."""
    assert sweep.lines is not None  # every question has lines
    return sweep.lines.file.with_name(f"{sweep.name}-scores.csv")


def read_scores(file: Path) -> dict[str, Scored]:
    """The lines by run; none if there is no file.

    Raises:
        ConfigError: it has other columns, or a run twice.
        DataError: a value is no number.
    """
    if not file.exists():
        return {}
    names, found = [field.name for field in fields(Scored)], dict[str, Scored]()
    with file.open(encoding="utf-8", newline="") as text:
        rows = csv.DictReader(text)
        if rows.fieldnames != names:
            raise ConfigError(f"{file}:1: expected the columns {','.join(names)}")
        for row in rows:
            place = f"{file}:{rows.line_num}"
            if row["run"] in found:
                raise ConfigError(f"{place}: run: value {row['run']!r} stands twice; expected it once")
            try:
                found[row["run"]] = Scored(row["run"], float(row["new"]), float(row["old"]))
            except (TypeError, ValueError):
                raise DataError(f"{place}: new and old: expected numbers") from None
    return found


def score(sweep: Sweep, texts: Mapping[str, Path]) -> Iterator[Scored]:
    """Score what has no line yet and whose folder is there, line by line.

    Args:
        sweep: of the question.
        texts: of `NEW` and `OLD`.

    Yields:
        What was added.
    """
    file = scores_file(sweep)
    known = read_scores(file)
    folders = {NAME: sweep.out / NAME} | {run: sweep.runs / run for run in _longest(sweep)}
    for run, folder in folders.items():
        if run in known or not folder.is_dir():
            continue
        report, _ = perplexity(folder, [texts[NEW], texts[OLD]])
        new, old = (s.nats / s.tokens for s in report.scores[:2])  # the total of both comes last
        known[run] = Scored(run, new, old)
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, [field.name for field in fields(Scored)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(asdict, known.values()))
        write_text(file, text.getvalue())
        yield known[run]


def _longest(sweep: Sweep) -> dict[str, str]:
    """The variants of the runs of the longest budget that have lines, by their ids."""
    longest = sweep.ladder[-1].budgets[-1]
    return {line.name: line.run.variant for line in sweep.lines or () if line.run.tokens == longest}


def fine_tuned(question: Question, state: LadderProgress, counted: set[str]) -> Chapter:
    """The chapter of a ladder that fine-tunes: its words, and a table of gain and forgetting.

    Args:
        question: the question.
        state: its runs.
        counted: see `benchmarks.scale.chapters.status`.
    """
    chapter = judged(question, state, counted)
    scores = read_scores(scores_file(state.sweep))
    before = scores.get(NAME)
    if before is None:
        return chapter
    by_variant: dict[str, list[Scored]] = {}
    for run, variant in _longest(state.sweep).items():
        if run in scores:
            by_variant.setdefault(variant, []).append(scores[run])
    if not by_variant:
        return chapter
    section = Section("Gain and forgetting", [_table(before, by_variant), _plot(before, by_variant)])
    return replace(
        chapter,
        sections=[section, *chapter.sections],
        styled=list(dict.fromkeys([*chapter.styled, *by_variant])),
        picture="gain",
    )


def _table(before: Scored, by_variant: Mapping[str, Sequence[Scored]]) -> Table:
    columns = [
        Column("variant", align_right=False),
        Column("runs"),
        Column("new text", _nats),
        Column("gain", _nats),
        Column("old text", _nats),
        Column("forgetting", _nats),
    ]
    rows: list[list[object]] = [["before", None, [before.new], None, [before.old], None]]
    for variant, scored in by_variant.items():
        new, old = [s.new for s in scored], [s.old for s in scored]
        gain, forgotten = [before.new - value for value in new], [value - before.old for value in old]
        rows.append([variant, len(scored), new, gain, old, forgotten])
    note = (
        "Nats per token of whole texts, mean and standard deviation over seeds, of the longest budget. The "
        "new text is the test set of the Penn Treebank, the old one the validation set of WikiText-2, whose "
        "training set the checkpoint has read. Gain and forgetting are descriptions; the words are about the "
        "tokens until a loss on the new text's validation set."
    )
    return Table("gain-and-forgetting", "Gain and forgetting", columns, rows, note)


def _nats(values: Sequence[float]) -> str:
    mean = f"{fmean(values):.4f}"
    return f"{mean} ± {stdev(values):.4f}" if len(values) > 1 else mean


def _plot(before: Scored, by_variant: Mapping[str, Sequence[Scored]]) -> Plot:
    gains = {variant: [before.new - s.new for s in scored] for variant, scored in by_variant.items()}
    losses = {variant: [s.old - before.old for s in scored] for variant, scored in by_variant.items()}
    views = [
        View(name, f"nats per token of the {text} text", "", [_row(*row) for row in values.items()])
        for name, text, values in (("gain", NEW, gains), ("forgetting", OLD, losses))
    ]
    return Plot(
        "gain",
        "Gain and forgetting",
        views,
        "Point: mean over seeds, of the longest budget; line: lowest and highest seed.",
        variant_rows=True,
        zero_line=True,
        panels=True,
    )


def _row(variant: str, values: Sequence[float]) -> Series:
    return Series(variant, variant, [fmean(values)], [variant], [min(values)], [max(values)], points=True)
