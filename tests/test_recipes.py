"""configs/recipes: one change each of one base; every one builds, and the sweeps contain what they say."""

from pathlib import Path

import pytest
import torch

from zoo import build_model, build_optimizer
from zoo.ablate.sweep import load_sweep
from zoo.run.config import load_config

ROOT = Path(__file__).parent.parent
RECIPES = sorted((ROOT / "configs/recipes").glob("*.yaml"))
SMALL = ["model.vocab_size=64", "model.d_model=16", "model.n_layers=1", "model.n_heads=2"]


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_every_recipe_is_one_change_and_takes_a_step(file: Path) -> None:
    lines = [line for line in file.read_text("utf-8").splitlines() if line and not line.startswith("#")]
    assert lines[0].startswith("extends: ") and len(lines) <= 5
    config = load_config(file, SMALL)
    model = build_model(config.model_dump(mode="json"))
    assert config.optimizer is not None and config.train is not None
    optimizer = build_optimizer(model, config.optimizer)
    clip = config.train.clip.build(config.train.clip_norm)
    torch.autograd.backward(model.loss(*model.example(2, 8)).total)
    gradients = [(name, p) for name, p in model.named_parameters() if p.grad is not None]
    clip.clip(gradients, torch.tensor(1.0))
    optimizer.step()
    assert all(p.isfinite().all() for p in model.parameters())


def test_the_sweeps_contain_what_they_say() -> None:
    optimizers, norms = (load_sweep(ROOT / f"configs/sweeps/{n}.yaml") for n in ("optimizers", "norms"))
    assert len(optimizers.variants) == 11 and len(norms.variants) == 5
    assert {len(sweep.seeds) for sweep in (optimizers, norms)} == {3}
