"""Text is tokenised once, completely, and the manifest tells the truth about it."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forks import CONTEXT
from pydantic import ValidationError

import zoo.utils.atomic
from zoo.data.files import build_once
from zoo.data.split import Split
from zoo.data.text.dataset import TextData
from zoo.data.text.manifest import TokenManifest
from zoo.data.text.prepare import TokenizedCorpus, prepare
from zoo.data.tokenizers.byte import ByteTokenizer
from zoo.data.tokens import TokenFile
from zoo.utils.atomic import write_folder
from zoo.utils.errors import CheckpointError, DataError

DOCUMENTS = 40


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A folder of small texts of different lengths."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(DOCUMENTS):
        (folder / f"{i:02}.txt").write_text(f"Text {i} ünd 🙂.\n" * (i % 5 + 2), encoding="utf-8")
    return folder


def config(texts: Path, **fields: Any) -> TextData:
    """Settings for a folder of texts, with the cache beside it."""
    settings: dict[str, Any] = {
        "corpus": {"type": "text", "paths": [str(texts)]},
        "tokenizer": {"type": "byte"},
        "context": 16,
        "validation": 0.2,
        "cache_dir": texts.parent / "cache",
    }
    return TextData.model_validate(settings | fields)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every text that the byte tokenizer encodes from here on."""
    seen: list[str] = []
    encode = ByteTokenizer.encode

    def spy(self: ByteTokenizer, text: str) -> list[int]:
        seen.append(text)
        return encode(self, text)

    monkeypatch.setattr(ByteTokenizer, "encode", spy)
    return seen


def documents(tokens: TokenFile | None, eos: int = 0xFF) -> list[bytes]:
    """The documents in a file of byte tokens."""
    assert tokens is not None
    data = bytes(tokens.windows(np.array([0]), len(tokens))[0].astype(np.uint8))
    assert data[-1] == eos
    return data[:-1].split(bytes([eos]))


def test_every_document_is_on_one_side_complete_and_once(texts: Path) -> None:
    corpus = prepare(config(texts))
    train, held_out = documents(corpus.train), documents(corpus.validation)
    assert sorted(train + held_out) == sorted(path.read_bytes() for path in texts.iterdir())
    assert 1 <= len(held_out) < len(train)


def test_the_manifest_tells_the_truth(texts: Path) -> None:
    corpus = prepare(config(texts))
    manifest = corpus.manifest
    assert [(s.name, s.bytes, s.sha256) for s in manifest.sources] == [
        (path.name, path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(texts.iterdir())
    ]
    assert manifest.tokenizer.hash == corpus.tokenizer.hash
    assert (manifest.tokenizer.vocab_size, manifest.tokenizer.eos_id, manifest.dtype) == (256, 255, "uint16")
    for side, tokens in ((manifest.train, corpus.train), (manifest.validation, corpus.validation)):
        assert side is not None and tokens is not None
        found = documents(tokens)
        assert side.documents == len(found)
        assert side.utf8_bytes == sum(map(len, found))
        assert side.tokens == len(tokens) == (corpus.folder / side.file).stat().st_size // 2
    assert TokenManifest.read(corpus.folder) == manifest


def test_carriage_returns_are_kept_and_told(texts: Path, caplog: pytest.LogCaptureFixture) -> None:
    prepare(config(texts))
    assert not caplog.messages
    for name in ("03.txt", "07.txt"):
        (texts / name).write_bytes(b"A line.\r\nAnother.\r\n")
    corpus = prepare(config(texts))
    learned, held_out = documents(corpus.train), documents(corpus.validation)
    count = sum(b"\r\n" in text for text in learned)
    assert count + sum(b"\r\n" in text for text in held_out) == 2
    (message,) = caplog.messages
    assert message.startswith(
        f"data.corpus: lines of {count} of {len(learned)} training documents end with \\r\\n; "
    )


def test_carriage_returns_of_which_nothing_is_learned(
    texts: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They make a validation loss large, and the key of their corpus tells where they are."""
    (tmp_path / "valid.txt").write_bytes(b"A line.\r\nAnother.\r\n")
    other = {"type": "text", "paths": [str(tmp_path / "valid.txt")]}
    prepare(config(texts, validation=0, validation_corpus=other))
    (message,) = caplog.messages
    assert message.startswith("data.validation_corpus: lines of 1 of 1 held-out documents end with \\r\\n, ")


def test_a_second_run_reuses_the_tokens(texts: Path, encoded: list[str]) -> None:
    first = prepare(config(texts))
    assert len(encoded) == DOCUMENTS
    second = prepare(config(texts, context=8))
    assert len(encoded) == DOCUMENTS
    assert second.folder == first.folder


@pytest.mark.parametrize("change", ["content", "same size and time", "added", "removed", "renamed", "split"])
def test_a_change_is_noticed(texts: Path, encoded: list[str], change: str) -> None:
    first = prepare(config(texts))
    data, victim = config(texts), texts / "07.txt"
    if change == "content":
        victim.write_text("something else\n")
    elif change == "same size and time":
        stat = victim.stat()
        victim.write_bytes(victim.read_bytes().replace(b"Text", b"Test"))
        os.utime(victim, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    elif change == "added":
        (texts / "more.txt").write_text("one more\n")
    elif change == "removed":
        victim.unlink()
    elif change == "renamed":
        victim.rename(texts / "new.txt")
    else:
        data = config(texts, validation=0.5)
    encoded.clear()
    assert prepare(data).folder != first.folder
    assert len(encoded) == len(list(texts.iterdir()))


def test_going_back_finds_the_old_tokens(texts: Path, encoded: list[str]) -> None:
    victim = texts / "07.txt"
    original = victim.read_bytes()
    first = prepare(config(texts))
    victim.write_text("something else\n")
    prepare(config(texts))
    victim.write_bytes(original)
    encoded.clear()
    assert prepare(config(texts)).folder == first.folder
    assert not encoded


def test_where_the_texts_lie_does_not_move_the_split(texts: Path) -> None:
    before = documents(prepare(config(texts)).validation)
    moved = texts.rename(texts.parent / "elsewhere")
    assert documents(prepare(config(moved)).validation) == before


NAMES = [f"document {i}" for i in range(2000)]


def test_the_split_depends_on_neither_order_nor_company() -> None:
    splits = [Split.of(names, 0.1) for names in (NAMES, NAMES[::-1], [*NAMES, "another"])]
    held_out = [{name for name in NAMES if split.holds_out(name)} for split in splits]
    assert 150 < len(held_out[0]) < 250
    assert held_out[0] == held_out[1] == held_out[2]


@pytest.mark.parametrize("share", [1e-9, 0.05, 0.5, 0.95, 1 - 1e-9])
@pytest.mark.parametrize("count", [2, 3, 10])
def test_both_sides_get_a_document(share: float, count: int) -> None:
    for start in range(0, 1000, 50):
        names = NAMES[start : start + count]
        split = Split.of(names, share)
        assert 1 <= sum(map(split.holds_out, names)) <= count - 1


def test_nothing_is_held_out_if_nothing_is_asked_for(texts: Path) -> None:
    corpus = prepare(config(texts, validation=0))
    assert corpus.validation is None and corpus.manifest.validation is None
    assert len(documents(corpus.train)) == DOCUMENTS
    assert not (corpus.folder / "validation.bin").exists()


def test_one_book_is_divided(tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text("".join(f"Chapter {i}\n\n" + "It was night. " * 60 + "\n\n" for i in range(200)))
    corpus = prepare(config(book))
    train, held_out = documents(corpus.train), documents(corpus.validation)
    assert len(held_out) > 2 and len(train) > 20
    assert sorted(b"".join(train + held_out)) == sorted(book.read_bytes())


@pytest.mark.parametrize("text", ["Title\n" + "x" * 20000, "\u6d77" * 20000, "a b " * 5000], ids=len)
def test_one_text_is_divided_where_it_was_asked_for(tmp_path: Path, text: str) -> None:
    """At a blank or a line end only if one is near: text without any does not end behind its title."""
    book = tmp_path / "book.txt"
    book.write_text(text)
    manifest = prepare(config(book)).manifest
    assert manifest.validation is not None
    held_out = manifest.validation.tokens / (manifest.train.tokens + manifest.validation.tokens)
    assert held_out == pytest.approx(config(book).validation_share, rel=0.05)


@pytest.fixture
def pieces(texts: Path) -> TextData:
    """Settings that train a sentencepiece tokenizer."""
    return config(texts, tokenizer={"type": "sentencepiece", "vocab_size": 280})


def test_a_trained_tokenizer_is_kept_and_gives_the_texts_back(
    pieces: TextData, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepare(pieces)
    monkeypatch.setattr(type(pieces.tokenizer), "build", None)
    second = prepare(pieces)
    assert second.tokenizer.hash == first.tokenizer.hash == first.manifest.tokenizer.hash
    assert first.validation is not None
    sides = [first.train, first.validation]
    rows = [tokens.windows(np.array([0]), len(tokens))[0].tolist() for tokens in sides]
    text = "".join(map(second.tokenizer.decode, rows))
    texts = [path.read_text(encoding="utf-8") for path in (pieces.cache_folder().parent / "texts").iterdir()]
    assert sorted(text) == sorted("".join(texts))
    assert sum(row.count(second.tokenizer.eos_id) for row in rows) == DOCUMENTS


def test_the_tokenizer_never_sees_the_validation_text(
    pieces: TextData, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    build = type(pieces.tokenizer).build

    def spy(self: Any, texts: Any) -> Any:
        seen.extend(texts())
        return build(self, texts)

    monkeypatch.setattr(type(pieces.tokenizer), "build", spy)
    assert len(seen) == 0
    corpus = prepare(pieces)
    assert len(seen) == corpus.manifest.train.documents


def test_a_vocabulary_beyond_16_bits_takes_32(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ByteTokenizer, "vocab_size", 70_000)
    monkeypatch.setattr(ByteTokenizer, "eos_id", 69_999)
    corpus = prepare(config(texts))
    assert corpus.manifest.dtype == "uint32"
    assert corpus.train.windows(np.array([len(corpus.train) - 1]), 1).item() == 69_999


def _prepare_and_count(data: TextData) -> tuple[int, str]:
    count, encode = 0, ByteTokenizer.encode

    def spy(self: ByteTokenizer, text: str) -> list[int]:
        nonlocal count
        count += 1
        return encode(self, text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ByteTokenizer, "encode", spy)
        folder = str(prepare(data).folder)
    return count, folder


def test_processes_that_start_together_prepare_once(texts: Path) -> None:
    with CONTEXT.Pool(2) as pool:
        results = pool.map(_prepare_and_count, [config(texts)] * 2, chunksize=1)
    assert sum(count for count, _ in results) == DOCUMENTS
    assert len({folder for _, folder in results}) == 1


def leftovers(corpus_cache: Path) -> list[str]:
    """What lies in the cache, without locks."""
    return [path.name for path in corpus_cache.rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_what_a_killed_run_left_is_swept_away(texts: Path) -> None:
    data = config(texts)
    folder = prepare(data).folder
    broken = folder.rename(folder.with_name(f".{folder.name}.partial"))
    (broken / "train.bin").write_bytes(b"half")
    (broken / "junk").write_bytes(b"")
    assert documents(prepare(data).train)
    assert sorted(leftovers(data.cache_folder())) == ["manifest.json", "train.bin", "validation.bin"]


def test_a_disk_without_room_leaves_nothing_behind(texts: Path) -> None:
    (texts / "big.txt").write_text("x" * 300_000)
    data = config(texts)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))  # the nearest thing to a full disk
    try:
        with pytest.raises(DataError, match=r"cannot be written: File too large; .* data\.cache_dir must be"):
            prepare(data)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert leftovers(data.cache_folder()) == []
    assert prepare(data).manifest.train.documents > 0


def test_a_disk_that_fills_up_at_the_end_leaves_nothing_behind(
    texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(zoo.utils.atomic, "flush", full)
    with pytest.raises(DataError, match=r"cannot be written: No space left on device"):
        prepare(config(texts))
    assert leftovers(config(texts).cache_folder()) == []


@pytest.mark.parametrize("failure", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()])
def test_a_folder_that_cannot_be_replaced_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    """The old one has been moved aside already when the new one is to get its name."""

    def fill(folder: Path) -> None:
        (folder / "content").write_text("new")

    old = tmp_path / "folder"
    old.mkdir()
    (old / "content").write_text("old")
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.name.endswith(".partial"):
            raise failure
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises((CheckpointError, KeyboardInterrupt)):
        write_folder(old, fill)
    assert (old / "content").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_cache_that_cannot_be_made_is_named(texts: Path) -> None:
    with pytest.raises(DataError, match=r"00\.txt/cache/tokens'; data\.cache_dir must be a place"):
        prepare(config(texts, cache_dir=texts / "00.txt" / "cache"))


def test_a_source_that_changes_meanwhile_is_noticed(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = ByteTokenizer.encode

    def write(self: ByteTokenizer, text: str) -> list[int]:
        (texts / "00.txt").write_text("changed meanwhile\n")
        return encode(self, text)

    monkeypatch.setattr(ByteTokenizer, "encode", write)
    with pytest.raises(DataError, match="changed while it was read"):
        prepare(config(texts))


def damage_manifest(corpus: TokenizedCorpus) -> None:
    """Cut the manifest short."""
    (corpus.folder / "manifest.json").write_text("{")


def damage_tokens(corpus: TokenizedCorpus) -> None:
    """Cut the tokens short."""
    (corpus.folder / "train.bin").write_bytes(b"12")


def lose_tokens(corpus: TokenizedCorpus) -> None:
    """Delete the tokens."""
    (corpus.folder / "train.bin").unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_manifest, r"manifest\.json: damaged; delete .* to prepare the data again"),
        (damage_tokens, r"train\.bin: expected [\d,]+ tokens in [\d,]+ bytes, but the file is 2 bytes long"),
        (lose_tokens, r"train\.bin: .* but the file is missing"),
    ],
)
def test_a_damaged_cache_is_named(texts: Path, damage: Any, message: str) -> None:
    damage(prepare(config(texts)))
    with pytest.raises(DataError, match=message):
        prepare(config(texts))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"context": 100_000}, r"training text has [\d,]+ tokens in \d+ documents, .*is made from 100,001"),
        ({"context": 900}, r"validation text has [\d,]+ tokens in \d+ documents, .*is made from 901"),
    ],
)
def test_too_little_text_is_refused(texts: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        prepare(config(texts, **fields))


def test_of_one_short_text_the_end_is_held_out(texts: Path) -> None:
    """At the end of a line or word, so that as much as was asked for, or a little more, is held out."""
    text = "".join(f"Line {i}.\n" for i in range(20))
    (texts / "one.txt").write_text(text)
    done = prepare(config(texts / "one.txt", validation=0.25))
    files = [side for side in (done.train, done.validation) if side is not None]
    sides = [bytes(side.windows(np.array([0]), len(side) - 1)[0].tolist()).decode() for side in files]
    assert "".join(sides) == text
    assert sides[1].startswith("Line ")
    assert 0.25 <= len(sides[1]) / len(text) < 0.32
    assert prepare(config(texts / "one.txt", validation=0)).manifest.train.documents == 1


def test_one_character_cannot_be_divided(texts: Path) -> None:
    (texts / "one.txt").write_text("x")
    with pytest.raises(DataError, match=r"only one document, which cannot be divided"):
        prepare(config(texts / "one.txt"))


def test_a_vocabulary_larger_than_the_models_is_refused_before_the_work(
    texts: Path, encoded: list[str]
) -> None:
    with pytest.raises(DataError, match=r"'byte' has 256 tokens, but model\.vocab_size is 255"):
        prepare(config(texts), vocab_size=255)
    assert not encoded
    assert prepare(config(texts), vocab_size=256).tokenizer.vocab_size == 256


def test_the_cache_has_a_place_of_its_own(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(texts))
    assert config(texts, cache_dir=None).cache_folder() == texts / "zoo"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert config(texts, cache_dir=None).cache_folder() == Path.home() / ".cache" / "zoo"

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(DataError, match=r"no home folder for prepared data; expected data\.cache_dir, or"):
        config(texts, cache_dir=None).cache_folder()


def test_a_corpus_of_its_own_to_validate_on(texts: Path, tmp_path: Path) -> None:
    other = tmp_path / "valid.txt"
    other.write_text("quite another text, of which nothing is trained on\n")
    corpus = prepare(config(texts, validation=0, validation_corpus={"type": "text", "paths": [str(other)]}))
    everything = prepare(config(texts, validation=0))
    assert documents(corpus.train) == documents(everything.train)
    assert documents(corpus.validation) == [other.read_bytes()]
    other.write_text("yet another text, just as long as the one before it.\n")
    again = prepare(config(texts, validation=0, validation_corpus={"type": "text", "paths": [str(other)]}))
    assert again.folder != corpus.folder


def test_a_file_that_becomes_one_to_validate_on_is_no_longer_learned(texts: Path, tmp_path: Path) -> None:
    """The same files in the same order, of which another one is the first of the validation corpus."""
    other = tmp_path / "valid"
    other.mkdir()
    (texts / "39.txt").rename(other / "39.txt")
    data = config(texts, validation=0, validation_corpus={"type": "text", "paths": [str(other)]})
    first = prepare(data)
    (texts / "38.txt").rename(other / "38.txt")
    second = prepare(data)
    assert second.folder != first.folder
    assert (len(documents(first.train)), len(documents(second.train))) == (DOCUMENTS - 1, DOCUMENTS - 2)
    assert len(documents(second.validation)) == 2


BLANK_FILES = {"null.jsonl": '{"text": null}\n{"text": ""}\n', "blank/a.txt": " \n", "blank/b.txt": ""}


@pytest.mark.parametrize(("kind", "path"), [("jsonl", "null.jsonl"), ("text", "blank")])
def test_a_corpus_without_text_to_validate_on(texts: Path, tmp_path: Path, kind: str, path: str) -> None:
    """The message names the key, again in a second attempt, and nothing is kept."""
    (tmp_path / "blank").mkdir()
    for name, text in BLANK_FILES.items():
        (tmp_path / name).write_text(text)
    data = config(texts, validation=0, validation_corpus={"type": kind, "paths": [str(tmp_path / path)]})
    for _ in range(2):
        with pytest.raises(DataError, match=r"^data\.validation_corpus: no document has any text; expected"):
            prepare(data)
    assert [f for f in (tmp_path / "cache").rglob("*") if f.is_dir()] == [tmp_path / "cache/tokens"]


def test_blank_documents_are_told_by_the_key_of_their_corpus(
    texts: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "some.jsonl").write_text('{"text": "some text"}\n' * 9 + '{"text": null}\n')
    other = {"type": "jsonl", "paths": [str(tmp_path / "some.jsonl")]}
    prepare(config(texts, validation=0, validation_corpus=other))
    assert [record.getMessage() for record in caplog.records] == [
        "data.validation_corpus: 1 blank documents are left out, the first is some.jsonl:10"
    ]


def test_weights_that_leave_nothing_are_the_reason(texts: Path, tmp_path: Path) -> None:
    part = {"corpus": {"type": "text", "paths": [str(texts / "0[01].txt")]}, "weight": 1e-9}
    with pytest.raises(DataError, match=r"^data\.corpus: the weights of the mixture leave no document"):
        prepare(config(texts, corpus={"type": "mixture", "corpora": [part]}))
    (texts / "00.txt").write_text(" ")
    (texts / "01.txt").write_text("")
    with pytest.raises(DataError, match=r"^data\.corpus: no document has any text"):
        prepare(config(texts, corpus={"type": "mixture", "corpora": [part]}))


def test_a_weight_repeats_what_is_learned_alone(texts: Path) -> None:
    """The held-out documents, and with them the loss, do not depend on the weight."""

    def weighted(weight: float) -> dict[str, Any]:
        part = {"type": "text", "paths": [str(texts)], "document": "file"}
        return {"type": "mixture", "corpora": [{"corpus": part, "weight": weight}]}

    once, twice = (prepare(config(texts, corpus=weighted(weight))) for weight in (1, 2))
    assert documents(twice.train) == documents(once.train) * 2
    assert documents(twice.validation) == documents(once.validation)
    apart = config(texts, validation=0, validation_corpus=weighted(2))
    assert sorted(documents(prepare(apart).validation)) == sorted(f.read_bytes() for f in texts.iterdir())


@pytest.mark.parametrize("in_a_mixture", [True, False])
def test_a_text_of_two_corpora_is_told(
    texts: Path, caplog: pytest.LogCaptureFixture, in_a_mixture: bool
) -> None:
    """Each of them is divided by itself, so that a file can be held out of one and learned from the other."""
    whole, some = ({"type": "text", "paths": [str(texts / name)]} for name in ("*.txt", "0[01].txt"))
    mixture = {"type": "mixture", "corpora": [{"corpus": whole}, {"corpus": some, "weight": 2}]}
    if in_a_mixture:
        prepare(config(texts, corpus=mixture, validation=0))  # nothing is held out
        assert not caplog.messages
        prepare(config(texts, corpus=mixture))
    else:
        prepare(config(texts, validation=0, validation_corpus=some))
    (message,) = caplog.messages
    assert message == (
        f"data: two corpora read the same text, in 2 files, the first is {texts / '00.txt'}; "
        "what is held out of one can be learned from the other"
    )


def test_two_ways_to_validate_are_one_too_many(texts: Path) -> None:
    with pytest.raises(ValidationError, match="leave one out"):
        config(texts, validation=0.1, validation_corpus={"type": "text", "paths": [str(texts)]})


def test_what_is_complete_is_read_without_a_lock(tmp_path: Path) -> None:
    """A cache that others share may be read-only."""
    (tmp_path / "tokens").mkdir()
    assert not build_once(tmp_path / "tokens", lambda _: None)
    assert [path.name for path in tmp_path.iterdir()] == ["tokens"]
