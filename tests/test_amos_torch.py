"""Amos among torch's optimizers: schedulers, compilation, checkpoints, copies, and every option of torch."""

from __future__ import annotations

import copy
import io
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from test_amos import EACH_PATH, GOLDEN, one, reference
from torch import Tensor, nn
from torch.optim.lr_scheduler import CyclicLR, LRScheduler, OneCycleLR
from torch.optim.swa_utils import SWALR

from zoo.optim import Amos, state_by_name
from zoo.utils.errors import CheckpointError, ConfigError

STEPS = 8
NUMBERS: dict[str, Any] = {"eta": 0.3, "beta": 0.9, "c_coef": 0.25, "d_coef": 0.25}
UNSET: dict[str, Any] = {"clip_value": None, "extra_l2": 0.0, "momentum": None}


def example(shape: tuple[int, ...] = (5, 4)) -> tuple[Tensor, list[Tensor]]:
    """float64 weights and the gradients of some steps."""
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(STEPS + 1)]
    return tensors[0], tensors[1:]


def optimizer_of(theta: Tensor, reduce: tuple[int, ...] = (1,), **options: Any) -> tuple[nn.Parameter, Amos]:
    parameter = nn.Parameter(theta.clone())
    return parameter, one(parameter, reduce, lr=0.2, eta=NUMBERS["eta"], beta=NUMBERS["beta"], **options)


def steps(parameter: nn.Parameter, optimizer: Amos, grads: list[Tensor]) -> None:
    for grad in grads:
        parameter.grad = grad.clone()
        optimizer.step()


def expected(theta: Tensor, grads: list[Tensor], lrs: list[float] | None = None, **options: Any) -> Tensor:
    lrs = lrs or [0.2] * len(grads)
    return reference(theta, grads, lrs, (1,), {**NUMBERS, **UNSET, **options})


def near(actual: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(actual.detach(), wanted, rtol=0, atol=1e-12)


SCHEDULERS: dict[str, Callable[[Amos], LRScheduler]] = {
    "one cycle": lambda o: OneCycleLR(o, max_lr=0.3, total_steps=20),
    "cyclic": lambda o: CyclicLR(o, base_lr=0.1, max_lr=0.3, step_size_up=2),
    "swa": lambda o: SWALR(o, swa_lr=0.1, anneal_epochs=4),
}


@EACH_PATH
@pytest.mark.parametrize("kind", SCHEDULERS)
def test_a_checkpoint_under_a_scheduler(kind: str, fused: bool) -> None:
    """What the schedulers write into the groups (momentum, for two of them) is applied, saved and loaded."""
    theta, grads = example()
    parameter, optimizer = optimizer_of(theta, momentum=0.9, fused=fused)
    scheduler = SCHEDULERS[kind](optimizer)
    saved, lrs, momenta = None, [], []
    for i, grad in enumerate(grads):
        if i == STEPS // 2:
            saved = copy.deepcopy((parameter, optimizer.state_dict(), scheduler.state_dict()))
        lrs.append(optimizer.param_groups[0]["lr"])
        momenta.append(optimizer.param_groups[0]["momentum"])
        steps(parameter, optimizer, [grad])
        scheduler.step()
    assert len(set(lrs)) >= 3
    near(parameter, expected(theta, grads, lrs, momentum=momenta))

    assert saved is not None
    again, second = optimizer_of(saved[0].detach(), momentum=0.9, fused=fused)
    other = SCHEDULERS[kind](second)
    second.load_state_dict(saved[1])
    other.load_state_dict(saved[2])
    for grad in grads[STEPS // 2 :]:
        steps(again, second, [grad])
        other.step()
    assert torch.equal(again, parameter)
    assert second.param_groups[0].keys() == optimizer.param_groups[0].keys()


@EACH_PATH
def test_momentum_may_appear_and_go_in_mid_run(fused: bool) -> None:
    theta, grads = example()
    momenta = [None, None, 0.9, 0.9, 0.5, None, 0.9, 0.9]
    parameter, optimizer = optimizer_of(theta, fused=fused)
    for momentum, grad in zip(momenta, grads, strict=True):
        optimizer.param_groups[0] |= {"momentum": momentum, "param_names": ["theta"]}
        assert momentum is None or "m" in state_by_name(optimizer)["theta"], "before the step as well"
        steps(parameter, optimizer, [grad])
        assert ("m" in optimizer.state[parameter]) == bool(momentum)
    near(parameter, expected(theta, grads, momentum=momenta))


@EACH_PATH
def test_maximize_goes_up_the_gradient(fused: bool) -> None:
    theta, grads = example()
    options: dict[str, Any] = {"clip_value": 0.3, "momentum": 0.9, "extra_l2": 0.01}
    parameter, optimizer = optimizer_of(theta, maximize=True, fused=fused, **options)
    steps(parameter, optimizer, grads)
    near(parameter, expected(theta, [-grad for grad in grads], **options))


@pytest.mark.parametrize("foreach", [None, True, False])
def test_foreach_is_how_and_not_what(foreach: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """False: one variable at a time; True: as on a GPU."""
    from zoo.optim import amos, amos_multi, amos_step

    together: list[int] = []

    def counted(variables: Any, numbers: Any, skip: Any) -> None:
        together.append(len(variables))
        amos_step.eager_step(variables, numbers, skip)

    def joined(variables: Any, skip: Any) -> None:
        together.extend([len(variables)] if foreach else [])
        amos_multi.multi_step(variables, skip)

    monkeypatch.setattr(amos, "eager_step", counted)
    monkeypatch.setattr(amos, "multi_step", joined)
    theta, grads = example()
    parameters = [nn.Parameter(theta.clone()) for _ in range(3)]
    options = {"lr": 0.2, "beta": NUMBERS["beta"], "foreach": foreach}
    optimizer = Amos([{"params": parameters, "eta": NUMBERS["eta"], "reduce": (1,)}], **options)
    for grad in grads:
        for parameter in parameters:
            parameter.grad = grad.clone()
        optimizer.step()
    for parameter in parameters:
        near(parameter, expected(theta, grads))
    assert set(together) == ({1} if foreach is False else {3})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile warns of itself
@pytest.mark.filterwarnings("ignore::UserWarning")
@EACH_PATH
def test_a_compiled_step_is_the_step(fused: bool) -> None:
    """With a learning rate that changes, as under a schedule; without the minute of writing C++."""
    theta, grads = example()
    lrs = [0.2 / (1 + i) for i in range(STEPS)]
    parameter, optimizer = optimizer_of(theta, momentum=0.9, fused=fused)
    step = torch.compile(optimizer.step, backend="aot_eager")
    for grad, lr in zip(grads, lrs, strict=True):
        parameter.grad = grad.clone()
        optimizer.param_groups[0]["lr"] = lr
        step()
    near(parameter, expected(theta, grads, lrs, momentum=0.9))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_step_gives_the_authors_numbers() -> None:
    files = (np.load(file) for file in GOLDEN)
    z = next(z for z in files if z["momentum"] and z["theta0"].ndim == 2)
    permutation = tuple(int(i) for i in z["torch_perm"])

    def ours(value: Any) -> Tensor:
        return torch.tensor(value).permute(permutation).contiguous()

    theta = nn.Parameter(ours(z["theta0"]))
    names = ("beta", "momentum", "extra_l2", "c_coef", "d_coef")
    options: dict[str, Any] = {name: float(z[name]) for name in names}
    reduce = tuple(d for d in range(2) if ours(z["v"][0]).shape[d] == 1)
    optimizer = one(theta, reduce, eta=float(z["eta"]), clip_value=float(z["clip_value"]) or None, **options)
    step = torch.compile(optimizer.step, backend="aot_eager")
    for i, lr in enumerate(z["lr"]):
        theta.grad = ours(z["grads"][i])
        optimizer.param_groups[0]["lr"] = float(lr)
        step()
        torch.testing.assert_close(theta.detach(), ours(z["theta"][i]), rtol=0, atol=1e-9)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@EACH_PATH
@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0)])
def test_parameters_without_entries_are_left_alone(shape: tuple[int, ...], fused: bool) -> None:
    theta, grads = example()
    parameter = nn.Parameter(theta.clone())
    empty = nn.Parameter(torch.zeros(shape))
    dims = tuple(range(len(shape)))
    optimizer = Amos(
        [
            {"params": [empty], "eta": 0.5, "reduce": dims},
            {"params": [parameter], "eta": NUMBERS["eta"], "reduce": (1,)},
        ],
        lr=0.2,
        beta=NUMBERS["beta"],
        fused=fused,
    )
    for grad in grads:
        empty.grad, parameter.grad = torch.zeros(shape), grad.clone()
        optimizer.step()
    near(parameter, expected(theta, grads))
    Amos.for_module(nn.Linear(4, 0), lr=0.1, fused=fused).step()
    again = copy.deepcopy(optimizer)
    again.load_state_dict(optimizer.state_dict())


@EACH_PATH
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_copies_go_on_alike(duplicate: Callable[[Any], Any], fused: bool) -> None:
    theta, grads = example()
    parameter, optimizer = optimizer_of(theta, momentum=0.9, fused=fused)
    steps(parameter, optimizer, grads[:4])
    other = duplicate(optimizer)
    ((copied,),) = (group["params"] for group in other.param_groups)
    assert copied is not parameter and torch.equal(copied, parameter)
    steps(copied, other, grads[4:])
    near(copied, expected(theta, grads, momentum=0.9))


def test_a_checkpoint_goes_through_torch_save() -> None:
    theta, grads = example()
    parameter, optimizer = optimizer_of(theta, momentum=0.9)
    steps(parameter, optimizer, grads[:4])
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    again, second = optimizer_of(parameter.detach(), momentum=0.9)
    second.load_state_dict(torch.load(file, weights_only=True))
    steps(again, second, grads[4:])
    near(again, expected(theta, grads, momentum=0.9))


def test_a_group_added_in_mid_run_counts_its_own_steps() -> None:
    theta, grads = example()
    parameter, optimizer = optimizer_of(theta)
    steps(parameter, optimizer, grads[:4])
    late = nn.Parameter(theta.clone())
    optimizer.add_param_group({"params": [late], "eta": NUMBERS["eta"], "reduce": (1,)})
    for grad in grads[4:]:
        late.grad = grad.clone()
        steps(parameter, optimizer, [grad])
    near(parameter, expected(theta, grads))
    near(late, expected(theta, grads[4:]))


def test_a_group_may_clip_by_targets() -> None:
    """The number of targets is asked for by its name, and 4 of them clip at 1/2."""
    theta, grads = example()
    parameter = nn.Parameter(theta.clone())
    group = {"params": [parameter], "eta": NUMBERS["eta"], "reduce": (1,), "clip_value": "by targets"}
    optimizer = Amos([group], lr=0.2, beta=NUMBERS["beta"])
    parameter.grad = grads[0].clone()
    with pytest.raises(ConfigError, match=r'set group\["targets"\] of every group'):
        optimizer.step()
    assert "targets" in optimizer.param_groups[0]  # where zoo's training puts the number
    optimizer.param_groups[0]["targets"] = 4
    steps(parameter, optimizer, grads)
    near(parameter, expected(theta, grads, clip_value=0.5))


def test_keys_of_the_user_are_kept() -> None:
    theta, grads = example()
    parameter = nn.Parameter(theta)
    group = {"params": [parameter], "eta": 0.5, "reduce": (1,), "layer": 3, "comment": "mine"}
    optimizer = Amos([group], lr=0.1)
    steps(parameter, optimizer, grads[:1])
    other = one(nn.Parameter(theta.clone()), (1,))
    other.load_state_dict(optimizer.state_dict())
    assert (other.param_groups[0]["layer"], other.param_groups[0]["comment"]) == (3, "mine")


@pytest.mark.parametrize("old", ["maximize", "foreach", "fused"])
def test_checkpoints_of_before_an_option_existed(old: str) -> None:
    theta, grads = example()
    parameter, optimizer = optimizer_of(theta)
    steps(parameter, optimizer, grads[:4])
    saved = optimizer.state_dict()
    del saved["param_groups"][0][old]
    again, second = optimizer_of(parameter.detach())
    second.load_state_dict(saved)
    steps(again, second, grads[4:])
    near(again, expected(theta, grads))


def changed(saved: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A checkpoint with other entries in its group."""
    return {**saved, "param_groups": [{**saved["param_groups"][0], **changes}]}


def with_slot(saved: dict[str, Any], name: str, value: Tensor | None) -> dict[str, Any]:
    slots = {**saved["state"][0], name: value}
    return {**saved, "state": {0: {k: v for k, v in slots.items() if v is not None}}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: changed(s, eta=0.31), r"group 0 of the checkpoint: eta is 0.31, but the model's is 0.3"),
        (lambda s: changed(s, reduce=(0,)), r"reduce is \(0,\), but the model's is \(1,\)"),
        (lambda s: changed(s, reduce=(2,)), r"reduce is \(2,\), but parameter 0 has shape \(5, 4\)"),
        (lambda s: changed(s, lr=-1.0), r"lr is -1.0, expected a finite number >= 0"),
        (lambda s: changed(s, beta=1.5), r"group 0 of the checkpoint: beta is 1.5"),
        (lambda s: changed(s, momentum=math.nan), r"momentum is nan"),
        (lambda s: changed(s, maximize=1), r"maximize is 1, expected True or False"),
        (lambda s: changed(s, betas=(0.9, 0.99)), r"unknown key 'betas'; did you mean 'beta'"),
        (lambda s: changed(s, params=[0, 1]), r"have \[2\] parameters, expected \[1\]"),
        (lambda s: {**s, "param_groups": s["param_groups"] * 2}, r"have \[1, 1\] parameters, expected \[1\]"),
        (lambda s: with_slot(s, "v", torch.zeros(5, 4)), r"slot v has shape \(5, 4\), expected \(5, 1\)"),
        (lambda s: with_slot(s, "m", torch.zeros(5, 1)), r"slot m has shape \(5, 1\), expected \(5, 4\)"),
        (lambda s: with_slot(s, "b", None), r"slot b has shape None, expected \(5, 1\)"),
    ],
)
def test_foreign_checkpoints_change_nothing(change: Callable[[Any], Any], message: str) -> None:
    theta, grads = example()
    parameter, optimizer = optimizer_of(theta, momentum=0.9)
    steps(parameter, optimizer, grads[:4])
    saved = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(CheckpointError, match=message):
        optimizer.load_state_dict(change(saved))
    steps(parameter, optimizer, grads[4:])
    near(parameter, expected(theta, grads, momentum=0.9))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"maximize": None}, r"group 0: maximize is None, expected True or False"),
        ({"foreach": 1}, r"group 0: foreach is 1, expected True or False"),
        ({"foreach": True, "fused": True}, r"fused and foreach are both True"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        optimizer_of(torch.zeros(5, 4), **options)
