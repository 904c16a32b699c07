"""The pages of the study across scale, as Markdown with pictures, and the table in README."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.harness import table
from benchmarks.scale.chapters import Chapter
from zoo.ablate.table import Table
from zoo.report.ladder import VERDICT
from zoo.report.markdown import markdown_page
from zoo.report.page import draw_images, write_files
from zoo.report.section import Section
from zoo.report.style import line_styles

TITLE = "The study across scale"
FOLDER = "scale"
"""Of the lines, and of the pages of single questions."""
ABOUT = (
    "`make scale-report` writes this page, its pictures and the pages of the single questions from the "
    "lines in `docs/results/scale`, one for every run that has ended: tables, pictures and words follow from "
    "them, the remarks below the questions are written by hand. "
    "[The plan](scale/plan.md) was committed before the first run and says what is compared with what, "
    "how it is tuned, and in which order. Sizes are parameters without those of the vocabulary. *Here* is "
    "a token speed-up: at 1.2 x the baseline needs 1.2 times as many tokens as the variant for the same "
    "loss, in the middle of the sizes (below four sizes: at the largest), with a 95 % interval. The word "
    "is that of [`zoo verdict`](../verdict-across-scale.md)."
)
BEYOND = (
    "Each sentence is about models of the sizes, budgets and contexts that its question names, trained on "
    "its corpus with the rules of the plan. Of larger models, longer runs or other text none of them says "
    "anything; where a line is extended, it is to twice the largest size and no farther."
)
NOT_TRAINED = (
    "No run of these questions has ended, so that their claims have no word; what searches with other seeds "
    "found is said above. `make scale-study` trains them."
)
BEGIN, END = "<!-- scale: begin -->", "<!-- scale: end -->"
README_BEFORE = "## Install"
"""What the table stands in front of in README, until its marks are there."""


def pages(chapters: Sequence[Chapter]) -> dict[str, str | bytes]:
    """All files by their paths under docs/results."""
    files: dict[str, str | bytes] = {**texts(chapters)}
    for chapter in without_words(chapters):
        images = draw_images(chapter.sections, line_styles(chapter.styled))
        files |= {f"{FOLDER}/{chapter.key}/{key}.png": png for key, png in images.items()}
    return files


def texts(chapters: Sequence[Chapter]) -> dict[str, str]:
    """The files without their pictures."""
    own = {_own(c): own_page(c) for c in without_words(chapters)}
    return {f"{FOLDER}.md": front_page(chapters), **own}


def without_words(chapters: Sequence[Chapter]) -> Sequence[Chapter]:
    """The chapters; while there is an alarm in any of them, without the words and the table of verdicts."""
    if not (reasons := [reason for chapter in chapters for reason in chapter.alarms]):
        return chapters

    def kept(section: Section) -> Section:
        if section.title != VERDICT:
            return section
        return Section(VERDICT, [block for block in section.blocks if not isinstance(block, Table)], reasons)

    return [
        replace(
            chapter,
            rows=[replace(row, word="withheld") if row.here else row for row in chapter.rows],
            sentences=(),
            sections=[kept(section) for section in chapter.sections],
            command="",
        )
        for chapter in chapters
    ]


def own_page(chapter: Chapter) -> str:
    """The page of a question, with all its tables."""
    lead = [text for text in (chapter.question, chapter.status) if text]
    if chapter.sections:
        lead += [f"`{chapter.command}` says the same."] if chapter.command else []
        lead += chapter.sentences
    return markdown_page(chapter.title, lead, chapter.sections)


def front_page(chapters: Sequence[Chapter]) -> str:
    """The page that opens with the table of claims."""
    chapters = without_words(chapters)
    begun, waiting = ([chapter for chapter in chapters if chapter.begun is asked] for asked in (True, False))
    known = [claims(begun)] if any(chapter.rows for chapter in begun) else []
    parts = [f"# {TITLE}", *_withheld(chapters), *known, ABOUT, *(["## Questions"] if begun else [])]
    for chapter in begun:
        parts += [f"### {chapter.title}", " ".join(filter(None, (chapter.question, chapter.status)))]
        parts += _listed(() if chapter.complete else chapter.sentences)
        if chapter.picture:
            plot = chapter.plots[chapter.picture]
            picture = f"{FOLDER}/{chapter.key}/{plot.key}.png"
            parts += [f"![{plot.title}]({picture})", f"{plot.title}. {plot.note}"]
        parts.append(f"[All tables and pictures]({_own(chapter)})")
    if waiting:
        parts += ["## Planned and not trained", NOT_TRAINED, _claims_without_runs(waiting)]
    parts += ["## What a reader may conclude", *_conclusions(begun), BEYOND]
    return "\n\n".join(parts) + "\n"


def _own(chapter: Chapter) -> str:
    """The path of a question's page, as seen from the front page."""
    return f"{FOLDER}/{chapter.key}/report.md"


def _listed(sentences: Sequence[str]) -> list[str]:
    """A list as one block; none if it is empty."""
    return ["\n".join(f"* {sentence}" for sentence in sentences)] if sentences else []


def _withheld(chapters: Sequence[Chapter]) -> list[str]:
    reasons = [reason for chapter in chapters for reason in chapter.alarms]
    return (
        [f"**No word of the study counts until this is explained: {'; '.join(reasons)}.**"] if reasons else []
    )


def claims(chapters: Sequence[Chapter], *, only_with_words: bool = False) -> str:
    """The table of claims.

    Args:
        chapters: all questions.
        only_with_words: whether rows that have neither a word nor one so far are left out.
    """
    every = [row for chapter in without_words(chapters) for row in chapter.rows]
    return table(
        [
            {
                "claim": row.claim,
                "paper": row.paper or "–",
                "here": row.here or "–",
                "word": row.word,
                "range of scale": row.scale,
            }
            for row in every
            if row.looked_at or not only_with_words
        ]
    )


def _claims_without_runs(chapters: Sequence[Chapter]) -> str:
    """The table of the claims of questions without a run."""
    return table(
        [
            {
                "claim": row.claim,
                "paper": row.paper or "–",
                "question": f"[{chapter.title}]({_own(chapter)})",
                "range of scale": row.scale,
            }
            for chapter in chapters
            for row in chapter.rows
        ]
    )


def _conclusions(chapters: Sequence[Chapter]) -> Iterator[str]:
    decided = [chapter for chapter in chapters if chapter.complete and chapter.sentences]
    if not decided or _withheld(chapters):
        yield "Nothing yet: no question has all its runs." if not decided else _withheld(chapters)[0]
        return
    for chapter in decided:
        yield f"**{chapter.title}**"
        yield from _listed(chapter.sentences)
    open_ = [chapter.title for chapter in chapters if chapter not in decided]
    if open_:
        yield f"Nothing follows yet from: {'; '.join(open_)}."


def readme(text: str, chapters: Sequence[Chapter]) -> str:
    """README with the claims that have a word, or one so far, between marks; as it is while there is none.

    Raises:
        ValueError: there are neither marks nor the heading that the table stands in front of.
    """
    if not any(row.looked_at for chapter in chapters for row in chapter.rows):
        return text
    link = (
        "*Here* is the token speed-up: at 1.2 x the baseline needs 1.2 times as many tokens as the method "
        "for the same loss; below 1 x the method is slower. The "
        "[word](docs/verdict-across-scale.md#what-is-said) is that of `zoo verdict`; *would have shown 1.34 "
        "x*: these runs would have found that factor with probability .8. Sizes are parameters without those "
        "of the vocabulary. Small and He are initialisations; sigma^2 is the variance at which all trained "
        "matrices start, and s_z scales nGPT's logits. "
        "AdamW-Cont. is AdamW whose schedule, after its end, is started again; WSD is a schedule that decays "
        "only at the end. [The study across scale]"
        f"(docs/results/{FOLDER}.md) has all claims, runs and doubts."
    )
    block = "\n\n".join(
        [BEGIN, *_withheld(chapters), claims(chapters, only_with_words=True), f"{link}\n{END}\n"]
    )
    if BEGIN in text:
        return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}\n", lambda _: block, text, flags=re.S)
    if README_BEFORE not in text:
        raise ValueError(f"README: neither {BEGIN} nor {README_BEFORE!r}")
    return text.replace(README_BEFORE, f"{block}\n{README_BEFORE}", 1)


def write(results: Path, front: Path, chapters: Sequence[Chapter]) -> None:
    """Write all pages, and delete pictures that none of them shows any more.

    Args:
        results: the folder docs/results.
        front: README.md.
        chapters: all questions.
    """
    files: Mapping[str, str | bytes] = pages(chapters)
    for chapter in chapters:
        folder = results / FOLDER / chapter.key
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.png"):
            if f"{FOLDER}/{chapter.key}/{old.name}" not in files:
                old.unlink()
    write_files(results, files)
    text = front.read_text(encoding="utf-8")
    if (new := readme(text, chapters)) != text:
        front.write_text(new, encoding="utf-8")
