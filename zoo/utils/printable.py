"""Text that is safe to show on a terminal, and numbers of bytes, dtypes and long lists as text."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

KEPT = "\n\t\u200c\u200d"
"""Characters that are kept: line ends, tabs, and the joiners that some scripts and emoji need."""
HIDDEN = ("Cc", "Cf", "Cs")
"""Unicode categories that are escaped: control characters, formats (such as direction), surrogates."""


def printable(text: str) -> str:
    """Text in which control characters are escaped as in Python, because a terminal would execute them."""
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


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype without its module, such as ``bfloat16``."""
    return str(dtype).removeprefix("torch.")


def first_few(items: Sequence[str], most: int = 4) -> str:
    """The first items of a list, and the number of the others if there are more than `most`."""
    others = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + others


def with_wildcards(name: str) -> str:
    """The name of a parameter or module in which * replaces the number of its block: ``blocks.*.mlp``."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))
