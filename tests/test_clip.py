"""Clipping: ZClip's recorded steps, AdaGC's formula, planted spikes, and the state in checkpoints."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_optim_successors import CASES, DTYPES, FOLDER
from tiny_runs import reproducible, tiny
from torch import nn
from two_ranks import on_two_ranks

from zoo import build_model
from zoo.optim.adagc import AdaGC, AdaGCConfig
from zoo.optim.clip import Clip, Gradients
from zoo.optim.zclip import ZClip, ZClipConfig
from zoo.train.distributed import World
from zoo.train.run import train
from zoo.train.step import global_norm
from zoo.utils.errors import ConfigError


def clip_all(clip: Clip, gradients: Gradients) -> float:
    """Clip, and return the norm before."""
    norm = global_norm(p.grad for _, p in gradients)
    clip.clip(gradients, norm)
    return float(norm)


@pytest.mark.parametrize(("label", "tolerance"), [("f64", 1e-12), ("f32", 3e-6)])
def test_zclip_is_the_recorded_one(label: str, tolerance: float) -> None:
    data, dtype = np.load(FOLDER / f"zclip.{label}.npz"), DTYPES[label]
    named = [
        (name, nn.Parameter(torch.from_numpy(data[f"{name}.theta0"]).to(dtype)))
        for name in CASES["zclip"]["shapes"]
    ]
    clip = ZClipConfig(warmup=6).build(1.0)
    for step in range(CASES["zclip"]["steps"]):
        for name, parameter in named:
            parameter.grad = torch.from_numpy(data[f"{name}.grads"][step]).to(dtype)
        norm = clip_all(clip, named)
        assert norm == pytest.approx(float(data["opt.total_norm"][step]), rel=1e-6)
        for name, parameter in named:
            assert parameter.grad is not None
            worst = np.abs(parameter.grad.numpy() - data[f"{name}.clipped"][step]).max()
            assert worst < tolerance
        if data["opt.initialized"][step]:
            for key, name in (("mean", "mean"), ("variance", "var")):
                expected = float(data[f"opt.{name}"][step])
                assert clip.state()[key] == pytest.approx(expected, rel=10 * tolerance)


def two_tensors(sizes: tuple[float, float]) -> Gradients:
    """Gradients of given norms."""
    named = [("a", nn.Parameter(torch.ones(3))), ("b", nn.Parameter(torch.ones(2, 2)))]
    for (_, parameter), size in zip(named, sizes, strict=True):
        parameter.grad = torch.full_like(parameter, size / math.sqrt(parameter.numel()), dtype=None)
    return named


def norms(gradients: Gradients) -> list[float]:
    return [p.grad.norm().item() for _, p in gradients if p.grad is not None]


def test_adagc_is_its_formula() -> None:
    """A reference written from the formulas, tensor by tensor."""
    generator = np.random.default_rng(0)
    clip, usual = AdaGC(1.0, beta=0.9, factor=1.1, warmup=3), [math.inf, math.inf]
    for step in range(12):
        sizes = tuple(generator.uniform(0.2, 2.0, 2)) if step != 7 else (20.0, 0.3)
        gradients = two_tensors(sizes)
        clip_all(clip, gradients)
        if step < 3:
            share = min(1.0, 1.0 / (math.hypot(*sizes) + 1e-6))
            clipped = [n * share for n in sizes]
            usual = [min(g, n) for g, n in zip(usual, clipped, strict=True)]
        else:
            clipped = [n * min(1.0, 1.1 * g / n) for g, n in zip(usual, sizes, strict=True)]
            usual = [0.9 * g + 0.1 * n for g, n in zip(usual, clipped, strict=True)]
        assert norms(gradients) == pytest.approx(clipped, rel=1e-5)
        assert list(clip.state()["usual"].values()) == pytest.approx(usual, rel=1e-5)


def test_adagc_never_freezes_a_tensor_whose_first_gradients_are_zero() -> None:
    clip = AdaGC(None, beta=0.9, factor=1.05, warmup=2)
    for sizes in ((1.0, 0.0), (1.0, 0.0), (1.0, 0.5), (1.0, 0.5)):
        gradients = two_tensors(sizes)
        clip_all(clip, gradients)
        assert norms(gradients) == pytest.approx(sizes)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("step", [1, 6])
@pytest.mark.parametrize("kind", ["zclip", "adagc"])
def test_a_norm_that_is_not_finite_does_not_enter_the_averages(kind: str, step: int, bad: float) -> None:
    """One NaN made the averages NaN for ever, in any loop that does not restore them as zoo's does."""
    clip = ZClip(1.0, 0.9, 2.5, warmup=3) if kind == "zclip" else AdaGC(1.0, 0.9, 1.1, warmup=3)
    for i in range(8):
        before = clip.state()
        clip_all(clip, two_tensors((1.0, bad) if i == step else (1.0, 0.5 + 0.1 * i)))
        if i == step and kind == "zclip":
            assert clip.state() == before
    assert all(map(math.isfinite, numbers_in(clip.state())))
    gradients = two_tensors((100.0, 100.0))
    clip_all(clip, gradients)
    assert all(0 < n < 10 for n in norms(gradients))


def numbers_in(state: dict[str, Any]) -> list[float]:
    """All numbers of a state; those of the single tensors are in a mapping."""
    values = [*state.values(), *state.get("usual", {}).values()]
    return [value for value in values if isinstance(value, float)]


CLIPS: dict[str, Clip] = {
    "norm": Clip(1.0),
    "zclip": ZClip(None, alpha=0.97, threshold=2.5, warmup=25),
    "adagc": AdaGC(None, beta=0.98, factor=1.05, warmup=25),
}


@pytest.mark.parametrize("name", CLIPS)
def test_planted_spikes(name: str) -> None:
    """Usual gradients of norms near .1 and, every 20 steps, one tensor 50 times as large.

    The global norm lets all of it pass that is below its bound. ZClip scales the whole step down to about
    the usual norm, and AdaGC the tensor of the spike alone.
    """
    clip, generator = CLIPS[name], np.random.default_rng(1)
    clip.load({})
    spikes: list[list[float]] = []
    others: list[list[float]] = []
    for step in range(200):
        usual = tuple(generator.normal(0.1, 0.005, 2))
        planted = step >= 100 and step % 20 == 0
        before = (50 * usual[0], usual[1]) if planted else usual
        gradients = two_tensors(before)
        clip_all(clip, gradients)
        after = norms(gradients)
        (spikes if planted else others).append([a / b for a, b in zip(after, before, strict=True)])
    first, second = np.array(spikes).T
    kept = np.array(others)[50:]
    if name == "norm":  # 5 is cut to 1, ten times what is usual; a spike of 1 would pass whole
        assert first == pytest.approx(0.2, rel=0.2) and second == pytest.approx(first)
    elif name == "zclip":
        assert (first < 0.035).all() and second == pytest.approx(first)
        assert kept.min() > 0.95 and (kept > 0.9999).mean() > 0.95
    else:
        assert (first < 0.025).all() and (second > 0.9).all()
        assert kept.min() > 0.8


@pytest.mark.parametrize("clip", ["zclip", "adagc"])
def test_a_resumed_run_goes_on_bit_for_bit(clip: str, tmp_path: Path) -> None:
    """Within the warm-up and after it."""
    low = {"threshold": 0.1} if clip == "zclip" else {}
    plain: dict[str, Any] = {"clip_norm": None, "steps": 8, "checkpoint_every": 2}
    settings = {**plain, "clip": {"type": clip, "warmup": 3, **low}}
    whole = train(tiny(tmp_path, "name=whole", **settings))
    for until in (2, 6):
        config = tiny(tmp_path, f"name=parts-{until}", **settings)
        train(config, until=until)
        parts = train(config, resume=True)
        assert reproducible(parts.folder) == reproducible(whole.folder)
    without = train(tiny(tmp_path, "name=without", **plain))
    assert reproducible(without.folder) != reproducible(whole.folder)


def on_ranks(world: World) -> None:
    for config in (ZClipConfig(warmup=2), AdaGCConfig(warmup=2)):
        grads = []
        for sharded in (False, True):
            model = build_model("gpt", vocab_size=13, d_model=12, n_layers=1, n_heads=2, d_mlp=7, seed=0)
            if sharded:
                world.shard(model)
            clip = config.build(1.0)
            for step in range(4):
                model.zero_grad()
                tokens = torch.randint(13, (2, 9), generator=torch.Generator().manual_seed(step))
                loss = model.loss(tokens[:, :-1], tokens[:, 1:]).total * (30 if step == 3 else 1)
                torch.autograd.backward(loss)
                clip_all(clip, [(n, p) for n, p in model.named_parameters() if p.grad is not None])
            norm = global_norm(p.grad for p in model.parameters())
            grads.append((float(norm), clip.state()))
        (alone, state), (both, other) = grads
        assert both == pytest.approx(alone, rel=1e-5)
        for key, value in state.items():
            assert other[key] == pytest.approx(value, rel=1e-4)


def test_two_ranks_are_one() -> None:
    on_two_ranks(on_ranks)


BAD = [
    ("{type: zclip, warmup: 1}", "warmup"),
    ("{type: zclip, alpha: 1}", "alpha"),
    ("{type: adagc, factor: 0}", "factor"),
    ("{type: zclip, z: 3}", "train.clip.z: unknown key"),
    ("zlcip", "did you mean 'zclip'"),
]


@pytest.mark.parametrize(("clip", "message"), BAD)
def test_bad_settings_are_refused(clip: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny(tmp_path, f"train.clip={clip}")
