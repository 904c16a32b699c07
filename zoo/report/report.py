"""`zoo report`: from run folders to a folder with a page, Markdown, CSV files and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zoo.ablate.results import read_results
from zoo.ablate.table import Table
from zoo.ablate.verdict import ALPHA, Judgement, judge
from zoo.report.csv_files import curves_csv, tables_csv
from zoo.report.markdown import markdown_page
from zoo.report.page import draw_images, html_page, write_files
from zoo.report.sections import report_sections
from zoo.report.style import line_styles

PAGE = "report.html"


def report(
    paths: Sequence[Path], out: Path, *, baseline: str | None = None, alpha: float = ALPHA
) -> tuple[Judgement, Path]:
    """Judge a sweep, or run folders, and write the report; the same runs give the same files.

    Args:
        paths: the folder of one sweep, or one or more run folders.
        out: the folder to write into: report.html, report.md, report.csv, curves.csv, a PNG per plot.
        baseline: see `read_results`.
        alpha: see `judge`.

    Returns:
        The judgement, and the path of the page.

    Raises:
        ZooError: see `read_results` and `judge`, before anything is written; or `out` is a file.
    """
    results = read_results(paths, baseline)
    judgement = judge(results, alpha)
    sections = report_sections(judgement)
    styles = line_styles(results.variants)
    images = draw_images(sections, styles)
    title, lead = results.manifest.name, judgement.sentences
    tables = [block for section in sections for block in section.blocks if isinstance(block, Table)]
    write_files(
        out,
        {
            PAGE: html_page(title, lead, sections, styles, images),
            "report.md": markdown_page(title, lead, sections),
            "report.csv": tables_csv(tables),
            "curves.csv": curves_csv(results),
            **{f"{key}.png": png for key, png in images.items()},
        },
    )
    return judgement, out / PAGE
