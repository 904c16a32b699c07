"""Limits of the memory and the text growth that a tokenizer.json causes; the package tokenizers has none."""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import Any

from zoo.utils.untyped import JsonObject

CHARSMAP = re.compile(rb'"precompiled_charsmap"\s*:\s*"([^"]*)"')
GROWTH = 10_000
"""Largest number of characters by which successive replacements may replace one character (our choice). The
replacements of the families that zoo reads keep the number."""


def require_tables(content: bytes) -> None:
    """Refuse a table of characters that declares a size above its own, which would be allocated.

    Args:
        content: a tokenizer.json.

    Raises:
        ValueError: There is such a table.
    """
    for match in CHARSMAP.finditer(content):
        try:
            said = int.from_bytes(base64.b64decode(match[1][:8], validate=True)[:4], "little")
        except binascii.Error:
            continue  # the package reports this error
        there = len(match[1]) * 3 // 4
        if said > there:
            raise ValueError(f"precompiled_charsmap: a table of {said} bytes in {there} bytes")


def require_growth(step: Any, what: str) -> None:  # Any: the package's classes share no type
    """Refuse replacements that make a text too long for the memory.

    Args:
        step: a normalizer or a decoder of the package; None: there is none.
        what: "normalizer" or "decoder", for the message.

    Raises:
        ValueError: The step replaces one character by more than `GROWTH` characters.
    """
    if step is not None and (growth := _growth(json.loads(step.__getstate__()))) > GROWTH:
        raise ValueError(f"{what}: makes up to {growth:.0e} characters of one; expected at most {GROWTH}")


def _growth(step: JsonObject) -> float:
    """The largest number of characters by which a step replaces one."""
    growth = 1.0
    for inside in step.get("normalizers") or step.get("decoders") or ():
        growth *= _growth(inside)
    if step.get("type") == "Replace":
        least = len(step["pattern"].get("String") or "x")  # a regular expression may match a single character
        growth *= max(1.0, len(step["content"]) / least)
    return growth
