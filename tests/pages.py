"""What the pages of docs/ tell the reader to write and to type, section by section."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


@dataclass
class Section:
    """The code of a section.

    Attributes:
        files: by their names, which stand in the first line as a comment.
        commands: what follows ``$ zoo``, without comments.
    """

    files: dict[str, str] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)


def sections(page: str) -> dict[str, Section]:
    """The sections of a page of docs/ by their headings."""
    found: dict[str, Section] = {}
    for part in re.split(r"^## ", (DOCS / page).read_text("utf-8"), flags=re.M)[1:]:
        heading, _, body = part.partition("\n")
        section = found[heading] = Section()
        for language, code in re.findall(r"^```(\w+)\n(.*?)^```$", body, flags=re.M | re.S):
            first, _, rest = code.partition("\n")
            if language == "console":
                lines = [line for line in code.splitlines() if line.startswith("$ zoo ")]
                section.commands += [line.removeprefix("$ zoo ").split("  #")[0] for line in lines]
            elif first.startswith("# ") and "." in first:
                section.files[first.removeprefix("# ").split()[0]] = rest
    return found
