"""`zoo report`: from run folders to a folder with a page, Markdown, CSV files, LaTeX and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from zoo.ablate.alpha import ALPHA
from zoo.ablate.ladder_verdict import LadderVerdict
from zoo.ablate.results import read_results
from zoo.ablate.table import Table
from zoo.ablate.verdict import Judgement, judge
from zoo.report.chapter import Chapter, chapter_of, joined, read_chapter
from zoo.report.csv_files import tables_csv
from zoo.report.latex import tables_latex
from zoo.report.markdown import markdown_page
from zoo.report.page import draw_images, html_page, write_files
from zoo.report.section import Section
from zoo.report.style import line_styles

PAGE = "report.html"


def report(
    paths: Sequence[Path],
    out: Path,
    *,
    baseline: str | None = None,
    alpha: float = ALPHA,
    metric: str | None = None,
) -> tuple[Judgement, Path]:
    """Judge a sweep, or run folders, and write the report; the same runs give the same files.

    Args:
        paths: the folder of one sweep without sizes, or one or more run folders.
        out: the folder to write into: report.html, .md, .csv and .tex, curves.csv, a PNG per plot.
        baseline: name of the variant that the others are compared with; None: the sweep's own, or that of the
            first run folder.
        alpha: the probability of any false claim.
        metric: name of the measure by which the runs are compared; None: see `read_results`.

    Returns:
        The judgement, and the path of the page.

    Raises:
        ZooError: The runs cannot be read or judged, see `read_results` and `judge`; or `out` is a file.
            Nothing is written then.
    """
    results = read_results(paths, baseline, metric)
    judgement = judge(results, alpha)
    chapter = chapter_of(judgement)
    page = _write(out, chapter.title, chapter.lead, chapter.sections, chapter.curves, [chapter])
    return judgement, page


def report_sweeps(
    sweeps: Sequence[Path],
    out: Path,
    *,
    baseline: str | None = None,
    alpha: float = ALPHA,
    metric: str | None = None,
) -> tuple[list[Judgement | LadderVerdict], Path]:
    """Judge several sweeps, each by itself, and write one report of them.

    Args:
        sweeps: two or more folders of sweeps, with sizes or without.
        out: the folder of the report; the names of pictures and curves begin with those of the sweeps.
        baseline: a variant that every sweep has; None: the baseline of each.
        alpha: the probability of any false claim in each sweep.
        metric: name of the measure by which the runs are compared; None: see `read_results`.

    Returns:
        The verdict of each sweep, and the path of the page.

    Raises:
        ZooError: The sweeps cannot be read or judged, see `report`.
    """
    chapters = [read_chapter(sweep, baseline, alpha, metric) for sweep in sweeps]
    title, lead, sections, curves = joined(chapters, alpha)
    return [chapter.verdict for chapter in chapters], _write(out, title, lead, sections, curves, chapters)


def _write(
    out: Path,
    title: str,
    lead: Sequence[str],
    sections: Sequence[Section],
    curves: Mapping[str, str],
    chapters: Sequence[Chapter],
) -> Path:
    """Write all files of a report, and return the path of the page."""
    styles = line_styles(name for chapter in chapters for name in chapter.variants)
    images = draw_images(sections, styles)
    tables = [block for section in sections for block in section.blocks if isinstance(block, Table)]
    write_files(
        out,
        {
            PAGE: html_page(title, lead, sections, styles, images),
            "report.md": markdown_page(title, lead, sections),
            "report.csv": tables_csv(tables),
            "report.tex": tables_latex(tables),
            **curves,
            **{f"{key}.png": png for key, png in images.items()},
        },
    )
    return out / PAGE
