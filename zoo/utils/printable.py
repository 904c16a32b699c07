"""Text as it may be shown on a terminal: from files and models, and of numbers of bytes."""

from __future__ import annotations

import unicodedata

KEPT = "\n\t\u200c\u200d"
"""Line ends, tabs, and the joiners without which some scripts and pictures cannot be written."""
HIDDEN = ("Cc", "Cf", "Cs")
"""Categories of Unicode: control characters, formats such as a change of direction, and surrogates."""


def printable(text: str) -> str:
    """Text in which control characters are written out as in Python, since a terminal would obey them."""
    return "".join(_shown(char) for char in text)


def _shown(char: str) -> str:
    hidden = char not in KEPT and unicodedata.category(char) in HIDDEN
    return char.encode("unicode_escape").decode() if hidden else char


def readable_bytes(count: int | None) -> str:
    """A number of bytes in the unit that suits it, from B to GiB; "unknown" for None."""
    if count is None:
        return "unknown"
    size = float(count)
    for suffix in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {suffix}" if suffix == "B" else f"{size:.1f} {suffix}"
        size /= 1024
    return f"{size:.1f} GiB"
