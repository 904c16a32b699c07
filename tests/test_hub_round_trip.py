"""A folder that is read and written again is the same folder; training keeps what it does not change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hub_models import MODELS, SIZES, saved
from hub_tokenizers import saved as saved_tokenizer
from safetensors.torch import load_file
from tiny_runs import tiny_fields

from zoo import load_model, save_model
from zoo.checkpoint.format import ModelFile
from zoo.hub.export import export
from zoo.run.config import load_config
from zoo.train.run import train

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
GENERATION = {"eos_token_id": [2, 0], "pad_token_id": 0, "temperature": 0.6, "top_p": 0.95, "do_sample": True}


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text(encoding="utf-8"))


def published(name: str, folder: Path, dtype: torch.dtype) -> Path:
    """A folder of `MODELS` with what people publish besides the weights."""
    saved(name, folder, dtype)
    config = read(folder, "config.json") | {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))
    saved_tokenizer("byte-level", folder)
    settings = read(folder, "tokenizer_config.json")
    settings |= {"eos_token": {"content": "<|endoftext|>", "special": True}, "pad_token": "<|endoftext|>"}
    settings |= {"model_max_length": 32768, "additional_special_tokens": ["<|im_start|>", "<|im_end|>"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}, indent=3))
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folder


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {k: t for file in sorted(folder.glob("*.safetensors")) for k, t in load_file(file).items()}


def assert_same(out: Path, hub: Path, dtype: torch.dtype) -> None:
    before, after = tensors(hub), tensors(out)
    assert before.keys() == after.keys()
    for key, tensor in before.items():
        assert tensor.dtype == after[key].dtype == dtype
        assert torch.equal(tensor.view(torch.uint8), after[key].view(torch.uint8)), key
    for file in ("config.json", "generation_config.json"):
        assert read(out, file) == read(hub, file)


@pytest.mark.parametrize("name", MODELS)
def test_the_folder_is_the_same(name: str, tmp_path: Path) -> None:
    """Tensors and their dtype and JSON, by way of a file of zoo's own."""
    hub = published(name, tmp_path / "hub", torch.bfloat16)
    save_model(load_model(hub), tmp_path / "own.safetensors")
    export(tmp_path / "own.safetensors", tmp_path / "out")
    assert_same(tmp_path / "out", hub, torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_the_tokenizer_is_the_same(dtype: torch.dtype, tmp_path: Path) -> None:
    """Read from the folder itself, with all that lies beside the weights."""
    hub = published("qwen2", tmp_path / "hub", dtype)
    export(hub, tmp_path / "out")
    assert_same(tmp_path / "out", hub, dtype)
    for file in ("tokenizer.json", "special_tokens_map.json", "chat_template.jinja"):
        assert (tmp_path / "out" / file).read_bytes() == (hub / file).read_bytes()
    assert read(tmp_path / "out", "tokenizer_config.json") == read(hub, "tokenizer_config.json")


def test_another_dtype_is_the_only_change(tmp_path: Path) -> None:
    hub = published("llama", tmp_path / "hub", torch.bfloat16)
    export(hub, tmp_path / "out", dtype="fp32")
    assert {t.dtype for t in tensors(tmp_path / "out").values()} == {torch.float32}
    assert read(tmp_path / "out", "config.json") == read(hub, "config.json") | {"dtype": "float32"}


def trained(hub: Path, folder: Path, **data: Any) -> Path:
    settings = tiny_fields(folder, steps=2, eval_every=2, eval_batches=1)
    settings |= {"model": {"from": str(hub)}, "schedule": "constant"}
    settings["data"] |= data
    return train(load_config(settings)).folder


def test_training_keeps_what_it_does_not_change(tmp_path: Path) -> None:
    """The positions are the model's own, not the context; resumed from a checkpoint as well."""
    hub = published("qwen2", tmp_path / "hub", torch.bfloat16)
    widen(hub)
    run = trained(hub, tmp_path)
    assert ModelFile.open(run / "checkpoints/step-00000002/model.safetensors", "").published[
        "generation"
    ] == (GENERATION)
    export(run, tmp_path / "out")
    expected = read(hub, "config.json") | {"eos_token_id": 0}  # what the documents of the training end with
    assert expected["max_position_embeddings"] == SIZES["max_position_embeddings"] == 64
    assert read(tmp_path / "out", "config.json") == expected
    assert read(tmp_path / "out", "generation_config.json") == GENERATION  # which has that end already
    assert {t.dtype for t in tensors(tmp_path / "out").values()} == {torch.bfloat16}
    assert (tmp_path / "out/chat_template.jinja").read_text() == TEMPLATE


def widen(hub: Path) -> None:
    """Give a folder room for the tokens of its tokenizer."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(hub)
    model.resize_token_embeddings(300, mean_resizing=False)
    kept = read(hub, "config.json")
    model.save_pretrained(hub)
    (hub / "config.json").write_text(json.dumps(kept | {"vocab_size": 300}))
    (hub / "generation_config.json").write_text(json.dumps(GENERATION))


def test_a_changed_model_keeps_the_rest(tmp_path: Path) -> None:
    """`rope_base` is changed in training: the field is written, and the others stay."""
    hub = published("llama", tmp_path / "hub", torch.float32)
    widen(hub)
    settings = tiny_fields(tmp_path, steps=1, eval_every=1, eval_batches=1)
    settings |= {"model": {"from": str(hub), "rope_base": 123.0}, "schedule": "constant"}
    export(train(load_config(settings)).folder, tmp_path / "out")
    config = read(tmp_path / "out", "config.json")
    assert config["rope_theta"] == 123.0 and config["max_position_embeddings"] == 64
    assert (config["bos_token_id"], config["pad_token_id"]) == (1, 0)
