"""What the Amos paper's released code does where the paper is silent: named parts that configs can extend."""

import math
from pathlib import Path

import numpy as np
import pytest

from zoo import build_model, build_optimizer
from zoo.data.objectives import MaskedLM
from zoo.init import Registry
from zoo.run.config import load_config
from zoo.utils.errors import ConfigError

PARTS = Path(__file__).parent.parent / "configs" / "parts"


def extended(tmp_path: Path, parent: str, part: str) -> Path:
    file = tmp_path / "run.yaml"
    file.write_text(f"extends: [{parent}, {(PARTS / part).as_posix()}]\n")
    return file


def test_adamw_decays_every_variable(tmp_path: Path) -> None:
    config = load_config(extended(tmp_path, "bert-base-adamw", "released-adamw.yaml"))
    model = build_model("bert-tiny")
    assert config.optimizer is not None
    released, plain = (
        build_optimizer(model, "adamw", lr=1e-3, weight_decay=0.1, decays=decays)
        for decays in (config.optimizer.model_dump()["decays"], "matrices")
    )
    assert {group["weight_decay"] for group in released.param_groups} == {0.1}
    assert {group["weight_decay"] for group in plain.param_groups} == {0.0, 0.1}


def test_masking_is_always_the_mask(tmp_path: Path) -> None:
    config = load_config(extended(tmp_path, "bert-base-amos", "released-mlm.yaml"))
    assert config.data is not None
    objective = config.data.model_dump()["objective"]
    tokens, random = np.arange(1000), np.random.default_rng(0)
    assert (MaskedLM(**objective).corrupt(tokens, 1000, random) == 1000).all()
    papers = MaskedLM().corrupt(tokens, 1000, random)
    assert (papers == 1000).mean() == pytest.approx(0.8, abs=0.04)
    assert (papers == tokens).mean() == pytest.approx(0.1, abs=0.04)
    with pytest.raises(ValueError, match="add up to more than 1"):
        MaskedLM(masked=0.9, replaced=0.2)


def test_released_etas_follow_the_width(tmp_path: Path) -> None:
    for parent, width in (("bert-base-amos", 768), ("bert-large-amos", 1024)):
        config = load_config(extended(tmp_path, parent, "released-bert-etas.yaml"))
        model = build_model(parent, device="meta")
        registry = Registry(model, eta_overrides=config.eta_overrides)
        assert registry["embedding.token.weight"].eta == pytest.approx(math.sqrt(2 / width))
        assert registry["blocks.0.mlp.up.weight"].eta == pytest.approx(math.sqrt(1 / width))


def test_an_axis_that_is_not_there() -> None:
    config = load_config({"eta_overrides": [{"role": "embedding", "per": "embbed"}]})
    with pytest.raises(ConfigError, match=r"no axis 'embbed' .* did you mean 'embed'"):
        Registry(build_model("bert-tiny"), eta_overrides=config.eta_overrides)
    with pytest.raises(ConfigError, match="`numerator` has no effect without `per`"):
        load_config({"eta_overrides": [{"role": "embedding", "eta": 1, "numerator": 2}]})
