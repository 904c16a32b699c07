"""Tokenizers as tokenizer.json: transformers reads and writes the same tokens."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import transformers
from hub_tokenizers import TOKENIZERS, saved

from zoo.data.tokenizers.base import Tokenizer
from zoo.data.tokenizers.byte import ByteTokenizer
from zoo.data.tokenizers.saved import find_tokenizer
from zoo.data.tokenizers.sentencepiece import SentencePieceConfig, SentencePieceTokenizer
from zoo.data.tokenizers.word import WordConfig
from zoo.hub.tokenizer_json import SAMPLE, samples, write_tokenizer

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
    odd += ["\n", "\n\tx\n", " \t a \n b \r\n "]
    return odd + ["".join(chance.choice(LETTERS) for _ in range(40)) for _ in range(200)]


def pieces(**fields: Any) -> Tokenizer:
    return SentencePieceConfig(vocab_size=340, **fields).build(corpus)


def foreign(**options: Any) -> Tokenizer:
    """A sentencepiece model as others train them."""
    written = io.BytesIO()
    settings: dict[str, Any] = {"vocab_size": 340, "eos_id": 1, "bos_id": -1, "unk_id": 0, "minloglevel": 2}
    settings |= {"hard_vocab_limit": options.get("model_type") == "bpe", **options}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=corpus(), model_writer=written, **settings)
    return SentencePieceTokenizer(written.getvalue(), "foreign")


def words() -> Tokenizer:
    return WordConfig(vocab_size=60).build(corpus)


LOSSLESS: dict[str, Callable[[], Tokenizer]] = {
    "byte": ByteTokenizer,
    "bpe": pieces,
    "unigram": lambda: pieces(algorithm="unigram"),
    "bpe of others": lambda: foreign(
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
    ),
}
OTHERS: dict[str, Callable[[], Tokenizer]] = {
    "word": words,
    "unigram of others": lambda: foreign(model_type="unigram"),  # nmt_nfkc, no bytes: as T5's
    "unigram with bytes": lambda: foreign(model_type="unigram", byte_fallback=True, vocab_size=500),
    "bpe, normalised": lambda: foreign(model_type="bpe", byte_fallback=True),
    "line ends kept": lambda: foreign(model_type="bpe", byte_fallback=True, normalization_rule_name="nfkc"),
    "no blank in front": lambda: foreign(model_type="unigram", add_dummy_prefix=False),
}


@pytest.mark.parametrize("name", [*LOSSLESS, *OTHERS])
def test_the_same_tokens(tmp_path: Path, name: str) -> None:
    ours = (LOSSLESS | OTHERS)[name]()
    assert write_tokenizer(ours, tmp_path) is None
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (len(theirs), theirs.eos_token_id) == (ours.vocab_size, ours.eos_id)
    for text in [*texts(), *samples(ours), "<0x0A> <unk> 0x0A>"]:
        ids = ours.encode(text)
        assert theirs.encode(text, add_special_tokens=False) == ids, text
        if name in LOSSLESS:
            assert theirs.decode(ids) == ours.decode(ids) == text


BLANKS = ["\u2581", "\u2581k", "  \u2581k  ", "k\u2581 ", "a \u2581  b", "a\u2581\u2581 b", " \u2581 \u2581 "]


@pytest.mark.parametrize("name", OTHERS)
def test_the_character_for_a_blank_is_spelled_out(tmp_path: Path, name: str) -> None:
    """Sentencepiece removes it at the end of a text, but not in front, and never takes two for one."""
    ours = OTHERS[name]()
    write_tokenizer(ours, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in BLANKS:
        assert theirs.encode(text, add_special_tokens=False) == ours.encode(text), text


def test_words_are_split_at_all_white_space(tmp_path: Path) -> None:
    """That of Python's `str.split`, of which a regular expression writes some as code points."""
    ours = words()
    write_tokenizer(ours, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    spaces = [chr(code) for code in range(0x3001) if chr(code).isspace()]
    assert len(spaces) == 29
    for space in spaces:
        text = f"1234{space}=="
        assert theirs.encode(text, add_special_tokens=False) == ours.encode(text), ascii(space)
        assert len(ours.encode(text)) == 2


def test_rare_characters_are_bytes(tmp_path: Path) -> None:
    """Characters that no piece has keep their bytes, as in sentencepiece."""
    for number, algorithm in enumerate(("bpe", "unigram")):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_tokenizer(pieces(algorithm=algorithm), folder)
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        ids = theirs.encode("\U0001f600", add_special_tokens=False)
        assert theirs.convert_ids_to_tokens(ids) == ["<0xF0>", "<0x9F>", "<0x98>", "<0x80>"]


@pytest.mark.parametrize("make", [ByteTokenizer, pieces, words])
def test_what_was_written_is_still_ours(tmp_path: Path, make: Any) -> None:
    ours = make()
    write_tokenizer(ours, tmp_path)
    assert find_tokenizer(tmp_path).hash == ours.hash


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tokenizer_of_the_hub_goes_back_as_it_came(tmp_path: Path, name: str) -> None:
    ours = find_tokenizer(saved(name, tmp_path / "hub"))
    out = tmp_path / "out"
    out.mkdir()
    assert write_tokenizer(ours, out) is None
    assert (out / "tokenizer.json").read_bytes() == (tmp_path / "hub/tokenizer.json").read_bytes()
    before, after = (json.loads((f / "tokenizer_config.json").read_text()) for f in (tmp_path / "hub", out))
    assert after == before


WITHOUT: list[tuple[dict[str, Any], str]] = [
    (
        {"model_type": "word", "vocab_size": 60},
        "sentencepiece models of words or characters cannot be written as tokenizer.json",
    ),
    (
        {"model_type": "char", "vocab_size": 40},
        "sentencepiece models of words or characters cannot be written as tokenizer.json",
    ),
    ({"model_type": "bpe"}, "BPE without bytes for rare characters cannot be written as tokenizer.json"),
    ({"user_defined_symbols": ["<x>"]}, "pieces that are user-defined cannot be written as tokenizer.json"),
    (
        {"treat_whitespace_as_suffix": True},
        "blanks at the end of words, or unescaped ones, cannot be written",
    ),
]


@pytest.mark.parametrize(("options", "reason"), WITHOUT, ids=str)
def test_what_has_no_such_form_is_not_written(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    assert (write_tokenizer(foreign(**options), tmp_path) or "").startswith(reason)
    assert list(tmp_path.iterdir()) == []
