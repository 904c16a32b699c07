"""Text from files and models as it may be shown on a terminal."""

from __future__ import annotations

import unicodedata

KEPT = "\n\t"
HIDDEN = ("Cc", "Cf", "Cs")
"""Categories of Unicode: control characters, formats such as a change of direction, and surrogates."""


def printable(text: str) -> str:
    """Text in which control characters are written out as in Python, since a terminal would obey them."""
    return "".join(_shown(char) for char in text)


def _shown(char: str) -> str:
    hidden = char not in KEPT and unicodedata.category(char) in HIDDEN
    return char.encode("unicode_escape").decode() if hidden else char
