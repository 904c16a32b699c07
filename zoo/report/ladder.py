"""The page of a verdict across scale, with the words, the table and the plots first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from zoo.ablate.scale.document import document
from zoo.ablate.scale.presentation import notes, sentences, tables
from zoo.ablate.scale.verdict import ScaleVerdict, alarms
from zoo.report.csv_files import tables_csv
from zoo.report.ladder_plots import ladder_plots
from zoo.report.latex import tables_latex
from zoo.report.markdown import markdown_page
from zoo.report.page import draw_images, html_page, write_files
from zoo.report.section import Section
from zoo.report.style import line_styles

PAGE = "report.html"
VERDICT = "Verdict"
"""The heading of the section with the words."""


def ladder_sections(
    verdicts: Mapping[str, ScaleVerdict], baseline: str, doubts: Sequence[str]
) -> list[Section]:
    """The verdict with its plots, then the tables behind it."""
    first, *others = tables(verdicts, baseline)
    return [
        Section(VERDICT, [first, *ladder_plots(verdicts, baseline)], doubts),
        *(Section(table.title, [table]) for table in others),
    ]


def write_ladder(
    verdicts: Mapping[str, ScaleVerdict],
    baseline: str,
    out: Path,
    *,
    margin: float | None,
    alpha: float,
    title: str,
    missing: Sequence[str] = (),
    description: str | None = None,
) -> Path:
    """Write report.html, .md, .csv, .tex and .json, and a PNG per plot.

    Args:
        verdicts: the verdicts of all variants.
        baseline: the variant that they are compared with.
        out: the folder to write into.
        margin: the factor within which two sides count as equal.
        alpha: the probability of any false claim.
        title: the heading of the page.
        missing: sentences, without their full stops, on runs that have not ended or crashed.
        description: the purpose of the runs, as described by their author.

    Returns:
        The path of the page.
    """
    doubts = [*alarms(verdicts, baseline), *missing, *notes(verdicts)]
    sections = ladder_sections(verdicts, baseline, doubts)
    styles = line_styles([baseline, *verdicts])
    images = draw_images(sections, styles)
    lead = [*([description] if description else []), *sentences(verdicts, baseline, margin)]
    every = tables(verdicts, baseline)
    plain = document(verdicts, baseline, margin=margin, alpha=alpha, missing=missing)
    write_files(
        out,
        {
            PAGE: html_page(title, lead, sections, styles, images),
            "report.md": markdown_page(title, lead, sections),
            "report.csv": tables_csv(every),
            "report.tex": tables_latex(every),
            "report.json": plain.model_dump_json(indent=2) + "\n",
            **{f"{key}.png": png for key, png in images.items()},
        },
    )
    return out / PAGE
