"""Amos against the authors' numbers, against a loop written from the paper, and its promises."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from zoo.kernels import amos
from zoo.optim import Amos, amos_update
from zoo.utils.errors import CheckpointError, ZooError
from zoo.utils.lock import locked

GOLDEN = sorted((Path(__file__).parent / "golden" / "amos").glob("*.npz"))
EACH_PATH = pytest.mark.parametrize("fused", [False, True], ids=["eager", "fused"])


def one(p: nn.Parameter, reduce: tuple[int, ...], lr: float = 0.1, eta: float = 0.5, **options: Any) -> Amos:
    return Amos([{"params": [p], "eta": eta, "reduce": reduce}], lr=lr, **options)


@EACH_PATH
@pytest.mark.parametrize("file", GOLDEN, ids=lambda f: f.stem)
def test_the_authors_numbers(file: Path, fused: bool) -> None:
    z = np.load(file)
    permutation = tuple(int(i) for i in z["torch_perm"])

    def ours(name: str, step: int) -> Tensor:
        value = torch.tensor(z[name][step])
        return (
            value.permute(permutation).contiguous() if value.dim() == len(permutation) else value.reshape(1)
        )

    slot = ours("v", 0)
    theta = nn.Parameter(torch.tensor(z["theta0"]).permute(permutation).contiguous())
    optimizer = one(
        theta,
        tuple(d for d in range(theta.dim()) if slot.shape[d] == 1),
        eta=float(z["eta"]),
        beta=float(z["beta"]),
        momentum=float(z["momentum"]) or None,
        extra_l2=float(z["extra_l2"]),
        clip_value=float(z["clip_value"]) or None,
        c_coef=float(z["c_coef"]),
        d_coef=float(z["d_coef"]),
        fused=fused,
    )
    for step in range(len(z["lr"])):
        theta.grad = ours("grads", step)
        optimizer.param_groups[0]["lr"] = float(z["lr"][step])
        optimizer.step()
        torch.testing.assert_close(theta.detach(), ours("theta", step), rtol=0, atol=1e-9)
        for name in ("v", "b", *(["m"] if "m" in z else [])):
            torch.testing.assert_close(optimizer.state[theta][name], ours(name, step), rtol=0, atol=1e-9)


def reference(
    theta: Tensor, grads: list[Tensor], lrs: list[float], reduce: tuple[int, ...], o: dict[str, Any]
) -> Tensor:
    """Algorithm 1, one scalar at a time; the momentum is a number, None, or one of these for each step."""
    momenta = o["momentum"] if isinstance(o["momentum"], list) else [o["momentum"]] * len(grads)
    xs = theta.flatten().tolist()
    index = [tuple(0 if d in reduce else i for d, i in enumerate(at)) for at in np.ndindex(*theta.shape)]
    v, b = (dict.fromkeys(index, 0.0) for _ in range(2))
    m = [0.0] * len(xs)
    for t, (grad, xi, momentum) in enumerate(zip(grads, lrs, momenta, strict=True), start=1):
        clip = o["clip_value"] or math.inf
        g = [min(max(x, -clip), clip) for x in grad.flatten().tolist()]
        for key in dict.fromkeys(index):
            mine = [i for i, other in enumerate(index) if other == key]
            square = sum(g[i] ** 2 for i in mine) / len(mine)
            v[key] = o["beta"] * v[key] + (1 - o["beta"]) * square
            v_hat = max(v[key], 2.0**-125) / (1 - o["beta"] ** t)
            c = (1 + o["c_coef"] * math.sqrt(xi) * b[key]) ** -0.5
            d = 1 / (1 + o["d_coef"] * math.sqrt(xi * o["eta"]) * b[key])
            gamma = c * xi**2 / v_hat * square
            for i in mine:
                delta = d * (xi * o["eta"] / math.sqrt(v_hat) * g[i] + (gamma / 2 + o["extra_l2"]) * xs[i])
                m[i] = momentum * m[i] + (1 - momentum) * delta if momentum else 0.0
                delta = m[i] if momentum else delta
                xs[i] -= delta
            b[key] += gamma * (1 + b[key])
    return torch.tensor(xs, dtype=torch.float64).view_as(theta)


@pytest.mark.parametrize("fused", [False, True], ids=["eager", "fused"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9},
        {"clip_value": 0.3},
        {"extra_l2": 0.01, "momentum": 0.5},
        {"c_coef": 2.0, "d_coef": 0.7, "beta": 0.5, "clip_value": 1.0, "momentum": 0.9, "extra_l2": 1e-3},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("shape", "reduce"),
    [
        ((7,), (0,)),
        ((5, 4), ()),
        ((5, 4), (1,)),
        ((5, 4), (0,)),
        ((5, 4), (0, 1)),
        ((3, 2, 2, 3), (1, 2, 3)),
        ((3, 4), (-1,)),
    ],
    ids=str,
)
def test_every_reduction_and_option_is_the_papers(
    shape: tuple[int, ...], reduce: tuple[int, ...], options: dict[str, Any], fused: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    grads = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(12)]
    theta = nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))
    given = {"beta": 0.9, "eta": 0.3, **options}
    every = {"clip_value": None, "extra_l2": 0.0, "momentum": None, "c_coef": 0.25, "d_coef": 0.25, **given}
    lrs = [0.2 * min(1.0, t / 5) for t in range(1, 13)]
    dims = tuple(d % len(shape) for d in reduce)
    expected = reference(theta.detach(), grads, lrs, dims, every)
    optimizer = one(theta, reduce, fused=fused, **given)
    for grad, lr in zip(grads, lrs, strict=True):
        theta.grad = grad
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()
    torch.testing.assert_close(theta.detach(), expected, rtol=0, atol=1e-9)


PRECISION = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 2**-5}
"""Largest relative difference of theta from the loop in float64 after 12 steps of its own rounding."""


def small_gradients(
    dtype: torch.dtype, size: float, shape: tuple[int, ...], fused: bool, **options: Any
) -> tuple[Tensor, Tensor]:
    """12 steps with gradients of a size, all rows but the first: theta of Amos and of the loop."""
    generator = torch.Generator().manual_seed(0)
    theta = nn.Parameter(torch.randn(shape, generator=generator).to(dtype))
    grads = [(size * torch.randn(shape, generator=generator)).to(dtype) for _ in range(12)]
    reduce = tuple(range(0 if options.pop("dense", False) else 1, len(shape)))
    given = {"beta": 0.9, "eta": 0.3, **options}
    every = {"clip_value": None, "extra_l2": 0.0, "momentum": None, "c_coef": 0.25, "d_coef": 0.25, **given}
    start = theta.detach().double()
    expected = reference(start, [g.double() for g in grads], [0.1] * 12, reduce, every)
    optimizer = one(theta, reduce, fused=fused, **given)
    for grad in grads:
        theta.grad = grad
        optimizer.step()
    return theta.detach().double(), expected


@EACH_PATH
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((4, 6), {}),
        ((4, 6), {"dense": True, "momentum": 0.9, "extra_l2": 1e-2}),
        ((3, 2, 2, 2), {"c_coef": 2.0, "d_coef": 0.7, "momentum": 0.5}),
        ((3, 2, 2, 2), {"dense": True, "extra_l2": 1e-3}),
        ((4, 6), {"clip": 0.5, "c_coef": 1 / 16, "d_coef": 1 / 16}),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", PRECISION, ids=str)
@pytest.mark.parametrize("size", [1.0, 1e-12, 1e-16, 1e-18, 1e-20])
def test_gradients_of_any_size_in_every_precision(
    dtype: torch.dtype, size: float, shape: tuple[int, ...], options: dict[str, Any], fused: bool
) -> None:
    """v is bounded by 2^-125 and by nothing larger; below it, float32 still agrees with float64."""
    options = dict(options)
    if clip := options.pop("clip", None):
        options["clip_value"] = clip * size
    ours, expected = small_gradients(dtype, size, shape, fused, **options)
    torch.testing.assert_close(ours, expected, rtol=PRECISION[dtype], atol=PRECISION[dtype])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_larger_bound_of_v_would_be_seen(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in ports that add or clamp at 1e-10: the comparison above fails for them."""
    monkeypatch.setattr(amos_update, "TINY", 1e-10)
    for size in (1e-12, 1e-16, 1e-18):
        ours, expected = small_gradients(dtype, size, (4, 6), fused=False)
        assert (ours - expected).abs().max() > 0.05


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reduce", [(), (1,), (0, 1)], ids=str)
def test_large_tensors_are_worked_on_in_pieces_alike(dtype: torch.dtype, reduce: tuple[int, ...]) -> None:
    """Chunks of the eager path, blocks and the very long rows of the kernel."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(600, 1001, generator=generator).to(dtype)
    eager, fused = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimizers = [one(p, reduce, momentum=0.9, fused=f) for p, f in ((eager, False), (fused, True))]
    for _ in range(3):
        eager.grad = torch.randn(start.shape, generator=generator).to(dtype)
        fused.grad = eager.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-4}[dtype]
    for slot in ("v", "b", "m"):
        a, b = (o.state[p][slot] for o, p in zip(optimizers, (eager, fused), strict=True))
        assert a.dtype == torch.promote_types(dtype, torch.float32)
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    rounding = {torch.bfloat16: 2**-7}.get(dtype, tolerance)
    torch.testing.assert_close(eager.detach(), fused.detach(), rtol=rounding, atol=rounding)


@EACH_PATH
def test_rows_without_gradient_do_not_move(fused: bool) -> None:
    theta = nn.Parameter(torch.randn(6, 4))
    before = theta.detach().clone()
    optimizer = one(theta, (1,), momentum=0.9, fused=fused)
    for _ in range(20):
        theta.grad = torch.randn(6, 4)
        theta.grad[[1, 4]] = 0
        optimizer.step()
    assert torch.equal(theta.detach()[[1, 4]], before[[1, 4]])
    assert not torch.equal(theta.detach()[0], before[0])
    theta.grad = torch.zeros(6, 4)
    optimizer.step()
    assert torch.isfinite(theta).all()


@EACH_PATH
def test_slots_of_bfloat16_weights_do_not_stall(fused: bool) -> None:
    """Where b is kept in bfloat16 it stops at 0.125; in float32 it does not."""
    slots = []
    for dtype in (torch.bfloat16, torch.float64):
        generator = torch.Generator().manual_seed(0)
        theta = nn.Parameter(torch.randn(4, 64, generator=generator).to(dtype))
        optimizer = one(theta, (1,), lr=0.02, fused=fused)
        for _ in range(1000):
            theta.grad = torch.randn(4, 64, generator=generator).to(dtype)
            optimizer.step()
        slots.append(optimizer.state[theta]["b"])
    assert slots[0].dtype == torch.float32
    torch.testing.assert_close(slots[0].double(), slots[1], rtol=5e-3, atol=0)
    assert slots[0].min() > 0.3


def test_slots_of_bfloat16_weights_survive_load_state_dict() -> None:
    theta = nn.Parameter(torch.randn(3, 3).bfloat16())
    theta.grad = torch.randn(3, 3).bfloat16()
    optimizer = one(theta, (1,), momentum=0.9)
    optimizer.step()
    other = one(nn.Parameter(theta.detach().clone()), (1,), momentum=0.9)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    (loaded,) = other.state.values()
    for slot in ("step", "v", "b", "m"):
        assert loaded[slot].dtype == torch.float32
        assert torch.equal(loaded[slot], optimizer.state[theta][slot])


@pytest.mark.parametrize(("momentum", "most"), [(0.9, 0.51), (None, 0.02)])
def test_memory_of_the_state(momentum: float | None, most: float) -> None:
    """GPT-2-small's proportions at a quarter of its width, measured from the state."""
    width = 192
    block = nn.ModuleList(
        [
            nn.LayerNorm(width),
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        ]
    )
    model = nn.ModuleList([nn.Embedding(12564, width), nn.Embedding(256, width), block, nn.LayerNorm(width)])
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    sizes = []
    for optimizer in (
        Amos.for_module(model, lr=0.01, momentum=momentum),
        torch.optim.AdamW(model.parameters()),
    ):
        optimizer.step()
        sizes.append(sum(t.nbytes for s in optimizer.state.values() for n, t in s.items() if n != "step"))
    assert sizes[0] <= most * sizes[1]


def test_training_goes_on_from_a_checkpoint_without_a_horizon() -> None:
    """400 steps are 40, a checkpoint, and 360, which still learn: nothing was planned for an end."""

    def train(theta: nn.Parameter, optimizer: Amos, steps: range) -> None:
        for step in steps:
            noise = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
            theta.grad = theta.detach() - 1 + 0.1 * noise
            optimizer.step()

    through = nn.Parameter(torch.zeros(8, 16))
    one_run = one(through, (1,), lr=0.02)
    train(through, one_run, range(400))
    first = nn.Parameter(torch.zeros(8, 16))
    train(first, optimizer := one(first, (1,), lr=0.02), range(40))
    saved = copy.deepcopy((first.detach(), optimizer.state_dict()))
    halfway = (first.detach() - 1).square().mean().sqrt()
    second = nn.Parameter(saved[0])
    again = one(second, (1,), lr=0.02)
    again.load_state_dict(saved[1])
    train(second, again, range(40, 400))
    assert torch.equal(second, through)
    assert (second.detach() - 1).square().mean().sqrt() < halfway


def test_a_step_with_a_closure_returns_its_loss() -> None:
    theta = nn.Parameter(torch.ones(3))
    optimizer = one(theta, (0,))

    def closure() -> float:
        optimizer.zero_grad()
        loss = theta.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    assert optimizer.step(closure) == 3.0
    assert theta.detach().max() < 1


def test_any_module() -> None:
    model = nn.Sequential(nn.Embedding(10, 16), nn.Linear(16, 4), nn.LayerNorm(4))
    optimizer = Amos.for_module(model, lr=0.01)
    found = {n: (g["eta"], g["reduce"]) for g in optimizer.param_groups for n in g["param_names"]}
    assert found["1.weight"] == (0.25, (1,))
    assert found["1.bias"] == (0.5, (0,))
    assert found["2.weight"] == (1.0, (0,))
    before = copy.deepcopy(model.state_dict())
    model(torch.arange(10)).square().sum().backward()
    optimizer.step()
    assert all(not torch.equal(before[n], p) for n, p in model.named_parameters())


def group(**changes: Any) -> dict[str, Any]:
    return {"params": [nn.Parameter(torch.zeros(3, 4))], "eta": 0.5, "reduce": (1,), **changes}


WITHOUT_ETA = {k: v for k, v in group().items() if k != "eta"}
WITHOUT_REDUCE = {k: v for k, v in group().items() if k != "reduce"}


@pytest.mark.parametrize(
    ("groups", "options", "message"),
    [
        ([WITHOUT_ETA], {}, r"parameter group 0: no 'eta'"),
        ([group(), WITHOUT_REDUCE], {}, r"parameter group 1: no 'reduce'"),
        ([nn.Parameter(torch.zeros(3))], {}, r"parameter group 0: no 'eta'"),
        ([group(etta=1.0)], {}, r"unknown key 'etta'; did you mean 'eta'"),
        ([group(weight_decay=1.0)], {}, r"unknown key 'weight_decay'"),
        ([group(eta=0.0)], {}, r"eta is 0.0, expected a finite number > 0"),
        ([group(eta=-1)], {}, r"eta is -1, expected"),
        ([group(eta=math.nan)], {}, r"eta is nan, expected"),
        ([group(eta="1")], {}, r"eta is '1', expected"),
        ([group(reduce=(2,))], {}, r"reduce is \(2,\), but parameter 0 has shape \(3, 4\)"),
        ([group(reduce=(1, -1))], {}, r"reduce is \(1, -1\), but parameter 0"),
        ([group(reduce=1)], {}, r"reduce is 1, expected a tuple"),
        ([group(reduce=[1])], {}, r"reduce is \[1\], expected a tuple"),
        ([group()], {"lr": -0.1}, r"lr is -0.1, expected a finite number >= 0"),
        ([group()], {"lr": math.inf}, r"lr is inf"),
        ([group()], {"beta": 1.0}, r"beta is 1.0, expected a number in \[0, 1\)"),
        ([group()], {"beta": None}, r"beta is None"),
        ([group()], {"momentum": 1.0}, r"momentum is 1.0"),
        (
            [group()],
            {"clip_value": 0.0},
            r"clip_value is 0.0, expected a finite number > 0, 'by targets', or None",
        ),
        ([group()], {"extra_l2": -1e-3}, r"extra_l2 is -0.001"),
        ([group()], {"c_coef": -1.0}, r"c_coef is -1.0"),
        ([group()], {"d_coef": True}, r"d_coef is True"),
        ([group(params=[nn.Parameter(torch.zeros(3, 4, device="meta"))])], {"fused": True}, r"CPU only"),
        ([group(params=[nn.Parameter(torch.zeros(4, 3).T)])], {"fused": True}, r"not contiguous"),
    ],
)
def test_bad_input(groups: list[Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ZooError, match=message):
        Amos(groups, **{"lr": 0.1, **options})


def test_a_kernel_that_cannot_be_compiled_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(amos, "SOURCE", tmp_path / "missing.cpp")
    amos.kernels.cache_clear()
    try:
        with pytest.raises(ZooError, match="needs a C\\+\\+ compiler and ninja"):
            one(nn.Parameter(torch.zeros(3, 4)), (1,), fused=True)
    finally:
        amos.kernels.cache_clear()


@pytest.fixture
def build_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty folder for what is compiled."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    amos.kernels.cache_clear()
    folder = amos._build_folder()
    folder.mkdir(parents=True)
    yield folder
    amos.kernels.cache_clear()


def test_the_lock_of_a_killed_compilation_is_in_nobodys_way(
    build_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch would wait forever for the file to go away."""
    lock = build_folder / "lock"
    lock.touch()
    seen = []
    monkeypatch.setattr("torch.utils.cpp_extension.load", lambda *given, **more: seen.append(lock.exists()))
    amos.kernels()
    assert seen == [False]
    assert not (build_folder / "zoo.lock").exists()


def test_a_compilation_that_does_not_end_is_named(
    build_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The step is taken without the kernel."""
    monkeypatch.setattr(amos, "LOCK_SECONDS", 0)
    with locked(build_folder / "zoo.lock", "not locked yet"):
        fused, eager = (nn.Parameter(torch.ones(3, 4)) for _ in range(2))
        optimizers = [one(fused, (1,), fused=True), one(eager, (1,))]
    holder = f"process {os.getpid()} on {os.uname().nodename}"
    assert f"another process compiles the kernel of Amos ({holder}); waiting" in caplog.text
    assert f"goes on without its kernel: {build_folder}/zoo.lock: another process" in caplog.text
    for optimizer, theta in zip(optimizers, (fused, eager), strict=True):
        theta.grad = torch.arange(12.0).view(3, 4)
        optimizer.step()
    assert torch.equal(fused, eager)


def test_foreign_checkpoints_are_refused() -> None:
    theta = nn.Parameter(torch.zeros(3))
    with pytest.raises(CheckpointError, match="parameter group 0 of the checkpoint: unknown key 'betas'"):
        one(theta, (0,)).load_state_dict(torch.optim.AdamW([theta]).state_dict())
