"""`zoo classify` of a classifier that comes from the hub, or that goes there: as transformers reads texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from command_line import zoo
from hub_models import SIZES, random_
from hub_tokenizers import byte_level
from tokenizers import processors

from zoo.data.classification.class_names import read_labels
from zoo.data.classification.files import Example
from zoo.evaluation.text_classifier import TextClassifier
from zoo.hub.export import export
from zoo.run.config import load_config
from zoo.run.warm.convert import convert
from zoo.train.run import train
from zoo.utils.errors import DataError, ZooError

NAMES = {"id2label": {0: "bad", 1: "so so", 2: "good"}, "label2id": {"bad": 0, "so so": 1, "good": 2}}
LABELS = ["bad", "so so", "good"]
SHAPES = {"Qwen2": SIZES, "Bert": {key: SIZES[key] for key in SIZES if key != "num_key_value_heads"}}
TEXTS = ["the quick fox", "dogs jump over 13 brown foxes, lazy  café", "return x"]


def folder(path: Path, family: str, **more: Any) -> Path:
    """A random classifier of three classes with a tokenizer, which frames texts for those with segments."""
    tokenizer = byte_level()
    size = {"vocab_size": 300, "pad_token_id": 0, "max_position_embeddings": 24}
    config = getattr(transformers, f"{family}Config")(**{**SHAPES[family], **size, **NAMES, **more})
    random_(getattr(transformers, f"{family}ForSequenceClassification")(config)).save_pretrained(path)
    if family == "Bert":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|im_start|> $A <|im_end|>",
            pair="<|im_start|> $A <|im_end|> $B:1 <|im_end|>:1",
            special_tokens=[("<|im_start|>", 1), ("<|im_end|>", 2)],
        )
    fast: Any = transformers.PreTrainedTokenizerFast
    fast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=24,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ).save_pretrained(path)
    return path


@torch.no_grad()
def theirs(path: Path, text: str, pair: str | None = None) -> list[float]:
    """The probabilities of the classes."""
    model: Any = transformers.AutoModelForSequenceClassification.from_pretrained(path)
    tokenizer: Any = transformers.PreTrainedTokenizerFast.from_pretrained(path)
    read = tokenizer(text, pair, truncation=True, max_length=24, return_tensors="pt")
    given = {k: v for k, v in read.items() if k != "token_type_ids" or model.config.model_type == "bert"}
    probabilities: list[float] = model.eval()(**given).logits.softmax(-1)[0].tolist()
    return probabilities


@pytest.mark.parametrize("family", ["Bert", "Qwen2"])
def test_probabilities_are_those_of_transformers(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = folder(tmp_path / "hub", family)
    zoo("import", hub, tmp_path / "own")
    assert "with its tokenizer: huggingface" in capsys.readouterr().out
    zoo("import", hub, tmp_path / "file.safetensors")
    told = f"without its tokenizer, for which a file has no room; a folder has: {tmp_path / 'file'}"
    assert told in capsys.readouterr().out.splitlines()
    pairs = [None, "a lazy dog", None]
    expected = [theirs(hub, text, pair) for text, pair in zip(TEXTS, pairs, strict=True)]
    for path in (hub, tmp_path / "own"):
        classifier = TextClassifier.load(path, device="cpu")
        given = [Example("x", text, pair) for text, pair in zip(TEXTS, pairs, strict=True)]
        for found, wanted in zip(classifier.predict(given), expected, strict=True):
            assert list(found.probabilities) == ["bad", "so so", "good"]
            assert [*found.probabilities.values()] == pytest.approx(wanted, abs=1e-5)


def test_an_import_without_a_tokenizer_class_goes_out_with_its_segments(tmp_path: Path) -> None:
    """Which transformers returns by the class of the model, or by the names of the inputs."""
    hub = folder(tmp_path / "hub", "Bert")
    settings = json.loads((hub / "tokenizer_config.json").read_text())
    for name in ("tokenizer_class", "model_input_names"):
        settings.pop(name)
    (hub / "tokenizer_config.json").write_text(json.dumps(settings))
    zoo("import", hub, tmp_path / "own")
    assert export(tmp_path / "own", tmp_path / "out").tokenizer
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    first, second = (len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in TEXTS[::2])
    segments = [0] * (first + 2) + [1] * (second + 1)
    assert tokenizer(TEXTS[0], TEXTS[2])["token_type_ids"] == segments


def test_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the columns text and label, or those that are named."""
    hub = folder(tmp_path / "hub", "Bert")
    gold = [max(zip(theirs(hub, text), LABELS, strict=True))[1] for text in TEXTS]
    (tmp_path / "a.tsv").write_text(
        "text\tlabel\n" + "".join(f"{t}\t{g}\n" for t, g in zip(TEXTS, gold, strict=True))
    )
    zoo("classify", hub, "--score", tmp_path / "a.tsv", "--json")
    assert json.loads(capsys.readouterr().out)["accuracy"] == 1.0
    (tmp_path / "b.tsv").write_text(
        (tmp_path / "a.tsv").read_text().replace("text\tlabel", "sentence\tgold", 1)
    )
    zoo("classify", hub, "--score", tmp_path / "b.tsv", "--columns", "text=sentence,label=gold", "--json")
    assert json.loads(capsys.readouterr().out)["accuracy"] == 1.0
    zoo("classify", hub, "--file", tmp_path / "b.tsv", "--columns", "text=sentence")
    assert [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()] == ["label", *gold]
    for options, message in {
        ("--score", tmp_path / "b.tsv"): "no column 'text' in the header",
        ("--text", "a", "--columns", "text=b"): "--columns has no effect with --text",
        (
            "--file",
            tmp_path / "b.tsv",
            "--columns",
            "txt=b",
        ): "--columns txt: expected text, pair, label; did you",
        ("--file", tmp_path / "b.tsv", "--columns", "text"): "expected ours=theirs",
        ("--text", "a", "--which", "best"): "--which has no effect: ",
    }.items():
        zoo("classify", hub, *options, status=2)
        assert message in capsys.readouterr().err


def test_labels_that_do_not_exclude_each_other(tmp_path: Path) -> None:
    hub = folder(tmp_path / "hub", "Bert", problem_type="multi_label_classification")
    with pytest.raises(
        DataError, match=r"problem_type: 'multi_label_classification': a text may have several"
    ):
        TextClassifier.load(hub)


def test_a_conversion_keeps_the_order_of_the_classes(tmp_path: Path) -> None:
    """By their names alone, training on the converted classifier would begin with other classes."""
    (tmp_path / "train.tsv").write_text("text\tlabel\ngood\tpos\nbad\tneg\n", encoding="utf-8")
    (tmp_path / "valid.tsv").write_text("text\tlabel\nwell\tpos\nill\tneg\n", encoding="utf-8")
    trunk = {"type": "gpt", "vocab_size": 257, "d_model": 16, "n_layers": 1, "n_heads": 2}
    config: dict[str, Any] = {
        "name": "classes",
        "model": {"type": "classifier", "classes": 2, "trunk": trunk},
        "optimizer": {"type": "adamw", "lr": 1e-3},
        "data": {
            "type": "classification",
            "train": str(tmp_path / "train.tsv"),
            "validation": str(tmp_path / "valid.tsv"),
            "context": 16,
            "tokenizer": {"type": "byte"},
            "labels": ["pos", "neg"],
        },
        "train": {"steps": 1, "batch_size": 2, "runs_dir": str(tmp_path), "device": "cpu"},
    }
    run = train(load_config(config)).folder
    convert(run, tmp_path / "wesar", to="wesar")
    assert read_labels(tmp_path / "wesar") == ["pos", "neg"]
    hub = folder(tmp_path / "hub", "Qwen2")
    with pytest.raises(ZooError, match="expected what `zoo import` makes of this folder"):
        convert(hub, tmp_path / "warm", to="wesar")
    assert not (tmp_path / "warm").exists()


@pytest.mark.parametrize("source", ["hub", "byte", "padded with its end"])
def test_a_run_that_is_exported_reads_texts_as_it_was_trained(source: str, tmp_path: Path) -> None:
    """Which its own tokenizer would not do: Qwen's puts nothing around texts."""
    lines = [f"{text}\t{label}" for text in TEXTS for label in ("good", "so so", "bad")]
    (tmp_path / "three.tsv").write_text("text\tlabel\n" + "\n".join(lines) + "\n")
    hub = folder(tmp_path / "hub", "Qwen2", pad_token_id=2 if source == "padded with its end" else 0)
    size = {"type": "gpt", "vocab_size": 256, "d_model": 32, "n_layers": 1, "n_heads": 4}
    own = {"type": "classifier", "trunk": size, "classes": 3, "pool": "last", "bias": False}
    fields = {
        "name": "run",
        "model": own if source == "byte" else {"from": str(hub)},
        "optimizer": {"type": "adamw", "lr": 1e-2},
        "data": {"type": "classification", "context": 24, "train": str(tmp_path / "three.tsv")},
        "train": {"steps": 2, "batch_size": 4, "device": "cpu", "runs_dir": str(tmp_path)},
    }
    run = train(load_config(fields)).folder
    assert export(run, tmp_path / "out").tokenizer
    classifiers = [TextClassifier.load(path, device="cpu") for path in (run, tmp_path / "out")]
    short = [TEXTS[0], TEXTS[2]]
    given = [Example("x", text) for text in short]
    for text, *found in zip(short, *(c.predict(given) for c in classifiers), strict=True):
        for prediction in found:
            named = dict(zip(classifiers[1].labels, theirs(tmp_path / "out", text), strict=True))
            assert prediction.probabilities == pytest.approx(named, abs=1e-5)
