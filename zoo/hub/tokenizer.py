"""A tokenizer as tokenizer.json, which transformers opens and which needs no sentencepiece."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from zoo.data import Tokenizer
from zoo.data.byte import ByteTokenizer
from zoo.data.sentencepiece import SentencePieceTokenizer

Json = dict[str, Any]

END = "<|endoftext|>"
BLANK = "\u2581"
"""What sentencepiece writes for a blank."""
SAMPLE = "def f(x):\n\treturn  x + 1234  # caf\u00e9, \u4e2d\u6587, \U0001f600\n\n  The end. "
"""Text on which two tokenizers are compared: indentation, digits, and characters of every length."""


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> bool:
    """Write tokenizer.json and what goes with it.

    Args:
        tokenizer: bytes, or sentencepiece's BPE that leaves the text as it is.
        folder: an existing one.

    Returns:
        Whether there is such a form of it; if not, nothing was written.
    """
    if isinstance(tokenizer, ByteTokenizer):
        end, description = END, _bytes(tokenizer)
    elif isinstance(tokenizer, SentencePieceTokenizer) and (pieces := _pieces(tokenizer)):
        end, description = pieces[tokenizer.eos_id][0], _sentencepiece(tokenizer, pieces)
        tokenizer.save(folder)
    else:
        return False
    description |= {"version": "1.0", "truncation": None, "padding": None, "post_processor": None}
    config: Json = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end}
    config |= {"clean_up_tokenization_spaces": False}
    for name, content in (("tokenizer.json", description), ("tokenizer_config.json", config)):
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return True


def _bytes(tokenizer: ByteTokenizer) -> Json:
    """Byte-level BPE (GPT-2's) without merges."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    vocab = {character: byte for byte, character in enumerate(_characters()) if byte != tokenizer.eos_id}
    return {
        "added_tokens": [_special(END, tokenizer.eos_id)],
        "normalizer": None,
        "pre_tokenizer": level,
        "decoder": level,
        "model": _bpe(vocab | {END: tokenizer.eos_id}, []),
    }


def _characters() -> list[str]:
    """The character that stands for each byte in GPT-2's vocabulary: itself if it can be seen."""
    seen = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in seen else next(others)) for byte in range(256)]


def _pieces(tokenizer: SentencePieceTokenizer) -> list[tuple[str, float, bool]]:
    """Each piece, its score and whether it is text; empty unless it is BPE that leaves the text as it is.

    The pieces of sentencepiece's BPE are numbered by their scores: 0, -1, -2, ...
    """
    processor = tokenizer.processor
    pieces = [
        (
            processor.id_to_piece(i),
            processor.get_score(i),
            not (processor.is_byte(i) or processor.is_control(i) or processor.is_unknown(i)),
        )
        for i in range(tokenizer.vocab_size)
    ]
    scores = [score for _, score, is_text in pieces if is_text]
    exact = processor.normalize(SAMPLE).removeprefix(BLANK) == SAMPLE.replace(" ", BLANK)
    is_bpe = scores == [float(-i) for i in range(len(scores))]
    has_bytes = any(processor.is_byte(i) for i in range(tokenizer.vocab_size))
    return pieces if exact and is_bpe and has_bytes else []


def _sentencepiece(tokenizer: SentencePieceTokenizer, pieces: list[tuple[str, float, bool]]) -> Json:
    """BPE over whole texts, with bytes for characters that have no piece.

    A piece may be made of any two that are pieces; of all pairs in a text the one is joined first whose
    piece has the highest score, as sentencepiece does.
    """
    vocab = {piece: i for i, (piece, _, _) in enumerate(pieces)}
    texts = {piece for piece, _, is_text in pieces if is_text}
    merges = [
        [piece[:cut], piece[cut:]]
        for piece, _, is_text in pieces
        if is_text
        for cut in range(1, len(piece))
        if piece[:cut] in texts and piece[cut:] in texts
    ]
    prefixed = tokenizer.processor.normalize("x") == BLANK + "x"
    blanks = {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}
    decoders: list[Json] = [
        {"type": "Replace", "pattern": {"String": BLANK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefixed:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    prefix = [{"type": "Prepend", "prepend": BLANK}] if prefixed else []
    unknown = next(piece for i, (piece, _, _) in enumerate(pieces) if tokenizer.processor.is_unknown(i))
    return {
        "added_tokens": [_special(pieces[tokenizer.eos_id][0], tokenizer.eos_id)],
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, blanks]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _bpe(vocab, merges) | {"unk_token": unknown, "fuse_unk": True, "byte_fallback": True},
    }


def _bpe(vocab: dict[str, int], merges: list[list[str]]) -> Json:
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


def _special(piece: str, token: int) -> Json:
    where = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token, "content": piece, **where, "special": True}
