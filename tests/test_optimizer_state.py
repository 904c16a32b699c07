"""torch's own ways to keep an optimizer: `state_dict`, `deepcopy`, `torch.save`; groups that are added."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from zoo import build_model, build_optimizer
from zoo.optim import Prodigy, ScheduleFreeAdamW
from zoo.optim.slots import initial_slots
from zoo.optim.state import flatten, load_state_by_name, state_by_name, unflatten
from zoo.utils.errors import CheckpointError, ConfigError

SIZES: dict[str, Any] = {"vocab_size": 31, "d_model": 16, "n_layers": 1, "n_heads": 2, "seed": 0}


class KeepingAdamW(torch.optim.AdamW):
    """AdamW that counts in a slot of its own how often each entry grew."""

    def step(self, closure: Any = None) -> Any:
        before = [(p, p.detach().clone()) for group in self.param_groups for p in group["params"]]
        loss = super().step(closure)
        for p, old in before:
            self.state[p].setdefault("grown", torch.zeros_like(p)).add_(p.detach() > old)
        return loss


OURS: dict[str, dict[str, Any]] = {
    "adafactor": {},
    "ademamix": {},
    "adamw": {"cautious": True},
    "lion": {},
    "mars": {},
    "muon": {},
    "normuon": {},
    "prodigy": {"lr": 1.0, "d0": 1e-4},
    "schedule_free": {},
    "soap": {},
}


def begun(name: str, **options: Any) -> tuple[Any, Optimizer]:
    """A tiny model and its optimizer."""
    model = build_model("gpt", **SIZES)
    return model, build_optimizer(model, name, **{"lr": 1e-2, **OURS.get(name, {}), **options})


def take(model: Any, optimizer: Optimizer, *seeds: int) -> None:
    """Take a step with random gradients for each seed."""
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            gradient = torch.randn(parameter.shape, generator=generator)
            parameter.grad = gradient.to(parameter.dtype)
        optimizer.step()


def assert_alike(one: Any, other: Any) -> None:
    for (name, p), q in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q), name


def test_prodigy_keeps_its_estimate() -> None:
    """In a state_dict and in a copy: steps are as long as in the optimizer that was not interrupted."""
    model, optimizer = begun("prodigy")
    take(model, optimizer, 0, 0, 0, 0)  # a gradient that keeps its direction, by which the estimate grows
    assert optimizer.param_groups[0]["d"] > 1.1e-4
    loaded_model, loaded = begun("prodigy")
    loaded_model.load_state_dict(model.state_dict())
    loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    copied_model, copied = copy.deepcopy((model, optimizer))
    for other_model, other in ((model, optimizer), (loaded_model, loaded), (copied_model, copied)):
        take(other_model, other, 4, 5)
    assert_alike(model, loaded_model)
    assert_alike(model, copied_model)


def test_prodigy_reads_the_estimate_of_older_checkpoints() -> None:
    """It was an attribute, which the state by names has beside the groups."""
    model, optimizer = begun("prodigy")
    take(model, optimizer, 0, 0, 0, 0)
    state = copy.deepcopy(state_by_name(optimizer))
    keys = ("d", "d_max", "d_numerator", "k")
    state[""]["attributes"]["estimate"] = {key: state[""]["groups"][0][key] for key in keys}
    for group in state[""]["groups"]:
        for key in keys:
            del group[key]
    again_model, again = begun("prodigy")
    again_model.load_state_dict(model.state_dict())
    load_state_by_name(again, state)
    take(model, optimizer, 4, 5)
    take(again_model, again, 4, 5)
    assert_alike(model, again_model)


@pytest.mark.parametrize("name", OURS)
def test_slots_stay_float32_beside_bfloat16_weights(name: str) -> None:
    """A loaded state is that which was saved, to the bit, and the next step is the same."""
    model, optimizer = begun(name)
    model.bfloat16()
    take(model, optimizer, 0, 1)
    other_model, other = begun(name)
    other_model.bfloat16()
    other_model.load_state_dict(model.state_dict())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    ours = {p for part in getattr(other, "parts", [other]) for p in part_of_zoo(part)}
    checked = 0
    for p, q in zip(model.parameters(), other_model.parameters(), strict=True):
        for slot, value in optimizer.state[p].items() if q in ours else ():
            assert other.state[q][slot].dtype == torch.float32, slot
            assert torch.equal(other.state[q][slot], value), slot
            checked += 1
    assert checked >= len(ours) > 0
    take(model, optimizer, 2)
    take(other_model, other, 2)
    assert_alike(model, other_model)


def part_of_zoo(optimizer: Optimizer) -> list[nn.Parameter]:
    """What the optimizer trains, unless it is torch's, whose slots have the dtype of the parameter."""
    if type(optimizer) is torch.optim.AdamW:
        return []
    return [p for group in optimizer.param_groups for p in group["params"]]


@pytest.mark.parametrize("name", ["muon", "normuon"])
def test_a_group_that_no_part_would_train_is_refused(name: str) -> None:
    _, optimizer = begun(name)
    before = len(optimizer.param_groups)
    with pytest.raises(ConfigError, match="cannot tell which of them is to train the group"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3, 3))]})
    assert len(optimizer.param_groups) == before


@pytest.mark.parametrize("name", OURS)
def test_a_state_dict_goes_through_torch_save(name: str) -> None:
    """torch.load accepts tensors and plain values alone, unless it is told otherwise."""
    model, optimizer = begun(name)
    take(model, optimizer, 0, 1)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    other_model, other = begun(name)
    other_model.load_state_dict(model.state_dict())
    other.load_state_dict(torch.load(file, weights_only=True))
    take(model, optimizer, 2)
    take(other_model, other, 2)
    assert_alike(model, other_model)


@pytest.mark.parametrize("name", ["adafactor", "amos", "lion", "muon", "soap"])
def test_hooks_may_replace_a_state_that_is_loaded(name: str) -> None:
    """As the documentation of torch's `load_state_dict` shows it: slots go by the names of parameters."""
    model, optimizer = begun(name)
    take(model, optimizer, 0, 1)
    kept = copy.deepcopy(optimizer.state_dict())
    shuffled = copy.deepcopy(kept)
    for group in shuffled["param_groups"]:
        same_shape: dict[Any, list[int]] = {}
        for index in group["params"]:
            shape = tuple(next(t for t in kept["state"][index].values() if t.dim()).shape)
            same_shape.setdefault(shape, []).append(index)
        for indices in same_shape.values():
            for index, another in zip(indices, indices[1:] + indices[:1], strict=True):
                shuffled["state"][index] = kept["state"][another]
    other_model, other = begun(name)
    other_model.load_state_dict(model.state_dict())
    called: list[str] = []
    other.register_load_state_dict_pre_hook(lambda *_: kept)
    other.register_load_state_dict_post_hook(lambda _: called.append("post"))
    other.load_state_dict(shuffled)
    assert called == ["post"]
    take(model, optimizer, 2)
    take(other_model, other, 2)
    assert_alike(model, other_model)


def two_groups(
    kind: type[Optimizer], vector_first: bool, **options: Any
) -> tuple[list[nn.Parameter], Optimizer]:
    """A matrix and a vector with the weight decays .5 and 0, as two groups in one or the other order."""
    matrix, vector = nn.Parameter(torch.ones(4, 3)), nn.Parameter(torch.ones(3))
    groups: list[Any] = [
        {"params": [("matrix", matrix)], "weight_decay": 0.5},
        {"params": [("vector", vector)], "weight_decay": 0.0},
    ]
    return [matrix, vector], kind(groups[::-1] if vector_first else groups, **options)


@pytest.mark.parametrize(
    ("kind", "options"),
    [(ScheduleFreeAdamW, {"lr": 0.1}), (Prodigy, {"d0": 0.01}), (torch.optim.RMSprop, {"lr": 0.01})],
)
def test_settings_stay_with_the_parameters_of_their_group(
    kind: type[Optimizer], options: dict[str, Any]
) -> None:
    """The order of the groups follows that of the model's parameters, which may have changed."""

    def go(parameters: list[nn.Parameter], optimizer: Optimizer, *seeds: int) -> None:
        for seed in seeds:
            generator = torch.Generator().manual_seed(seed)
            for p in parameters:
                p.grad = torch.randn(p.shape, generator=generator)
            optimizer.step()

    (ours, one), (theirs, other) = two_groups(kind, False, **options), two_groups(kind, True, **options)
    go(ours, one, 0, 1)
    with torch.no_grad():
        for p, q in zip(theirs, ours, strict=True):
            p.copy_(q)
    load_state_by_name(other, unflatten(*flatten(copy.deepcopy(state_by_name(one)))))
    assert [group["weight_decay"] for group in other.param_groups] == [0.0, 0.5]
    go(ours, one, 2, 3)
    go(theirs, other, 2, 3)
    assert all(torch.equal(p, q) for p, q in zip(ours, theirs, strict=True))
    together = kind(
        [("matrix", nn.Parameter(torch.ones(4, 3))), ("vector", nn.Parameter(torch.ones(3)))], **options
    )
    together.add_param_group({"params": [("more", nn.Parameter(torch.ones(2)))]})
    state = copy.deepcopy(state_by_name(one))
    state[""]["shapes"]["more"] = (2,)
    with pytest.raises(CheckpointError, match="a parameter group of matrix; expected the groups that this"):
        load_state_by_name(together, state)


@pytest.mark.parametrize("name", OURS)
def test_a_parameter_may_get_its_first_gradient_after_the_checkpoint(name: str) -> None:
    """What the state has of it is what it would start from."""
    late = "blocks.0.mlp.u.weight"

    def go(model: Any, optimizer: Optimizer, *seeds: int) -> None:
        for seed in seeds:
            generator = torch.Generator().manual_seed(seed)
            for key, parameter in model.named_parameters():
                gradient = torch.randn(parameter.shape, generator=generator)
                parameter.grad = None if key == late and seed < 3 else gradient
            optimizer.step()

    model, optimizer = begun(name)
    go(model, optimizer, 0, 1)
    again_model, again = begun(name)
    again_model.load_state_dict(model.state_dict())
    load_state_by_name(again, unflatten(*flatten(copy.deepcopy(state_by_name(optimizer)))))
    go(model, optimizer, 2, 3, 4, 5)
    go(again_model, again, 2, 3, 4, 5)
    assert not torch.equal(model.get_parameter(late), begun(name)[0].get_parameter(late))
    assert_alike(model, again_model)


@pytest.mark.parametrize("kind", ["amsgrad", "subclass", "path"])
def test_variants_of_adam_keep_all_their_slots(kind: str) -> None:
    """The largest second moment of `amsgrad`, and a slot that a subclass adds."""
    slot = "grown" if kind == "subclass" else "max_exp_avg_sq"

    def make(model: Any) -> Optimizer:
        if kind == "path":
            return build_optimizer(model, "torch.optim.AdamW", lr=1e-2, amsgrad=True)
        named = list(model.named_parameters())
        if kind == "subclass":
            return KeepingAdamW(named, lr=1e-2)
        return torch.optim.AdamW(named, lr=1e-2, amsgrad=True)

    model = build_model("gpt", **SIZES)
    optimizer = make(model)
    take(model, optimizer, 0, 1)
    other_model = build_model("gpt", **SIZES)
    other_model.load_state_dict(model.state_dict())
    other = make(other_model)
    load_state_by_name(other, unflatten(*flatten(state_by_name(optimizer))))
    for p, q in zip(model.parameters(), other_model.parameters(), strict=True):
        assert torch.equal(other.state[q][slot], optimizer.state[p][slot])
    take(model, optimizer, 2)
    take(other_model, other, 2)
    assert_alike(model, other_model)


@pytest.mark.parametrize(
    ("option", "device"), [("capturable", "meta"), ("fused", "meta"), ("foreach", "cpu")]
)
def test_the_step_of_torchs_adam_is_where_torch_keeps_it(option: str, device: str) -> None:
    parameter = nn.Parameter(torch.empty(2, device="meta"))
    optimizer = torch.optim.AdamW([parameter], lr=0.1)
    slots = initial_slots(optimizer, parameter, optimizer.param_groups[0] | {option: True})
    assert slots["step"].device.type == device
