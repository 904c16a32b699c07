"""A report as Markdown, with the pictures in files beside it."""

from __future__ import annotations

from collections.abc import Sequence

from zoo.ablate.table import Table
from zoo.report.plot import Plot
from zoo.report.section import Image, Sample, Section
from zoo.utils.printable import printable


def markdown_page(title: str, lead: Sequence[str], sections: Sequence[Section]) -> str:
    """Write a report as Markdown, in which HTML is escaped.

    Args:
        title: the heading of the report.
        lead: the sentences below the title.
        sections: the sections in order.
    """
    parts = [f"# {_escape(title)}", *map(_escape, lead)]
    for section in sections:
        parts += [f"## {_escape(section.title)}", *(f"> {_escape(note)}." for note in section.notes)]
        parts += [markdown_block(block) for block in section.blocks]
    return "\n\n".join(parts) + "\n"


def markdown_block(block: Table | Plot | Image | Sample) -> str:
    """A table, a plot or a text with what explains it."""
    if isinstance(block, Table):
        return f"{_table(block)}\n{_escape(block.note)}"
    if isinstance(block, Sample):
        code = "".join(f"    {line}\n" for line in printable(block.text).splitlines())
        return f"{_escape(block.run)}:\n\n{code}"
    title = _escape(block.title)
    return f"![{title}]({block.key}.png)\n\n{title}. {_escape(block.note)}"


def _table(table: Table) -> str:
    """A table in the dialect of GitHub."""
    alignment = ["---:" if column.align_right else "---" for column in table.columns]
    rows = [[column.title for column in table.columns], *table.texts]
    cells = [[_escape(text).replace("|", "\\|") for text in row] for row in rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in [cells[0], alignment, *cells[1:]])


def _escape(text: str) -> str:
    return printable(text).replace("&", "&amp;").replace("<", "&lt;")
