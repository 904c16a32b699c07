"""What cannot be fine-tuned, as data: what is given, and what the message says of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hub_models import saved as hub_folder
from safetensors.torch import load_file, save_file
from tiny_runs import tiny_fields

from zoo.run.config import load_config
from zoo.run.first_weights import initial_model
from zoo.train.run import train
from zoo.utils.errors import ZooError

TEXT = "data: {corpus: {type: text, paths: [{folder}/text.txt]}, context: 16, cache_dir: {folder}/cache}\n"
START = "model: {from: {folder}/runs/gpt}\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, one that has not saved yet, a folder of the hub, a file that zoo did not write."""
    path = tmp_path_factory.mktemp("sources")
    fields = tiny_fields(path, steps=5, eval_every=5, checkpoint_every=5)
    train(load_config({**fields, "name": "gpt"}))
    words = {**fields["data"], "tokenizer": {"type": "word", "vocab_size": 20}}
    train(load_config({**fields, "name": "words", "data": words}))
    (path / "runs/empty").mkdir()
    (path / "runs/empty/config.yaml").write_text("")
    hub_folder("llama", path / "hub")
    strange = path / "strange"
    strange.mkdir()
    save_file(load_file(path / "hub/model.safetensors"), strange / "model.safetensors")
    odd = json.loads((path / "hub/config.json").read_text()) | {"architectures": ["FooForCausalLM"]}
    (path / "odd").mkdir()
    (path / "odd/config.json").write_text(json.dumps(odd))
    return path


FILES = [
    ("model: {from: {folder}/none}", "f.yaml:1: model.from: {folder}/none: no such file or folder"),
    (
        "model: {from: {folder}}",
        "f.yaml:1: model.from: {folder}: neither model.safetensors nor adapter_config.json or config.json",
    ),
    ("model: {from: 3}", "f.yaml:1: model.from: value 3: expected the path of a run"),
    ("model:\n  from: {folder}/runs/empty", "f.yaml:2: model.from: {folder}/runs/empty: the run has no last"),
    ("model: {from: {folder}/strange}", "f.yaml:1: model.from: .*zoo did not write it"),
    ("model: {from: {folder}/odd}", "f.yaml:1: model.from: .*no family 'FooForCausalLM'"),
    (START[:-2] + ", type: bert}", "f.yaml:1: model.type: value 'bert': the checkpoint is a 'gpt'"),
    (START[:-2] + ", d_modle: 3}", "f.yaml:1: model.d_modle: unknown key; did you mean 'd_model'"),
    (START[:-2] + ", n_heads: 3}", "model: d_model 16 is not divisible by n_heads 3"),
    (
        START + "init: he",
        "f.yaml:2: init: value 'he': the checkpoint was made with .*'gpt2'.*; leave it out, or null",
    ),
    (
        START + "checkpoint: {path: x}",
        "f.yaml:2: checkpoint.path: the model's `from` says so already",
    ),
    (START + "checkpoint: {alow: [x]}", "f.yaml:2: checkpoint.alow: unknown key; did you mean 'allow'"),
    (
        "model: {type: classifier, classes: 2, trunk: {from: {folder}/runs/gpt}, x: {from: y}}",
        "f.yaml:1: model.trunk.from, model.x.from: expected one checkpoint",
    ),
    (
        "model: {from: {folder}/hub}\n" + TEXT,
        "f.yaml:1: data.tokenizer: missing, and the checkpoint's own cannot be used: no tokenizer in",
    ),
    (START + "data: {type: [text]}", "f.yaml:2: data.type: "),
    (START + "freeze: [{}]", "f.yaml:2: freeze.0: expected a condition: `roles`, `axes` or `depth`"),
    (START + "freeze: [{depth: [3, 1]}]", r"freeze.0: depth \[3, 1\]: expected the first and the last one"),
    (START + "freeze: [{roles: [matrix]}]", "f.yaml:2: freeze.0.roles.0: value 'matrix': expected"),
    (START + "freeze: [{name: x}]", "f.yaml:2: freeze.0.name: unknown key"),
    (START + "layer_decay: 0", "f.yaml:2: layer_decay: value 0: expected a number greater than 0"),
    (
        START + "layer_decay: 1.5",
        "f.yaml:2: layer_decay: value 1.5: expected a number less than or equal to 1",
    ),
    (START + "eta: measurd", "f.yaml:2: eta: value 'measurd': expected .*; did you mean 'measured'"),
    (
        START + "eta: measured\noptimizer: {type: adamw, lr: 1}",
        "eta: measured has no effect: this optimizer does not use eta",
    ),
    (
        "model: {type: gpt, vocab_size: 16, d_model: 8, n_layers: 1, n_heads: 2}\neta: measured\n",
        "eta: measured is of a checkpoint's weights; expected `model: {from: path}`",
    ),
]


@pytest.mark.parametrize(("text", "message"), FILES, ids=lambda text: text[:50])
def test_files(folder: Path, tmp_path: Path, text: str, message: str) -> None:
    """All of it is said when the file is read, and nothing else is."""
    file = tmp_path / "f.yaml"
    file.write_text(text.replace("{folder}", str(folder)))
    with pytest.raises(ZooError) as caught:
        load_config(file)
    (line,) = str(caught.value).splitlines()
    assert re.search(message.replace("{folder}", str(folder)), line), line


MODELS: list[tuple[dict[str, Any], str]] = [
    ({"checkpoint": {"allow": ["head.*"]}}, r"allow: 'head.\*' has no effect: nothing missing or unexpected"),
    (
        {"model": {"d_mlp": 24}},
        r"does not belong to this model: .*mlp.u.weight is float32 \[32, 16\], expected",
    ),
    ({"model": {"n_layers": 3}}, r"as a gpt it lacks blocks.2.attention.q.weight"),
    ({"model": {"n_layers": 1}}, r"as a gpt it has no place for blocks.1.attention.k.weight"),
    ({"model": {"tied": True}}, r"as a gpt it has no place for read_out.matrix.weight"),
    ({"reparam": "sigma_reparam"}, "reparam: 'sigma_reparam' cannot take over a checkpoint's weights"),
    ({"reparam": {"type": "lora", "axes": ["moon"]}}, "lora with roles .*'moon'.* matches no matrix"),
]


@pytest.mark.parametrize(("changes", "message"), MODELS, ids=str)
def test_models(folder: Path, changes: dict[str, Any], message: str) -> None:
    source = {"from": str(folder / "runs/gpt"), **changes.get("model", {})}
    with pytest.raises(ZooError, match=message):
        initial_model(load_config({**changes, "model": source}))


def test_a_checkpoint_of_another_architecture_says_so(folder: Path) -> None:
    """By hand, without `from`: the part that does not exist, and an init that is not the checkpoint's."""
    config = load_config({"model": {"from": str(folder / "runs/gpt")}}).model_dump(mode="json")
    with pytest.raises(ZooError, match=r"checkpoint.part: value 'trunk': the model has no such part"):
        initial_model(load_config(config, ["checkpoint.part=trunk"]))
    with pytest.raises(
        ZooError, match=r"checkpoint.path: gone: no such file .*needed until the run has begun"
    ):
        initial_model(load_config(config, ["checkpoint.path=gone"]))
    with pytest.raises(ZooError, match=r"checkpoint.part: value 'blocks': the model has no such part"):
        initial_model(load_config(config, ["checkpoint.part=blocks"]))
    with pytest.raises(ZooError, match=r"init: the model starts from a checkpoint made with .*'gpt2'"):
        initial_model(load_config(config, ["init=he"]))


RUNS: list[tuple[dict[str, Any], str]] = [
    (
        {"source": "words", "data": {"tokenizer": {"type": "byte"}}},
        r"data.tokenizer: a 'byte' of 256 tokens, but the weights in .*words.* of another one \('word', 20",
    ),
    (
        {"checkpoint": {"allow": ["tokenizer"]}},
        r"checkpoint.allow: 'tokenizer' has no effect: the tokenizer is no other",
    ),
    (
        {"freeze": [{"roles": ["embedding"]}, {"depth": [0, 0]}]},
        r"freeze\[1\] \{'depth': \[0, 0\]\} matches nothing that is trained; there is: linear",
    ),
    ({"freeze": [{"depth": [4, 9]}]}, r"freeze\[0\] .* matches nothing .* at depth 3"),
    ({"freeze": [{"depth": [0, 9]}]}, "freeze: nothing is left to train"),
    (
        {"freeze": [{"depth": [0, 2]}], "layer_decay": 0.9},
        "layer_decay 0.9 has no effect: all that is trained is at depth 3",
    ),
    (
        {"reparam": "lora", "eta": "measured", "optimizer": {"type": "amos", "lr": 0.1}},
        "eta: measured has no effect: nothing trained whose eta is read came from the checkpoint",
    ),
    (
        {
            "freeze": [{"depth": [0, 0]}, {"depth": [3, 3]}, {"roles": ["norm_scale"]}],
            "eta": "measured",
            "optimizer": {"type": "muon", "lr": 0.1, "rest": {"type": "amos", "lr": 0.1}},
        },
        "eta: measured has no effect",
    ),
]


@pytest.mark.parametrize(("changes", "message"), RUNS, ids=str)
def test_runs_are_refused_before_the_first_step(folder: Path, changes: dict[str, Any], message: str) -> None:
    fields = tiny_fields(folder, steps=5) | {"name": "refused"}
    fields["model"] = {"from": str(folder / "runs" / changes.get("source", "gpt"))}
    fields["data"] |= changes.get("data", {})
    rest = {key: value for key, value in changes.items() if key not in ("source", "data")}
    with pytest.raises(ZooError, match=message):
        train(load_config({**fields, **rest}))
    assert not (folder / "runs/refused").exists()
