"""Tokenizers as tokenizer.json: transformers reads and writes the same tokens."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers

from zoo.data import Tokenizer, load_tokenizer
from zoo.data.byte import ByteTokenizer
from zoo.data.sentencepiece import SentencePieceConfig
from zoo.hub.tokenizer import SAMPLE, write_tokenizer

LETTERS = "def (x):  return\n+ 12 caf\u00e9 \u4e2d\U0001f600\t"


def corpus() -> Iterator[str]:
    chance = random.Random(0)
    words = ["café", "self.x", "    if", "1234", "中文", "=="]
    words += ["".join(chance.choice("abdefnortu") for _ in range(chance.randint(2, 7))) for _ in range(90)]
    for _ in range(400):
        yield " ".join(chance.choice(words) for _ in range(12))


def texts() -> list[str]:
    chance = random.Random(1)
    odd = ["", " ", "  leading", "trailing  ", "a\n\n\tb", "x" * 50, SAMPLE, "\u00ff\u0100", *corpus()]
    return odd + ["".join(chance.choice(LETTERS) for _ in range(40)) for _ in range(200)]


def bpe(**fields: Any) -> Tokenizer:
    return SentencePieceConfig(vocab_size=340, **fields).build(corpus)


@pytest.mark.parametrize("make", [ByteTokenizer, bpe])
def test_the_same_tokens(tmp_path: Path, make: Any) -> None:
    ours = make()
    assert write_tokenizer(ours, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (len(theirs), theirs.eos_token_id) == (ours.vocab_size, ours.eos_id)
    for text in texts():
        ids = ours.encode(text)
        assert theirs.encode(text, add_special_tokens=False) == ids, text
        assert theirs.decode(ids) == ours.decode(ids) == text


def test_rare_characters_are_bytes(tmp_path: Path) -> None:
    """Characters that no piece has keep their bytes, as in sentencepiece."""
    ours = bpe()
    write_tokenizer(ours, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = theirs.encode("\U0001f600", add_special_tokens=False)
    assert len(ids) == 4
    assert theirs.convert_ids_to_tokens(ids) == ["<0xF0>", "<0x9F>", "<0x98>", "<0x80>"]


def test_sentencepiece_keeps_its_file(tmp_path: Path) -> None:
    ours = bpe()
    write_tokenizer(ours, tmp_path)
    assert load_tokenizer(tmp_path).hash == ours.hash


def test_what_has_no_such_form_is_not_written(tmp_path: Path) -> None:
    assert not write_tokenizer(bpe(algorithm="unigram"), tmp_path)
    assert list(tmp_path.iterdir()) == []
