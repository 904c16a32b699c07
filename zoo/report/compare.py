"""Several runs on one page: curves, a table, samples. One HTML file without anything beside it."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path
from string import Template

from zoo.atomic import write_file
from zoo.errors import ZooError
from zoo.plotting import colour
from zoo.report.curves import draw
from zoo.report.runs import Run, read_run

PAGE = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))


def compare(runs: Sequence[Path], out: Path) -> Path:
    """Write a page that compares runs, and its picture as a PNG beside it.

    Args:
        runs: run folders, at least one; unfinished runs are shown as far as they are.
        out: the .html file; the picture gets the same name with .png.

    Returns:
        The page.

    Raises:
        ZooError: no runs, a name ending in something other than .html, or a folder without metrics.
    """
    if not runs:
        raise ZooError("compare: no runs; expected one or more run folders")
    if out.suffix != ".html":
        raise ZooError(f"compare: {out}: expected a name that ends in .html")
    found = [read_run(path) for path in runs]
    picture = io.BytesIO()
    draw(found, picture)
    page = _page(found, picture.getvalue())
    write_file(out.with_suffix(".png"), lambda partial: partial.write_bytes(picture.getvalue()))
    write_file(out, lambda partial: partial.write_text(page, encoding="utf-8"))
    return out


def _page(runs: Sequence[Run], picture: bytes) -> str:
    names = ", ".join(run.name for run in runs)
    best = min((run.best for run in runs if run.best is not None), default=None)
    samples = "".join(_sample(run, colour(i)) for i, run in enumerate(runs) if run.sample)
    return PAGE.substitute(
        title=html.escape(names if len(runs) == 1 else f"{len(runs)} runs compared"),
        names=html.escape(names),
        picture=base64.b64encode(picture).decode("ascii"),
        rows="\n".join(_row(run, colour(i), best) for i, run in enumerate(runs)),
        samples=f"<h2>Samples</h2>\n{samples}" if samples else "",
    )


def _row(run: Run, colour: str, best: float | None) -> str:
    lowest = ' class="lowest"' if best is not None and run.best == best else ""
    cells = [
        f'<td><span class="dot" style="background:{colour}"></span>{html.escape(run.name)}</td>',
        f"<td>{html.escape(run.model)}</td>",
        f"<td>{html.escape(run.optimizer)}</td>",
        f"<td>{run.step:,}</td>",
        f"<td>{_number(run.last, '.4f')}</td>",
        f"<td{lowest}>{_number(run.best, '.4f')}</td>",
        f"<td>{_number(run.tokens_per_second, ',.0f')}</td>",
        f"<td>{_number(run.parameters, ',')}</td>",
        f"<td>{_bytes(run.optimizer_bytes)}</td>",
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _bytes(count: int | None) -> str:
    return "–" if count is None else f"{count / 2**20:,.2f} MiB"


def _sample(run: Run, colour: str) -> str:
    return (
        f"<h3>{html.escape(run.name)}</h3>\n"
        f'<pre style="--colour:{colour}">{html.escape(run.sample or "")}</pre>\n'
    )
