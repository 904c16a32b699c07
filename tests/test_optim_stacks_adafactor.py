"""Adafactor with the parameters of one shape in one tensor, as on a GPU, against one by one, float64."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from zoo.kernels import stacks
from zoo.optim import Adafactor
from zoo.optim.skip import skipped_if

SHAPES: list[tuple[int, ...]] = [
    (),
    (5,),
    (4, 3),
    (2, 4, 3),
    (5,),
    (4, 3),
    (3, 2, 3, 3),
    (),
    (2, 4, 3),
    (4, 3),
]
LATE = (4, 5)
"""Parameters without gradient in the second step: others of their shape are a step ahead from then on."""
SKIPPED = (None, None, True, False, None)
"""For each step whether it is skipped; None: it is taken in any case."""


def steps(parameters: Sequence[nn.Parameter], optimizer: Adafactor) -> Iterator[int]:
    """Steps with gradients of very different sizes, of which some are clipped."""
    generator = torch.Generator().manual_seed(1)
    for step, skip in enumerate(SKIPPED):
        for i, parameter in enumerate(parameters):
            gradient = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            late = step == 1 and i in LATE
            parameter.grad = None if late else (10.0 ** (i - step) * gradient).to(parameter.dtype)
        with skipped_if(optimizer, None if skip is None else torch.tensor(skip)):
            optimizer.step()
        yield step


def trained(dtype: torch.dtype, **options: Any) -> tuple[list[list[Tensor]], Adafactor]:
    """The parameters after each step, and the optimizer."""
    generator = torch.Generator().manual_seed(0)
    starts = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]
    parameters = [nn.Parameter(start.to(dtype)) for start in starts]
    optimizer = Adafactor(parameters, **{"lr": 0.1, **options})
    return [[p.detach().clone() for p in parameters] for _ in steps(parameters, optimizer)], optimizer


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"relative_step": True, "lr": 0.9},
        {"scale_parameter": False, "clip_threshold": 0.5},
        {"eps": 1e-3, "decay": 1.0},
    ],
)
def test_stacks_take_the_steps_of_their_members(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, expected = trained(torch.float64, **options)
    monkeypatch.setattr(stacks, "COPY_COSTS_MORE", frozenset())
    stacked, optimizer = trained(torch.float64, **options)
    torch.testing.assert_close(stacked, alone, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(
        optimizer.state_dict()["state"], expected.state_dict()["state"], rtol=1e-12, atol=0.0
    )


def test_a_skipped_step_of_stacks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "COPY_COSTS_MORE", frozenset())
    after, _ = trained(torch.float64)
    skipped = SKIPPED.index(True)
    assert all(torch.equal(a, b) for a, b in zip(after[skipped - 1], after[skipped], strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(after[skipped], after[skipped + 1], strict=True))


def test_stacks_of_bfloat16_have_slots_of_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, expected = trained(torch.bfloat16)
    monkeypatch.setattr(stacks, "COPY_COSTS_MORE", frozenset())
    stacked, optimizer = trained(torch.bfloat16)
    torch.testing.assert_close(stacked, alone)
    torch.testing.assert_close(optimizer.state_dict()["state"], expected.state_dict()["state"])
    slots = [slot for state in optimizer.state.values() for slot in state.values()]
    assert {slot.dtype for slot in slots} == {torch.float32}


def test_parameters_on_a_cpu_are_views_of_their_stacks() -> None:
    """A step that is not skipped copies nothing."""
    parameters = [nn.Parameter(torch.ones(64, 32)) for _ in range(2)]
    optimizer = Adafactor(parameters, lr=0.1)
    for parameter in parameters:
        parameter.grad = torch.ones(64, 32)
    with _Called() as called:
        optimizer.step()
    assert not {"stack", "clone", "copy_", "_foreach_copy_"} & called.names.keys()


def test_a_stack_takes_the_operations_of_one_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "COPY_COSTS_MORE", frozenset())
    counts = []
    for members in (2, 20):
        parameters = [nn.Parameter(torch.ones(4, 3)) for _ in range(members)]
        optimizer = Adafactor(parameters, lr=0.1)
        for parameter in parameters:
            parameter.grad = torch.ones(4, 3)
        optimizer.step()
        with _Called() as called:
            optimizer.step()
        counts.append({name: n for name, n in called.names.items() if name not in OF_EACH})
    assert counts[0] == counts[1] and sum(counts[0].values()) < 50


OF_EACH = ("detach", "_local_scalar_dense")
"""The operations that each member needs: a view, and a read of its step count, which is on the CPU."""


class _Called(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not annotate it
    """Count the operations by their names."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: dict[str, int] = defaultdict(int)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))
