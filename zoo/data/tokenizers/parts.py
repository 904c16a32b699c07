"""Whether the decoder of a tokenizer.json decodes a text part by part as it decodes all of it at once."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from zoo.utils.untyped import JsonObject

BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")
"""The spelling of a token that is one byte of a character."""

BY_TOKEN = frozenset({"BPEDecoder", "ByteFallback", "ByteLevel", "Fuse", "Metaspace", "WordPiece"})
"""Decoders that treat each token, or each byte, in the same way wherever it is, but for the first and the
last ones of a text and for the bytes of one character."""


def byte_tokens(vocabulary: Mapping[str, int]) -> frozenset[int]:
    """The ids of tokens that are bytes of characters without a token of their own.

    Neighbouring ones are decoded together. If their bytes are no valid UTF-8, each of them becomes U+FFFD,
    those of complete characters among them too.
    """
    return frozenset(token for text, token in vocabulary.items() if BYTE.fullmatch(text))


def decodes_in_parts(decoder: Any) -> bool:  # Any: the package's classes share no type
    """Whether tokens are decoded alike behind any text, as `Tokenizer.is_final` requires.

    Args:
        decoder: a decoder of the package tokenizers; None: tokens are joined by blanks.

    Returns:
        False also for decoders of which it is not known.
    """
    return decoder is None or _is_by_token(json.loads(decoder.__getstate__()))


def _is_by_token(step: JsonObject) -> bool:
    """The answer of `decodes_in_parts` for a decoder as JSON."""
    match step:
        case {"type": "Sequence", "decoders": steps}:
            return all(map(_is_by_token, steps))
        case {"type": "Replace", "pattern": {"String": str(pattern)}}:
            return len(pattern) == 1  # a longer one may lie across two tokens that are joined already
        case {"type": "Strip", "stop": int(stop)}:
            return stop == 0  # on the right the package fails (0.23) if a part is shorter than the number
    return step.get("type") in BY_TOKEN
