"""Compressed texts are read as the same texts uncompressed, and damaged ones are refused."""

from __future__ import annotations

import gzip
import json
import lzma
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest

from zoo.data import compression
from zoo.data.classification.files import Columns, read_examples
from zoo.data.corpora.jsonl import JsonlCorpus
from zoo.data.corpora.text import TextCorpus
from zoo.data.files import read_lines, read_text
from zoo.data.instructions.files import read_conversations
from zoo.utils import files
from zoo.utils.errors import DataError


def zstd(data: bytes) -> bytes:
    """The data in a Zstandard frame."""
    compressed: bytes = pyarrow.compress(data, "zstd", asbytes=True)
    return compressed


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstd,
}
each_format = pytest.mark.parametrize("suffix", COMPRESSORS)
TEXT = "".join(f"Zeile {i}: Größe {i * i}\n" for i in range(5000))


def write(path: Path, text: str) -> Path:
    """Write a text into a file, compressed as its name says."""
    path.write_bytes(COMPRESSORS[path.suffix](text.encode()))
    return path


@each_format
def test_texts_and_lines_are_those_of_the_uncompressed_file(tmp_path: Path, suffix: str) -> None:
    file = write(tmp_path / f"a.txt{suffix}", "\ufeff" + TEXT)
    assert read_text(file) == TEXT
    assert [line for _, line in read_lines(file)] == TEXT.splitlines()
    file.write_bytes(2 * COMPRESSORS[suffix](TEXT.encode()))  # as `cat a.gz b.gz` makes it
    assert read_text(file) == 2 * TEXT


@each_format
def test_every_kind_of_data_can_be_compressed(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / f"a.txt{suffix}", TEXT)
    rows = [{"prompt": "a", "response": "b", "text": "c", "label": "d"}] * 2
    lines = write(tmp_path / f"a.jsonl{suffix}", "".join(json.dumps(row) + "\n" for row in rows))
    table = write(tmp_path / f"a.tsv{suffix}", "text\tlabel\nc\td\nc\td\n")
    assert "".join(d.text for d in TextCorpus(paths=[str(tmp_path)]).documents()) == TEXT
    assert [d.text for d in JsonlCorpus(paths=[str(tmp_path)]).documents()] == ["c", "c"]
    for file in (lines, table):
        examples = read_examples(file, Columns("text", None, "label"))
        assert [(e.text, e.label) for e in examples] == [("c", "d")] * 2
    assert [c.messages[1].content for c in read_conversations(lines)] == ["b", "b"]


@each_format
@pytest.mark.parametrize("damage", ["cut off", "another format", "cut short at its end"])
def test_damaged_files_are_refused(tmp_path: Path, suffix: str, damage: str) -> None:
    file = write(tmp_path / f"a.txt{suffix}", TEXT)
    data = file.read_bytes()
    damaged = {
        "cut off": data[: len(data) // 3],
        "another format": TEXT.encode(),
        "cut short at its end": data[:-1],
    }
    file.write_bytes(damaged[damage])
    for read in (read_text, lambda path: list(read_lines(path))):
        with pytest.raises(DataError, match=rf"a\.txt\{suffix}: cannot be decompressed"):
            read(file)


def test_a_wrong_checksum_is_refused(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(TEXT.encode()))
    data[-8] ^= 1  # of the CRC, the last 8 to 5 bytes
    (tmp_path / "a.txt.gz").write_bytes(data)
    with pytest.raises(DataError, match=r"a\.txt\.gz: cannot be decompressed \(CRC check failed"):
        list(read_lines(tmp_path / "a.txt.gz"))


@each_format
def test_limits_hold_for_the_decompressed_size(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / f"a.txt{suffix}", "x" * 100_000)
    assert file.stat().st_size < 1000
    monkeypatch.setattr(files, "TEXT_BYTES", 99_999)
    monkeypatch.setattr(files, "LINE_BYTES", 99_999)
    with pytest.raises(DataError, match=rf"a\.txt\{suffix}: expected at most 99,999 bytes"):
        read_text(file)
    with pytest.raises(DataError, match=rf"a\.txt\{suffix}:1: more than 99,999 bytes"):
        list(read_lines(file))


def test_a_file_beside_its_compressed_copy_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    copy = write(tmp_path / "a.txt.gz", TEXT)
    with pytest.raises(DataError, match=r"a\.txt\.gz: a\.txt is there as well"):
        TextCorpus(paths=[str(tmp_path)]).sources()
    assert [s.name for s in TextCorpus(paths=[str(copy)]).sources()] == ["a.txt.gz"]


def test_two_copies_of_a_file_are_refused_whatever_their_forms(tmp_path: Path) -> None:
    """One of them could be held out, and the other one learned."""
    write(tmp_path / "a.txt.gz", TEXT)
    write(tmp_path / "a.txt.xz", TEXT)
    for pattern in (tmp_path, tmp_path / "*", tmp_path / "a.txt*"):
        with pytest.raises(DataError, match=r"a\.txt\.xz: a\.txt\.gz is there as well"):
            TextCorpus(paths=[str(pattern)]).sources()
    (tmp_path / "b.txt").write_text(TEXT)  # of another name
    assert len(TextCorpus(paths=[str(tmp_path / "*.gz"), str(tmp_path / "b.txt")]).sources()) == 2


def test_zst_without_its_package_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "a.txt.zst", TEXT)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"a\.txt\.zst: .zst needs pyarrow: pip install '\.\[data\]'"):
        read_text(file)


def test_the_suffix_of_the_content() -> None:
    names = ["a.txt", "a.txt.gz", "a.b.jsonl.zst", "a.gz", "a"]
    assert [compression.content_suffix(Path(name)) for name in names] == [".txt", ".txt", ".jsonl", "", ""]
