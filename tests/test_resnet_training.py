"""ResNet trains: digits to an accuracy, through kills bit for bit, and in two processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import assert_same, kill, of_kind
from two_ranks import train_on_two_ranks

from zoo import build_model, load_model
from zoo.data.dataset import BatchSpec
from zoo.data.images.digits import DigitsData
from zoo.models import ResNet
from zoo.run.config import load_config
from zoo.run.warm.convert import convert
from zoo.train.run import train

STEM = {"channels": 1, "stem_size": 3, "stem_stride": 1, "pool_size": 1, "pool_stride": 1}
TINY: dict[str, Any] = {
    "name": "tiny",
    "model": {"type": "resnet", "depth": 18, "classes": 10, "width": 4, **STEM},
    "optimizer": {"type": "amos", "lr": 0.05, "momentum": 0.9},
    "data": "digits",
    "train": {
        "steps": 8,
        "batch_size": 16,
        "accumulation": 2,
        "device": "cpu",
        "eval_every": 4,
        "log_every": 1,
        "monitor_every": 4,
        "checkpoint_every": 4,
    },
}


def tiny(folder: Path, name: str) -> dict[str, Any]:
    """A run of eight steps on digits, with Amos, in `folder`/runs."""
    return {**TINY, "name": name, "train": {**TINY["train"], "runs_dir": str(folder / "runs")}}


@pytest.mark.parametrize(
    "optimizer", ["type: adamw, lr: 0.003, weight_decay: 0.05", "type: amos, lr: 0.05, beta: 0.95"]
)
def test_digits_are_learned(tmp_path: Path, optimizer: str) -> None:
    """More than 90 % of the held-out digits after four epochs; the log's accuracy is that of the logits."""
    settings = [f"train.runs_dir={tmp_path}", "train.steps=90", "train.eval_every=90", "train.device=cpu"]
    run = train(load_config("resnet18-digits", [*settings, f"optimizer={{{optimizer}}}"]))
    accuracy = of_kind(run.folder, "validation")[-1]["accuracy"]
    assert accuracy > 0.9
    model = load_model(run.folder).eval()
    dataset = DigitsData().prepare(model.recipe.model)
    batches = dataset.validation_batches(BatchSpec(0, 0, 64), 100)
    assert batches is not None
    with torch.no_grad():
        right = torch.cat([model(images).argmax(1) == labels for images, labels in batches])
    assert right.double().mean().item() == pytest.approx(accuracy)


def test_statistics_are_part_of_a_checkpoint_and_resume_is_exact(tmp_path: Path) -> None:
    whole = train(load_config(tiny(tmp_path, "whole")))
    kill(tiny(tmp_path, "killed"), "step", "global_norm", call=7)
    assert (tmp_path / "runs/killed/checkpoints/step-00000004").is_dir()
    resumed = train(load_config(tiny(tmp_path, "killed")), resume=True)
    assert_same(whole.folder, resumed.folder)
    variance = load_model(resumed.folder).state_dict()["stem.norm.variance"]
    assert not torch.equal(variance, torch.ones_like(variance))


def test_two_processes(tmp_path: Path) -> None:
    """Each normalises its half of the batch; the running statistics are the mean of both, on both."""
    settings = tiny(tmp_path, "two")
    settings["train"] |= {"accumulation": 1, "steps": 1}
    train_on_two_ranks(settings)
    trained = load_model(tmp_path / "runs/two")
    model = build_model(trained.recipe.model_dump())
    assert isinstance(model, ResNet)
    images, labels = DigitsData().prepare(model.config).train_batch(BatchSpec(0, 0, 16))
    halves = list(zip(images.chunk(2), labels.chunk(2), strict=True))
    losses = [model.loss(*half).total.item() for half in halves]
    assert of_kind(tmp_path / "runs/two", "train")[0]["loss"] == pytest.approx(sum(losses) / 2, rel=1e-6)
    means = [model.stem.conv(half).mean((0, 2, 3)) for half, _ in halves]
    statistic = trained.state_dict()["stem.norm.mean"]
    torch.testing.assert_close(statistic, 0.1 * (means[0] + means[1]) / 2, atol=1e-7, rtol=1e-5)


def test_a_conversion_speaks_of_no_tokenizer(tmp_path: Path) -> None:
    """A model of images has none, which is nothing that a user has to be told."""
    folder = train(load_config(tiny(tmp_path, "images"), ["train.steps=4"])).folder
    text = str(convert(folder, tmp_path / "wesar", to="wesar"))
    assert text.startswith(f"wrote {tmp_path / 'wesar'}: wesar\nlargest difference of a logit")
    assert "tokenizer" not in text
