"""Runs and models that zoo 0.1.0 wrote are opened and go on as they would have gone on there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import zoo
from tiny_runs import of_kind

from zoo import build_model, load_model, save_model
from zoo.checkpoint.safetensors import read_tensors
from zoo.run.config import load_config
from zoo.run.trained import data_of, tokenizer_of
from zoo.train.run import train
from zoo.utils.run_folder import RunFolder

GOLDEN = Path(__file__).parent / "golden/old_run"
EXPECTED: dict[str, Any] = json.loads((GOLDEN / "expected.json").read_text(encoding="utf-8"))
TOLERANCE = 1e-4
"""Relative: processors add in other orders, and 12 steps of a tiny model hardly amplify that."""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the old run, under another name; its text lies where its relative path starts."""
    shutil.copy(GOLDEN / "text.txt", tmp_path)
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(GOLDEN / "run", tmp_path / "copy"))


def losses(run: Path, kind: str) -> dict[str, float]:
    return {str(record["step"]): record["cross_entropy"] for record in of_kind(run, kind)}


@pytest.mark.parametrize("place", ["run", "run/checkpoints/step-00000008", "model.safetensors"])
def test_an_old_model_is_opened(place: str) -> None:
    """A run, a checkpoint, and a file of `save_model`."""
    tokens = torch.arange(32).view(2, 16)
    with torch.no_grad():
        loss = load_model(GOLDEN / place).loss(tokens, tokens).total.item()
    assert loss == pytest.approx(EXPECTED["loss_at_8"], rel=TOLERANCE)


def test_an_old_checkpoint_alone_says_how_it_was_trained(run: Path, tmp_path: Path) -> None:
    alone = Path(shutil.copytree(run / "checkpoints/step-00000008", tmp_path / "alone"))
    shutil.rmtree(run)
    data = data_of(alone)
    assert data is not None
    assert data.length == 16
    assert tokenizer_of(alone).encode("ab") == [97, 98]
    zoo("generate", alone, "--prompt", "The sun ", "--max-new-tokens", "3")


def test_an_old_run_goes_on(run: Path) -> None:
    train(load_config(run), resume=True, folder=RunFolder(run))
    assert losses(run, "train") == pytest.approx(EXPECTED["train"], rel=TOLERANCE)
    assert losses(run, "validation") == pytest.approx(EXPECTED["validation"], rel=TOLERANCE)
    checkpoint = RunFolder(run).checkpoint()
    assert checkpoint is not None
    assert checkpoint.step == 12
    weights = read_tensors(checkpoint.model)[0]
    assert weights.keys() == EXPECTED["weights_at_12"].keys()
    for name, (norm, first) in EXPECTED["weights_at_12"].items():
        assert weights[name].norm().item() == pytest.approx(norm, rel=TOLERANCE), name
        assert weights[name].flatten()[:4].tolist() == pytest.approx(first, rel=10 * TOLERANCE, abs=1e-6), (
            name
        )


@pytest.mark.parametrize("start_again", [False, True])
def test_gates_that_are_left_out_today_are_kept(
    start_again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An nGPT whose embedding, v, nu and read-out have gates goes on, or is what another run starts from.

    Its optimizer is Amos, whose eta and slots of scalings were others.
    """
    old, text = GOLDEN.parent / "old_gates", GOLDEN / "text.txt"
    expected = json.loads((old / "expected.json").read_text(encoding="utf-8"))
    tokens = torch.arange(32).view(2, 16)
    with torch.no_grad():
        loss = load_model(old / "run").loss(tokens, tokens).total.item()
    assert loss == pytest.approx(expected["loss_at_8"], rel=TOLERANCE)
    shutil.copy(text, tmp_path)
    monkeypatch.chdir(tmp_path)
    run = Path(shutil.copytree(old / "run", "copy"))
    if start_again:
        model = build_model({"model": {"from": str(run)}})
        save_model(model, "again.safetensors")
        with torch.no_grad():
            assert load_model("again.safetensors").loss(tokens, tokens).total.item() == loss
        return
    train(load_config(run), resume=True, folder=RunFolder(run))
    assert losses(run, "train") == pytest.approx(expected["train"], rel=TOLERANCE)
    assert losses(run, "validation") == pytest.approx(expected["validation"], rel=TOLERANCE)


def test_the_lines_that_are_there_are_kept(run: Path) -> None:
    """Those of the steps before the checkpoint, unchanged; more follow them."""
    before = of_kind(run, "train")
    zoo("train", "copy", "--resume", "train.steps=10")
    assert of_kind(run, "train")[:8] == before
    assert [record["step"] for record in of_kind(run, "train")] == list(range(1, 11))


def test_an_old_run_is_reported(run: Path, tmp_path: Path) -> None:
    zoo("report", run, "--out", "page")
    assert "copy" in (tmp_path / "page/report.md").read_text(encoding="utf-8")
    zoo("inspect", run)
    assert (run / "inspect/inspect.html").is_file()
