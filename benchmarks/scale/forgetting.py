"""Q6: what fine-tuning gains on the new text, and what it forgets of the old one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev

from benchmarks.scale.chapters import Chapter, judged
from benchmarks.scale.questions import NEW, OLD, Question
from benchmarks.scale.scores import all_scores, scored_lines
from benchmarks.scale.source import NAME
from zoo.ablate.progress import LadderProgress
from zoo.ablate.table import Column, Table
from zoo.report.plot import Plot, Series, View
from zoo.report.section import Section

Scored = Mapping[str, Sequence[Mapping[str, float]]]
"""The scores of the runs of every variant, by text."""


def fine_tuned(question: Question, state: LadderProgress) -> Chapter:
    """The chapter of a ladder that fine-tunes: its words, and a table of gain and forgetting."""
    chapter = judged(question, state)
    scores = all_scores(question, state.sweep)
    before = scores.get(NAME)
    if before is None:
        return chapter
    by_variant: dict[str, list[Mapping[str, float]]] = {}
    for line in scored_lines(state.sweep, state.lines):
        if (score := scores.get(line.name)) is not None:
            by_variant.setdefault(line.run.variant, []).append(score)
    if not by_variant:
        return chapter
    section = Section("Gain and forgetting", [_table(before, by_variant), _plot(before, by_variant)])
    return replace(
        chapter,
        sections=[section, *chapter.sections],
        styled=list(dict.fromkeys([*chapter.styled, *by_variant])),
        picture="gain",
    )


def _table(before: Mapping[str, float], by_variant: Scored) -> Table:
    columns = [
        Column("variant", align_right=False),
        Column("runs"),
        Column("new text", _nats),
        Column("gain", _nats),
        Column("old text", _nats),
        Column("forgetting", _nats),
    ]
    rows: list[list[object]] = [["before", None, [before[NEW]], None, [before[OLD]], None]]
    for variant, scored in by_variant.items():
        new, old = [s[NEW] for s in scored], [s[OLD] for s in scored]
        gain, forgotten = [before[NEW] - value for value in new], [value - before[OLD] for value in old]
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


def _plot(before: Mapping[str, float], by_variant: Scored) -> Plot:
    gains = {variant: [before[NEW] - s[NEW] for s in scored] for variant, scored in by_variant.items()}
    losses = {variant: [s[OLD] - before[OLD] for s in scored] for variant, scored in by_variant.items()}
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
