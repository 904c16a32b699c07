"""What a tokenizer.json may make of a text and of memory, which the package tokenizers does not limit."""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import Any

from zoo.utils.untyped import JsonObject

CHARSMAP = re.compile(rb'"precompiled_charsmap"\s*:\s*"([^"]*)"')
GROWTH = 10_000
"""Characters that replacements, one after the other, may make of one. Our choice; those of the families that
zoo reads make one of one."""


def require_tables(content: bytes) -> None:
    """Refuse a table of characters that says it is larger than it is: so much memory would be asked for.

    Args:
        content: a tokenizer.json.

    Raises:
        ValueError: there is one.
    """
    for match in CHARSMAP.finditer(content):
        try:
            said = int.from_bytes(base64.b64decode(match[1][:8], validate=True)[:4], "little")
        except binascii.Error:
            continue  # which the package says
        there = len(match[1]) * 3 // 4
        if said > there:
            raise ValueError(f"precompiled_charsmap: a table of {said} bytes in {there} bytes")


def require_growth(step: Any, what: str) -> None:  # Any: the package's classes share no type
    """Refuse replacements that make a text so long that it fills the memory.

    Args:
        step: a normalizer or a decoder of the package; None: there is none.
        what: which of the two, for the message.

    Raises:
        ValueError: the step makes more than `GROWTH` characters of one.
    """
    if step is not None and (growth := _growth(json.loads(step.__getstate__()))) > GROWTH:
        raise ValueError(f"{what}: makes up to {growth:.0e} characters of one; expected at most {GROWTH}")


def _growth(step: JsonObject) -> float:
    """The most characters that a step makes of one."""
    growth = 1.0
    for inside in step.get("normalizers") or step.get("decoders") or ():
        growth *= _growth(inside)
    if step.get("type") == "Replace":
        least = len(step["pattern"].get("String") or "x")  # an expression may match a single character
        growth *= max(1.0, len(step["content"]) / least)
    return growth
