"""A tokenizer as tokenizer.json, which transformers opens and which needs no sentencepiece."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from zoo.data import Tokenizer
from zoo.data.tokenizers.byte import ByteTokenizer
from zoo.data.tokenizers.huggingface import READER, SETTINGS_FILE, TOKENIZER_FILE, HuggingFaceTokenizer
from zoo.data.tokenizers.sentencepiece import SentencePieceTokenizer
from zoo.data.tokenizers.word import EOS, UNKNOWN, WordTokenizer
from zoo.hub.piece_tokenizer import bpe, described, inexpressible
from zoo.hub.pieces import Pieces
from zoo.hub.special import special

Json = dict[str, Any]

END = "<|endoftext|>"
SAMPLE = "def f(x):\n\treturn  x + 1234  # caf\u00e9, \u4e2d\u6587, \U0001f600\n\n  The end. "
"""Text on which two tokenizers are compared: indentation, digits, and characters of every length."""
BLANKS = r"[\t-\r\x1c-\x20\x85\xa0\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]+"
"""What Python's `str.split` splits at, in the words of the library's regular expressions."""


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> str | None:
    """Write tokenizer.json and what goes with it, and what we read ourselves.

    Args:
        tokenizer: any.
        folder: an existing one.

    Returns:
        Why there is no such form of it, and then nothing was written; None: it was.
    """
    if isinstance(tokenizer, HuggingFaceTokenizer):
        tokenizer.save(folder)
        return None
    if isinstance(tokenizer, ByteTokenizer):
        end, description = END, _bytes(tokenizer)
    elif isinstance(tokenizer, WordTokenizer):
        end, description = EOS, _words(tokenizer)
    elif isinstance(tokenizer, SentencePieceTokenizer):
        model = Pieces.read(tokenizer.processor.serialized_model_proto())
        if reason := inexpressible(model):
            return reason
        end, description = model.pieces[tokenizer.eos_id].text, described(model)
    else:
        return f"a tokenizer of type '{tokenizer.type}' has no such form"
    tokenizer.save(folder)
    description |= {"version": "1.0", "truncation": None, "padding": None, "post_processor": None}
    description["added_tokens"] = [special(end, tokenizer.eos_id)]
    config: Json = {"tokenizer_class": READER, "eos_token": end, "clean_up_tokenization_spaces": False}
    for name, content in ((TOKENIZER_FILE, description), (SETTINGS_FILE, config)):
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return None


def read_plainly(folder: Path) -> None:
    """Have transformers read a tokenizer.json as it is, not as a class for one family of models would."""
    file = folder / SETTINGS_FILE
    settings = json.loads(file.read_text("utf-8")) | {"tokenizer_class": READER}
    file.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def samples(tokenizer: Tokenizer) -> list[str]:
    """Texts on which a tokenizer is compared with what was written: characters of all kinds, and its own."""
    return [SAMPLE, tokenizer.decode(range(min(tokenizer.vocab_size, 1000)))]


def _bytes(tokenizer: ByteTokenizer) -> Json:
    """Byte-level BPE (GPT-2's) without merges."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    vocab = {character: byte for byte, character in enumerate(_characters()) if byte != tokenizer.eos_id}
    model = bpe(vocab | {END: tokenizer.eos_id}, [])
    return {"normalizer": None, "pre_tokenizer": level, "decoder": level, "model": model}


def _characters() -> list[str]:
    """The character that stands for each byte in GPT-2's vocabulary: itself if it can be seen."""
    seen = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in seen else next(others)) for byte in range(256)]


def _words(tokenizer: WordTokenizer) -> Json:
    """Whole words; the library joins them with blanks, as ours does."""
    vocab = {word: i for i, word in enumerate(tokenizer.vocabulary)}
    split = {"type": "Split", "pattern": {"Regex": BLANKS}, "behavior": "Removed", "invert": False}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": UNKNOWN}
    return {"normalizer": None, "pre_tokenizer": split, "decoder": None, "model": model}
