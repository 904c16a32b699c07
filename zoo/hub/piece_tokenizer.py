"""Sentencepiece models in the words of tokenizer.json."""

from __future__ import annotations

import base64
import re
from typing import Any

from zoo.hub.pieces import Kind, Piece, Pieces

Json = dict[str, Any]

BLANK = "\u2581"
"""What sentencepiece writes for a blank."""
UNIGRAM, BPE = 1, 2


def inexpressible(model: Pieces) -> str | None:
    """Why there is no tokenizer.json that reads the same; None: there is one."""
    if model.algorithm not in (UNIGRAM, BPE):
        return "sentencepiece's words and characters have no such form"
    for kind in (Kind.USER_DEFINED, Kind.UNUSED):
        if model.of(kind):
            return f"pieces that are {kind.name.lower().replace('_', '-')} have no such form"
    if model.suffix or not model.escaped:
        return "blanks at the end of words, or kept as they are, have no such form"
    if model.algorithm == BPE:
        scores = [piece.score for piece in model.of(Kind.TEXT)]
        if scores != [float(-i) for i in range(len(scores))]:
            return "BPE whose pieces are not numbered by their scores has no such form"
        if not model.of(Kind.BYTE):
            return "BPE without bytes for rare characters has no such form"
    return None


def described(model: Pieces) -> Json:
    """Normaliser, splitter, decoder and model; what is special is for the caller to add."""
    return {
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(model)},
        "pre_tokenizer": _splitter(model) if model.algorithm == UNIGRAM else None,
        "decoder": {"type": "Sequence", "decoders": _decoders(model)},
        "model": _unigram(model) if model.algorithm == UNIGRAM else _bpe(model),
    }


def _normalizers(model: Pieces) -> list[Json]:
    """What happens to a text before it is cut into pieces, in sentencepiece's order."""
    found: list[Json] = []
    if model.charsmap:
        table = base64.b64encode(model.charsmap).decode("ascii")
        found.append({"type": "Precompiled", "precompiled_charsmap": table})
    if model.squeezed:
        found.append({"type": "Strip", "strip_left": True, "strip_right": True})
        found.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    if model.prefix:
        found.append({"type": "Prepend", "prepend": BLANK})
    return [*found, {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}]


def _decoders(model: Pieces) -> list[Json]:
    found: list[Json] = [
        {"type": "Replace", "pattern": {"String": BLANK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    return [*found, {"type": "Strip", "content": " ", "start": 1, "stop": 0}] if model.prefix else found


def _splitter(model: Pieces) -> Json | None:
    """Keeps the name of a byte that a text spells out, ``<0x0A>``, from being taken for the byte."""
    names = [p.text for p in model.pieces if p.kind in (Kind.BYTE, Kind.UNKNOWN)]
    endings: dict[str, list[str]] = {}
    for name in names:
        endings.setdefault(re.escape(name[0]), []).append(re.escape(name[1:]))
    pattern = "|".join(f"{first}(?={'|'.join(rest)})" for first, rest in endings.items())
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _unigram(model: Pieces) -> Json:
    """The likeliest way to cut a text into pieces."""
    return {
        "type": "Unigram",
        "unk_id": _unknown(model),
        "vocab": [[piece.text, piece.score] for piece in model.pieces],
        "byte_fallback": bool(model.of(Kind.BYTE)),
    }


def _bpe(model: Pieces) -> Json:
    """BPE over whole texts, with bytes for characters that have no piece.

    A piece may be made of any two that are pieces; of all pairs in a text the one is joined first whose
    piece has the highest score, as sentencepiece does.
    """
    texts = {piece.text for piece in model.of(Kind.TEXT)}
    merges = [pair for piece in model.of(Kind.TEXT) for pair in _halves(piece, texts)]
    vocab = {piece.text: i for i, piece in enumerate(model.pieces)}
    unknown = model.pieces[_unknown(model)].text
    return bpe(vocab, merges) | {"unk_token": unknown, "fuse_unk": True, "byte_fallback": True}


def _halves(piece: Piece, texts: set[str]) -> list[list[str]]:
    cuts = [[piece.text[:at], piece.text[at:]] for at in range(1, len(piece.text))]
    return [cut for cut in cuts if texts.issuperset(cut)]


def _unknown(model: Pieces) -> int:
    return next(i for i, piece in enumerate(model.pieces) if piece.kind == Kind.UNKNOWN)


def bpe(vocab: dict[str, int], merges: list[list[str]]) -> Json:
    """The library's BPE with everything else switched off."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocab,
        "merges": merges,
    }
