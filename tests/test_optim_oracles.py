"""Adam, AdamW, Adafactor and Muon against torch's and transformers' own, float64, 20 steps to 1e-10."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.optimization import Adafactor as TransformersAdafactor

from zoo import Registry, build_model, build_optimizer
from zoo.config.registry import SCHEDULES
from zoo.kernels.matmul import BFLOAT16
from zoo.optim import Adafactor, Muon
from zoo.optim.newton_schulz import orthogonal
from zoo.utils.errors import ConfigError

SIZES: dict[str, Any] = {"vocab_size": 11, "d_model": 8, "n_layers": 1, "n_heads": 2, "d_mlp": 6}
Shape = tuple[int, ...]

MATRICES: list[Shape] = [(7, 5), (5, 7), (6, 6), (33, 8), (1, 4), (4, 1)]
STACKS: list[Shape] = [(3, 4, 5), (4, 3, 2, 2)]
VECTORS: list[Shape] = [(5,), (1,)]


def gradient(shape: Shape, seed: int) -> Tensor:
    """Of another size in every step, as gradients are."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64) * 10.0 ** (-(seed % 4))


def twins(shape: Shape) -> tuple[nn.Parameter, nn.Parameter]:
    start = gradient(shape, 4)
    return nn.Parameter(start.clone()), nn.Parameter(start.clone())


PRODUCTS = 1e-10 if BFLOAT16 else 1e-3
"""Tolerance where matrices are multiplied in bfloat16. A processor without instructions for it sums in
another order, and a sum that is rounded the other way moves an entry by some percent of a step of .02."""


def run_together(
    ours: torch.optim.Optimizer,
    a: nn.Parameter,
    theirs: torch.optim.Optimizer,
    b: nn.Parameter,
    atol: float = 1e-10,
) -> None:
    """20 steps with equal gradients and a changing learning rate; `b` may be `a` in another shape."""
    lr = ours.param_groups[0]["lr"]
    for i in range(20):
        for p, optimizer in ((a, ours), (b, theirs)):
            p.grad = gradient(tuple(a.shape), i).view_as(p)
            if lr is not None:
                optimizer.param_groups[0]["lr"] = lr / (1 + i % 3)
            optimizer.step()
        torch.testing.assert_close(a.detach().view_as(b), b.detach(), rtol=0, atol=atol)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("name", "theirs"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_adam_and_adamw_are_torchs_with_decay_on_matrices(
    name: str, theirs: type[torch.optim.Adam], fused: bool
) -> None:
    model = build_model("gpt", **SIZES, init="he", reparam="wesar").double()
    plain = copy.deepcopy(model)
    options: dict[str, Any] = {"lr": 0.01, "betas": (0.9, 0.98), "eps": 1e-6}
    ours = build_optimizer(model, name, weight_decay=0.1, fused=fused, **options)
    assert type(ours) is theirs
    by_decay: dict[float, list[nn.Parameter]] = {0.1: [], 0.0: []}
    for entry in Registry(plain):
        by_decay[0.1 if len(entry.spec.shape) > 1 else 0.0].append(entry.parameter)
    groups = [{"params": params, "weight_decay": decay} for decay, params in by_decay.items()]
    reference: torch.optim.Optimizer = theirs(groups, foreach=False, fused=False, **options)
    for i in range(20):
        for m, optimizer in ((model, ours), (plain, reference)):
            for p in m.parameters():
                p.grad = gradient(tuple(p.shape), i)
            optimizer.step()
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_adams_decay_is_part_of_the_gradient_and_adamws_is_not() -> None:
    """The classic L2 decay of a weight without gradient: Adam's step is lr whatever the decay is."""
    for name in ("adam", "adamw"):
        model = build_model("gpt", **SIZES).double()
        weight = next(e.parameter for e in Registry(model) if e.decays)
        before = weight.detach().clone()
        optimizer = build_optimizer(model, name, lr=0.01, weight_decay=0.1, eps=1e-15)
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
        step = 0.01 * before.sign() if name == "adam" else 0.01 * 0.1 * before
        torch.testing.assert_close(before - weight.detach(), step, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("shape", MATRICES + STACKS + VECTORS, ids=str)
@pytest.mark.parametrize("relative_step", [False, True])
@pytest.mark.parametrize("scale_parameter", [False, True])
def test_adafactor_is_transformers(shape: Shape, relative_step: bool, scale_parameter: bool) -> None:
    a, b = twins(shape)
    switches = {"relative_step": relative_step, "scale_parameter": scale_parameter}
    # With a relative step transformers' takes the smaller of 0.01 and 1 / sqrt(t) by itself.
    theirs = TransformersAdafactor(  # type: ignore[no-untyped-call]
        [b], lr=None if relative_step else 0.02, warmup_init=False, **switches
    )
    ours = Adafactor([a], lr=0.01 if relative_step else 0.02, **switches)
    if relative_step:
        for i in range(20):
            for p, optimizer in ((a, ours), (b, theirs)):
                p.grad = gradient(shape, i)
                optimizer.step()
        torch.testing.assert_close(a.detach(), b.detach(), rtol=0, atol=1e-10)
    else:
        run_together(ours, a, theirs, b)


@pytest.mark.parametrize("shape", MATRICES + STACKS + VECTORS, ids=str)
@pytest.mark.parametrize("lr", [0.02, 1.0])
def test_adafactor_is_torchs_where_that_is_the_papers(shape: Shape, lr: float) -> None:
    """With relative step and scaled learning rate, and no gradient so small that eps matters."""
    a, b = twins(shape)
    ours = Adafactor([a], lr=lr, relative_step=True)
    run_together(ours, a, torch.optim.Adafactor([b], lr=lr, eps=(1e-30, 1e-3)), b)


@pytest.mark.parametrize("start", [0.0, 1e-5])
def test_small_weights_of_adafactor_move_by_the_lower_bound(start: float) -> None:
    a, b = (nn.Parameter(torch.full((7, 5), start, dtype=torch.float64)) for _ in range(2))
    ours = Adafactor([a], lr=0.02, eps_scale=0.01)
    theirs = TransformersAdafactor(  # type: ignore[no-untyped-call]
        [b], lr=0.02, eps=(1e-30, 0.01), relative_step=False, scale_parameter=True, warmup_init=False
    )
    run_together(ours, a, theirs, b)
    assert a.detach().abs().max() > 1e-4


def test_adafactor_follows_the_paper_where_torchs_does_not() -> None:
    """A row without gradient stays; tiny gradients get the same step as large ones."""
    a, b = (nn.Parameter(torch.ones(3, 4)) for _ in range(2))
    g = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    g[0] = 0
    torchs = nn.Parameter(torch.ones(3, 4))
    for p, factor, optimizer in (
        (a, 1.0, Adafactor([a], lr=0.1)),
        (b, 1e-10, Adafactor([b], lr=0.1)),
        (torchs, 1.0, torch.optim.Adafactor([torchs], lr=0.1, eps=(1e-30, 1e-3))),
    ):
        p.grad = g * factor
        optimizer.step()
    assert torch.equal(a[0], torch.ones(4))
    torch.testing.assert_close(a, b, rtol=1e-5, atol=0)
    assert torchs[0].isnan().all()


def test_the_t5_schedule_is_the_relative_step() -> None:
    """Amos, Table 4: lr 0.01, 10k steps of warm-up, then t^-1/2: never above 1 / sqrt(t)."""
    schedule = SCHEDULES["rsqrt"](warmup=10_000)
    rates = {t: 0.01 * schedule.factor(t - 1, 250_000) for t in (1, 100, 9_999, 10_000, 10_001, 250_000)}
    assert all(rate <= t**-0.5 * (1 + 1e-12) for t, rate in rates.items())
    assert rates[250_000] == pytest.approx(250_000**-0.5)


def test_adafactor_keeps_rows_and_columns() -> None:
    model = build_model("gpt", **SIZES)
    optimizer = build_optimizer(model, "adafactor", lr=0.01)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    kept = sum(t.numel() for slots in optimizer.state.values() for name, t in slots.items() if name != "step")
    assert kept == sum(sum(p.shape) for p in model.parameters())


@pytest.mark.parametrize("shape", MATRICES, ids=str)
@pytest.mark.parametrize(("adjust", "name"), [("shape", "original"), ("match_adam", "match_rms_adamw")])
@pytest.mark.parametrize("nesterov", [False, True])
def test_muon_is_torchs(shape: Shape, adjust: Any, name: str, nesterov: bool) -> None:
    a, b = twins(shape)
    ours = Muon([a], lr=0.02, weight_decay=0.1, nesterov=nesterov, adjust=adjust)
    theirs = torch.optim.Muon([b], lr=0.02, weight_decay=0.1, nesterov=nesterov, adjust_lr_fn=name)
    run_together(ours, a, theirs, b, PRODUCTS)


@pytest.mark.parametrize("shape", STACKS, ids=str)
def test_muon_takes_a_convolution_for_the_matrix_of_its_rows(shape: Shape) -> None:
    a, b = twins(shape)
    b = nn.Parameter(b.detach().flatten(1))
    theirs = torch.optim.Muon([b], lr=0.02, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    run_together(Muon([a], lr=0.02), a, theirs, b, PRODUCTS)


@pytest.mark.parametrize("shape", [(40, 12), (12, 40), (16, 16)], ids=str)
def test_newton_schulz_gives_singular_values_near_one_and_keeps_the_directions(
    shape: tuple[int, int],
) -> None:
    matrix = gradient(shape, 0)
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    matrix = u @ torch.diag(s.clamp_min(0.05 * s.max())) @ v
    found = u.T @ orthogonal(matrix.bfloat16(), 5).double() @ v.T
    assert found.diagonal().min() > 0.5
    assert found.diagonal().max() < 1.5
    assert (found - torch.diag(found.diagonal())).abs().max() < 0.05


def test_muon_refuses_vectors() -> None:
    with pytest.raises(ConfigError, match=r"Muon: parameter group 0: shape \(3,\), expected a matrix"):
        Muon([nn.Parameter(torch.zeros(3))], lr=0.1)
    muon = Muon([nn.Parameter(torch.eye(3))], lr=0.1)
    with pytest.raises(ConfigError, match=r"Muon: parameter group 1: shape \(4,\), expected a matrix"):
        muon.add_param_group({"params": [nn.Parameter(torch.zeros(4))]})
    assert len(muon.param_groups) == 1


@pytest.mark.parametrize("optimizer", [Adafactor, Muon])
def test_slots_are_float32_whatever_the_parameters_are(optimizer: Any) -> None:
    p = nn.Parameter(torch.ones(3, 4, dtype=torch.bfloat16))
    p.grad = torch.randn(3, 4).bfloat16()
    built = optimizer([p], lr=0.1)
    built.step()
    assert {slot.dtype for slot in built.state[p].values()} == {torch.float32}


@pytest.mark.parametrize("name", ["adafactor", "muon", "amos"])
def test_a_step_returns_the_closures_loss(name: str) -> None:
    model = build_model("gpt", **SIZES)
    optimizer = build_optimizer(model, name, lr=0.01)
    tokens, targets = model.example(1, 4)

    def closure() -> Any:
        loss = model.loss(tokens, targets).total
        torch.autograd.backward(loss)
        return loss

    first, second = optimizer.step(closure), optimizer.step(closure)
    assert second < first
