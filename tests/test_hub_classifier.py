"""Classifiers of transformers, in and out: the logits, the names of the classes, and the folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import transformers
from command_line import zoo
from hub_models import GPT2, SIZES, random_
from hub_tokenizers import saved as tokenizer_saved
from safetensors.torch import load_file

from zoo import build_model, load_model, save_model, split
from zoo.data.classification.class_names import read_labels
from zoo.data.classification.encoding import TextPairEncoder
from zoo.data.tokenizers.byte import ByteTokenizer
from zoo.data.tokenizers.saved import find_tokenizer
from zoo.hub.classifier import label_names
from zoo.hub.export import export, export_model
from zoo.models import Model
from zoo.models.classifier import Classifier
from zoo.run.config import load_config
from zoo.run.first_weights import initial_model
from zoo.train.run import train
from zoo.utils.errors import CheckpointError, ConfigError, DataError

NAMES = {"id2label": {0: "bad", 1: "so so", 2: "good"}, "label2id": {"bad": 0, "so so": 1, "good": 2}}
BERT = {key: SIZES[key] for key in SIZES if key != "num_key_value_heads"}
MODERNBERT = BERT | {"local_attention": 4, "classifier_pooling": "mean"}
T5: dict[str, Any] = {"vocab_size": 61, "d_model": 32, "d_ff": 40, "d_kv": 6, "num_heads": 4}
T5 |= {"num_layers": 2, "num_decoder_layers": 3, "decoder_start_token_id": 0, "classifier_dropout": 0.2}
T5 |= {"eos_token_id": 60}
THEIRS: dict[str, Any] = {
    "Llama": SIZES,
    "Mistral": SIZES,
    "Qwen2": SIZES,
    "Qwen3": SIZES,
    "Phi3": SIZES,
    "SmolLM3": SIZES,
    "Olmo2": SIZES,
    "Gemma2": SIZES | {"head_dim": 8, "sliding_window": 5},
    "Gemma3Text": SIZES | {"head_dim": 8, "sliding_window": 5},
    "GPTNeoX": BERT,
    "GPT2": GPT2,
    "Bert": BERT,
    "Roberta": BERT,
    "ModernBert": MODERNBERT,
    "T5": T5,
    "T5 v1.1": T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
}
DROPOUT = {"Bert": 0.1, "Roberta": 0.1, "T5": 0.2, "T5 v1.1": 0.2}
"""Of the head."""
PADDING = {"Roberta": 1}
"""Ids of padding other than 0."""
SEGMENTS = {"Bert", "Roberta"}
"""Those that distinguish the two texts of a pair."""


def saved(name: str, folder: Path) -> Any:
    """A classifier of transformers with three classes, random in every parameter, in a folder."""
    family = name.partition(" ")[0]
    config = getattr(transformers, f"{family}Config")(
        **THEIRS[name], **NAMES, pad_token_id=PADDING.get(name, 0)
    )
    model = random_(getattr(transformers, f"{family}ForSequenceClassification")(config)).eval()
    model.save_pretrained(folder)
    return model


def padded(padding: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Two texts, the second one shorter, which both end with 60: tokens and mask."""
    mask = torch.tensor([[True] * 9, [True] * 6 + [False] * 3])
    tokens = torch.arange(2, 20).reshape(2, 9).where(mask, torch.tensor(padding))
    tokens[0, 8] = tokens[1, 5] = 60
    return tokens, mask


@pytest.mark.parametrize("name", THEIRS)
@torch.no_grad()
def test_in_and_out(name: str, tmp_path: Path) -> None:
    theirs = saved(name, tmp_path / "hub")
    tokens, mask = padded(PADDING.get(name, 0))
    segments = (torch.arange(9) > 4).long().expand(2, 9) * mask
    given = {"token_type_ids": segments} if name in SEGMENTS else {}
    expected = theirs(tokens, attention_mask=mask.long(), **given).logits
    ours = load_model(tmp_path / "hub").eval()
    torch.testing.assert_close(ours(tokens, segments, mask), expected, atol=1e-5, rtol=1e-5)
    assert ours.recipe.model.model_dump()["dropout"] == DROPOUT.get(name, 0.0)
    export(tmp_path / "hub", tmp_path / "out")
    before, after = (load_file(tmp_path / f / "model.safetensors") for f in ("hub", "out"))
    assert before.keys() == after.keys() and all(torch.equal(t, after[k]) for k, t in before.items())
    assert json.loads((tmp_path / "out/config.json").read_text()) == json.loads(
        (tmp_path / "hub/config.json").read_text()
    )


def model(**changes: Any) -> Model:
    trunk = {"type": "gpt", "vocab_size": 61, "d_model": 32, "n_layers": 2, "n_heads": 4}
    return build_model({"model": {"type": "classifier", "trunk": trunk, "classes": 3} | changes})


@pytest.mark.parametrize("given", [5, "bad", ["bad", "good"], {"0": "bad", "2": "good"}, {}])
def test_names_of_classes_that_are_none(given: Any) -> None:
    with pytest.raises(CheckpointError, match=r"id2label: .*; expected names for the indices 0, 1, \.\.\."):
        label_names({"id2label": given})


def test_names_of_classes_that_are_the_same() -> None:
    with pytest.raises(CheckpointError, match="id2label: two classes are called 'bad'; expected different"):
        label_names({"id2label": {"0": "bad", "1": "good", "2": "bad"}})


def test_a_classifier_of_zoo(tmp_path: Path) -> None:
    """With the labels of its training; what transformers' head is not is refused, all at once."""
    ours = model(pool="last", bias=False)
    export_model(ours, tmp_path / "out", labels=["bad", "so so", "good"])
    theirs: Any = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert theirs.config.id2label == NAMES["id2label"] and theirs.config.label2id == NAMES["label2id"]
    tokens = torch.arange(9)[None]
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, ours.eval()(tokens), atol=1e-5, rtol=0)
    with pytest.raises(CheckpointError) as caught:
        export_model(model(), tmp_path / "refused")
    assert str(caught.value).splitlines() == [
        "LlamaForSequenceClassification: model.pool: 'mean'; expected 'last'",
        "LlamaForSequenceClassification: model.bias: true; expected false",
    ]


DECODERS: dict[str, dict[str, Any]] = {
    "SmolLM3": {"rope_blocks": [True, False]},
    "Olmo2": {"norms": "after", "attention": {"qk_norm": "all_heads"}},
    "Phi3": {"rope_fraction": 0.5},
}


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_without_padding(name: str, tmp_path: Path) -> None:
    """Its config.json says so, where transformers would assume the padding of the family's first model."""
    trunk = {"type": "gpt", "vocab_size": 61, "d_model": 32, "n_layers": 2, "n_heads": 4} | DECODERS[name]
    ours = model(trunk=trunk, pool="last", bias=False)
    done = export_model(ours, tmp_path / "out")
    assert done.architecture == f"{name}ForSequenceClassification"
    theirs: Any = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert theirs.config.pad_token_id is None
    tokens = torch.tensor([[5, 9, 1, 1]])  # OLMo 2 pads with 1
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, ours.eval()(tokens), atol=1e-5, rtol=0)


def test_a_pair_classifier_of_zoo(tmp_path: Path) -> None:
    """Whose tokenizer gives transformers the segments of a pair without being asked."""
    position = {"type": "absolute", "length": 64}
    trunk = {"type": "bert", "vocab_size": 256, "d_model": 32, "n_layers": 1, "n_heads": 2}
    ours = random_(model(trunk=trunk | {"position": position}, pool="first", pooler=True))
    texts = TextPairEncoder(ByteTokenizer(), 64, segments=2)
    assert export_model(ours, tmp_path / "out", tokenizer=ByteTokenizer(), texts=texts).tokenizer
    theirs: Any = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    read = tokenizer("good film", "bad film", return_tensors="pt")
    assert read["token_type_ids"].tolist() == [[0] * 11 + [1] * 9]
    with torch.no_grad():
        expected = ours.eval()(*texts.collate([texts.encode("good film", "bad film")]))
        torch.testing.assert_close(theirs.eval()(**read).logits, expected, atol=1e-5, rtol=1e-5)


def test_the_tokenizer_of_a_classifier_cuts_texts_as_in_training(tmp_path: Path) -> None:
    """On the right, also if the settings that it came with say otherwise."""
    file = tokenizer_saved("byte-level", tmp_path / "hub") / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"truncation_side": "left"}))
    tokenizer = find_tokenizer(tmp_path / "hub")
    trunk = {"type": "gpt", "vocab_size": 320, "d_model": 32, "n_layers": 1, "n_heads": 4}
    ours, texts = model(trunk=trunk, pool="last", bias=False), TextPairEncoder(tokenizer, 6)
    assert export_model(ours, tmp_path / "out", tokenizer=tokenizer, texts=texts).tokenizer
    theirs: Any = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    long = "the quick brown fox jumps over 13 lazy dogs"
    assert tuple(theirs(long, truncation=True, max_length=6)["input_ids"]) == texts.encode(long).tokens


T5_TRUNK: dict[str, Any] = {"type": "t5", "vocab_size": 61, "d_model": 32, "n_layers": 1, "n_heads": 4}


def test_a_t5_of_zoo(tmp_path: Path) -> None:
    """Whose head reads the decoder; one that reads the encoder is refused, and so is a text without end."""
    ours = model(trunk=T5_TRUNK | {"vocab_size": 256}, pool="last", pooler=True, decoder_start_id=0)
    with pytest.raises(
        CheckpointError, match=r"^eos_token_id: null; expected the id of the token that ends a"
    ):
        export_model(ours, tmp_path / "refused")
    done = export_model(ours, tmp_path / "out", tokenizer=ByteTokenizer(), labels=["bad", "so so", "good"])
    assert done.architecture == "T5ForSequenceClassification" and (done.max_difference or 0) < 1e-5
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert (written["decoder_start_token_id"], written["eos_token_id"]) == (0, 255)
    assert written["id2label"] == {"0": "bad", "1": "so so", "2": "good"}
    with pytest.raises(CheckpointError) as caught:
        export_model(model(trunk=T5_TRUNK), tmp_path / "refused")
    assert str(caught.value).splitlines() == [
        "T5ForSequenceClassification: model.decoder_start_id: null; expected the id of a token",
        "T5ForSequenceClassification: model.pool: 'mean'; expected 'last'",
        "T5ForSequenceClassification: model.pooler: false; expected true",
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder_start_token_id": None}, "decoder_start_token_id: null; expected the id of the token"),
        ({"eos_token_id": [1, 2]}, r"eos_token_id: \[1, 2\]; expected the id of the token that ends a text"),
        ({"decoder_start_token_id": -1}, "decoder_start_token_id: -1; expected"),
        ({"decoder_start_token_id": 61}, "decoder_start_token_id 61: expected an id below vocab_size 61$"),
        ({"id2label": None, "num_labels": 10**12}, "num_labels: 1000000000000; expected .* from 2 to 100000"),
        ({"id2label": None, "num_labels": 1}, "num_labels: 1; expected a number of classes from 2 to"),
        ({"id2label": None, "num_labels": True}, "num_labels: true; expected a number of classes"),
        ({"feed_forward_proj": ["relu"]}, r"feed_forward_proj: \['relu'\]; expected"),
        ({"classifier_dropout": "x"}, "classifier_dropout: 'x'; expected"),
        (
            {"id2label": {"0": "a"}},
            "config.json: id2label: .*; expected names for the indices 0, 1, ... of at least two classes",
        ),
        ({"id2label": None, "num_labels": 0}, "config.json: num_labels: 0; expected a number of classes"),
        ({"decoder_start_token_id": 1.5}, "config.json: decoder_start_token_id: 1.5; expected"),
    ],
)
def test_a_t5_that_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    saved("T5", tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(CheckpointError, match=message):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"decoder_start_id": 0},
            "decoder_start_id 0 has no effect: a 'gpt' is no encoder-decoder; ",
        ),
        ({"trunk": T5_TRUNK, "decoder_start_id": 61}, "expected an id below trunk.vocab_size 61"),
        (
            {"trunk": T5_TRUNK, "decoder_start_id": 0, "pool": "first"},
            "the first token of a 't5 decoder' sees no other; expected 'last' or 'mean'",
        ),
    ],
)
def test_a_head_that_cannot_read_a_decoder(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model(**changes)


def test_the_language_model_of_a_t5_classifier(tmp_path: Path) -> None:
    """--allow for the head reads the language model on its trunk; the files lack the untied read-out."""
    theirs = saved("T5", tmp_path)
    ours = load_model(tmp_path, allow=["classification_head.*"])
    table = theirs.transformer.shared.weight
    assert ours.recipe.model.type == "t5" and torch.equal(ours.state_dict()["embedding.weight"], table)


def test_t5_is_tuned_on_texts(tmp_path: Path) -> None:
    """From a language model of the hub to a classifier that transformers opens, with its labels."""
    config = transformers.T5Config(**T5 | {"vocab_size": 256, "eos_token_id": 255})
    random_(transformers.T5ForConditionalGeneration(config)).save_pretrained(tmp_path / "t5")
    ByteTokenizer().save(tmp_path / "t5")
    texts = "".join(f"{word} number {i}\t{label}\n" for i in range(8) for word, label in WORDS)
    (tmp_path / "texts.tsv").write_text("text\tlabel\n" + texts)
    trunk = {"from": str(tmp_path / "t5")}
    head = {"pool": "last", "pooler": True, "decoder_start_id": 0, "classes": 2}
    data = {"train": str(tmp_path / "texts.tsv"), "validation": 0.25, "text": "text", "label": "label"}
    fields = {
        "model": {"type": "classifier", "trunk": trunk, **head},
        "optimizer": {"type": "adamw", "lr": 3e-3},
        "data": {"type": "classification", "context": 24, **data},
        "train": {
            "steps": 4,
            "batch_size": 4,
            "eval_every": 4,
            "eval_batches": None,
            "device": "cpu",
            "runs_dir": str(tmp_path),
        },
    }
    run = train(load_config(fields | {"name": "run"})).folder
    done = export(run, tmp_path / "out")
    assert (done.max_difference or 0) < 1e-5 and done.tokenizer, done
    theirs: Any = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert theirs.config.id2label == {0: "bad", 1: "good"}
    ids = torch.tensor([[*tokenizer("fine number 3", add_special_tokens=False).input_ids, 255]])
    with torch.no_grad():
        ours = load_model(run, which="best").eval()(ids)
        torch.testing.assert_close(theirs(ids).logits, ours, atol=1e-5, rtol=1e-5)


WORDS = [("fine", "good"), ("dull", "bad")]


def of_texts(model: dict[str, Any], folder: Path, **data: Any) -> dict[str, Any]:
    """A configuration of a classifier that is trained on two files of three labels."""
    lines = [f"text {i}\t{label}" for i in range(4) for label in ("good", "so so", "bad")]
    (folder / "three.tsv").write_text("text\tlabel\n" + "\n".join(lines) + "\n")
    files = {"train": str(folder / "three.tsv"), "validation": 0.25}
    return {
        "model": model,
        "optimizer": {"type": "adamw", "lr": 1e-3},
        "data": {"type": "classification", "context": 8, "tokenizer": "word", **files, **data},
        "train": {"steps": 1, "batch_size": 4, "eval_every": 1, "device": "cpu", "runs_dir": str(folder)},
    }


@pytest.mark.parametrize("name", THEIRS)
def test_a_run_begins_with_the_head(name: str, tmp_path: Path) -> None:
    """And with its classes in their order, which is not that of the alphabet."""
    theirs = saved(name, tmp_path / "hub")
    config = load_config(of_texts({"from": str(tmp_path / "hub")}, tmp_path))
    assert getattr(config.data, "labels", None) == ("bad", "so so", "good")
    initial = initial_model(config)
    assert initial.report is not None and not initial.report.unused and not initial.report.new
    tokens, mask = padded(PADDING.get(name, 0))
    given = {"token_type_ids": torch.zeros_like(tokens)} if name in SEGMENTS else {}
    with torch.no_grad():
        expected = theirs(tokens, attention_mask=mask.long(), **given).logits
        ours = initial.model.eval()(tokens, torch.zeros_like(tokens), mask)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", THEIRS)
def test_a_trunk_without_its_head(name: str, tmp_path: Path) -> None:
    """The tensors of the head are listed as unused; the trunk is that of the whole."""
    saved(name, tmp_path / "hub")
    fields = {"type": "classifier", "classes": 5, "trunk": {"from": str(tmp_path / "hub")}}
    initial = initial_model(load_config(of_texts(fields, tmp_path)))
    assert initial.report is not None and {"head.linear.weight"} <= set(initial.report.new)
    ends = ("score.weight", "classifier.weight", "classifier.out_proj.weight", "head.out_proj.weight")
    assert [name for name in initial.report.unused if name.endswith(ends)]
    config = load_config(of_texts({"from": str(tmp_path / "hub")}, tmp_path))
    whole = initial_model(config).model.state_dict()
    for key, tensor in initial.model.state_dict().items():
        if key.startswith("trunk."):
            assert torch.equal(tensor, whole[key]), key


@pytest.mark.parametrize("kind", ["imported", "run"])
def test_the_trunk_of_a_classifier_of_zoo(kind: str, tmp_path: Path) -> None:
    """Of a run under WeSaR too, whose gates go with the trunk."""
    saved("Qwen2", tmp_path / "hub")
    source = load_model(tmp_path / "hub")
    if kind == "run":
        split(source, "wesar")
    save_model(source, tmp_path / "own")
    fields = {"type": "classifier", "classes": 5, "pool": "mean", "trunk": {"from": str(tmp_path / "own")}}
    config = load_config(of_texts(fields, tmp_path))
    assert config.reparam == source.recipe.reparam and getattr(config.data, "labels", None) is None
    initial = initial_model(config)
    assert initial.report is not None
    assert [name.partition("_gate")[0] for name in initial.report.unused if "gate" not in name] == [
        "head.linear.weight"
    ]
    tokens, mask = padded()
    with torch.no_grad():
        trunks = [
            cast(Classifier, m).eval().trunk.hidden_states(tokens, None, mask)
            for m in (initial.model, source)
        ]
    assert torch.equal(*trunks)


def test_the_language_model_on_a_trunk(tmp_path: Path) -> None:
    """It is asked for by its type; the read-out that a classifier lacks has to be allowed by name."""
    saved("Qwen2", tmp_path / "hub")
    fields: dict[str, Any] = {"model": {"from": str(tmp_path / "hub"), "type": "gpt"}}
    with pytest.raises(CheckpointError, match=r"a classifier on a 'gpt' has no read_out\.matrix\.weight"):
        initial_model(load_config(fields))
    fields["checkpoint"] = {"allow": ["read_out.*"]}
    report = initial_model(load_config(fields)).report
    assert report is not None
    assert (report.missing, report.unused) == (("read_out.matrix.weight",), ("score.weight",))
    assert load_config({"model": {"from": str(tmp_path / "hub")}}, ["model.type=gpt"]).model is not None
    with pytest.raises(ConfigError, match="value 'bert': the checkpoint is a 'classifier'"):
        load_config({"model": {"from": str(tmp_path / "hub"), "type": "bert"}})


def test_classes_of_other_names_are_told(tmp_path: Path) -> None:
    saved("Bert", tmp_path / "hub")
    config = tmp_path / "hub/config.json"
    config.write_text(config.read_text().replace("so so", "fair"))
    fields = of_texts({"from": str(tmp_path / "hub")}, tmp_path)
    with pytest.raises(DataError, match="label 'so so' is not one of the classes"):
        train(load_config(fields | {"name": "names"}))
    config.write_text(
        json.dumps({k: v for k, v in json.loads(config.read_text()).items() if "label" not in k})
    )
    assert (
        getattr(load_config(fields | {"model": {"from": str(tmp_path / "hub")}}).data, "labels", None) is None
    )


def test_an_import_has_the_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved("Qwen2", tmp_path / "hub")
    zoo("import", tmp_path / "hub", tmp_path / "own")
    assert "Qwen2ForSequenceClassification: " in capsys.readouterr().out
    assert read_labels(tmp_path / "own") == ["bad", "so so", "good"]
    export(tmp_path / "own", tmp_path / "out")
    assert json.loads((tmp_path / "out/config.json").read_text())["id2label"]["2"] == "good"
    file = tmp_path / "hub/config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"id2label": {"0": "a", "5": "b"}}))
    with pytest.raises(CheckpointError, match=r"id2label: .*; expected names for the indices 0, 1"):
        load_model(tmp_path / "hub")


@pytest.mark.parametrize(
    "given", [5, True, "names", ["bad", "good"], {"0": "bad"}, {"a": "bad", "b": "good"}]
)
def test_labels_of_another_form_are_one_clear_error(given: Any) -> None:
    with pytest.raises(CheckpointError, match=r"id2label: .*; expected names for the indices 0, 1"):
        label_names({"id2label": given})
