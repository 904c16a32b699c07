"""From run folders to a folder with the report: page, Markdown, CSV, pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zoo.ablate.results import read_results
from zoo.ablate.sheet import Sheet
from zoo.ablate.verdict import ALPHA, Judgement, judge
from zoo.report.look import looks
from zoo.report.markdown import markdown
from zoo.report.page import page
from zoo.report.plot import Plot
from zoo.report.sections import sections
from zoo.report.static import picture
from zoo.report.tidy import curves_csv, sheets_csv
from zoo.utils.atomic import write_file

PAGE, MARKDOWN, TABLES, CURVES = "report.html", "report.md", "report.csv", "curves.csv"


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
        The judgement, and the page.

    Raises:
        ZooError: see `read_results` and `judge`; or `out` is a file. Nothing was written then.
    """
    results = read_results(paths, baseline)
    judgement = judge(results, alpha)
    content = sections(judgement)
    seen = looks(variant.name for variant in results.manifest.variants)
    blocks = [block for section in content for block in section.blocks]
    pictures = {block.key: picture(block, seen) for block in blocks if isinstance(block, Plot)}
    title, lead = results.manifest.name, judgement.sentences
    texts = {
        PAGE: page(title, lead, content, seen, pictures),
        MARKDOWN: markdown(title, lead, content),
        TABLES: sheets_csv([block for block in blocks if isinstance(block, Sheet)]),
        CURVES: curves_csv(results),
    }
    files = {name: text.encode("utf-8") for name, text in texts.items()}
    for name, content_ in (files | {f"{key}.png": png for key, png in pictures.items()}).items():
        _write(out / name, content_)
    return judgement, out / PAGE


def _write(path: Path, content: bytes) -> None:
    write_file(path, lambda partial: partial.write_bytes(content))
