"""Labelled texts: files, layout, batches, what is held out, and every way to get them wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from zoo.data.classification.dataset import ClassificationData, ClassificationDataset
from zoo.data.classification.encoding import TextPairEncoder, truncated_lengths
from zoo.data.classification.files import Columns, read_examples
from zoo.data.dataset import BatchSpec
from zoo.data.tokenizers.byte import ByteTokenizer
from zoo.models import ClassifierConfig
from zoo.run.config import load_config
from zoo.utils.errors import ConfigError, DataError

EOS = 255
ROWS = [("a film", "good", "x"), ("no", "bad", "y"), ("fine", "good", "zz"), ("dull", "bad", "w")]
MODEL: dict[str, Any] = {
    "type": "classifier",
    "classes": 2,
    "trunk": {"type": "bert", "vocab_size": 256, "d_model": 8, "n_layers": 1, "n_heads": 2},
}


def tsv(folder: Path, *lines: str, name: str = "train.tsv") -> str:
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def rows(folder: Path) -> str:
    return tsv(folder, "sentence\tlabel\tother", *("\t".join(row) for row in ROWS))


def many(folder: Path, count: int, name: str = "many.tsv") -> str:
    """Texts 0, 1, 2, ... of which the even ones are of class 0."""
    return tsv(folder, "text\tlabel", *(f"text {i}\t{i % 2}" for i in range(count)), name=name)


def dataset(model: dict[str, Any] | None = None, **data: Any) -> ClassificationDataset:
    config = load_config({"model": MODEL | (model or {}), "data": {"type": "classification", **data}})
    assert isinstance(config.data, ClassificationData)
    assert isinstance(config.model, ClassifierConfig)
    return config.data.prepare(config.model)


def texts_of(batch: Sequence[Tensor]) -> list[tuple[int, ...]]:
    """The tokens of each text of a batch (tokens, ..., mask[, labels])."""
    tokens, mask = batch[0], next(t for t in batch if t.dtype == torch.bool)
    return [tuple(row[m].tolist()) for row, m in zip(tokens, mask, strict=True)]


def test_tsv_and_jsonl_are_read_alike(tmp_path: Path) -> None:
    objects = [json.dumps({"label": b, "sentence": f" {a} ", "other": c}) for a, b, c in ROWS]
    files = [Path(rows(tmp_path)), Path(tsv(tmp_path, objects[0], "", *objects[1:], name="train.jsonl"))]
    for file in files:
        examples = read_examples(file, Columns("sentence", "other", "label"))
        assert [(e.text, e.label, e.pair) for e in examples] == ROWS
    assert examples[1].place == f"{files[1]}:3"
    assert [e.label for e in read_examples(files[0], Columns("other", None, None))] == [None] * 4


def test_tsv_without_a_header(tmp_path: Path) -> None:
    """The layout of CoLA: source, label, the author's mark, sentence."""
    lines = ("gj04\t1\t\tThe car honked.", "gj04\t0\t*\tThe car honked down.", 'r-67\t1\t\tA "b".')
    data = dataset(train=tsv(tmp_path, *lines), columns=["source", "label", "star", "text"])
    assert data.class_names == ("0", "1") and len(data.train_examples) == 3
    columns = Columns("text", None, "label", ("source", "label", "star", "text"))
    read = read_examples(tmp_path / "train.tsv", columns)
    expected = [("The car honked.", "1"), ("The car honked down.", "0"), ('A "b".', "1")]
    assert [(example.text, example.label) for example in read] == expected
    assert read[0].place.endswith("train.tsv:1")


def test_layout_by_hand() -> None:
    layout = TextPairEncoder(ByteTokenizer(), 10, segments=2)
    one, two = layout.encode("ab"), layout.encode("ab", "c")
    assert (one.tokens, two.tokens) == ((EOS, 97, 98, EOS), (EOS, 97, 98, EOS, 99, EOS))
    tokens, segments, mask = layout.collate([one, two])
    assert tokens.tolist() == [[EOS, 97, 98, EOS] + 4 * [EOS], [EOS, 97, 98, EOS, 99, EOS, EOS, EOS]]
    assert segments.tolist() == [8 * [0], [0, 0, 0, 0, 1, 1, 0, 0]]
    assert mask.sum(1).tolist() == [4, 6]
    assert not TextPairEncoder(ByteTokenizer(), 10).collate([two])[1].any(), "one segment"
    long = layout.encode("abcdefghijk")
    assert (len(long.tokens), long.truncated, one.truncated) == (10, True, False)
    assert layout.collate([long])[0].shape == (1, 10), "never longer than the context"


@pytest.mark.parametrize(
    ("lengths", "room", "kept"),
    [((3, 4), 7, (3, 4)), ((9, 2), 7, (5, 2)), ((2, 9), 7, (2, 5)), ((9, 8), 6, (3, 3)), ((9, 8), 5, (2, 3))],
)
def test_the_longer_of_a_pair_gives_way(lengths: tuple[int, int], room: int, kept: tuple[int, int]) -> None:
    assert truncated_lengths(*lengths, room) == kept


def test_batches_are_a_function_of_their_order(tmp_path: Path) -> None:
    """Every epoch has every text once, in another order; the ranks' parts are those of one process."""
    data = dataset(train=many(tmp_path, 24))
    epochs = []
    for epoch in range(3):
        steps = [data.train_batch(BatchSpec(7, 3 * epoch + step, 8)) for step in range(3)]
        epochs.append(
            [tuple(row[m].tolist()) for t, _, mask, _ in steps for row, m in zip(t, mask, strict=True)]
        )
    assert all(len(set(epoch)) == 24 and set(epoch) == set(epochs[0]) for epoch in epochs)
    assert all(a != b for a, b in pairwise(epochs))
    again = dataset(train=many(tmp_path, 24))
    for step in (0, 5):
        whole = again.train_batch(BatchSpec(7, step, 8))
        halves = [data.train_batch(BatchSpec(7, step, 8, rank, 2)) for rank in range(2)]
        assert torch.equal(torch.cat([half[-1] for half in halves]), whole[-1])
        assert [text for half in halves for text in texts_of(half)] == texts_of(whole)
    assert again.fingerprint == data.fingerprint
    assert dataset(train=many(tmp_path, 25)).fingerprint != data.fingerprint


def test_a_class_may_be_held_out_as_a_whole(tmp_path: Path) -> None:
    """The file has all classes, whichever side the texts of a rare one are on."""
    held_out = []
    for rare in range(20):
        labels = ["rare" if i == rare else "often" for i in range(20)]
        file = tsv(tmp_path, "text\tlabel", *(f"text {i}\t{label}" for i, label in enumerate(labels)))
        data = dataset(train=file, validation=0.3)
        assert data.class_names == ("often", "rare")
        held_out.append(1 not in data.train_examples.labels)
    assert any(held_out) and not all(held_out)


def test_labels_follow_their_texts(tmp_path: Path) -> None:
    data = dataset(train=many(tmp_path, 24))
    tokens, _, mask, labels = data.train_batch(BatchSpec(0, 0, 24))
    for row, m, label in zip(tokens, mask, labels, strict=True):
        number = bytes(row[m].tolist()[1:-1]).decode().split()[1]
        assert int(number) % 2 == label


@pytest.mark.parametrize("world", [1, 2, 3])
def test_validation_is_whole_on_any_number_of_ranks(tmp_path: Path, world: int) -> None:
    """All 11 texts count once; what fills the ranks up does not count."""
    data = dataset(train=many(tmp_path, 4), validation=many(tmp_path, 11, "validation.tsv"))
    counted = []
    sizes = []
    for rank in range(world):
        batches = data.validation_batches(BatchSpec(0, 0, 6, rank, world), None)
        assert batches is not None
        parts = list(batches)
        sizes.append([len(labels) for *_, labels in parts])
        for tokens, _, mask, labels in parts:
            keep = labels != -1
            counted += texts_of((tokens[keep], mask[keep]))
    assert len(counted) == len(set(counted)) == 11
    assert all(size == sizes[0] for size in sizes), "equally many on all ranks"


def test_a_share_is_held_out_with_its_duplicates(tmp_path: Path) -> None:
    texts = [f"text {i % 50}\t{i % 2}" for i in range(200)]
    file = tsv(tmp_path, "text\tlabel", *texts)
    data = dataset(train=file, validation=0.2)
    assert data.validation_examples is not None
    held, trained = set(data.validation_examples.encoded), set(data.train_examples.encoded)
    assert not held & trained
    assert (len(held | trained), len(data.validation_examples) + len(data.train_examples)) == (50, 200)
    assert 0.05 < len(data.validation_examples) / 200 < 0.4
    assert dataset(train=file).validation_examples is None


def test_the_order_of_labels(tmp_path: Path) -> None:
    numbers = tsv(tmp_path, "text\tlabel", "a\t10", "b\t9", "c\t2", name="numbers.tsv")
    assert dataset({"classes": 3}, train=numbers).class_names == ("2", "9", "10")
    words = rows(tmp_path)
    assert dataset(train=words, text="sentence").class_names == ("bad", "good")
    given = dataset(train=words, text="sentence", labels=["good", "bad"])
    assert given.train_examples.labels.tolist() == [0, 1, 0, 1]
    given.save(tmp_path)
    assert json.loads((tmp_path / "labels.json").read_text()) == {"labels": ["good", "bad"]}
    numbers_in_json = tsv(tmp_path, '{"text": "a", "label": 1}', '{"text": "b", "label": 0}', name="n.jsonl")
    assert dataset(train=numbers_in_json).class_names == ("0", "1")


def test_cut_texts_are_counted_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tsv(tmp_path, "text\tlabel", "short\t0", f"{'long ' * 9}\t1", f"{'longer ' * 9}\t1")
    data = dataset(train=file, validation=many(tmp_path, 4), context=16)
    assert data.train_examples.n_truncated == 2
    assert [r.getMessage() for r in caplog.records] == [
        "data: 2 of 3 training texts are longer than data.context 16 and lose their ends"
    ]


def test_a_tokenizer_learns_from_the_training_texts(tmp_path: Path) -> None:
    file = tsv(tmp_path, "text\tpair\tlabel", "one two\tthree\t0", "two\tfour\t1")
    data = dataset(train=file, pair="pair", tokenizer="word")
    assert data.tokenizer is not None
    assert data.tokenizer.decode(range(2, data.tokenizer.vocab_size)) == "two four one three"


COLA = {"columns": ["source", "label", "star", "text"]}
GOOD = ("text\tlabel", "a b\t0", "c d\t1")
BAD: list[tuple[str, tuple[str, ...], dict[str, Any], str]] = [
    ("bad.csv", GOOD, {}, r"bad.csv: expected a name that ends in .tsv, .jsonl or .parquet"),
    ("bad.tsv", GOOD[:1], {}, "bad.tsv: no example, only a header"),
    ("bad.tsv", (), {}, "bad.tsv: the file is empty"),
    ("bad.tsv", ("txt\tlabel", "a\t0"), {}, "bad.tsv:1: no column 'text' in the header; did you mean 'txt'"),
    ("bad.tsv", ("text\ttext\tlabel", "a\tb\t0"), {}, "bad.tsv:1: there are 2 columns called 'text'"),
    ("bad.tsv", GOOD, {"pair": "other"}, "bad.tsv:1: no column 'other' in the header"),
    ("bad.tsv", ("gj04\t1",), {}, "no column 'text' .* a file without a header set data.columns"),
    (
        "bad.tsv",
        ("gj04\t1\t\tA.", "a\t1\tb"),
        COLA,
        "bad.tsv:2: 3 columns, but data.columns names 4: source, l",
    ),
    ("bad.tsv", ("source\tlabel\tstar\ttext", "a\t1\t\tb"), COLA, "bad.tsv:1: .* leave data.columns out"),
    ("bad.tsv", ("a\t1\t*\t ",), COLA, "bad.tsv:1: field 'text' is empty"),
    ("bad.tsv", (*GOOD, "e"), {}, "bad.tsv:4: 1 columns, but the header has 2"),
    ("bad.tsv", (*GOOD, "e\tf\t1"), {}, "bad.tsv:4: 3 columns, but the header has 2"),
    ("bad.tsv", (*GOOD, " \t1"), {}, "bad.tsv:4: field 'text' is empty"),
    ("bad.tsv", (*GOOD, "e\t"), {}, "bad.tsv:4: field 'label' is empty"),
    ("bad.tsv", (*GOOD, "e\tgood"), {"labels": ["0", "1"]}, "bad.tsv:4: label 'good' is not one of the cl"),
    ("bad.tsv", (*GOOD, "e\t2"), {}, r"there are 3 labels \(0, 1, 2\), but model.classes is 2"),
    ("bad.jsonl", ('{"text": "a", "label": 0', '{"text"'), {}, "bad.jsonl:1: not JSON: .* at column 25"),
    ("bad.jsonl", ('{"text": "a", "label": 0}', "[]"), {}, "bad.jsonl:2: expected a JSON object, found list"),
    ("bad.jsonl", ('{"text": 3, "label": 0}',), {}, "bad.jsonl:1: field 'text' must be a string, found int"),
    ("bad.jsonl", ('{"text": "a", "lable": 0}',), {}, "bad.jsonl:1: no field 'label'; did you mean 'lable'"),
    ("bad.jsonl", ('{"text": "a", "label": true}',), {}, "field 'label' must be a string, found bool"),
    ("bad.jsonl", ('{"text": "a", "label": 0.5}',), {}, "field 'label' must be a string, found float"),
    ("bad.tsv", (*GOOD[:2], GOOD[1]), {"validation": 0.5}, "0.5, but all texts of data.train are the same"),
    ("bad.tsv", GOOD, {"context": 600}, "data.context is 600, but the model has vectors for 512 positions"),
    ("bad.tsv", ("text\tp\tlabel", "a\tb\t0"), {"pair": "p", "context": 4, "labels": ["0", "1"]}, ""),
    ("bad.tsv", GOOD, {"tokenizer": {"type": "sentencepiece", "model": "missing"}}, "missing: No such file"),
]


@pytest.mark.parametrize(("name", "lines", "fields", "message"), BAD)
def test_files_that_cannot_be_used(
    tmp_path: Path, name: str, lines: tuple[str, ...], fields: dict[str, Any], message: str
) -> None:
    file = tsv(tmp_path, *lines, name=name)
    if not message:  # the smallest that works
        assert len(dataset(train=file, **fields).train_examples) == 1
        return
    with pytest.raises(DataError, match=message):
        dataset(train=file, **fields)


def test_a_validation_file_has_the_classes_of_training(tmp_path: Path) -> None:
    bad = tsv(tmp_path, "text\tlabel", "a\t0", "b\tmaybe", name="bad.tsv")
    with pytest.raises(DataError, match=r"bad.tsv:3: label 'maybe' is not one of the classes; known: 0, 1"):
        dataset(train=many(tmp_path, 4), validation=bad)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "data.train: missing"),
        ({"train": "x.tsv", "validation": 1.5}, "expected a file, a share between 0 and 1, or null"),
        ({"train": "x.tsv", "best": "f1"}, "`best` has no effect without validation texts"),
        ({"train": "x.tsv", "validation": 0.1, "best": "loss"}, "data.best: value 'loss'"),
        ({"train": "x.tsv", "labels": ["a", "a"]}, "are not all different"),
        ({"train": "x.tsv", "pair": "text"}, "must be different columns"),
        ({"train": "x.tsv", "columns": ["text", "label", "text"]}, "are not all different"),
        ({"train": "x.tsv", "columns": ["txt", "label"]}, "columns has no 'text'; did you mean 'txt'"),
        ({"train": "x.jsonl.gz", "validation": 0.1, **COLA}, "columns has no effect, as no file is a .tsv"),
        ({"train": "x.tsv", "context": 3}, "data.context: value 3"),
        ({"train": "x.tsv", "sentence": "a"}, "data.sentence: unknown key"),
    ],
)
def test_settings_that_cannot_be_used(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config({"data": {"type": "classification", **fields}})


@pytest.mark.parametrize(
    "model",
    [
        {"type": "resnet", "depth": 18, "classes": 2},
        {"type": "gpt", "vocab_size": 256, "d_model": 8, "n_layers": 1, "n_heads": 2},
    ],
)
def test_models_that_classify_no_texts(tmp_path: Path, model: dict[str, Any]) -> None:
    config: Any = load_config(
        {"model": model, "data": {"type": "classification", "train": many(tmp_path, 4)}}
    )
    with pytest.raises(DataError, match=f"'text-classification', but model '{model['type']}' is trained by"):
        config.data.prepare(config.model)


def test_a_vocabulary_that_is_too_small(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the tokenizer 'byte' has 256 tokens, but the model 99: expected"):
        dataset({"trunk": {**MODEL["trunk"], "vocab_size": 99}}, train=many(tmp_path, 4))
