"""Instruction tuning from end to end: a model, trained on text before, learns to answer in the template."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import zoo
from hub_tokenizers import saved
from tiny_runs import ROOT, of_kind, tiny_fields
from transformers import AutoModelForCausalLM, AutoTokenizer

from zoo import load_model
from zoo.data.instructions.dataset import InstructionData
from zoo.data.instructions.files import Message
from zoo.hub.export import export
from zoo.run.config import load_config
from zoo.train.run import train

CHAT = {"type": "chat", "user": "<|im_start|>user\n", "assistant": "<|im_start|>assistant\n"}
PAIRS = {"the quick": "brown fox", "def f(x):": "return x", "over": "13 lazy dogs"}


def rows(folder: Path) -> Path:
    path = folder / "instructions.jsonl"
    pairs = [{"prompt": prompt, "response": response} for prompt, response in PAIRS.items()]
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs * 4), encoding="utf-8")
    return path


def fields(folder: Path, tokenizer: Any, template: Any, **model: Any) -> dict[str, Any]:
    settings = tiny_fields(folder, steps=60, eval_every=30, batch_size=6, checkpoint_every=60)
    settings["data"] = {
        "type": "instructions",
        "train": str(rows(folder)),
        "validation": str(rows(folder)),
        "template": template,
        "tokenizer": tokenizer,
        "context": 48,
    }
    settings["model"] |= model
    return settings | {"name": "instruct"}


@pytest.mark.parametrize("name", ["gpt", "ngpt"])
def test_a_run_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """With a tokenizer of the hub and its special tokens as markers; exported, it answers there as well."""
    tokenizer = {"type": "huggingface", "path": str(saved("byte-level", tmp_path / "hub"))}
    settings = fields(tmp_path, tokenizer, CHAT, type=name, vocab_size=304)
    settings["optimizer"]["lr"] = {"gpt": 1e-2, "ngpt": 1e-1}[name]
    run = train(load_config(settings)).folder
    before, *_, after = [record["cross_entropy"] for record in of_kind(run, "validation")]
    assert after < 0.2 * before
    for prompt, response in PAIRS.items():
        zoo("generate", run, "--prompt", prompt, "--temperature", "0", "--max-new-tokens", "30")
        assert capsys.readouterr().out == response + "\n"
    zoo("generate", run / "checkpoints/step-00000060", "--prompt", "over", "--temperature", "0", "--stream")
    assert capsys.readouterr().out == "13 lazy dogs\n"
    zoo("generate", run, "--prompt", "over", "--temperature", "0", "--stop", " dogs")
    assert capsys.readouterr().out == "13 lazy\n"
    text = tmp_path / "text.txt"
    zoo("eval", run, "--perplexity", text)
    zoo("export", run, tmp_path / "exported")
    assert (tmp_path / "exported/tokenizer.json").read_bytes() == (
        tmp_path / "hub/tokenizer.json"
    ).read_bytes()
    theirs: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    reader = AutoTokenizer.from_pretrained(tmp_path / "exported")
    asked = "<|endoftext|><|im_start|>user\nover\n<|im_start|>assistant\n"
    ids = torch.tensor([reader.encode(asked, add_special_tokens=False)])
    written = theirs.generate(ids, max_new_tokens=20, do_sample=False, pad_token_id=0)
    assert reader.decode(written[0, ids.shape[1] :], skip_special_tokens=True) == "13 lazy dogs"


SOURCE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_the_template_of_the_training_goes_out(tmp_path: Path) -> None:
    """And not that of the tokenizer's folder, in which the model was not trained."""
    place = saved("byte-level", tmp_path / "hub")
    (place / "chat_template.jinja").write_text("{{ messages[0].content }}", encoding="utf-8")
    template, tokenizer = {"type": "jinja", "source": SOURCE}, {"type": "huggingface", "path": str(place)}
    settings = fields(tmp_path, tokenizer, template, vocab_size=304)
    settings["train"] |= {"steps": 5, "eval_every": 5, "checkpoint_every": 5}
    export(train(load_config(settings)).folder, tmp_path / "exported")
    theirs: Any = AutoTokenizer.from_pretrained(tmp_path / "exported")
    asked = [{"role": "user", "content": "over"}]
    written = theirs.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)
    assert written == "<|im_start|>user\nover<|im_end|>\n<|im_start|>assistant\n"


def test_from_a_run_on_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`model: {from: run}`: the tokenizer comes along, another one is refused before the first step."""
    before = train(load_config(tiny_fields(tmp_path, steps=10))).folder
    settings = fields(tmp_path, "byte", "plain") | {"model": {"from": str(before)}}
    del settings["data"]["tokenizer"]
    run = train(load_config(settings)).folder
    first = next(iter(of_kind(run, "validation")))
    assert first["step"] == 0
    capsys.readouterr()
    zoo("generate", run, "--prompt", "over", "--temperature", "0", "--max-new-tokens", "30")
    assert capsys.readouterr().out == "13 lazy dogs\n"
    assert load_model(run).recipe.model == load_model(before).recipe.model
    other = settings | {"name": "other"}
    other["data"] = other["data"] | {"tokenizer": {"type": "word"}}
    path = tmp_path / "other.yaml"
    path.write_text(json.dumps(other))
    zoo("train", path, status=2)
    assert "tokenizer" in capsys.readouterr().err


def test_a_resumed_run_is_the_same(tmp_path: Path) -> None:
    """The examples are a function of the step alone."""
    settings = fields(tmp_path, "byte", "plain")
    whole = train(load_config(settings)).folder
    settings["train"] |= {"runs_dir": str(tmp_path / "parts"), "checkpoint_every": 20}
    train(load_config(settings), until=20)
    again = train(load_config(settings), resume=True).folder
    ours, theirs = load_model(whole).state_dict(), load_model(again).state_dict()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_the_format_on_the_page_is_qwens(tmp_path: Path) -> None:
    """The settings as printed in docs/instructions.md place the special tokens where Qwen does."""
    page = (ROOT / "docs/instructions.md").read_text(encoding="utf-8")
    (printed,) = [code for code in re.findall(r"```yaml\n(.*?)```", page, re.S) if "im_start" in code]
    file = tmp_path / "qwen.yaml"
    tokenizer_folder = saved("byte-level", tmp_path / "hub")
    data = printed.replace("path/to/qwen", str(tokenizer_folder))
    file.write_text(data + f"  type: instructions\n  train: {rows(tmp_path)}\n", encoding="utf-8")
    config = load_config(file).data
    assert isinstance(config, InstructionData)
    tokenizer = config.tokenizer.build(lambda: iter(()))
    talk = [Message("system", "s"), Message("user", "u"), Message("assistant", "a"), Message("user", "v")]
    ids = config.prompting.encode_messages(talk, tokenizer)
    text = AutoTokenizer.from_pretrained(tokenizer_folder).decode(ids[1:])
    assert text == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n"
        "<|im_start|>assistant\na<|im_end|>\n<|im_start|>user\nv<|im_end|>\n<|im_start|>assistant\n"
    )
