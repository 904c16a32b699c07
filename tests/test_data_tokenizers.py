"""Tokenizers give every text back, survive a folder, and train the same way twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zoo.data.tokenizers import sentencepiece
from zoo.data.tokenizers.base import Tokenizer, load_tokenizer
from zoo.data.tokenizers.byte import ByteConfig, ByteTokenizer
from zoo.data.tokenizers.sentencepiece import LONGEST, SentencePieceConfig, SentencePieceTokenizer
from zoo.utils.errors import DataError

WORDS = str.split("the quick brown fox jumps over the lazy dog while seven wizards vex a bold jumping king")
PIECES = 300


def texts() -> Iterator[str]:
    """A little English, indented code, and one rare character."""
    for i in range(40):
        yield " ".join(WORDS[(i * j) % len(WORDS)] for j in range(1, 30)) + f"\n\n    x = {i}\n\té\r\n"


@pytest.fixture(scope="module")
def trained() -> SentencePieceTokenizer:
    """A sentencepiece tokenizer trained on `texts`."""
    return SentencePieceConfig(vocab_size=PIECES).build(texts)


TRICKY = [
    "",
    " ",
    "  two  blanks ",
    "tab\tline\r\nend\n\n",
    "é e\u0301 ﬁ ①",
    "🙂👩\u200d👩\u200d👧",
    "\x00\x01\x7f",
    "<s></s><0x0A>",
]


@pytest.mark.parametrize("text", TRICKY, ids=ascii)
def test_every_text_comes_back(text: str, trained: SentencePieceTokenizer) -> None:
    for tokenizer in (ByteTokenizer(), trained):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.eos_id not in ids
        assert all(0 <= token < tokenizer.vocab_size for token in ids)
        assert tokenizer.decode([*ids, tokenizer.eos_id]) == text


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\u2581")))
def test_any_text_comes_back(trained: SentencePieceTokenizer, text: str) -> None:
    for tokenizer in (ByteTokenizer(), trained):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_bytes_that_are_not_text_decode_to_the_replacement_character() -> None:
    assert ByteTokenizer().decode([65, 0xC3, 66]) == "A\ufffdB"


def test_training_is_deterministic_and_gives_the_size_asked_for(trained: SentencePieceTokenizer) -> None:
    again = SentencePieceConfig(vocab_size=PIECES).build(texts)
    assert trained.vocab_size == PIECES
    assert again.hash == trained.hash
    assert len(trained.encode("the lazy dog")) < len(ByteTokenizer().encode("the lazy dog"))


def test_unigram_is_another_model() -> None:
    unigram = SentencePieceConfig(vocab_size=PIECES, algorithm="unigram").build(texts)
    assert unigram.hash == SentencePieceConfig(vocab_size=PIECES, algorithm="unigram").build(texts).hash
    assert unigram.decode(unigram.encode("the lazy dog\n")) == "the lazy dog\n"


def test_a_tokenizer_survives_its_folder(tmp_path: Path, trained: SentencePieceTokenizer) -> None:
    for tokenizer in (ByteTokenizer(), trained):
        folder = tmp_path / tokenizer.type
        folder.mkdir()
        tokenizer.save(folder)
        loaded: Tokenizer = load_tokenizer(folder)
        assert type(loaded) is type(tokenizer)
        assert (loaded.hash, loaded.vocab_size, loaded.eos_id) == (
            tokenizer.hash,
            tokenizer.vocab_size,
            tokenizer.eos_id,
        )
        assert loaded.encode("the fox 🙂") == tokenizer.encode("the fox 🙂")


def test_a_model_file_can_be_given(tmp_path: Path, trained: SentencePieceTokenizer) -> None:
    trained.save(tmp_path)
    loaded = SentencePieceConfig(model=tmp_path / "tokenizer.model").build(texts)
    assert loaded.hash == trained.hash


def test_the_byte_tokenizers_hash_never_changes() -> None:
    assert ByteTokenizer().hash == "eb872158ffb883d883c1365fc5d507749bb0ab4fcc06227520b42be8fc2eb533"


def test_only_training_looks_at_texts() -> None:
    def unread() -> Iterator[str]:
        raise AssertionError("read")

    assert not ByteConfig().is_trained
    assert ByteConfig().build(unread).vocab_size == 256


def write(folder: Path, name: str, content: str) -> Path:
    """Write a file and return its folder."""
    (folder / name).write_text(content)
    return folder


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"zoo-tokenizer\.json: No such file"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ("{}", r"not the description of a tokenizer"),
        ("[]", r"a list; expected an object"),
        ("{", r"not JSON"),
        ('{"type": "byte", "hash": "0"}', r"the hash is 0, but the tokenizer beside it has [0-9a-f]{64}"),
        (
            '{"type": "sentencepiece", "hash": "0"}',
            r"tokenizer\.model: No such file or directory; expected the file of the sentencepiece tokenizer",
        ),
    ],
)
def test_a_damaged_folder_is_refused(tmp_path: Path, description: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_tokenizer(write(tmp_path, "zoo-tokenizer.json", description))


@pytest.mark.parametrize("content", ["", "not a model", "\n\x00\x00"], ids=["empty", "text", "binary"])
def test_a_foreign_model_file_is_refused(tmp_path: Path, content: str) -> None:
    write(tmp_path, "x.model", content)
    with pytest.raises(DataError, match=r"x\.model: not a sentencepiece model"):
        SentencePieceConfig(model=tmp_path / "x.model").build(texts)


@pytest.mark.parametrize(
    "size", [260, 100_000], ids=["fewer than bytes and characters", "more than the text has"]
)
def test_a_size_that_cannot_be_trained_is_refused(size: int) -> None:
    with pytest.raises(DataError, match=rf"cannot train {size} pieces on this corpus"):
        SentencePieceConfig(vocab_size=size).build(texts)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "either 'model' .* or 'vocab_size'"),
        ({"model": "a.model", "vocab_size": 300}, "either 'model' .* or 'vocab_size'"),
        ({"model": "a.model", "algorithm": "unigram"}, "'algorithm' has no effect"),
        ({"vocab_size": 12}, "greater than or equal to 257"),
    ],
)
def test_contradicting_options_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SentencePieceConfig.model_validate(fields)


@pytest.mark.parametrize("token", [-1, 256])
def test_an_id_outside_the_vocabulary_is_named(token: int) -> None:
    with pytest.raises(DataError, match=rf"token {token} is outside the tokenizer's vocabulary of 256"):
        ByteTokenizer().decode([65, token])


def test_long_lines_are_learned_from() -> None:
    """Sentencepiece leaves out lines above a limit, which may be all there are."""
    learned = SentencePieceConfig(vocab_size=270).build(lambda: iter(["ZYXW " * (LONGEST // 4)]))
    assert "ZY" in "".join(learned.processor.id_to_piece(i) for i in range(learned.vocab_size))


@pytest.mark.parametrize("line", ["word " * 3, "a" * 40, "\N{FOX FACE}" * 9, " " * 30, "four", ""])
def test_long_lines_are_cut_without_loss(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentencepiece, "LONGEST", 8)
    parts = list(sentencepiece._parts(line))
    assert "".join(parts) == line
    assert all(0 < len(part.encode()) <= 8 for part in parts)
