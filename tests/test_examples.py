"""The scripts of examples/, run as a user runs them."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
from forks import run
from tiny_runs import ROOT

EXAMPLES = ROOT / "examples"
PRINTS = {
    "own_optimizer": (r"10/10 finished", r"optimizer=lion\.py:Lion: \w+", r"The report: .*report\.html"),
    "own_model": (r"\d+ parameters", r"step 20: [\d.]+ nats per byte", r"'def ", r'"byte_perplexity"'),
    "plain_pytorch": (r"nGPT, step 40: ([\d.]+)", r"the quic", r"classifier, step 40: 0\.[01]"),
    "finetune_hugging_face": (r"validation loss [\d.]+ nats", r"largest difference of a logit", r"A cat"),
    "a_day": (
        r"(full-\d: accuracy [\d.]+ of 10 questions\n){3}(lora-\d: accuracy [\d.]+ of 10 questions\n){3}",
        r"acc",
        r"wrote adapter: 15 matrices of LoRA",
        r"chats rendered alike: True",
        r"transformers: largest difference of a logit \d\.\de-0[5-9]",
    ),
    "runs_in_pandas": (r"model\.type +gpt +ngpt", r"20 +[\d.]+ +[\d.]+\n", r"tokens_per_second"),
}


def script(file: Path, arguments: list[str]) -> None:
    """What `python FILE ARGUMENTS` does."""
    sys.argv = [str(file), *arguments]
    sys.path.insert(0, str(file.parent))
    runpy.run_path(str(file), run_name="__main__")


@pytest.mark.parametrize("name", PRINTS)
def test_example(name: str, tmp_path: Path) -> None:
    takes_a_folder = name.startswith("own")
    variables = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    arguments = [str(tmp_path)] if takes_a_folder else []
    done = run(script, EXAMPLES / f"{name}.py", arguments, folder=tmp_path, variables=variables)
    assert done.status == 0, done.errors
    for pattern in PRINTS[name]:
        assert re.search(pattern, done.output), done.output


def test_all_examples_are_listed() -> None:
    listed = re.findall(r"\]\((\S+)\)", (EXAMPLES / "README.md").read_text("utf-8"))
    assert set(listed) == {file.name for file in EXAMPLES.iterdir() if file.suffix in (".py", ".yaml")}
    scripts = {file.stem for file in EXAMPLES.glob("*.py") if "__main__" in file.read_text("utf-8")}
    assert scripts == set(PRINTS)
