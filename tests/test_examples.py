"""The scripts of examples/, run as a user runs them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_runs import ROOT, environment

EXAMPLES = ROOT / "examples"
PRINTS = {
    "own_optimizer": (r"10/10 finished", r"optimizer=lion\.py:Lion: \w+", r"The report: .*report\.html"),
    "own_model": (r"\d+ parameters", r"step 20: [\d.]+ nats per byte", r"'def ", r'"byte_perplexity"'),
    "plain_pytorch": (r"nGPT, step 40: ([\d.]+)", r"the quic", r"classifier, step 40: 0\.[01]"),
    "finetune_hugging_face": (r"validation loss [\d.]+ nats", r"largest difference of a logit", r"A cat"),
    "runs_in_pandas": (r"model\.type +gpt +ngpt", r"20 +[\d.]+ +[\d.]+\n", r"tokens_per_second"),
}


@pytest.mark.parametrize("name", PRINTS)
def test_example(name: str, tmp_path: Path) -> None:
    takes_a_folder = name.startswith("own")
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *([str(tmp_path)] if takes_a_folder else [])]
    variables = {**environment(), "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    variables["HF_HUB_OFFLINE"] = "1"
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for pattern in PRINTS[name]:
        assert re.search(pattern, done.stdout), done.stdout


def test_all_examples_are_listed() -> None:
    listed = re.findall(r"\]\((\S+)\)", (EXAMPLES / "README.md").read_text("utf-8"))
    assert set(listed) == {file.name for file in EXAMPLES.iterdir() if file.suffix in (".py", ".yaml")}
    scripts = {file.stem for file in EXAMPLES.glob("*.py") if "__main__" in file.read_text("utf-8")}
    assert scripts == set(PRINTS)
