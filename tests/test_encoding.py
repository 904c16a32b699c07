"""Texts are encoded on all cores, and the prepared files are those of one process, byte for byte."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hub_tokenizers import saved
from plugin_state import plugins_forgotten

from zoo.config.plugins import load_plugin
from zoo.config.registry import TOKENIZERS
from zoo.data.files import sha256
from zoo.data.text import encoding
from zoo.data.text.dataset import TextData
from zoo.data.text.prepare import prepare
from zoo.data.tokenizers.base import Tokenizer
from zoo.data.tokenizers.byte import ByteConfig
from zoo.utils.errors import DataError

PLUGIN = '''
from typing import Literal
from zoo import TOKENIZERS, Tokenizer, TokenizerConfig

class Halves(Tokenizer):
    """The two halves of each byte."""
    type, vocab_size, eos_id, hash = "halves", 17, 16, "halves"
    def encode(self, text):
        print("a plugin that prints")
        if "forbidden" in text:
            from zoo import ZooError
            raise ZooError("the tokenizer does not take this text")
        if "deadly" in text:
            import os
            os._exit(3)
        return [half for byte in text.encode() for half in divmod(byte, 16)]
    def decode(self, ids):
        it = iter(self.without_eos(ids))
        return bytes(16 * a + b for a, b in zip(it, it)).decode()

@TOKENIZERS.register
class HalvesConfig(TokenizerConfig):
    """Halves of bytes."""
    type: Literal["halves"] = "halves"
    def build(self, texts):
        return Halves()
    @classmethod
    def load(cls, folder):
        return Halves()
'''


class Local(Tokenizer):
    """A tokenizer that only this process knows."""

    type, vocab_size, eos_id, hash = "local", 257, 256, sha256(b"local")

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Iterable[int]) -> str:
        return bytes(self.without_eos(ids)).decode()


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Documents of very different lengths, among them one that is blank."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(30):
        (folder / f"{i:02}.txt").write_text(f"Text {i} ünd 🙂.\n" * (1 + i * i % 37), encoding="utf-8")
    (folder / "blank.txt").write_text("\n")
    return folder


@pytest.fixture
def on_cores(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let everything after the first few characters be encoded on several cores, whatever the machine has."""

    def change(number: int) -> None:
        monkeypatch.setattr(encoding, "cores", lambda: number)
        monkeypatch.setattr(encoding, "ALONE", 0)
        monkeypatch.setattr(encoding, "CHUNK", 100)

    return change


def config(texts: Path, cache: str, **fields: Any) -> TextData:
    """Settings for the texts, with a cache of their own."""
    corpus = {"type": "text", "paths": [str(texts)], "document": "file"}
    settings = {"corpus": corpus, "context": 8, "validation": 0.2, "cache_dir": texts.parent / cache}
    return TextData.model_validate(settings | fields)


def contents(data: TextData) -> dict[str, bytes]:
    """The prepared files."""
    return {path.name: path.read_bytes() for path in prepare(data).folder.iterdir()}


def tokenizer(name: str, folder: Path) -> dict[str, Any]:
    if name == "huggingface":
        return {"type": "huggingface", "path": str(saved("byte-level", folder / "tokenizer"))}
    return {"type": name} | ({"vocab_size": 280} if name == "sentencepiece" else {})


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The tokenizer of a plugin."""
    file = tmp_path_factory.mktemp("plugin") / "halves.py"
    file.write_text(PLUGIN)
    with plugins_forgotten():
        load_plugin(file)
        yield {"type": "halves"}


@pytest.mark.parametrize("name", ["byte", "word", "sentencepiece", "huggingface", "plugin"])
def test_the_files_are_those_of_one_process(
    texts: Path,
    halves: dict[str, Any],
    on_cores: Callable[[int], None],
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = halves if name == "plugin" else tokenizer(name, texts.parent)
    alone = contents(config(texts, "alone", tokenizer=settings))
    on_cores(2)
    assert contents(config(texts, "together", tokenizer=settings)) == alone
    assert not [record for record in caplog.records if "cannot be loaded" in record.message]


@pytest.mark.parametrize(
    "ids",
    [[65700], np.array([65700]), np.array([65536 + 100]), [-1], np.array([-1]), [1.5], [[1]], 7],
    ids=repr,
)
def test_what_is_no_list_of_ids_is_refused(ids: Any) -> None:
    """65700 is 164 modulo 2^16, the range of the files' ids, and -1 the last id there is."""

    class Odd(Local):
        vocab_size = 2**16

        def encode(self, text: str) -> Any:
            return ids

    with pytest.raises(
        DataError, match=r"the tokenizer 'local' encodes a text as .*below its vocab_size, 65536"
    ):
        encoding.encode_texts(Odd(), ["a"])


@pytest.mark.parametrize(
    "ids", [[], [0, 65535], np.array([], dtype=np.int64), np.array([0, 65535])], ids=repr
)
def test_ids_are_kept_in_the_type_of_the_files(ids: Any) -> None:
    class Large(Local):
        vocab_size = 2**16

        def encode(self, text: str) -> Any:
            return ids

    (encoded,) = encoding.encode_texts(Large(), ["a"])
    assert encoded.dtype == np.uint16 and encoded.tolist() == list(ids)


def test_a_validation_corpus_is_encoded_with_the_rest(texts: Path, on_cores: Callable[[int], None]) -> None:
    separate = {"validation": None, "validation_corpus": {"type": "text", "paths": [str(texts / "03.txt")]}}
    alone = contents(config(texts, "alone", **separate))
    on_cores(3)
    assert contents(config(texts, "together", **separate)) == alone


def test_other_processes_do_a_part_of_the_work(
    texts: Path, on_cores: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here nothing is encoded after the first chunk, so that everything else comes from elsewhere."""
    on_cores(3)
    documents = [(i, "x" * i) for i in range(60)]
    first = encoding.encode_texts
    monkeypatch.setattr(encoding._Task, "take_back", lambda task: False)
    calls: list[int] = []

    def count(tokenizer: Tokenizer, texts: list[str]) -> Any:
        calls.append(len(texts))
        return first(tokenizer, texts)

    monkeypatch.setattr(encoding, "encode_texts", count)
    found = list(encoding.encode_in_order(ByteConfig().build(lambda: iter(())), documents))
    assert [(key, text, ids.tolist()) for key, text, ids in found] == [
        (i, text, [ord("x")] * i) for i, text in documents
    ]
    assert len(calls) == 1


def test_a_tokenizer_that_only_this_process_knows(
    on_cores: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said that one core encodes everything."""
    on_cores(2)
    monkeypatch.setattr(encoding._Task, "take_back", lambda task: False)  # so that the process is waited for
    documents = [(i, f"text {i}" * 10) for i in range(40)]
    with caplog.at_level(logging.WARNING, "zoo"):
        found = list(encoding.encode_in_order(Local(), documents))
    assert [(key, bytes(ids.tolist()).decode()) for key, _, ids in found] == documents
    [said] = [r.message for r in caplog.records if "'local' cannot be loaded in other processes" in r.message]
    assert "no tokenizer called 'local'" in said


def test_a_process_that_was_not_needed(
    on_cores: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is ended before it was ready, and nothing is said of it."""
    on_cores(2)
    (tmp_path / "program.py").write_text("import time; time.sleep(1000)")
    monkeypatch.setattr(encoding, "PROGRAM", tmp_path / "program.py")
    documents = [(i, f"text {i}" * 10) for i in range(40)]
    found = list(encoding.encode_in_order(ByteConfig().build(lambda: iter(())), documents))
    assert [(key, bytes(ids.tolist()).decode()) for key, _, ids in found] == documents
    assert not caplog.records


def test_processes_that_end_at_once(
    on_cores: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    on_cores(2)
    (tmp_path / "program.py").write_text("raise SystemExit(4)")
    monkeypatch.setattr(encoding, "PROGRAM", tmp_path / "program.py")
    monkeypatch.setattr(encoding._Task, "take_back", lambda task: False)
    documents = [(i, f"text {i}" * 10) for i in range(40)]
    with caplog.at_level(logging.WARNING, "zoo"):
        found = list(encoding.encode_in_order(ByteConfig().build(lambda: iter(())), documents))
    assert [(key, bytes(ids.tolist()).decode()) for key, _, ids in found] == documents
    assert "a process that tokenises ended with status 4" in caplog.text


@pytest.mark.parametrize(
    ("word", "message"),
    [("forbidden", "does not take this text"), ("deadly", "a process that tokenises ended with status 3")],
)
def test_what_goes_wrong_elsewhere_is_said_here(
    halves: dict[str, Any],
    on_cores: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    word: str,
    message: str,
) -> None:
    on_cores(2)
    monkeypatch.setattr(encoding._Task, "take_back", lambda task: False)
    built = TOKENIZERS[halves["type"]]().build(lambda: iter(()))
    documents = [(i, word if i == 30 else "text " * 10) for i in range(60)]
    with pytest.raises(DataError, match=re.escape(message)):
        list(encoding.encode_in_order(built, documents))


def test_a_tokenizer_config_needs_no_process(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short text starts none."""
    monkeypatch.setattr(encoding, "_Processes", None)
    monkeypatch.setattr(encoding, "cores", lambda: 3)
    monkeypatch.setattr(encoding, "ALONE", 1e9)
    assert prepare(config(texts, "cache")).manifest.train.documents
