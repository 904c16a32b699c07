"""What a first user of the Python interface types: names and built models, and objects that are no models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import zoo
from zoo import build_model, build_optimizer, explain, load_config, save_model
from zoo.utils.errors import CheckpointError, ConfigError


def test_explain_takes_names_and_models() -> None:
    by_name = explain("gpt-tiny")
    built = explain(build_model("gpt-tiny"))
    assert (
        by_name.totals.parameters
        == built.totals.parameters
        == explain(load_config("gpt-tiny")).totals.parameters
    )
    assert [row.sigma for row in by_name.rows] == [row.sigma for row in built.rows]


def test_the_default_device_is_torchs() -> None:
    with torch.device("meta"):
        model = build_model("gpt-tiny")
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert {p.device.type for p in build_model("gpt-tiny").parameters()} == {"cpu"}


@pytest.mark.parametrize("given", [nn.Linear(3, 4), nn.Linear(3, 4).parameters(), 7])
def test_what_is_no_model_of_zoo(tmp_path: Path, given: Any) -> None:
    with pytest.raises(ConfigError, match=r"build_optimizer: .*Amos\.for_module"):
        build_optimizer(given, "adamw", lr=1e-3)
    with pytest.raises(CheckpointError, match="is no model of zoo"):
        save_model(given, tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())


def test_both_spellings_of_a_precision() -> None:
    for name in ("bf16", "bfloat16"):
        train = load_config("quickstart-gpt", [f"train.precision={name}"]).train
        assert train is not None
        assert train.precision == "bf16"
    assert zoo.__version__
