"""The commands of docs/fine-tuning.md, typed as they stand there; LoRA at realistic sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from command_line import typed
from pages import sections
from safetensors.torch import load_file
from tiny_runs import TEXT, tiny_fields

from zoo import load_model, merge
from zoo.checkpoint.model import find_checkpoint
from zoo.run.config import load_config
from zoo.run.explanation import explain
from zoo.run.first_weights import initial_model
from zoo.train.run import train

PAGE = sections("fine-tuning.md")
FIRST = "Starting from a checkpoint"
OURS = [FIRST, "LoRA, WeSaR and others", "What is trained, and how fast"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs/my-run."""
    path = tmp_path_factory.mktemp("demo")
    fields = tiny_fields(path, steps=10, eval_every=10, checkpoint_every=10)
    train(load_config({**fields, "name": "my-run"}))
    return path


@pytest.mark.parametrize("heading", OURS)
def test_the_commands(
    demo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], heading: str
) -> None:
    monkeypatch.chdir(demo)
    monkeypatch.setenv("XDG_CACHE_HOME", str(demo / "cache"))
    Path("notes.txt").write_text(TEXT, encoding="utf-8")
    Path("tune.yaml").write_text(PAGE[FIRST].files["tune.yaml"], encoding="utf-8")
    assert len(PAGE[heading].commands) >= 3
    for command in PAGE[heading].commands:
        typed(command)
        captured = capsys.readouterr()
        if command.startswith("export"):
            assert "largest difference of a logit" in captured.out
        if command.startswith("train") and "--resume" not in command:
            assert "gpt: 21 tensors loaded" in captured.out


def test_lora_is_merged_exactly(demo: Path) -> None:
    """Before the first step B is 0 and nothing changes, not a bit; after training the rounding of a sum."""
    source = demo / "runs/my-run"
    fields = tiny_fields(demo, steps=6, eval_every=6, checkpoint_every=6) | {"name": "trained"}
    config = load_config({**fields, "model": {"from": str(source)}, "reparam": "lora"})
    tensors = load_file(find_checkpoint(source) / "model.safetensors")
    model = initial_model(config).model
    assert merge(model).max_difference == 0
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in model.state_dict().items())
    trained = load_model(train(config).folder)
    assert any(p.any() for n, p in trained.named_parameters() if n.endswith("_up"))
    assert all(torch.equal(trained.state_dict()[name], tensor) for name, tensor in tensors.items())
    assert merge(trained).max_difference <= 1e-6
    assert any(not torch.equal(trained.state_dict()[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("name", ["bert-base-amos", "gpt-0.5b", "bert-large-adamw"])
def test_lora_trains_little_of_a_large_model(name: str) -> None:
    totals = explain(load_config(name, ["reparam=lora"])).totals
    assert 0 < totals.parameters - totals.frozen < 0.03 * totals.frozen
