"""Tables in Parquet are read as the same rows in JSON Lines, and tables that do not fit are told."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import ipc, parquet

from zoo.data.classification.files import Columns, Example, read_examples
from zoo.data.corpora.parquet import ParquetCorpus
from zoo.data.corpora.text import TextCorpus
from zoo.data.files import find_files
from zoo.data.instructions.files import read_conversations
from zoo.data.split import file_digests, read_split
from zoo.utils.errors import DataError

TALK = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
LAYOUTS: list[list[dict[str, Any]]] = [
    [{"prompt": "a", "response": "b", "id": 3}],
    [{"messages": TALK}, {"messages": TALK * 2}],
    [{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}],
    [{"instruction": "a", "input": "", "output": "b"}, {"instruction": "a", "input": "c", "output": "b"}],
    [{"prompt": "a", "response": "b"}, {"messages": TALK}],  # each row null where the other is not
]


def write(folder: Path, rows: list[dict[str, Any]], name: str = "a.parquet") -> Path:
    """Write rows into a table; a row has null in the columns that it lacks."""
    columns = {column: None for row in rows for column in row}
    table = pyarrow.Table.from_pylist([columns | row for row in rows])
    parquet.write_table(table, folder / name, row_group_size=2)
    return folder / name


def test_a_row_without_a_text_is_a_blank_document(tmp_path: Path) -> None:
    corpus = ParquetCorpus(paths=[str(write(tmp_path, [{"text": "a"}, {"text": None}]))])
    assert [document.text for document in corpus.documents()] == ["a", ""]


def test_every_row_is_a_document(tmp_path: Path) -> None:
    rows = [{"text": f"Größe {i}\n", "id": i} for i in range(5)]
    write(tmp_path, rows)
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub", rows[:1], "b.parquet")
    documents = list(ParquetCorpus(paths=[str(tmp_path)]).documents())
    assert [document.text for document in documents] == [str(row["text"]) for row in [*rows, rows[0]]]
    assert documents[1].id == "a.parquet:2" and documents[-1].id == "sub/b.parquet:1"


@pytest.mark.parametrize("rows", LAYOUTS, ids=lambda rows: "+".join(rows[-1]))
def test_conversations_are_those_of_json_lines(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    lines = tmp_path / "a.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = [conversation.messages for conversation in read_conversations(lines)]
    read = read_conversations(write(tmp_path, rows))
    assert [conversation.messages for conversation in read] == expected
    assert read[0].place.endswith("a.parquet: row 1")


def test_labelled_texts(tmp_path: Path) -> None:
    file = write(tmp_path, [{"idx": 0, "text": "a", "label": 1}, {"idx": 1, "text": "b", "label": 0}])
    examples = read_examples(file, Columns("text", None, "label"))
    assert [(example.text, example.label) for example in examples] == [("a", "1"), ("b", "0")]
    with pytest.raises(DataError, match=r"a\.parquet: row 1: no field 'pair'"):
        read_examples(file, Columns("text", "pair", "label"))


@pytest.mark.parametrize("metadata", [{"names": ["World", "Sports"], "_type": "ClassLabel"}, {}, [3]])
def test_class_labels_of_datasets_have_names(tmp_path: Path, metadata: Any) -> None:
    """As its own files say, in the metadata of their schema; -1 stands for no label in test sets."""
    described = json.dumps({"info": {"features": {"label": metadata}}})
    table = pyarrow.table({"text": ["a", "b", "c"], "label": [1, 0, -1]})
    parquet.write_table(table.replace_schema_metadata({"huggingface": described}), tmp_path / "a.parquet")
    labels = [e.label for e in read_examples(tmp_path / "a.parquet", Columns("text", None, "label"))]
    assert labels == (
        ["Sports", "World", "-1"] if isinstance(metadata, dict) and metadata else ["1", "0", "-1"]
    )


def test_a_table_is_no_text(tmp_path: Path) -> None:
    corpus = TextCorpus(paths=[str(write(tmp_path, [{"text": "a"}]))])
    with pytest.raises(
        DataError, match=r"a\.parquet: a table; expected a text, or data\.corpus: {type: parquet"
    ):
        list(corpus.documents())


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\na\n")
    for path, message in {
        "a.csv": r"a\.csv: expected a table, whose name ends in \.parquet or \.arrow",
        ".": r"no file in this directory ends in \.parquet or \.arrow; there are \.csv$",
    }.items():
        with pytest.raises(DataError, match=message):
            list(ParquetCorpus(paths=[str(tmp_path / path)]).documents())


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"txt": "a"}], r"a\.parquet: no column 'text'; did you mean 'txt'"),
        ([{"text": 3}], r"a\.parquet: row 1: field 'text' must be a string, found int"),
        ([], r"a\.parquet: no column 'text'"),
    ],
)
def test_tables_that_are_no_texts(tmp_path: Path, rows: list[dict[str, Any]], message: str) -> None:
    corpus = ParquetCorpus(paths=[str(write(tmp_path, rows))])
    with pytest.raises(DataError, match=message):
        list(corpus.documents())


def test_tables_that_are_no_conversations(tmp_path: Path) -> None:
    skipped: list[DataError] = []
    file = write(tmp_path, [{"prompt": "a", "response": "b"}, {"prompt": "c"}])
    with pytest.raises(DataError, match=r"a\.parquet: row 2: no field 'response'"):
        read_conversations(file)
    assert len(read_conversations(file, skipped)) == 1 and len(skipped) == 1
    with pytest.raises(DataError, match=r"a\.parquet: no column 'messages' or .* 'response' or .*'output'"):
        read_conversations(write(tmp_path, [{"promt": "a", "text": "b"}]))
    with pytest.raises(DataError, match=r"a\.parquet: row 1: expected the keys 'prompt' and 'response'"):
        read_conversations(write(tmp_path, [{"input": "a", "text": "b"}]))


def test_values_that_python_cannot_hold(tmp_path: Path) -> None:
    years = pyarrow.array([10**15], pyarrow.timestamp("s"))
    file = tmp_path / "a.parquet"
    for column, message in {"text": "cannot be read as Parquet: ", "other": "no column 'text'"}.items():
        parquet.write_table(pyarrow.table({column: years}), file)
        with pytest.raises(DataError, match=rf"a\.parquet: {message}"):
            list(ParquetCorpus(paths=[str(file)]).documents())
    parquet.write_table(pyarrow.table({"prompt": ["a"], "response": ["b"], "other": years}), file)
    assert len(read_conversations(file)) == 1


def test_damaged_and_empty_tables_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path, [{"text": "a" * 100, "prompt": "b" * 100}] * 100)
    content = file.read_bytes()
    for damaged in (b"", b"no table at all", content[:-1], b"PAR1" + content[12:]):
        file.write_bytes(damaged)
        for read in (
            lambda: list(ParquetCorpus(paths=[str(file)]).documents()),
            lambda: read_conversations(file),
        ):
            with pytest.raises(DataError, match=r"a\.parquet: cannot be read as Parquet"):
                read()
    parquet.write_table(pyarrow.table({"text": pyarrow.array([], pyarrow.string())}), file)
    with pytest.raises(DataError, match=r"a\.parquet: the table has no rows"):
        list(ParquetCorpus(paths=[str(file)]).documents())


def test_a_table_without_rows_among_others_is_no_error(tmp_path: Path) -> None:
    file = write(tmp_path, [{"text": "a"}])
    parquet.write_table(pyarrow.table({"text": pyarrow.array([], pyarrow.string())}), tmp_path / "0.parquet")
    assert [document.text for document in ParquetCorpus(paths=[str(tmp_path)]).documents()] == ["a"]
    file.unlink()
    with pytest.raises(DataError, match=r"0\.parquet: the table has no rows"):
        list(ParquetCorpus(paths=[str(tmp_path)]).documents())


def test_the_missing_package_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, [{"text": "a"}])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"a\.parquet: \.parquet needs pyarrow: pip install '\.\[data\]'"):
        list(ParquetCorpus(paths=[str(file)]).documents())


def read_texts(file: Path) -> list[Example]:
    return read_examples(file, Columns("text", None, None))


def test_several_data_sets_in_a_folder_are_not_mixed(tmp_path: Path) -> None:
    """One of them may be for tests."""
    for name in ("train", "test"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, [{"text": name}])
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(DataError, match=r"several data sets, test, train; expected the folder of one"):
        ParquetCorpus(paths=[str(tmp_path)]).sources()
    assert len(ParquetCorpus(paths=[str(tmp_path / "train")]).sources()) == 1


def test_a_folder_that_datasets_has_saved(tmp_path: Path) -> None:
    """Streams of record batches in .arrow files, beside JSON files and the result of a `map`."""
    above, tmp_path = tmp_path, tmp_path / "saved"
    tmp_path.mkdir()
    rows = [{"text": f"Größe {i}\n", "id": i} for i in range(5)]
    for number, part in enumerate((rows[:3], rows[3:])):
        table = pyarrow.Table.from_pylist(part)
        name = tmp_path / f"data-{number:05}-of-00002.arrow"
        with name.open("wb") as file, ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    (tmp_path / "dataset_info.json").write_text("{}")
    shutil.copy(tmp_path / "data-00000-of-00002.arrow", tmp_path / "cache-35c33caba7193237.arrow")
    listed = [{"filename": f"data-{number:05}-of-00002.arrow"} for number in range(2)]
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": listed}))
    documents = list(ParquetCorpus(paths=[str(tmp_path)]).documents())
    assert [document.text for document in documents] == [row["text"] for row in rows]
    assert documents[-1].id == "data-00001-of-00002.arrow:2"
    texts, _ = read_split(str(tmp_path), None, read_texts, str)
    assert [example.text for example in texts] == [str(row["text"]).strip() for row in rows]
    assert len(file_digests(str(tmp_path))) == 2
    with pytest.raises(DataError, match="no column 'txt'; did you mean 'text'"):
        list(ParquetCorpus(paths=[str(tmp_path)], column="txt").documents())
    (tmp_path / "data-00000-of-00002.arrow").write_bytes(b"ARROW1 is not a stream")
    with pytest.raises(DataError, match="cannot be read as Arrow"):
        list(ParquetCorpus(paths=[str(tmp_path)]).documents())
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": listed[::-1]}))
    assert [file.name for file in find_files([str(above)], [".arrow"])] == [
        "data-00001-of-00002.arrow",
        "data-00000-of-00002.arrow",
    ]
    (tmp_path / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(
        DataError, match=r"state\.json: _data_files: 'data-00001-of-00002\.arrow' is not there"
    ):
        file_digests(str(tmp_path))
