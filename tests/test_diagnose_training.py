"""Assumption 1's ratio against what is known of the gradients, and the lines that training writes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_runs import assert_same, of_kind, tiny
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from two_ranks import on_two_ranks

from zoo import build_model, build_optimizer, load_model
from zoo.init import Registry
from zoo.models import Model
from zoo.train.diagnosis import WINDOW, Diagnosis
from zoo.train.distributed import World
from zoo.train.gradients import DECAY, GradientAverages
from zoo.train.run import train
from zoo.utils.errors import ConfigError
from zoo.utils.sharded import gathered

ALONE = World(0, 1, torch.device("cpu"))
NOISE = 2.5
"""Largest relative deviation of a ratio, times the root of the number of entries that it is a mean over."""


def model() -> Model:
    return build_model("gpt", vocab_size=61, d_model=16, n_layers=1, n_heads=2, d_mlp=21, seed=0)


def shown(gradient: Callable[[int, Tensor], Tensor], count: int) -> tuple[GradientAverages, Registry]:
    """Averages of `count` gradients: `gradient` of the number and of a parameter."""
    registry = Registry(model())
    averages = GradientAverages(registry, ALONE)
    for i in range(count):
        for entry in registry:
            entry.parameter.grad = gradient(i, entry.parameter.detach())
        averages.add()
    return averages, registry


def values(averages: GradientAverages) -> list[float]:
    ratios = list(averages.ratios().values())
    assert None not in ratios
    return [r for r in ratios if r is not None]


def test_a_gradient_that_never_changes_has_ratio_one() -> None:
    averages, _ = shown(lambda i, p: torch.full_like(p, -3.0), 7)
    assert values(averages) == pytest.approx([1.0] * 12, rel=1e-5)


def test_running_averages_in_float64() -> None:
    """Against the two averages written out, bias corrected, for gradients that change."""
    generator = torch.Generator().manual_seed(0)
    given: list[list[Tensor]] = [[] for _ in range(12)]
    order = iter(range(5 * 12))

    def gradient(i: int, p: Tensor) -> Tensor:
        g = torch.randn(p.shape, generator=generator) + i / 3
        given[next(order) % 12].append(g.double())
        return g

    averages, _ = shown(gradient, 5)
    expected = []
    for gradients in given:
        mean, square = torch.zeros_like(gradients[0]), torch.zeros((), dtype=torch.float64)
        for g in gradients:
            mean = DECAY * mean + (1 - DECAY) * g
            square = DECAY * square + (1 - DECAY) * g.square().mean()
        correction = 1 - DECAY**5
        expected.append(((mean / correction).square().mean() / (square / correction)).sqrt().item())
    assert values(averages) == pytest.approx(expected, rel=1e-5)


def test_the_floor_is_what_independent_noise_gives() -> None:
    """sqrt of the sum of the squared weights, and 0.1 in the long run."""
    generator = torch.Generator().manual_seed(1)
    averages, registry = shown(lambda i, p: torch.randn(p.shape, generator=generator), 60)
    weights = [(1 - DECAY) * DECAY**i / (1 - DECAY**60) for i in range(60)]
    assert sum(weights) == pytest.approx(1)
    assert averages.floor == pytest.approx(math.sqrt(sum(w * w for w in weights)))
    for ratio, entry in zip(values(averages), registry, strict=True):
        assert ratio == pytest.approx(averages.floor, rel=NOISE / math.sqrt(entry.spec.numel))
    averages.count = 10_000
    assert averages.floor == pytest.approx(math.sqrt(0.02 / 1.98))


def test_the_ratio_of_a_quadratic() -> None:
    """Of mean((theta - z)^2) / 2, z ~ N(mu, sigma^2): M2(E[g]) and E[M2(g)^2] are known."""
    generator = torch.Generator().manual_seed(2)
    distance, sigma = 0.3, 1.5
    averages, registry = shown(
        lambda i, p: distance - sigma * torch.randn(p.shape, generator=generator), WINDOW
    )
    true = distance / math.hypot(distance, sigma)
    assert averages.floor is not None
    seen = math.sqrt(true**2 + averages.floor**2 * (1 - true**2))
    for ratio, entry in zip(values(averages), registry, strict=True):
        assert ratio == pytest.approx(seen, rel=NOISE / math.sqrt(entry.spec.numel))


def test_what_has_no_gradient() -> None:
    """Zeros have no ratio; a gradient that is missing for once counts as zeros."""
    averages, registry = shown(lambda i, p: torch.zeros_like(p), 3)
    assert set(averages.ratios().values()) == {None}
    for entry in registry:
        entry.parameter.grad = None
    averages.add()
    averages.clear()
    assert (averages.count, averages.floor, averages.state()) == (0, None, {})
    assert set(averages.ratios()) == {entry.name for entry in registry}


def test_a_window_goes_on_from_its_state() -> None:
    generator = torch.Generator().manual_seed(3)
    whole, registry = shown(lambda i, p: torch.randn(p.shape, generator=generator), 4)
    resumed = GradientAverages(registry, ALONE)
    resumed.load({name: tensor.clone() for name, tensor in whole.state().items()})
    for averages in (whole, resumed):
        averages.add()
    assert whole.ratios() == resumed.ratios()


def sharded_as_whole(world: World) -> None:
    whole, sharded = model(), model()
    world.shard(sharded)
    alone = GradientAverages(Registry(whole), ALONE)
    together = GradientAverages(Registry(sharded), world)
    batch = whole.example(2, 8)
    for i in range(3):
        for m, averages in ((whole, alone), (sharded, together)):
            m.zero_grad()
            torch.autograd.backward(m.loss(*batch).total * (i + 1))
            averages.add()
    expected = alone.ratios()
    assert together.ratios() == pytest.approx(expected, rel=1e-6)
    state = gathered(together.state())
    again, single = (
        GradientAverages(Registry(sharded), world),
        GradientAverages(Registry(whole), ALONE),
    )
    for averages in (again, single):
        averages.load(state)
        assert averages.ratios() == pytest.approx(expected, rel=1e-6)


def trained_as_whole(world: World) -> None:
    lines = []
    for ranks, m in ((ALONE, model()), (world, model())):
        ranks.shard(m)
        optimizer = build_optimizer(m, "amos", lr=0.01)
        diagnosis = Diagnosis(Registry(m), optimizer, ranks, every=3, steps=10)
        for step in range(1, 4):
            diagnosis.begin(step)
            m.zero_grad()
            torch.autograd.backward(m.loss(*m.example(2, 8)).total)
            optimizer.step()
        assert diagnosis.due
        lines.append(diagnosis.measure())
    alone, together = lines
    assert (alone["gradients"], alone["floor"]) == (together["gradients"], together["floor"])
    for name, row in alone["variables"].items():
        assert together["variables"][name] == pytest.approx(row, rel=1e-6, abs=1e-6)


def on_a_rank(world: World) -> None:
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    for ranks in (world, World(world.rank, world.size, world.device, mesh)):
        sharded_as_whole(ranks)
    trained_as_whole(world)


def test_two_ranks_are_one() -> None:
    on_two_ranks(on_a_rank)


def test_lines_of_a_run(tmp_path: Path) -> None:
    """When, of what, over how many gradients; M2 is that of the weights that were saved."""
    amos = "optimizer={type: amos, lr: 0.01}"
    run = train(tiny(tmp_path, amos, steps=25, diagnose_every=10)).folder
    lines = of_kind(run, "diagnose")
    assert [(line["step"], line["gradients"]) for line in lines] == [(10, 10), (20, 10), (25, 5)]
    trained = load_model(run)
    registry = Registry(trained)
    assert lines[-1]["variables"].keys() == {entry.name for entry in registry}
    for entry in registry:
        row = lines[-1]["variables"][entry.name]
        m2 = entry.parameter.square().mean().sqrt().item()
        assert row["m2"] == pytest.approx(m2, rel=1e-5)
        assert row["m2_over_eta"] == pytest.approx(m2 / entry.eta, rel=1e-5)
        assert 0 < row["ratio"] <= 1
    never = train(tiny(tmp_path, "name=never", steps=5, diagnose_every=None)).folder
    assert of_kind(never, "diagnose") == []


def test_measuring_changes_nothing(tmp_path: Path) -> None:
    with_it = train(tiny(tmp_path, "name=with", steps=12, diagnose_every=5)).folder
    without = train(tiny(tmp_path, "name=without", steps=12, diagnose_every=None)).folder
    assert of_kind(with_it, "train") == of_kind(without, "train")


@pytest.mark.parametrize("stop", [17, 20])
def test_interrupted_in_a_window_or_after_it(tmp_path: Path, stop: int) -> None:
    """The lines are equal bit for bit; between windows there is nothing to save."""
    whole = train(tiny(tmp_path, "name=whole", steps=30, diagnose_every=20, checkpoint_every=30))
    fields = tiny(tmp_path, "name=parts", steps=30, diagnose_every=20, checkpoint_every=30)
    parts = train(fields, until=stop).folder
    (checkpoint,) = (parts / "checkpoints").glob(f"step-*{stop}")
    assert (checkpoint / "diagnosis.safetensors").exists() == (stop == 17)
    assert train(fields, resume=True).finished
    assert_same(whole.folder, parts)


@pytest.mark.parametrize(("every", "gradients"), [(130, 90), (60, 60), (20, 60)])
def test_resumed_with_another_interval(tmp_path: Path, every: int, gradients: int) -> None:
    """Averages with gradients from before the window, steps 31 to 130 in the first case, are left out."""
    fields = tiny(tmp_path, "name=run", steps=200, diagnose_every=100)
    run = train(fields, until=40).folder
    changed = tiny(tmp_path, "name=run", steps=200, diagnose_every=every)
    train(changed, until=max(every, 40 + every), resume=True)
    assert of_kind(run, "diagnose")[0]["gradients"] == gradients


def test_resumed_without_measurements(tmp_path: Path) -> None:
    run = train(tiny(tmp_path, "name=run", steps=20, diagnose_every=20), until=10).folder
    train(tiny(tmp_path, "name=run", steps=20, diagnose_every=None), until=15, resume=True)
    (last,) = (run / "checkpoints").glob("step-*15")
    assert not (last / "diagnosis.safetensors").exists()


@pytest.mark.parametrize("every", [0, -1, 1.5, "often"])
def test_bad_intervals(tmp_path: Path, every: object) -> None:
    with pytest.raises(ConfigError, match=r"train\.diagnose_every"):
        tiny(tmp_path, diagnose_every=every)
