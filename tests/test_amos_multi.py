"""The step of Amos that joins many parameters, as a GPU takes it: its numbers, and its number of kernels."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_amos import GOLDEN, PRECISION, one, reference
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from zoo import build_model, build_optimizer
from zoo.optim import Amos, amos_multi
from zoo.optim.amos_step import Variable
from zoo.optim.amos_update import Step
from zoo.optim.skip import skipped_if

SHAPES: dict[tuple[int, ...], list[tuple[int, ...]]] = {
    (1,): [(6, 4), (3, 4), (5, 8)],
    (0,): [(4,), (9,), (3, 4)],  # of the matrix the entries that share a slot are no row
    (): [(2, 3), (5,)],
    (0, 1): [(4, 5), (2, 10)],
}
OPTIONS = [
    {},
    {"momentum": 0.9, "extra_l2": 0.01},
    {"clip_value": 0.3, "maximize": True},
    {"c_coef": 2.0, "d_coef": 0.7, "momentum": 0.5},
]


@pytest.mark.parametrize("file", GOLDEN, ids=lambda f: f.stem)
def test_the_authors_numbers(file: Path) -> None:
    z = np.load(file)
    permutation = tuple(int(i) for i in z["torch_perm"])

    def ours(value: Any) -> Tensor:
        tensor = torch.tensor(value)
        return tensor.permute(permutation).contiguous() if tensor.dim() == len(permutation) else tensor

    theta = nn.Parameter(ours(z["theta0"]))
    slot = ours(z["v"][0]).reshape(-1) if theta.dim() == 1 else ours(z["v"][0])
    reduce = tuple(d for d in range(theta.dim()) if slot.shape[d] == 1)
    names = ("beta", "extra_l2", "c_coef", "d_coef", "eta")
    options: dict[str, Any] = {name: float(z[name]) for name in names}
    options |= {name: float(z[name]) or None for name in ("momentum", "clip_value")}
    optimizer = one(theta, reduce, foreach=True, **options)
    for i, lr in enumerate(z["lr"]):
        theta.grad = ours(z["grads"][i])
        optimizer.param_groups[0]["lr"] = float(lr)
        optimizer.step()
        torch.testing.assert_close(theta.detach(), ours(z["theta"][i]), rtol=0, atol=1e-9)


def test_a_matrix_may_be_stored_by_columns() -> None:
    """As the factors of `torch.linalg.qr` and transposed matrices are."""
    found = []
    for foreach in (True, False):
        theta = nn.Parameter(torch.linspace(-1, 1, 24).view(8, 3).t())
        theta.grad = torch.linspace(2, -1, 24).view(3, 8)
        one(theta, (1,), foreach=foreach, eta=0.5, lr=0.1).step()
        found.append(theta.detach())
    assert not found[0].is_contiguous()
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("at_once", [amos_multi.TOGETHER, 40])
def test_many_variables_are_the_papers_loop(
    options: dict[str, Any], dtype: torch.dtype, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several groups, shapes and scales; also with gradients that come late, and in several parts."""
    monkeypatch.setattr(amos_multi, "TOGETHER", at_once)
    generator = torch.Generator().manual_seed(0)
    groups: list[dict[str, Any]] = []
    for i, (reduce, shapes) in enumerate(SHAPES.items()):
        tensors = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
        groups.append(
            {"params": [nn.Parameter(t) for t in tensors], "eta": 0.1 * (1 + i % 2), "reduce": reduce}
        )
    members = [(p, group) for group in groups for p in group["params"]]
    starts = [p.detach().clone().double() for p, _ in members]
    optimizer = Amos(groups, lr=0.1, beta=0.9, foreach=True, **options)
    grads: list[list[Tensor]] = [[] for _ in members]
    for step in range(8):
        for i, (p, _) in enumerate(members):
            p.grad = None
            if step >= i % 3:
                p.grad = torch.randn(p.shape, generator=generator).to(dtype)
                grads[i].append(p.grad.double())
        optimizer.step()
    given = {"clip_value": None, "extra_l2": 0.0, "momentum": None, "c_coef": 0.25, "d_coef": 0.25, **options}
    for (p, group), start, seen in zip(members, starts, grads, strict=True):
        up = [-g if options.get("maximize") else g for g in seen]
        numbers = {**given, "beta": 0.9, "eta": group["eta"]}
        expected = reference(start, up, [0.1] * len(up), group["reduce"], numbers)
        torch.testing.assert_close(
            p.detach().double(), expected, rtol=PRECISION[dtype], atol=PRECISION[dtype]
        )


def test_the_slots_are_those_of_the_other_paths() -> None:
    """A checkpoint of a GPU goes on on a CPU."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3))
    other = copy.deepcopy(model)
    optimizers = [Amos.for_module(model, 0.1, foreach=True), Amos.for_module(other, 0.1, foreach=False)]
    for _ in range(3):
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            p.grad = torch.randn(p.shape)
            q.grad = p.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    saved, expected = (optimizer.state_dict()["state"] for optimizer in optimizers)
    torch.testing.assert_close(saved, expected, rtol=1e-5, atol=1e-6)


def test_a_rank_without_rows() -> None:
    """Of the others it takes its step."""
    empty, full = (nn.Parameter(torch.ones(rows, 4)) for rows in (0, 2))
    variables = []
    for p in (empty, full):
        p.grad = torch.ones_like(p)
        slots = {name: torch.zeros(len(p), 1) for name in ("v", "b")}
        variables.append(Variable(p, slots, (1,)))
    step = Step(0.1, 0.5, 0.9, 0.1, None, None, 0.0, 0.25, 0.25)
    amos_multi.multi_step([(step, variable) for variable in variables])
    assert torch.allclose(full, torch.full_like(full, 1 - 0.1 * 0.5 - 0.1**2 / 2))


CHUNK, BLOCKS = 65536, 320
TENSORS = (110, 64, 48, 36, 30)
"""What a kernel of torch's multi_tensor_apply takes: entries of a block, blocks, tensors (by the number of
lists)."""
JOINED = 128
"""Tensors that a kernel of `torch.cat` copies."""


def kernels_of_foreach(sizes: Sequence[int], lists: int) -> int:
    """How many kernels a ``_foreach`` function starts for tensors of some sizes."""
    started = tensors = blocks = 0
    for size in sizes:
        tensors += 1
        chunks = -(-size // CHUNK)
        for chunk in range(chunks):
            blocks += 1
            ends = chunk == chunks - 1
            if blocks == BLOCKS or (ends and tensors == TENSORS[lists - 1]):
                started, blocks, tensors = started + 1, 0, 0 if ends else 1
    return started + (blocks > 0)


class Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not annotate it
    """Counts what a GPU would start for operations with tensors of the meta device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.started: int = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name.removeprefix("aten::")
        lists = [arg for arg in args if isinstance(arg, list) and arg and isinstance(arg[0], Tensor)]
        tensors = [t for t in [*args, *(t for arg in lists for t in arg)] if isinstance(t, Tensor)]
        if not func.is_view and any(t.is_meta for t in tensors):
            if name.startswith("_foreach"):
                results = 0 if name.endswith("_") else 1
                self.started += kernels_of_foreach([t.numel() for t in lists[0]], len(lists) + results)
            else:
                self.started += -(-len(lists[0]) // JOINED) if name == "cat" else 1
        return func(*args, **(kwargs or {}))


def started(parameters: Sequence[Tensor], step: Callable[[], object]) -> int:
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    step()  # the first makes the slots
    kernels = Kernels()
    with kernels:
        step()
    return kernels.started


def test_kernels_are_counted_as_torch_starts_them() -> None:
    assert kernels_of_foreach([1] * 110, 1) == 1
    assert kernels_of_foreach([1] * 111, 1) == 2
    assert kernels_of_foreach([CHUNK * BLOCKS], 3) == 1
    assert kernels_of_foreach([CHUNK * BLOCKS + 1], 3) == 2
    assert kernels_of_foreach([CHUNK * 200] * 4, 2) == 3


@pytest.mark.parametrize("model", ["gpt", "ngpt"])
@pytest.mark.parametrize("momentum", [None, 0.9])
def test_fewer_kernels_than_adamw(model: str, momentum: float | None) -> None:
    """For the 0.5B models, against torch's AdamW with foreach and one group, its fewest kernels.

    Also where the step may be left out.
    """
    sizes: dict[str, Any] = {
        "vocab_size": 50304,
        "d_model": 1024,
        "n_layers": 24,
        "n_heads": 16,
        "d_mlp": 4096,
    }
    built = build_model(model, **sizes, device="meta")
    parameters = [*built.parameters()]
    assert 4.9e8 < sum(p.numel() for p in parameters) < 5.2e8
    amos: Any = build_optimizer(built, "amos", lr=0.01, momentum=momentum)
    adamw = started(parameters, torch.optim.AdamW(parameters, foreach=True).step)
    assert started(parameters, amos.update) < adamw
    with skipped_if(amos, torch.zeros((), dtype=torch.bool, device="meta")):
        assert started(parameters, amos.update) < adamw
