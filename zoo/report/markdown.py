"""A report as Markdown, its pictures beside it."""

from __future__ import annotations

from collections.abc import Sequence

from zoo.ablate.sheet import Sheet
from zoo.report.plot import Plot
from zoo.report.section import Sample, Section


def markdown(title: str, lead: Sequence[str], sections: Sequence[Section]) -> str:
    """The whole report.

    Args:
        title: its heading.
        lead: the sentences under it.
        sections: in order.
    """
    parts = [f"# {title}", *lead]
    for section in sections:
        parts += [f"## {section.title}", *(f"> {note}." for note in section.notes)]
        parts += [_block(block) for block in section.blocks]
    return "\n\n".join(parts) + "\n"


def _block(block: Sheet | Plot | Sample) -> str:
    if isinstance(block, Sheet):
        return f"{block.markdown()}\n{block.note}"
    if isinstance(block, Plot):
        return f"![{block.title}]({block.key}.png)\n\n{block.title}. {block.note}"
    quoted = "".join(f"    {line}\n" for line in block.text.splitlines())
    return f"{block.run}:\n\n{quoted}"
