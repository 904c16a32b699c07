"""Matrices stored in bfloat16: what stochastic rounding keeps of a drift, and what stays float32."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import reproducible, tiny
from torch import Tensor

from zoo import build_model, build_optimizer
from zoo.checkpoint.safetensors import read_tensors
from zoo.models import Model
from zoo.optim.storage import round_stochastically, store_in_bfloat16
from zoo.run.job import Job
from zoo.spec import MATRICES, Module, declared
from zoo.train.build import build
from zoo.train.distributed import World
from zoo.train.run import train
from zoo.train.start import Start
from zoo.train.step import global_norm
from zoo.utils.errors import ConfigError


def ngpt() -> Model:
    return build_model("ngpt", vocab_size=64, d_model=64, n_layers=1, n_heads=2)


def drift(storage: str) -> Tensor:
    """How far every entry of the embedding and of W_u moves in 100 steps of one constant gradient."""
    torch.manual_seed(0)
    model = build_model("gpt", vocab_size=64, d_model=64, n_layers=1, n_heads=2, init="he", seed=1)
    optimizer = build_optimizer(model, "adamw", lr=3e-4, weight_decay=0.0)
    p = model.get_parameter("blocks.0.mlp.u.weight")
    p.data = p.data.bfloat16().float()  # all start at the same numbers
    start = p.data.clone()
    if storage == "stochastic":
        store_in_bfloat16(model, optimizer)
    direction = torch.randn(p.shape, generator=torch.Generator().manual_seed(2)).sign()
    for _ in range(100):
        p.grad = direction.to(p.dtype)
        optimizer.step()
        if storage == "nearest":
            p.data = p.data.bfloat16().float()
    return (start - p.data.float()) * direction


def test_a_slow_drift_is_kept_on_average() -> None:
    """Rounding to nearest loses much of it at this rate; norms do not tell the two apart."""
    exact, nearest, stochastic = (drift(storage) for storage in ("fp32", "nearest", "stochastic"))
    assert exact.mean().item() == pytest.approx(100 * 3e-4, rel=1e-3)
    assert stochastic.mean().item() == pytest.approx(exact.mean().item(), rel=0.02)
    assert nearest.mean().item() < 0.8 * exact.mean().item()
    assert nearest.norm().item() == pytest.approx(exact.norm().item(), rel=0.1)


def test_rounding_is_right_on_average_and_never_further_than_the_neighbours() -> None:
    torch.manual_seed(0)
    x = torch.tensor([1.0, -1.001, 3.14159, 1e-20, -65504.7, 0.0, 2.0**-126])
    many = torch.stack([round_stochastically(x) for _ in range(4000)]).double()
    spacing = torch.maximum(x.abs().double() * 2**-7, torch.tensor(1e-44, dtype=torch.float64))
    assert ((many - x).abs() <= spacing).all()
    assert ((many.mean(0) - x).abs() <= 4 * spacing / 4000**0.5).all()
    assert torch.equal(
        round_stochastically(torch.tensor([1.5, -0.25])), torch.tensor([1.5, -0.25]).bfloat16()
    )


def test_rounding_leaves_what_is_not_finite() -> None:
    """With noise added, the bits of a NaN of CUDA were those of -0."""
    bits = [0x7FFFFFFF, -1, 0x7FC00000, 0x7F800001]  # as int32; the first is CUDA's NaN
    nans = torch.tensor(bits, dtype=torch.int32).view(torch.float32).repeat(8)
    assert round_stochastically(nans).isnan().all()
    infinities = torch.tensor([torch.inf, -torch.inf])
    assert torch.equal(round_stochastically(infinities), infinities.bfloat16())


@pytest.mark.parametrize(("name", "reparam"), [("gpt", "weight_norm"), ("ngpt", "lora")])
def test_norms_of_virtual_tensors_are_computed_in_float32(name: str, reparam: str) -> None:
    """Computed in bfloat16, the lengths of rows would be wrong by up to .4 %."""
    model = build_model(name, vocab_size=64, d_model=64, n_layers=1, n_heads=2, reparam=reparam)
    for p in declared(model):
        if p.spec.role in MATRICES:
            p.parameter.data = (p.parameter.data + 0.01).bfloat16()
    module = model.get_submodule("blocks.0.mlp.u")
    assert isinstance(module, Module)
    found = module.virtual("weight")
    length = module.get_parameter("weight_length") if reparam == "weight_norm" else torch.ones(len(found))
    assert found.dtype == torch.bfloat16  # that of the stored matrix, to which the result is rounded
    torch.testing.assert_close(found.float().norm(dim=1), length, atol=0, rtol=2e-3)


def test_the_global_norm_of_the_gradient_is_computed_in_float32() -> None:
    """torch takes the norm of each bfloat16 tensor in bfloat16, which has two digits."""
    torch.manual_seed(0)
    gradients = [torch.randn(40 + i, 30).bfloat16() for i in range(8)] + [torch.randn(30)]
    exact = torch.cat([g.double().flatten() for g in gradients]).norm().item()
    assert global_norm([None, *gradients]).item() == pytest.approx(exact, rel=1e-6)
    assert torch.nn.utils.get_total_norm(gradients).item() != pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize("kind", ["adamw", "amos", "muon"])
def test_the_step_and_the_projection_are_float32(kind: str) -> None:
    """The numbers that are rounded lie on the sphere as exactly as those of float32 weights."""
    model = ngpt()
    optimizer = build_optimizer(model, kind, lr=0.01)
    seen: list[float] = []

    def look(*_: Any) -> None:  # after the projection, before the rounding
        for p in declared(model):
            assert p.parameter.dtype == torch.float32
            if p.spec.sphere_dim is not None:
                seen.append((p.parameter.norm(dim=p.spec.sphere_dim) - 1).abs().max().item())

    optimizer.register_step_post_hook(look)
    store_in_bfloat16(model, optimizer)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model.loss(*model.example(2, 8)).total
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    assert seen
    assert max(seen) < 1e-6
    for p in declared(model):
        assert p.parameter.dtype == (torch.bfloat16 if p.spec.role in MATRICES else torch.float32)
    slots = [t for state in optimizer.state.values() for t in state.values() if isinstance(t, Tensor)]
    assert {t.dtype for t in slots} == {torch.float32}


@pytest.mark.parametrize("kind", ["adamw", "amos"])
def test_a_run_resumes_to_the_bit(tmp_path: Path, kind: str) -> None:
    changes = ["train.storage=bf16", "train.precision=bf16", f"optimizer={{type: {kind}, lr: 0.01}}"]
    whole = train(tiny(tmp_path, *changes, "name=whole", steps=12)).folder
    parts = tiny(tmp_path, *changes, "name=parts", steps=12)
    train(parts, until=7)
    folder = train(parts, resume=True).folder
    assert reproducible(folder) == reproducible(whole)
    ours, theirs = (
        read_tensors(f / "checkpoints" / "step-00000012" / "model.safetensors")[0] for f in (folder, whole)
    )
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert {str(t.dtype) for t in ours.values()} == {"torch.bfloat16", "torch.float32"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["train.precision=bf16", "optimizer={type: schedule_free, lr: 0.1}"], "cannot round stochastically"),
        (
            ["train.precision=bf16", "optimizer={type: torch.optim.NAdam, lr: 0.1}"],
            "NAdam cannot round stoch",
        ),
        (["optimizer={type: adamw, lr: 0.1}"], "storage: bf16 needs precision: bf16"),
    ],
)
def test_what_cannot_be_stored_so(tmp_path: Path, changes: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(tiny(tmp_path, "train.storage=bf16", *changes, "schedule={type: constant, warmup: 0}", steps=5))
    assert not (tmp_path / "runs").exists() or not any((tmp_path / "runs").iterdir())


def test_several_processes_do_not_store_so(tmp_path: Path) -> None:
    """Told before anything is made, and of data that are not there."""
    config = tiny(tmp_path, "train.storage=bf16", "train.precision=bf16", 'data.corpus.paths=["nowhere.txt"]')
    with pytest.raises(ConfigError, match=r"train\.storage bf16: not with 2 processes; expected fp32"):
        build(Job.of(config), Start(), World(0, 2, torch.device("cpu")))
