"""A report as one HTML file without anything beside it; its plots react, and on paper they are pictures."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template

from zoo.ablate.sheet import Sheet
from zoo.report.interactive import figures
from zoo.report.look import Look
from zoo.report.plot import Plot
from zoo.report.section import Sample, Section

HERE = Path(__file__).parent
VERDICTS = ("better", "worse")
"""Words that stand out."""


def page(
    title: str,
    lead: Sequence[str],
    sections: Sequence[Section],
    looks: Mapping[str, Look],
    pictures: Mapping[str, bytes],
) -> str:
    """The page.

    Args:
        title: its heading.
        lead: the sentences under it.
        sections: in order.
        looks: by variant.
        pictures: PNGs of the plots by their keys, for paper and where no scripts run.
    """
    from plotly.offline import get_plotlyjs

    plots = [block for section in sections for block in section.blocks if isinstance(block, Plot)]
    data = json.dumps([figures(plot, looks) for plot in plots], separators=(",", ":"), allow_nan=False)
    return Template(_file("page.html")).substitute(
        title=html.escape(title),
        style=_file("page.css"),
        lead="\n".join(f"<p>{html.escape(sentence)}</p>" for sentence in lead),
        sections="\n".join(_section(section, looks, pictures) for section in sections),
        plotly=get_plotlyjs(),
        plots=data.replace("<", "\\u003c"),  # a name must not end the script
        script=_file("page.js"),
    )


def _file(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _section(section: Section, looks: Mapping[str, Look], pictures: Mapping[str, bytes]) -> str:
    parts = [f"<section>\n<h2>{html.escape(section.title)}</h2>"]
    if section.notes:
        items = "".join(f"<li>{html.escape(note)}.</li>" for note in section.notes)
        parts.append(f'<ul class="caveats">{items}</ul>')
    for block in section.blocks:
        if isinstance(block, Sheet):
            parts.append(_sheet(block, looks, section.title))
        elif isinstance(block, Plot):
            parts.append(_plot(block, pictures[block.key]))
        else:
            parts.append(_sample(block, looks))
    return "\n".join([*parts, "</section>"])


def _sheet(sheet: Sheet, looks: Mapping[str, Look], above: str) -> str:
    """A table; its title is left out if it is that of the section above it."""
    title = "" if sheet.title == above else f"<h3>{html.escape(sheet.title)}</h3>\n"
    head = "".join(f"<th{_left(column.right)}>{html.escape(column.title)}</th>" for column in sheet.columns)
    rows = []
    for row in sheet.texts:
        cells = [f'<td class="left">{_variant(row[0], looks)}</td>']
        for column, text in list(zip(sheet.columns, row, strict=True))[1:]:
            classes = ["" if column.right else "left", text if text in VERDICTS else ""]
            cells.append(f'<td class="{" ".join(filter(None, classes))}">{html.escape(text)}</td>')
        rows.append(f"<tr>{''.join(cells)}</tr>")
    body = "\n".join(rows)
    return (
        f'{title}<div class="scroll"><table id="table-{sheet.key}">\n<thead><tr>{head}</tr></thead>\n'
        f'<tbody>\n{body}\n</tbody>\n</table></div>\n<p class="note">{html.escape(sheet.note)}</p>'
    )


def _left(right: bool) -> str:
    return "" if right else ' class="left"'


def _variant(name: str, looks: Mapping[str, Look]) -> str:
    """A variant's name, which hides it in all plots."""
    text = html.escape(name)
    colour = looks[name].colour
    return (
        f'<button type="button" class="variant" data-variant="{text}" aria-pressed="true" '
        f'style="--colour:{colour}">{text.replace(",", ",<wbr>")}</button>'
    )


def _plot(plot: Plot, picture: bytes) -> str:
    source = base64.b64encode(picture).decode("ascii")
    title = html.escape(plot.title)
    return (
        f"<figure>\n<h3>{title}</h3>\n"
        f'<div class="views" id="views-{plot.key}"></div>\n<div class="plot" id="plot-{plot.key}"></div>\n'
        f'<img alt="{title}" src="data:image/png;base64,{source}">\n'
        f'<figcaption class="note">{html.escape(plot.note)}</figcaption>\n</figure>'
    )


def _sample(sample: Sample, looks: Mapping[str, Look]) -> str:
    return (
        f"<h3>{html.escape(sample.run)}</h3>\n"
        f'<pre style="--colour:{looks[sample.variant].colour}">{html.escape(sample.text)}</pre>'
    )
