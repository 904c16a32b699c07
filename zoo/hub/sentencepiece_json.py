"""Conversion of sentencepiece models to the format of tokenizer.json."""

from __future__ import annotations

import base64
import re
from importlib import import_module
from typing import Any, TypeAlias

from zoo.utils.errors import DataError
from zoo.utils.untyped import JsonObject

Proto: TypeAlias = Any
"""`ModelProto` of sentencepiece, or a part of one. Any: the generated classes have no types."""

BLANK = "\u2581"
"""Sentencepiece's character for a blank."""
OUTER_BLANKS = rf"\A +|[ {BLANK}]+\z"
"""What sentencepiece removes at both ends of a text; unlike ``Strip``, it keeps line ends and tabs there."""


def parse_model(content: bytes) -> Proto:
    """Parse the content of a .model file.

    Raises:
        DataError: The installed protobuf is too old for the installed sentencepiece.
    """
    try:
        proto = import_module("sentencepiece.sentencepiece_model_pb2")
    except Exception as error:  # ImportError, or protobuf refuses generated code that is newer than itself
        raise DataError(f"sentencepiece's models cannot be read: {error}") from error
    return proto.ModelProto.FromString(content)


def inexpressible(model: Proto) -> str | None:
    """The reason why no tokenizer.json can reproduce a model's tokens; None if one can."""
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    if trainer.model_type not in (trainer.UNIGRAM, trainer.BPE):
        return "sentencepiece models of words or characters cannot be written as tokenizer.json"
    for name in ("USER_DEFINED", "UNUSED"):
        if _of_type(model, name):
            return f"pieces that are {name.lower().replace('_', '-')} cannot be written as tokenizer.json"
    if trainer.treat_whitespace_as_suffix or not normalizer.escape_whitespaces:
        return "blanks at the end of words, or unescaped ones, cannot be written as tokenizer.json"
    if trainer.model_type == trainer.BPE:
        scores = [piece.score for piece in _of_type(model, "NORMAL")]
        if scores != [float(-i) for i in range(len(scores))]:
            return "BPE whose pieces are not sorted by score cannot be written as tokenizer.json"
        if not _of_type(model, "BYTE"):
            return "BPE without bytes for rare characters cannot be written as tokenizer.json"
    return None


def to_json(model: Proto) -> JsonObject:
    """The fields normalizer, pre_tokenizer, decoder and model of a tokenizer.json."""
    is_unigram = model.trainer_spec.model_type == model.trainer_spec.UNIGRAM
    return {
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(model.normalizer_spec)},
        "pre_tokenizer": _splitter(model) if is_unigram else None,
        "decoder": {"type": "Sequence", "decoders": _decoders(model.normalizer_spec)},
        "model": _unigram(model) if is_unigram else _bpe(model),
    }


def bpe(vocab: dict[str, int], merges: list[list[str]]) -> JsonObject:
    """A BPE model of the tokenizers library with all optional features switched off."""
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


def _of_type(model: Proto, name: str) -> list[Proto]:
    """The pieces of a type: NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE or UNUSED."""
    return [piece for piece in model.pieces if piece.type == piece.Type.Value(name)]


def _normalizers(spec: Proto) -> list[JsonObject]:
    """The steps of sentencepiece's normalisation, in their order."""
    steps: list[JsonObject] = []
    if spec.precompiled_charsmap:
        table = base64.b64encode(spec.precompiled_charsmap).decode("ascii")
        steps.append({"type": "Precompiled", "precompiled_charsmap": table})
    if spec.remove_extra_whitespaces:
        steps.append({"type": "Replace", "pattern": {"Regex": OUTER_BLANKS}, "content": ""})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    if spec.add_dummy_prefix:
        steps.append({"type": "Prepend", "prepend": BLANK})
    return [*steps, {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}]


def _decoders(spec: Proto) -> list[JsonObject]:
    steps: list[JsonObject] = [
        {"type": "Replace", "pattern": {"String": BLANK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    return [*steps, strip] if spec.add_dummy_prefix else steps


def _splitter(model: Proto) -> JsonObject:
    """A pre-tokenizer that keeps a byte's name in a text, ``<0x0A>``, from being encoded as this byte."""
    names = [piece.piece for piece in [*_of_type(model, "UNKNOWN"), *_of_type(model, "BYTE")]]
    renamed_suffixes: dict[str, list[str]] = {}
    for name in names:
        renamed_suffixes.setdefault(re.escape(name[0]), []).append(re.escape(name[1:]))
    pattern = "|".join(f"{first}(?={'|'.join(rest)})" for first, rest in renamed_suffixes.items())
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _unigram(model: Proto) -> JsonObject:
    """The model that segments a text into the most probable pieces."""
    return {
        "type": "Unigram",
        "unk_id": _unknown_id(model),
        "vocab": [[piece.piece, piece.score] for piece in model.pieces],
        "byte_fallback": bool(_of_type(model, "BYTE")),
    }


def _bpe(model: Proto) -> JsonObject:
    """The model of BPE over whole texts, with bytes for characters that have no piece.

    Any two pieces whose concatenation is a piece may be merged; of all pairs in a text the one whose merged
    piece has the highest score is merged first, as in sentencepiece.
    """
    texts = [piece.piece for piece in _of_type(model, "NORMAL")]
    known = set(texts)
    merges = [pair for text in texts for pair in _merges_into(text, known)]
    vocab = {piece.piece: i for i, piece in enumerate(model.pieces)}
    unknown = model.pieces[_unknown_id(model)].piece
    return bpe(vocab, merges) | {"unk_token": unknown, "fuse_unk": True, "byte_fallback": True}


def _merges_into(text: str, known: set[str]) -> list[list[str]]:
    """All pairs of pieces whose concatenation is `text`."""
    pairs = [[text[:at], text[at:]] for at in range(1, len(text))]
    return [pair for pair in pairs if known.issuperset(pair)]


def _unknown_id(model: Proto) -> int:
    return next(i for i, piece in enumerate(model.pieces) if piece.type == piece.UNKNOWN)
