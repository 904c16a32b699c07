"""Conversion of tokenizers to tokenizer.json, which transformers opens without sentencepiece."""

from __future__ import annotations

import json
from pathlib import Path

from zoo.data.tokenizers.base import Tokenizer
from zoo.data.tokenizers.byte import ByteTokenizer
from zoo.data.tokenizers.huggingface import (
    CHAT_TEMPLATE_FILE,
    READER,
    SEGMENTS,
    SETTINGS_FILE,
    TOKENIZER_FILE,
    HuggingFaceTokenizer,
)
from zoo.data.tokenizers.sentencepiece import SentencePieceTokenizer
from zoo.data.tokenizers.word import EOS, UNKNOWN, WordTokenizer
from zoo.hub.sentencepiece_json import bpe, inexpressible, parse_model, to_json
from zoo.utils.errors import DataError
from zoo.utils.untyped import JsonObject

END = "<|endoftext|>"
START, STOP = "<start>", "<end>"
"""Names in a post-processor of the special tokens around texts."""
SAMPLE = "def f(x):\n\treturn  x + 1234  # caf\u00e9, \u4e2d\u6587, \U0001f600\n\n  The end. "
"""Text for comparing two tokenizers: indentation, digits, and characters of 1 to 4 bytes."""
EDGES = "\n\tx\n"
"""Another one: white space other than blanks at both ends."""
WHITE_SPACE = (
    r"[\t-\r\x1c-\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]+"
)
"""The separators of Python's `str.split`, as a regular expression of the tokenizers library."""


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> str | None:
    """Write tokenizer.json, tokenizer_config.json and the files that zoo itself reads.

    Args:
        tokenizer: any tokenizer.
        folder: an existing folder.

    Returns:
        None, or the reason why the tokenizer cannot be expressed as a tokenizer.json; nothing is written
        then.
    """
    if isinstance(tokenizer, HuggingFaceTokenizer):
        tokenizer.save(folder)
        _change_settings(folder, {}, {"tokenizer_class": READER})
        return None
    if isinstance(tokenizer, ByteTokenizer):
        end, content = END, _bytes(tokenizer)
    elif isinstance(tokenizer, WordTokenizer):
        end, content = EOS, _words(tokenizer)
    elif isinstance(tokenizer, SentencePieceTokenizer):
        try:
            model = parse_model(tokenizer.processor.serialized_model_proto())
        except DataError as error:
            return str(error)
        if reason := inexpressible(model):
            return reason
        end, content = model.pieces[tokenizer.eos_id].piece, to_json(model)
    else:
        return f"a tokenizer of type '{tokenizer.type}' cannot be written as tokenizer.json"
    tokenizer.save(folder)
    content |= {"version": "1.0", "truncation": None, "padding": None, "post_processor": None}
    content["added_tokens"] = [special_token(end, tokenizer.eos_id)]
    settings = {
        "tokenizer_class": READER,
        "eos_token": end,
        "clean_up_tokenization_spaces": False,
    }
    for name, value in ((TOKENIZER_FILE, content), (SETTINGS_FILE, settings)):
        (folder / name).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    return None


def special_token(text: str, token: int) -> JsonObject:
    """An entry of ``added_tokens`` in a tokenizer.json."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token, "content": text, **flags, "special": True}


def frame(start: int | None, end: int, segments: int = 1) -> JsonObject:
    """The ``post_processor`` of a tokenizer.json that adds special tokens around a text or a pair of texts.

    Args:
        start: id of the token in front; None: there is none.
        end: id of the token behind each text.
        segments: number of segments of the model.
    """
    ids = ({} if start is None else {START: start}) | {STOP: end}

    def part(kind: str, name: str, segment: int) -> JsonObject:
        return {kind: {"id": name, "type_id": segment}}

    opening = [] if start is None else [part("SpecialToken", START, 0)]
    first = [*opening, part("Sequence", "A", 0), part("SpecialToken", STOP, 0)]
    other = min(1, segments - 1)
    second = [part("Sequence", "B", other), part("SpecialToken", STOP, other)]
    special = {name: {"id": name, "ids": [token], "tokens": [name]} for name, token in ids.items()}
    return {
        "type": "TemplateProcessing",
        "single": first,
        "pair": [*first, *second],
        "special_tokens": special,
    }


def use_generic_class(folder: Path) -> None:
    """Have transformers read the tokenizer.json as it is, not with a class for one family of models."""
    _change_settings(folder, {"tokenizer_class": READER})


def name_segments(folder: Path) -> None:
    """Have every class of transformers return the segments of a text's tokens; the generic one would not."""
    _change_settings(folder, {"model_input_names": ["input_ids", SEGMENTS, "attention_mask"]})


def truncate_on_the_right(folder: Path) -> None:
    """Have transformers truncate texts where the encoder of a classifier that is trained here does."""
    _change_settings(folder, {"truncation_side": "right"})


def remove_chat_template(folder: Path) -> None:
    """Have transformers ask for a chat template instead of using the one that came with the tokenizer."""
    (folder / CHAT_TEMPLATE_FILE).unlink(missing_ok=True)
    _change_settings(folder, {}, removed="chat_template")


def _change_settings(
    folder: Path, changes: JsonObject, defaults: JsonObject | None = None, removed: str = ""
) -> None:
    """Change tokenizer_config.json, where `defaults` count for what it lacks, and remove one field."""
    file = folder / SETTINGS_FILE
    settings = (defaults or {}) | json.loads(file.read_text("utf-8")) | changes
    settings.pop(removed, None)
    file.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def samples(tokenizer: Tokenizer) -> list[str]:
    """Texts for comparing two tokenizers: characters of all kinds, and the first tokens of the vocabulary."""
    return [SAMPLE, EDGES, tokenizer.decode(range(min(tokenizer.vocab_size, 1000)))]


def _bytes(tokenizer: ByteTokenizer) -> JsonObject:
    """Byte-level BPE (GPT-2's) without merges."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    vocab = {character: byte for byte, character in enumerate(_characters()) if byte != tokenizer.eos_id}
    model = bpe(vocab | {END: tokenizer.eos_id}, [])
    return {"normalizer": None, "pre_tokenizer": level, "decoder": level, "model": model}


def _characters() -> list[str]:
    """The character that stands for each byte in GPT-2's vocabulary: itself if it is printable."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _words(tokenizer: WordTokenizer) -> JsonObject:
    """A model of whole words; decoding joins them with blanks, as `WordTokenizer` does."""
    vocab = {word: i for i, word in enumerate(tokenizer.vocabulary)}
    split = {"type": "Split", "pattern": {"Regex": WHITE_SPACE}, "behavior": "Removed", "invert": False}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": UNKNOWN}
    return {"normalizer": None, "pre_tokenizer": split, "decoder": None, "model": model}
