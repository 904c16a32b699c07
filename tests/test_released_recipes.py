"""What the Amos paper's released code does where the paper is silent: named parts that configs can extend."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from zoo import build_model, build_optimizer
from zoo.data.objectives import MaskedLM
from zoo.init import Registry
from zoo.optim import Amos
from zoo.optim.clip import Clip
from zoo.run.config import load_config
from zoo.train.distributed import World
from zoo.train.step import Stepper
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
    assert (MaskedLM(**objective).corrupt(tokens, 1000, 1000, random) == 1000).all()
    papers = MaskedLM().corrupt(tokens, 1000, 1000, random)
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


def test_clipping_is_that_of_a_loss_over_the_root_of_its_targets(tmp_path: Path) -> None:
    """chi = 1 on loss / sqrt(n), which is sqrt(n) times the mean; Amos does not depend on the scale."""
    config = load_config(extended(tmp_path, "lstm-ptb-amos", "released-amos.yaml"))
    assert config.optimizer is not None
    assert config.optimizer.model_dump()["clip_value"] == "by targets"
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    ours, theirs, unclipped = (nn.Parameter(start.clone()) for _ in range(3))
    clips: list[Any] = ["by targets", 1.0, None]
    optimizers = [
        Amos([{"params": [p], "eta": 0.3, "reduce": (1,)}], lr=0.1, clip_value=clip)
        for p, clip in zip((ours, theirs, unclipped), clips, strict=True)
    ]
    for targets in (40, 7, 1000):
        of_mean = torch.randn(6, 5, generator=generator, dtype=torch.float64) / targets**0.5
        ours.grad, unclipped.grad = of_mean, of_mean.clone()
        theirs.grad = of_mean * targets**0.5
        optimizers[0].param_groups[0]["targets"] = targets
        for optimizer in optimizers:
            optimizer.step()
            state = next(iter(optimizer.state.values()))
            state["v"].zero_()  # whose scale changes with the number of targets in this comparison
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)
    assert (ours - unclipped).abs().max() > 1e-3


def test_training_tells_the_optimizer_its_targets() -> None:
    """All that count, of all parts of an accumulated batch; -1 does not."""
    model = build_model("bert-tiny")
    optimizer = build_optimizer(model, "amos", lr=0.01, clip_value="by targets")
    tokens, targets = model.example(4, 16)
    stepper = Stepper(
        model, model.loss, optimizer, World(0, 1, torch.device("cpu")), 2, "fp32", Clip(None), 0.0
    )
    result = stepper.gradient((tokens, targets), lambda: False)
    stepper.update(result)
    assert {group["targets"] for group in optimizer.param_groups} == {int((targets != -1).sum())} == {16}
    loose = Amos(
        [{"params": [nn.Parameter(torch.ones(3))], "eta": 1.0, "reduce": ()}], 0.1, clip_value="by targets"
    )
    loose.param_groups[0]["params"][0].grad = torch.ones(3)
    with pytest.raises(ConfigError, match=r"clip_value is 'by targets': set group\["):
        loose.step()
    for value in ("by target", 0, -1, ".nan", [1]):
        with pytest.raises(
            ConfigError, match=r"clip_value: value .*: expected a number > 0, 'by targets' or null"
        ) as e:
            load_config({"optimizer": {"type": "amos", "lr": 0.1, "clip_value": value}})
        assert len(str(e.value).splitlines()) == 1
    with pytest.raises(
        ConfigError, match="clip_value is 'by target', expected a finite number > 0, 'by targets'"
    ):
        Amos([{**group, "clip_value": "by target"} for group in loose.param_groups], 0.1)


def test_the_lstm_starts_below_eta(tmp_path: Path) -> None:
    """Kernel 1 / sqrt(2 d), embedding 1 / sqrt(d), projection 0; etas 1 / sqrt(32) and d^(-1/4)."""
    file = extended(tmp_path, "lstm-ptb-amos", "released-lstm-starts.yaml")
    model = build_model(file, d_model=64, d_memory=96, vocab_size=500)
    starts = {name: p.detach() for name, p in model.named_parameters()}
    assert starts["lstm.weight"].std().item() == pytest.approx(128**-0.5, rel=0.02)
    assert starts["embedding.weight"].std().item() == pytest.approx(64**-0.5, rel=0.02)
    assert not starts["lstm.projection"].any()
    registry = Registry(build_model("lstm-ptb-amos", device="meta"))
    assert registry["lstm.weight"].eta == pytest.approx(32**-0.5)
    assert registry["embedding.weight"].eta == pytest.approx(256**-0.25)


def test_the_lstm_kernels_released_eta(tmp_path: Path) -> None:
    config = load_config(extended(tmp_path, "lstm-ptb-amos", "released-lstm-etas.yaml"))
    model = build_model("lstm-ptb-amos", device="meta")
    registry = Registry(model, eta_overrides=config.eta_overrides)
    assert registry["lstm.weight"].eta == pytest.approx(512**-0.25)
    assert registry["lstm.projection"].eta == Registry(model)["lstm.projection"].eta


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"power": 0.5, "eta": 1}, "`power` has no effect without `per`"),
        ({}, "expected either `eta` or `factor` or `per`, or `reduce`"),
        ({"eta": 1, "factor": 2, "reduce": ["embed"]}, "expected either `eta` or `factor`"),
    ],
    ids=str,
)
def test_bad_overrides(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config({"eta_overrides": [{"role": "position", **fields}]})
