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
from zoo.report.curves import colour, draw
from zoo.report.runs import Run, read_run

PAGE = Template("""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
  :root { color-scheme: light; --ink: #1d2433; --soft: #5d6678; --line: #e3e7ee; --paper: #fff; --wash: #f6f7fa }
  body { margin: 0 auto; max-width: 62rem; padding: 2.5rem 1.5rem 4rem; color: var(--ink); background: var(--paper);
         font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif }
  h1 { font-size: 1.7rem; margin: 0 0 .2rem; letter-spacing: -.01em }
  h2 { font-size: 1.1rem; margin: 2.5rem 0 .6rem }
  p { color: var(--soft); margin: 0 0 1.5rem; max-width: 44rem }
  img { width: 100%; border: 1px solid var(--line); border-radius: 10px }
  .scroll { overflow-x: auto }
  table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .94rem }
  th, td { padding: .5rem .8rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap }
  th { color: var(--soft); font-weight: 500; font-size: .84rem }
  th:first-child, td:first-child { text-align: left; padding-left: 0 }
  td.lowest { font-weight: 650 }
  .dot { display: inline-block; width: .7rem; height: .7rem; border-radius: 50%; margin-right: .55rem }
  pre { background: var(--wash); border-radius: 10px; padding: 1rem 1.2rem; overflow-x: auto; white-space: pre-wrap;
        font: .84rem/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; border-left: 4px solid var(--colour) }
  h3 { font-size: .95rem; margin: 1.2rem 0 .4rem }
</style>
<h1>$title</h1>
<p>Loss is the mean cross entropy in nats per token over the held-out text; z-loss is no part of it.
Speed is that of the training steps alone.</p>
<img alt="Validation and training loss of $names against training tokens" src="data:image/png;base64,$picture">
<h2>Results</h2>
<div class="scroll"><table>
<tr><th>run</th><th>model</th><th>optimizer</th><th>steps</th><th>last loss</th><th>best loss</th>
<th>tokens/s</th><th>parameters</th><th>optimizer state</th></tr>
$rows
</table></div>
$samples
</html>
""")


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
