"""The tasks that come with lm-evaluation-harness, searched in the text of their files.

The harness parses thousands of files before it knows the first name, which takes many seconds. A name that
does not occur in their text is unknown, and reading the text takes a second.
"""

from __future__ import annotations

import re
from pathlib import Path

import lm_eval.tasks.manager

NAMED = re.compile(rb"""^[ \t-]*(?:task|group|tag):[ \t]*["']?([\w.+-]+)""", re.MULTILINE)
"""Pattern of a task, group or tag with its name in the same line, as in nearly all files."""


class Catalogue:
    """The text of all task files of the harness."""

    def __init__(self) -> None:
        """Read the files."""
        folder = Path(lm_eval.tasks.manager.__file__).parent
        self._text = b"\n".join(path.read_bytes() for path in folder.glob("**/*.yaml"))

    def may_have(self, name: str) -> bool:
        """Whether the files may define a name, that is, whether it occurs in their text."""
        return name.encode() in self._text

    @property
    def names(self) -> list[str]:
        """The names of nearly all tasks, groups and tags, sorted."""
        return sorted({name.decode() for name in NAMED.findall(self._text)})
