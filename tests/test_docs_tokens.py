"""The commands of docs/tokenizers.md and docs/instructions.md, one after the other, on something smaller."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers
from command_line import zoo
from hub_tokenizers import TEXT, saved

from tiny_runs import ROOT, TEXT as LONG  # isort: skip


SMALL = ["train.steps=20", "train.batch_size=2", "train.device=cpu"]
CORPUS = "data.corpus={type: text, paths: [book.txt], document: passage}"
SIZES: dict[str, Any] = {"vocab_size": 304, "hidden_size": 16, "num_hidden_layers": 1, "head_dim": 8}
SIZES |= {"num_attention_heads": 2, "intermediate_size": 24, "max_position_embeddings": 64}


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[list[str]]:
    lines = [line for block in blocks(page, "console") for line in block.splitlines()]
    return [shlex.split(line[2:]) for line in lines if line.startswith("$ ")]


def smaller(words: list[str]) -> list[str]:
    """A command with little to do; what it shows stays as it is."""
    words = ["model.vocab_size=304" if word == "model.vocab_size=49152" else word for word in words]
    if words[0] == "train":
        words += [*SMALL, *([CORPUS] if words[1] == "gpt-tiny" else [])]
    return words


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of the hub, a text, and instructions."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = transformers.LlamaConfig(**SIZES)
    transformers.LlamaForCausalLM(config).save_pretrained("models/smol")
    saved("byte-level", Path("models/smol"))
    Path("book.txt").write_text("\n\n".join(TEXT) + LONG[:4000], encoding="utf-8")
    lines = blocks("instructions.md", "json")[0]
    Path("answers.jsonl").write_text(lines * 4, encoding="utf-8")
    Path("answers.yaml").write_text(blocks("instructions.md", "yaml")[0], encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("page", ["tokenizers.md", "instructions.md"])
def test_the_commands_work(folder: Path, page: str) -> None:
    for tool, *words in commands(page):
        if tool == "cp":
            shutil.copytree(words[-2], words[-1])
            continue
        assert tool == "zoo"
        zoo(*smaller(words))
