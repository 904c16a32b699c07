"""`zoo explain` of what lies around: runs, checkpoints, imported models, folders as on the hub, adapters."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import zoo
from hub_models import saved
from tiny_runs import tiny

from zoo import load_model, save_model, split
from zoo.checkpoint.safetensors import Part, read_tensors, write_piece
from zoo.hub.export import export_model
from zoo.run.explanation import explain
from zoo.train.run import train
from zoo.utils.errors import ConfigError


def run(folder: Path) -> Path:
    return train(tiny(folder, "init=he", "reparam=wesar", steps=6, eval_every=6)).folder


def checkpoint(folder: Path) -> Path:
    return next((run(folder) / "checkpoints").glob("step-*"))


def checkpoint_of_ranks(folder: Path) -> Path:
    """The same checkpoint, as two ranks write it: two pieces, the second of which has one row of each."""
    path = checkpoint(folder)
    file = path / "model.safetensors"
    tensors, header = read_tensors(file)
    for rank in range(2):
        parts = {}
        for name, tensor in tensors.items():
            begin = max(len(tensor) - 1, 1) if tensor.dim() else 1
            rows = (tensor[:begin] if rank == 0 else tensor[begin:]) if tensor.dim() else tensor
            if rank == 0 or (tensor.dim() and len(rows)):
                parts[name] = Part(rows, (rank * begin, *[0] * (tensor.dim() - 1))[: tensor.dim()])
        write_piece(file, parts, header, rank, 2, "this")
    file.unlink()
    return path


def hub(folder: Path) -> Path:
    saved("qwen2", folder / "hub")
    return folder / "hub"


def imported(folder: Path) -> Path:
    save_model(load_model(hub(folder)), folder / "own")
    return folder / "own"


def file(folder: Path) -> Path:
    return imported(folder) / "model.safetensors"


def adapter(folder: Path) -> Path:
    model = load_model(hub(folder))
    split(model, {"type": "lora", "rank": 2})
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("_up"):
                p.copy_(torch.linspace(-0.1, 0.1, p.numel()).view_as(p))
    export_model(model, folder / "out", base=str(folder / "hub"))
    return folder / "out/adapter"


@pytest.mark.parametrize("make", [checkpoint, checkpoint_of_ranks, hub, imported, file, adapter])
def test_the_weights_that_are_there(
    make: Callable[[Path], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make(tmp_path)
    capsys.readouterr()
    zoo("explain", path, "--json")
    explained: dict[str, Any] = json.loads(capsys.readouterr().out)
    model = load_model(path)
    assert explained["totals"]["parameters"] == sum(p.numel() for p in model.parameters())
    assert explained["measured"] == f"the weights of {path}"
    rows = {row["name"]: row for row in explained["rows"]}
    for name, p in model.named_parameters():
        if p.dim() == 2:
            spread = p.detach().std(correction=0).item()
            assert rows[name]["sigma"] == pytest.approx(spread, rel=1e-4), name


def test_a_checkpoint_has_the_optimizer_of_its_run(tmp_path: Path) -> None:
    path = checkpoint(tmp_path)
    whole, own = explain(path.parent.parent), explain(path)
    assert (own.totals, own.model) == (whole.totals, whole.model)
    assert own.totals.optimizer == "adamw" and not whole.measured


def test_options_change_what_is_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = hub(tmp_path)
    capsys.readouterr()
    zoo("explain", path, "reparam=lora", "optimizer={type: adamw, lr: 1e-3}", "--fold")
    out = capsys.readouterr().out
    assert "reparam lora" in out and "frozen" in out and "optimizer       adamw: " in out
    zoo("explain", path)
    assert "optimizer       none\n" in capsys.readouterr().out


def test_a_folder_of_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    zoo("explain", tmp_path / "empty", status=2)
    assert "empty: a folder without config.yaml; expected a run, " in capsys.readouterr().err
    zoo("train", hub(tmp_path), status=2)
    assert "(a model is taken over by `model: {from: " in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    Path("gpt-tiny").mkdir()  # the name of a shipped configuration is one wherever it is typed
    zoo("explain", "gpt-tiny")
    (tmp_path / "hub/config.json").write_text('{"architectures": ["XverseForCausalLM"]}')
    with pytest.raises(
        ConfigError, match=r"model\.from: .*config\.json: architectures: no family 'XverseFor"
    ):
        explain("hub")
