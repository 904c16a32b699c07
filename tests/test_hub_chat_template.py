"""The chat template of an exported run asks the model in the template of its training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hub_tokenizers import saved as saved_tokenizer
from tiny_runs import tiny_fields
from transformers import AutoTokenizer

from zoo.data.instructions.files import Message, Speaker
from zoo.evaluation.text_generator import TextGenerator
from zoo.hub.export import export
from zoo.run.config import load_config
from zoo.run.trained import data_of, tokenizer_of
from zoo.sampling import Sampling
from zoo.train.run import train

OWN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
ODD = {
    "type": "chat",
    "system": '"\\{{ system }}\\n":\n',
    "user": "{%% user %%}\t'%(start)s'\n",
    "assistant": "\U0001f916 -}}\r\n",
    "end": "\x01\n",
    "answered": "{#\n",
}
"""Markers of all that could be taken for a program, or for a format of Python."""
TALK: list[tuple[Speaker, str]] = [
    ("system", "Be  brief."),
    ("user", "say a\nb?"),
    ("assistant", "a, b"),
    ("user", "fox"),
    ("assistant", "13"),
]


def trained(folder: Path, tokenizer: object, template: object) -> Path:
    """A run on conversations, with a tokenizer that has a chat template of its own if it can have one."""
    lines = [json.dumps({"prompt": f"say {c}", "response": f"{c} fox"}) for c in "abcdefgh"]
    (folder / "tasks.jsonl").write_text("\n".join(lines), encoding="utf-8")
    fields = tiny_fields(folder, steps=2, eval_every=2, eval_batches=1)
    fields["data"] = {"type": "instructions", "train": str(folder / "tasks.jsonl"), "context": 32}
    fields["data"] |= {"validation": 0.25, "tokenizer": tokenizer, "template": template}
    fields["model"] = {
        "type": "gpt",
        "vocab_size": 400,
        "d_model": 16,
        "n_layers": 1,
        "n_heads": 2,
        "d_mlp": 32,
    }
    return train(load_config(fields | {"schedule": "constant"})).folder


def of_a_folder(folder: Path, kind: str = "byte-level", eos: str = "<|im_end|>") -> dict[str, str]:
    """A tokenizer with a chat template in tokenizer_config.json."""
    (folder / "hub").mkdir()
    saved_tokenizer(kind, folder / "hub")
    file = folder / "hub/tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": OWN}))
    return {"type": "huggingface", "path": str(folder / "hub"), "eos": eos}


@pytest.mark.parametrize("template", ["plain", "chat", ODD], ids=["plain", "chat", "odd"])
@pytest.mark.parametrize("tokenizer", ["byte", "huggingface"])
def test_the_tokens_are_those_of_the_training(tokenizer: str, template: object, tmp_path: Path) -> None:
    """In transformers, of the conversation, of what is learned of it and of the prompts, for all rounds."""
    run = trained(tmp_path, of_a_folder(tmp_path) if tokenizer == "huggingface" else tokenizer, template)
    shown = str(export(run, tmp_path / "out"))
    kind = template["type"] if isinstance(template, dict) else template
    assert f"\nchat template: that of the training, '{kind}'" in shown
    data: Any = data_of(run)
    ours = tokenizer_of(run)
    theirs: Any = AutoTokenizer.from_pretrained(tmp_path / "out")
    talk = [{"role": role, "content": content} for role, content in TALK]
    messages = [Message(*message) for message in TALK]
    marks = theirs.apply_chat_template(talk, return_assistant_tokens_mask=True, return_dict=True)
    encoded = data.template.encode(messages, ours)
    assert marks["input_ids"] == encoded.tokens
    assert marks["assistant_masks"] == encoded.loss_mask
    for end in (2, 4):
        prompt = theirs.apply_chat_template(talk[:end], add_generation_prompt=True, return_dict=False)
        assert prompt == data.template.encode_prompt(messages[:end], ours)
    with pytest.raises(Exception, match="expected one of the roles system, user, assistant"):
        theirs.apply_chat_template([{"role": "tool", "content": "1"}])


def test_zoo_asks_an_exported_folder_as_the_run(tmp_path: Path) -> None:
    """Also if the tokenizer of the run is one of zoo's own, which has no chat template."""
    run = trained(tmp_path, "byte", "chat")
    export(run, tmp_path / "out")
    messages = [Message(*message) for message in TALK[:2]]
    of_run, of_folder = (
        TextGenerator(path, "cpu").answer(messages, 8, Sampling(temperature=0))
        for path in (run, tmp_path / "out")
    )
    assert of_folder == of_run
    assert tokenizer_of(tmp_path / "out").eos_id == tokenizer_of(run).eos_id


def test_none_instead_of_another_one(tmp_path: Path) -> None:
    """A tokenizer that puts a blank in front of every message makes other tokens of the whole text."""
    tokenizer = of_a_folder(tmp_path, "byte-fallback", "</s>")
    (tmp_path / "hub/chat_template.jinja").write_text(OWN)
    run = trained(tmp_path, tokenizer, "chat")
    shown = str(export(run, tmp_path / "out"))
    assert "\nno chat template: none makes the tokens of the training's template, 'chat'" in shown
    assert not (tmp_path / "out/chat_template.jinja").exists()
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template is None


@pytest.mark.parametrize("source", [None, OWN + "{# another #}"], ids=["own", "source"])
def test_a_chat_template_stays(source: str | None, tmp_path: Path) -> None:
    """That of the tokenizer, or the text that the configuration has instead."""
    run = trained(tmp_path, of_a_folder(tmp_path), {"type": "jinja", "source": source})
    assert "chat template" not in str(export(run, tmp_path / "out"))
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template == (source or OWN)
