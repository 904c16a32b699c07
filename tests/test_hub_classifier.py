"""Classifiers of transformers, in and out: the logits, the names of the classes, and the folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from command_line import zoo
from hub_models import GPT2, SIZES, random_
from safetensors.torch import load_file

from zoo import build_model, load_model
from zoo.data.classification.class_names import read_labels
from zoo.hub.export import export, export_model
from zoo.models import Model
from zoo.utils.errors import CheckpointError

NAMES = {"id2label": {0: "bad", 1: "so so", 2: "good"}, "label2id": {"bad": 0, "so so": 1, "good": 2}}
BERT = {key: SIZES[key] for key in SIZES if key != "num_key_value_heads"}
MODERNBERT = BERT | {"local_attention": 4, "classifier_pooling": "mean"}
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
}
PADDING = {"Roberta": 1}
"""Ids of padding other than 0."""
SEGMENTS = {"Bert", "Roberta"}
"""Those that distinguish the two texts of a pair."""


def saved(name: str, folder: Path) -> Any:
    """A classifier of transformers with three classes, random in every parameter, in a folder."""
    config = getattr(transformers, f"{name}Config")(
        **THEIRS[name], **NAMES, pad_token_id=PADDING.get(name, 0)
    )
    model = random_(getattr(transformers, f"{name}ForSequenceClassification")(config)).eval()
    model.save_pretrained(folder)
    return model


def padded(padding: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Two texts, the second one shorter: tokens and mask."""
    mask = torch.tensor([[True] * 9, [True] * 6 + [False] * 3])
    return torch.arange(2, 20).reshape(2, 9).where(mask, torch.tensor(padding)), mask


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
    assert ours.recipe.model.model_dump()["dropout"] == (0.1 if name in SEGMENTS else 0.0)
    export(tmp_path / "hub", tmp_path / "out")
    before, after = (load_file(tmp_path / f / "model.safetensors") for f in ("hub", "out"))
    assert before.keys() == after.keys() and all(torch.equal(t, after[k]) for k, t in before.items())
    assert json.loads((tmp_path / "out/config.json").read_text()) == json.loads(
        (tmp_path / "hub/config.json").read_text()
    )


def model(**changes: Any) -> Model:
    trunk = {"type": "gpt", "vocab_size": 61, "d_model": 32, "n_layers": 2, "n_heads": 4}
    return build_model({"model": {"type": "classifier", "trunk": trunk, "classes": 3} | changes})


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
    t5 = {"type": "t5", "vocab_size": 61, "d_model": 32, "n_layers": 1, "n_heads": 4}
    with pytest.raises(CheckpointError, match="T5ForConditionalGeneration: zoo knows no ForSequenceClass"):
        export_model(model(trunk=t5, pool="last"), tmp_path / "refused")


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
