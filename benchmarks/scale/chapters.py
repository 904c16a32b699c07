"""What is known of each question of the study across scale, from committed lines alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.scale.questions import SECOND, Claim, Question
from benchmarks.scale.second_text import second_text, second_text_table
from zoo.ablate.progress import LadderProgress
from zoo.ablate.scale.presentation import notes, sentences, speedup_text, word_text
from zoo.ablate.scale.runs import format_count
from zoo.ablate.scale.verdict import ScaleVerdict, alarms
from zoo.report.ladder import ladder_sections
from zoo.report.plot import Plot
from zoo.report.section import Section

NO_RUN = "no run yet"
PICTURE = "across-sizes"
"""The plot of a ladder that stands on the first page."""


@dataclass(frozen=True)
class Row:
    """A row of the table of claims, as texts.

    Attributes:
        claim: the claim in words.
        paper: the figure of the claim's source.
        here: the token speed-up with its interval.
        word: the word of the verdict.
        scale: the sizes and budgets that the word rests on.
        looked_at: whether the runs so far suffice for a word, which needs all runs of the question, or those
            of four sizes.
    """

    claim: str
    paper: str
    here: str
    word: str
    scale: str
    looked_at: bool


@dataclass(frozen=True)
class Chapter:
    """A question with all that is known of it.

    Attributes:
        key: the key of the question, by which its page is named.
        title: the heading.
        question: the question in the words of its sweep file.
        status: a sentence that says how many runs there are.
        complete: whether all runs of the question have ended.
        begun: whether a run of the question has ended.
        rows: the rows of the table of claims.
        sentences: what a reader may conclude from the runs.
        alarms: reasons why no word of the study is to be believed, as sentences without full stops; empty:
            there is none.
        sections: the sections of the question's page.
        styled: the names of the lines in the question's plots, in the order of their styles.
        picture: the key of the plot that the first page shows; empty: there is none.
        command: the command that gives the same verdict on the lines; empty while only some runs of a size
            have ended, because such runs are not judged here.
    """

    key: str
    title: str
    question: str
    status: str
    complete: bool
    begun: bool
    rows: Sequence[Row] = ()
    sentences: Sequence[str] = ()
    alarms: Sequence[str] = ()
    sections: Sequence[Section] = ()
    styled: Sequence[str] = ()
    picture: str = ""
    command: str = ""

    @property
    def plots(self) -> dict[str, Plot]:
        """The plots of all sections by their keys."""
        blocks = [block for section in self.sections for block in section.blocks]
        return {block.key: block for block in blocks if isinstance(block, Plot)}


def status(state: LadderProgress) -> str:
    """How many of the planned runs of a question exist, and the hours of those that were trained for it."""
    if not state.ended:
        return f"{NO_RUN.capitalize()}; {state.planned} are planned."
    taken = f", {state.taken_over} of them taken over from an earlier question" if state.taken_over else ""
    hours = " and ".join(
        f"{hours:.3g} worker-hours on {device}" if device else f"{hours:.3g} core-hours"
        for device, hours in state.hours.items()
    )
    begin = f"All runs have ended, {state.ended}" if state.complete else f"{state.ended} runs have ended"
    tuned = ", without the rates that are added beyond the border of a grid" if state.sweep.tune else ""
    return f"{begin}{taken}, in {hours or 'hours that are not known'}; {state.planned} were planned{tuned}."


def about_runs(question: Question, state: LadderProgress) -> str:
    """The `status`, and what a reader of the results has to know."""
    return " ".join(filter(None, (status(state), question.remark if state.ended else "")))


def judged(question: Question, state: LadderProgress) -> Chapter:
    """A ladder whose variants get words."""
    sweep = state.sweep
    verdicts = state.verdicts()
    runs = about_runs(question, state)
    scale = sweep.scale
    assert scale is not None  # a ladder
    alarming = alarms(verdicts, sweep.baseline)
    doubts = [*alarming, *notes(verdicts)]
    if verdicts and not state.complete:
        doubts.insert(0, "not all runs have ended: what is said is so far, and the last word may be another")
    if state.doubt:
        doubts.append(state.doubt)
    command = f"zoo verdict docs/results/scale/{state.lines.file.name} --baseline '{sweep.baseline}'"
    command += f" --margin {scale.margin:g}"
    if sizes := state.looks.sizes:
        command += f" --declared-sizes {','.join(f'{size:.0f}' for size in sizes)}"
    beside = second_text(question, state) if question.texts == (SECOND,) else []
    sections = list(ladder_sections(verdicts, sweep.baseline, doubts)) if verdicts else []
    if beside:
        sections.append(Section("On a second text", [second_text_table(beside)]))
    return Chapter(
        question.key,
        question.title,
        sweep.description or "",
        runs,
        state.complete,
        state.ended > 0,
        tuple(_rows(question, state, verdicts, {row.variant for row in beside if row.turned})),
        sentences(verdicts, sweep.baseline, scale.margin),
        alarming,
        sections,
        (sweep.baseline, *verdicts),
        PICTURE if any(verdict.measured.sizes for verdict in verdicts.values()) else "",
        command if state.is_whole else "",
    )


def _rows(
    question: Question, state: LadderProgress, verdicts: Mapping[str, ScaleVerdict], turned: Collection[str]
) -> Iterator[Row]:
    for claim in question.claims:
        verdict = verdicts.get(claim.variant)
        if verdict is None:
            yield open_row(claim, state)
            continue
        word = word_text(verdict)
        if claim.variant in turned:
            word += "; the other way around on the second text"
        if claim.caution:
            word += f"; {claim.caution}"
        yield Row(
            claim.text,
            claim.paper,
            speedup_text(verdict),
            word if state.complete else f"so far: {word}",
            _measured(state, verdict),
            looked_at=state.complete or verdict.trend is not None,  # a trend is that of a line
        )


def open_row(claim: Claim, state: LadderProgress) -> Row:
    """The row of a claim of which nothing can be said yet."""
    word = "begun" if state.ended else NO_RUN
    return Row(claim.text, claim.paper, "", word, _planned(state), looked_at=False)


def _planned(state: LadderProgress) -> str:
    ladder = state.sweep.ladder
    return f"planned: {_range([size.params for size in ladder])}"


def _measured(state: LadderProgress, verdict: ScaleVerdict) -> str:
    sizes = [size.params for size in verdict.measured.usable]
    if not sizes:
        return _planned(state)
    tokens = [run.tokens for size in sizes for run in verdict.measured.pairs[size].baseline.compared]
    return scale_text(sizes, tokens)


def scale_text(sizes: Sequence[float], tokens: Sequence[float]) -> str:
    """The ranges of sizes, in parameters, and of budgets, as the table of claims has them."""
    count = f"{len(sizes)} size" + "s" * (len(sizes) > 1)
    return f"{_range(sizes)}, {count}; {_range(tokens)} tokens"


def _range(values: Sequence[float]) -> str:
    ends = dict.fromkeys(format_count(value) for value in (min(values), max(values)))
    return " to ".join(ends)
