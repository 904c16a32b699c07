"""A run starts from a checkpoint: the same function, everything written out, nothing needed later."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hub_models import saved as hub_folder
from jsonschema import Draft202012Validator
from rich.console import Console
from safetensors.torch import load_file, save_file
from tiny_runs import assert_same, of_kind, tiny_fields

from zoo import build_model, load_model, save_model
from zoo.checkpoint.model import find_checkpoint
from zoo.hub.export import export
from zoo.hub.folder import load_folder
from zoo.models import LanguageModel
from zoo.nn.linear import Linear
from zoo.run.config import RunConfig, dump_config, json_schema, load_config
from zoo.run.first_weights import initial_model
from zoo.train.run import train


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where runs `gpt` and `wesar` have been trained, a few steps each."""
    path = tmp_path_factory.mktemp("pretrained")
    steps = {"steps": 10, "eval_every": 10, "checkpoint_every": 10}
    plain = tiny_fields(path, **steps)
    train(load_config({**plain, "name": "gpt"}))
    scaled = {"reparam": "wesar", "init": "he", "optimizer": {"type": "amos", "lr": 0.02}}
    train(load_config({**plain, **scaled, "name": "wesar"}))
    return path


def tuned(folder: Path, name: str, source: str = "gpt", **changes: Any) -> RunConfig:
    """A configuration of six steps that starts from a run."""
    fields = tiny_fields(folder, steps=6, eval_every=3, checkpoint_every=3) | {"name": name}
    fields["model"] = {"from": str(folder / "runs" / source)}
    return load_config({**fields, **changes})


@pytest.mark.parametrize("source", ["gpt", "wesar"])
def test_training_starts_where_the_other_run_ended(folder: Path, source: str) -> None:
    config = tuned(folder, f"on-{source}", source)
    assert config.model == load_config(folder / "runs" / source).model
    assert config.reparam == load_config(folder / "runs" / source).reparam
    first = train(config, console=(console := Console(record=True, width=120))).folder
    last = of_kind(folder / "runs" / source, "validation")[-1]["cross_entropy"]
    assert of_kind(first, "validation")[0]["cross_entropy"] == last
    loaded = json.loads((first / "loaded.json").read_text())
    names = set(load_file(find_checkpoint(folder / "runs" / source) / "model.safetensors"))
    assert set(loaded["loaded"]) == names
    assert loaded["missing"] == loaded["unexpected"] == loaded["new"] == []
    assert f"gpt: {len(names)} tensors loaded" in console.export_text()


def test_the_resolved_config_alone_starts_the_same_run(folder: Path) -> None:
    config = tuned(folder, "first")
    first = train(config).folder
    text = (first / "config.yaml").read_text()
    assert "from:" not in text
    again = load_config(first)
    assert again == config
    assert dump_config(again) == text
    second = train(load_config(first, ["name=second"])).folder
    assert_same(first, second)


def test_keys_beside_from_are_put_on_top(folder: Path) -> None:
    source = model_of(load_config(folder / "runs/gpt"))
    config = tuned(folder, "x", model={"from": str(folder / "runs/gpt"), "rope_base": 500.0})
    assert model_of(config) == {**source, "rope_base": 500.0}
    once_more = load_config(config.model_dump(mode="json"), ["model.rope_base=3.0"])
    assert model_of(once_more) == {**source, "rope_base": 3.0}
    wide = {"type": "bert", "vocab_size": 99, "d_model": 64, "n_layers": 7, "n_heads": 4}
    fields = tuned(folder, "x").model_dump(mode="json") | {"checkpoint": None, "model": wide}
    over = load_config(fields, ["model.rope_base=7.0", f"model.from={folder / 'runs/gpt'}"])
    assert model_of(over) == {**source, "rope_base": 7.0}  # nothing of what was there before


def model_of(config: RunConfig) -> dict[str, Any]:
    fields: dict[str, Any] = config.model_dump(mode="json")["model"]
    return fields


TOKENIZERS = [{}, {"tokenizer": {"type": "byte"}}]


@pytest.mark.parametrize("data", TOKENIZERS, ids=["inherited", "the same"])
def test_a_resumed_run_does_not_need_the_old_one(folder: Path, tmp_path: Path, data: dict[str, Any]) -> None:
    """LoRA on a WeSaR run, etas measured, layer decay, a frozen layer: all of it in the run itself."""
    shutil.copytree(folder / "runs", tmp_path / "runs")
    fields = tiny_fields(tmp_path, steps=6, eval_every=3, checkpoint_every=3)
    fields |= {
        "model": {"from": str(tmp_path / "runs/wesar")},
        "optimizer": {"type": "amos", "lr": 0.01, "momentum": 0.9},
        "eta": "measured",
        "layer_decay": 0.5,
        "freeze": [{"depth": [1, 1]}],
    }
    fields["data"] |= data
    whole = train(load_config({**fields, "name": "whole"}))
    train(load_config({**fields, "name": "parts"}), until=3)
    shutil.rmtree(tmp_path / "runs/wesar")
    parts = train(load_config(tmp_path / "runs/parts"), resume=True)
    assert parts.finished
    assert_same(whole.folder, parts.folder)


@pytest.mark.parametrize("to", ["none", "lora", "wesar", "weight_norm", {"type": "lora", "rank": 2}])
@pytest.mark.parametrize("source", ["gpt", "wesar"])
def test_another_reparameterisation_computes_the_same(folder: Path, source: str, to: Any) -> None:
    """Merged, then split; and the file of the result opens as that method."""
    config = tuned(folder, "x", source, reparam=to)
    initial = initial_model(config)
    tokens = torch.arange(30).reshape(2, 15)
    expected = load_model(folder / "runs" / source)(tokens)
    torch.testing.assert_close(initial.model(tokens), expected, atol=1e-5, rtol=1e-4)
    assert initial.model.recipe.reparam == config.reparam
    assert (initial.conversion is None) == (config.reparam == load_config(folder / "runs" / source).reparam)
    again = load_model(save_model(initial.model, folder / "converted.safetensors"))
    assert torch.equal(again(tokens), initial.model(tokens))


def test_a_folder_of_the_hub(tmp_path: Path) -> None:
    hub_folder("llama", tmp_path)
    model = build_model({"model": {"from": str(tmp_path)}})
    expected = load_folder(tmp_path)[0].state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())
    assert build_model({"model": {"from": str(tmp_path)}}, device="meta").recipe == model.recipe


def test_from_an_exported_folder_with_its_tokenizer(tmp_path: Path) -> None:
    """Trained, exported, and trained on from there: not a bit of the first validation loss is lost."""
    fields = tiny_fields(tmp_path, steps=5, eval_every=5, checkpoint_every=5)
    pieces = {**fields["data"], "tokenizer": {"type": "sentencepiece", "vocab_size": 300}}
    wide = {**fields["model"], "vocab_size": 300}
    first = train(load_config({**fields, "data": pieces, "model": wide, "name": "first"})).folder
    export(first, tmp_path / "exported")
    second = train(load_config({**fields, "model": {"from": tmp_path / "exported"}, "name": "second"})).folder
    before, after = of_kind(first, "validation")[-1], of_kind(second, "validation")[0]
    assert after["cross_entropy"] == before["cross_entropy"]
    assert json.loads((second / "loaded.json").read_text())["architecture"] == "LlamaForCausalLM"


@pytest.mark.parametrize("source", ["run", "hub"])
def test_the_trunk_of_a_classifier(folder: Path, tmp_path: Path, source: str) -> None:
    """The read-out is left where it is, the head is drawn, the rest is the checkpoint's."""
    path = folder / "runs/wesar"
    if source == "hub":
        path = tmp_path
        hub_folder("llama", path)
        tensors = load_file(path / "model.safetensors")
        del tensors["lm_head.weight"]  # nobody misses it
        save_file(tensors, path / "model.safetensors", {"format": "pt"})
    config = load_config({"model": {"type": "classifier", "classes": 3, "trunk": {"from": str(path)}}})
    assert config.checkpoint is not None
    assert config.checkpoint.part == "trunk"
    initial = initial_model(config)
    report, model = initial.report, initial.model
    assert report is not None
    assert {name for name in report.new if "gate" not in name} == {"head.linear.weight", "head.linear.bias"}
    assert all("read_out" in name for name in report.unused)
    assert bool(report.unused) == (source == "run")
    theirs = load_model(path, allow=["lm_head.*"]) if source == "hub" else load_model(path)
    tokens = torch.arange(30).reshape(2, 15)
    trunk = model.get_submodule("trunk")
    assert isinstance(trunk, LanguageModel)
    assert isinstance(theirs, LanguageModel)
    assert torch.equal(trunk.hidden_states(tokens), theirs.hidden_states(tokens))
    fresh = build_model({**config.model_dump(mode="json"), "checkpoint": None})
    assert torch.equal(model.get_parameter("head.linear.weight"), fresh.get_parameter("head.linear.weight"))
    assert {n for n in model.state_dict() if n not in initial.loaded} == set(report.new)


def without_head(folder: Path, file: Path) -> dict[str, Any]:
    """What a run needs that starts from `gpt`, written to a file without its read-out."""
    save_model(load_model(folder / "runs/gpt"), file)
    kept = {k: t for k, t in header(file).items() if k != "checksums"}
    save_file({k: t for k, t in load_file(file).items() if "read_out" not in k}, file, kept)
    return {"model": {"from": str(file)}, "checkpoint": {"allow": ["read_out.*"]}}


def test_what_is_missing_is_drawn_if_it_is_allowed(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    initial = initial_model(load_config(without_head(folder, file)))
    tensors = load_file(file)
    assert initial.report is not None
    assert initial.report.missing == ("read_out.matrix.weight",)
    drawn = initial.model.get_parameter("read_out.matrix.weight")
    assert 0.01 < drawn.std() < 0.03
    assert "read_out.matrix.weight" not in initial.loaded
    assert torch.equal(initial.model.get_parameter("norm.scale"), tensors["norm.scale"])


def test_a_new_head_under_weight_norm_starts_from_the_first_batch(folder: Path, tmp_path: Path) -> None:
    """What is loaded keeps its rows; what is drawn starts as in a run without a checkpoint."""
    source = without_head(folder, tmp_path / "model.safetensors")
    data = {**tiny_fields(folder)["data"], "tokenizer": "byte"}
    still = {"type": "adam", "lr": 1e-30}
    config = tuned(folder, "new-head", reparam="weight_norm", optimizer=still, data=data, **source)
    model = load_model(train(config).folder).eval()
    before = load_model(folder / "runs/gpt")
    q = model.get_submodule("blocks.0.attention.q")
    assert isinstance(q, Linear)
    loaded = before.get_parameter("blocks.0.attention.q.weight")
    torch.testing.assert_close(q.virtual("weight"), loaded, rtol=1e-5, atol=1e-7)
    tokens = torch.tensor([list(b"Line 7: 7 times 0 is 0, and the quick brown fox jumps")])
    with torch.no_grad():
        spread = model(tokens).std(1).mean()
    assert 0.5 < spread < 1.5  # from its rows it would be below .1


def header(file: Path) -> dict[str, str]:
    size = int.from_bytes(file.read_bytes()[:8], "little")
    found: dict[str, str] = json.loads(file.read_bytes()[8 : 8 + size])["__metadata__"]
    return found


def test_editors_know_from(folder: Path) -> None:
    """The JSON schema takes a model by its checkpoint, at the top and as a trunk, with keys on top."""
    validator = Draft202012Validator(json_schema())
    source = {"from": str(folder / "runs/gpt"), "rope_base": 2.0}
    for model in (source, {"type": "classifier", "classes": 2, "trunk": source}):
        assert not list(validator.iter_errors({"model": model}))
    assert list(validator.iter_errors({"model": {"from": 3}}))
    assert list(validator.iter_errors({"model": {"form": "runs/gpt"}}))


def test_the_short_form_of_data_has_the_tokenizer_as_well(folder: Path) -> None:
    """`data: text` is `data: {type: text}`; so is the override."""
    fields = {"model": {"from": str(folder / "runs/gpt")}}
    kept = load_config({**fields, "data": {"type": "text"}}).data
    assert kept is not None and kept.model_dump(mode="json")["tokenizer"]["type"] == "saved"
    assert load_config({**fields, "data": "text"}).data == kept
    assert load_config(fields, ["data=text"]).data == kept


def test_another_tokenizer_is_allowed_by_name(folder: Path) -> None:
    changes: dict[str, Any] = {"data": other_tokenizer(folder), "checkpoint": {"allow": ["tokenizer"]}}
    assert train(tuned(folder, "other-tokens", **changes)).finished


def other_tokenizer(folder: Path) -> dict[str, Any]:
    """Data of words; there are fewer of them than the model has tokens."""
    text = folder / "words.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n\n" * 200, encoding="utf-8")
    corpus = {"type": "text", "paths": [str(text)]}
    return {**tiny_fields(folder)["data"], "corpus": corpus, "tokenizer": {"type": "word"}}
