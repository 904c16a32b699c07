"""Corpora read what they say, and refuse what they cannot read by naming the place."""

from __future__ import annotations

import gzip
import json
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from zoo.data.corpora.base import Document
from zoo.data.corpora.jsonl import JsonlCorpus
from zoo.data.corpora.mixture import MixtureCorpus
from zoo.data.corpora.python_docs import PythonDocsCorpus
from zoo.data.corpora.text import MANY, PASSAGE, TextCorpus, passages
from zoo.data.text.dataset import TextData
from zoo.run.config import load_config
from zoo.utils.errors import ConfigError, DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three texts in a tree, and a file of another kind."""
    for name, text in {"b.txt": "B\n", "a.txt": "A\r\n", "sub/c.txt": "C", "notes.md": "D"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text.encode())
    return tmp_path


def ids(corpus: TextCorpus | JsonlCorpus) -> list[str]:
    """The ids of a corpus' documents."""
    return [document.id for document in corpus.documents()]


def names(**fields: Any) -> list[str]:
    """The names of a text corpus' files."""
    return [source.name for source in TextCorpus.model_validate(fields).sources()]


def test_text_takes_files_directories_and_globs_each_file_once(folder: Path) -> None:
    everything = ["a.txt", "b.txt", "sub/c.txt"]
    assert names(paths=[str(folder)]) == everything
    assert names(paths=[f"{folder}/**/*.txt"]) == everything
    assert names(paths=[f"{folder}/b.txt", str(folder)]) == ["b.txt", "a.txt", "sub/c.txt"]
    assert names(paths=str(folder), suffixes=".md") == ["notes.md"]
    assert names(paths=[str(folder)], suffixes=[".md", ".txt"]) == [*everything[:2], "notes.md", "sub/c.txt"]


def test_a_link_keeps_its_own_name(tmp_path: Path) -> None:
    """The cache of the Hugging Face hub links every name to a file that is called by its hash."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots"
    blobs.mkdir()
    snapshot.mkdir()
    (blobs / "aaa111").write_bytes(gzip.compress(b'{"text": "A"}'))
    (snapshot / "train.jsonl.gz").symlink_to("../blobs/aaa111")
    (snapshot / "z.jsonl.gz").symlink_to("train.jsonl.gz")
    corpus = JsonlCorpus(paths=[str(snapshot)])
    assert list(corpus.documents()) == [Document("train.jsonl.gz:1", "A")]
    (blobs / "aaa111").write_bytes(gzip.compress(b"3"))
    with pytest.raises(DataError, match=r"snapshots/train.jsonl.gz:1: expected a JSON object"):
        list(corpus.documents())


def test_links_to_folders_are_followed_once(folder: Path) -> None:
    """A folder outside is read by the name of its link; neither circles nor aliases change anything."""
    assert names(paths=[str(folder / "sub")]) == ["c.txt"]
    (folder / "sub/up").symlink_to("..")
    (folder / "alias").symlink_to("sub")
    assert names(paths=[str(folder)]) == ["a.txt", "b.txt", "sub/c.txt"]
    outside = folder / "outside"
    outside.mkdir()
    (outside / "d.txt").write_text("D")
    (folder / "sub/link").symlink_to("../outside")
    (folder / "sub/twice").symlink_to("../outside")
    assert names(paths=[str(folder / "sub")]) == ["c.txt", "link/d.txt"]
    assert names(paths=[str(folder)]) == ["a.txt", "b.txt", "outside/d.txt", "sub/c.txt"]
    assert names(paths=[f"{folder}/sub/link/../a.txt", str(folder / "sub")])[0] == "a.txt"


def test_many_files_are_documents_and_few_are_divided(folder: Path) -> None:
    assert ids(TextCorpus(paths=[str(folder)])) == ["a.txt#1", "b.txt#1", "sub/c.txt#1"]
    assert ids(TextCorpus(paths=[str(folder)], document="file")) == ["a.txt", "b.txt", "sub/c.txt"]
    for i in range(MANY - 3):
        (folder / f"{i}.txt").write_text("text")
    assert "a.txt" in ids(TextCorpus(paths=[str(folder)]))


def test_text_is_kept_as_it_is(folder: Path) -> None:
    first = next(TextCorpus(paths=[str(folder)], document="file").documents())
    assert first == Document("a.txt", "A\r\n")


def test_a_byte_order_mark_is_removed(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(b"\xef\xbb\xbfone\ntwo\n")
    (tmp_path / "x.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "one"}\n')
    for kind in ("passage", "file", "line"):
        corpus = TextCorpus.model_validate({"paths": f"{tmp_path}/x.txt", "document": kind})
        assert next(corpus.documents()).text.startswith("one")
    assert next(JsonlCorpus(paths=[str(tmp_path)]).documents()).text == "one"


def test_a_document_can_be_a_line(folder: Path) -> None:
    (folder / "b.txt").write_text("one\n\n  \ntwo \n")
    corpus = TextCorpus(paths=[f"{folder}/b.txt"], document="line")
    assert list(corpus.documents()) == [Document("b.txt:1", "one"), Document("b.txt:4", "two ")]


@pytest.mark.parametrize(
    "text",
    ["word " * 20 + "\n", "a line\n" * 3 + "\n", "no line end at all " * 400, "verse\n", "\r\n\r\nx\u2028y"],
    ids=["long lines", "paragraphs", "one line", "verse", "odd line ends"],
)
def test_passages_joined_are_the_text(text: str) -> None:
    book = text * 1500
    cut = list(passages(book))
    assert "".join(cut) == book
    assert all(len(passage) >= PASSAGE for passage in cut[:-1])


def test_passages_end_after_blank_lines(tmp_path: Path) -> None:
    paragraph = "word " * 100 + "\n" + "word " * 100 + "\n\n"
    cut = list(passages(paragraph * 50))
    assert len(cut) == 10
    assert all(passage == paragraph * 5 for passage in cut)


def test_jsonl_reads_the_field(tmp_path: Path) -> None:
    rows = [{"id": 1, "body": "ein\n"}, {"body": "zw\u00f6\U0001f642"}]
    (tmp_path / "x.jsonl").write_text("\n\n".join(json.dumps(row) for row in rows) + "\n")
    documents = list(JsonlCorpus(paths=[str(tmp_path)], field="body").documents())
    assert documents == [Document("x.jsonl:1", "ein\n"), Document("x.jsonl:3", "zwö\U0001f642")]


BAD_TEXT: list[tuple[bytes, str]] = [
    (b"", r"x\.txt: the file is empty"),
    (b" \n\t\n", r"x\.txt: the file is empty"),
    (b"\xef\xbb\xbf", r"x\.txt: the file is empty"),
]


@pytest.mark.parametrize("kind", ["file", "passage", "line"])
@pytest.mark.parametrize(
    ("content", "message"), [*BAD_TEXT, (b"abc\nd\xe9f", r"x\.txt(:2)?: byte 5 \(0xe9\) is not UTF-8")]
)
def test_text_that_cannot_be_used(tmp_path: Path, kind: Any, content: bytes, message: str) -> None:
    (tmp_path / "x.txt").write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(TextCorpus(paths=[str(tmp_path)], document=kind).documents())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"x\.jsonl: the file is empty"),
        (b'{"text": "a"}\n{"text": "b"\n', r"x\.jsonl:2: not JSON: .* at column 13"),
        (b'{"text": "a"}\n\n"b"\n', r"x\.jsonl:3: expected a JSON object, found str"),
        pytest.param(
            b'{"text": ' + b"9" * 5000 + b"}", r"x\.jsonl:1: JSON beyond Python's limits: ", id="digits"
        ),
        pytest.param(b"[" * 100_000, r"x\.jsonl:1: JSON beyond Python's limits: ", id="brackets"),
        (b'{"txt": "a"}', r"x\.jsonl:1: no field 'text'; did you mean 'txt'\?"),
        (b'{"text": 3}', r"x\.jsonl:1: field 'text' must be a string, found int"),
        (b'{"text": []}', r"x\.jsonl:1: field 'text' must be a string, found list"),
        (
            b'{"text": "a\\ud83d"}',
            r"x\.jsonl:1: field 'text' has half a surrogate pair \(\\ud83d\) at character 1",
        ),
        (b'{"text": "a"}\n{"text": "\xff"}', r"x\.jsonl:2: byte 24 \(0xff\) is not UTF-8"),
    ],
)
def test_jsonl_that_cannot_be_used(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(JsonlCorpus(paths=[str(tmp_path)]).documents())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"paths": ["{}/none.txt"]}, r"none\.txt: no such file or directory"),
        ({"paths": ["{}/*.text"]}, r"\*\.text: no file matches this pattern"),
        ({"paths": ["{}/**.text"]}, r"\*\*\.text: (not a pattern of files|no file matches this pattern)"),
        ({"paths": ["{}"], "suffixes": [".rst"]}, r"no file in this directory ends in \.rst"),
        ({"paths": ["{}/a.txt"], "suffixes": [".md"]}, r"has no directory: leave suffixes out"),
    ],
)
def test_paths_that_lead_nowhere(folder: Path, fields: dict[str, list[str]], message: str) -> None:
    fields = fields | {"paths": [path.format(folder) for path in fields["paths"]]}
    with pytest.raises(DataError, match=message):
        TextCorpus.model_validate(fields).sources()


def test_no_paths_are_refused() -> None:
    with pytest.raises(ValidationError, match="at least 1 item"):
        TextCorpus(paths=[])


def test_python_docs_are_prose_and_code_of_this_interpreter() -> None:
    corpus = PythonDocsCorpus()
    documents = {document.id: document.text for document in corpus.documents()}
    assert sum(map(len, documents.values())) > 4_000_000
    assert "assert" in documents["topics/assert"]
    root = Path(sysconfig.get_path("stdlib"))
    assert documents["library/json/decoder.py"] == (root / "json" / "decoder.py").read_text(encoding="utf-8")
    assert not any("/test/" in name or "/tests/" in name or "site-packages" in name for name in documents)
    assert len({source.name for source in corpus.sources()}) == len(corpus.sources()) > 200
    assert list(documents) == [document.id for document in corpus.documents()]


def test_a_stripped_python_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "decoder.py").write_text("pass\n")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(DataError, match=r"only 5 bytes of library source in 1 files .* it was stripped"):
        PythonDocsCorpus().sources()


def test_a_python_without_topics_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(DataError, match=r"has no documentation topics \(module pydoc_data\.topics\)"):
        PythonDocsCorpus().sources()


def mixture(folder: Path, *weights: float) -> MixtureCorpus:
    part = {"type": "text", "paths": [str(folder)], "document": "file"}
    return MixtureCorpus.model_validate({"corpora": [{"corpus": part, "weight": w} for w in weights]})


def test_a_mixture_repeats_and_leaves_out(tmp_path: Path) -> None:
    """A weight counts documents; a larger one has those of a smaller one."""
    for i in range(200):
        (tmp_path / f"{i:03}.txt").write_text(f"Text {i}.")
    half, more = ([d.id for d in mixture(tmp_path, w).documents()] for w in (0.5, 0.8))
    assert 70 < len(half) < 130
    assert set(half) < set(more)
    both = [d.id for d in mixture(tmp_path, 1, 2.5, 0).documents()]
    assert both[:200] == [f"0/{i:03}.txt" for i in range(200)]
    counts = {name: both.count(name) for name in set(both[200:])}
    assert set(counts.values()) == {2, 3}
    assert len(counts) == 200
    names = [source.name for source in mixture(tmp_path, 0, 1).sources()]
    assert names == [f"1/{i:03}.txt" for i in range(200)]


def test_copies_of_a_document_are_not_neighbours(tmp_path: Path) -> None:
    """They come in passes over all parts, within a mixture of mixtures as well."""
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(name)
    twice = mixture(tmp_path, 2, 1)
    found = [(d.id, d.repeated) for d in twice.documents()]
    first = [(f"{i}/{name}.txt", False) for i in range(2) for name in "ab"]
    assert found == [*first, ("0/a.txt", True), ("0/b.txt", True)]
    outer = MixtureCorpus.model_validate({"corpora": [{"corpus": twice, "weight": 2}]})
    inner = [(f"0/{name}", repeated) for name, repeated in found]
    assert [(d.id, d.repeated) for d in outer.documents()] == [*inner, *((name, True) for name, _ in inner)]


def test_the_rules_of_mixtures_without_copies_stay(tmp_path: Path) -> None:
    """Tokens that earlier versions have prepared are found by them."""
    part = {"type": "text", "suffixes": [".txt"], "document": "file"}
    weighted = [{"weight": 1.0, "corpus": part}, {"weight": 0.5, "corpus": part}]
    assert mixture(tmp_path, 1, 0.5).rules() == {"type": "mixture", "corpora": weighted}
    assert "copies" in mixture(tmp_path, 1, 1.5).rules()


@pytest.mark.parametrize(
    ("weights", "message"),
    [((0, 0), "the weights of all corpora are 0"), ((-1,), "greater than"), ((), "at least 1")],
)
def test_mixtures_of_nothing(tmp_path: Path, weights: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        mixture(tmp_path, *weights)


def test_a_weight_may_stand_beside_the_fields_of_a_corpus(tmp_path: Path) -> None:
    """In a file; its relative paths start at the folder of the file, as everywhere."""
    (tmp_path / "a.txt").write_text("Text.")
    parts = "[{type: text, paths: a.txt, weight: 2}, {corpus: {type: text, paths: [a.txt]}}]"
    file = tmp_path / "run.yaml"
    file.write_text(f"data: {{corpus: {{type: mixture, corpora: {parts}}}}}")
    data = load_config(file).data
    assert isinstance(data, TextData)
    assert [d.id for d in data.corpus.documents()] == ["0/a.txt#1", "1/a.txt#1", "0/a.txt#1"]
    file.write_text(f"\n{file.read_text().replace('paths: a.txt', 'path: a.txt')}")
    message = r"run\.yaml:2: data\.corpus\.corpora\.0\.corpus\.path: unknown key; did you mean 'paths'"
    with pytest.raises(ConfigError, match=message):
        load_config(file)
