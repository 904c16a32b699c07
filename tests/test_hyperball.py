"""Hyperball: the recorded steps, the norm under every optimizer, and what it meets."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_optim_successors import DTYPES, FOLDER
from tiny_runs import tiny
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from two_ranks import on_two_ranks

from zoo import build_model, build_optimizer, load_model, merge, split
from zoo.init import Registry
from zoo.models import Model
from zoo.optim import load_state_by_name, state_by_name
from zoo.optim.attach import attach
from zoo.optim.fixed_norm import RADIUS, fixed_norms, keep_norms
from zoo.optim.state import flatten, unflatten
from zoo.run.config import load_config
from zoo.run.explanation import explain
from zoo.train.distributed import World
from zoo.train.run import train
from zoo.train.step import undone
from zoo.utils.errors import ConfigError, ZooError
from zoo.utils.sharded import whole

SIZES: dict[str, Any] = {"vocab_size": 31, "d_model": 16, "n_layers": 1, "n_heads": 2, "seed": 0}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {},
    "adafactor": {},
    "amos": {"momentum": 0.9},
    "lion": {},
    "mars": {},
    "muon": {},
    "normuon": {"rest": {"type": "adamw", "lr": 0.01}},
    "soap": {"weight_decay": 0.0},
    "torch.optim.NAdam": {},
}


def model_with(**changes: Any) -> Model:
    return build_model("gpt", **{**SIZES, "constraint": "hyperball", **changes})


def take(model: Model, optimizer: Optimizer, steps: int) -> None:
    for step in range(steps):
        tokens = torch.randint(31, (2, 9), generator=torch.Generator().manual_seed(step))
        torch.autograd.backward(model.loss(tokens[:, :-1], tokens[:, 1:]).total)
        optimizer.step()
        optimizer.zero_grad()


def norms(model: Model) -> dict[str, float]:
    return {name: whole(p.detach()).double().norm().item() for name, p in fixed_norms(model)}


@pytest.mark.parametrize(("label", "tolerance"), [("f64", 1e-12), ("f32", 3e-6)])
def test_adamh_is_the_recorded_one(label: str, tolerance: float) -> None:
    data, dtype = np.load(FOLDER / f"adamh.{label}.npz"), DTYPES[label]
    named = {
        key.removesuffix(".theta0"): nn.Parameter(torch.from_numpy(data[key]).to(dtype))
        for key in data.files
        if key.endswith(".theta0")
    }
    optimizer = AdamW(named.values(), lr=0.1, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.5)
    keep_norms(optimizer, lambda: iter(named.items()))
    worst = 0.0
    for step, rate in enumerate(data["lr"]):
        optimizer.param_groups[0]["lr"] = float(rate)
        for name, parameter in named.items():
            parameter.grad = torch.from_numpy(data[f"{name}.grads"][step]).to(dtype)
        optimizer.step()
        for name, parameter in named.items():
            worst = max(worst, float(np.abs(parameter.detach().numpy() - data[f"{name}.theta"][step]).max()))
            assert optimizer.state[parameter][RADIUS].item() == pytest.approx(float(data[f"{name}.radius"]))
    assert worst < tolerance


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_turns_by_the_learning_rate_and_keeps_the_norm(name: str) -> None:
    model = model_with()
    optimizer = build_optimizer(model, {"type": name, "lr": 0.01, **OPTIMIZERS[name]})
    take(model, optimizer, 1)
    radii, before = norms(model), {name: p.detach().clone() for name, p in fixed_norms(model)}
    assert len(radii) == 8  # q, k, v, o, three of the MLP, and the head
    take(model, optimizer, 1)
    for key, p in fixed_norms(model):
        assert norms(model)[key] == pytest.approx(radii[key], rel=1e-6)
        cosine = (p.detach() * before[key]).sum().item() / radii[key] ** 2
        assert 0.5 * 0.01 < np.arccos(min(cosine, 1.0)) < 1.01 * 0.01


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_resumed_run_goes_on_bit_for_bit(name: str) -> None:
    ours, again = model_with(), model_with()
    settings = {"type": name, "lr": 0.01, **OPTIMIZERS[name]}
    optimizer, other = build_optimizer(ours, settings), build_optimizer(again, settings)
    take(ours, optimizer, 3)
    again.load_state_dict(ours.state_dict())
    load_state_by_name(other, unflatten(*flatten(state_by_name(optimizer))))
    take(ours, optimizer, 2)
    take(again, other, 2)
    for (key, p), q in zip(ours.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(p, q), key


def test_amos_has_no_decay_on_it() -> None:
    """A gradient of almost nothing: Amos' decay would shrink the matrix, the update alone turns it."""
    model = model_with()
    settings = {"type": "amos", "lr": 0.05}
    before = norms(model)
    take(model, build_optimizer(model, settings), 5)
    assert norms(model) == pytest.approx(before, rel=1e-6)


def test_the_gate_of_wesar_gives_the_scale_back() -> None:
    """The trained matrix keeps its norm, its gate is free, and merging leaves a plain model."""
    model = model_with(init="he", reparam="wesar")
    optimizer = build_optimizer(model, "adamw", lr=0.01)
    before, gates = norms(model), {n: p.item() for n, p in model.named_parameters() if p.shape == (1,)}
    take(model, optimizer, 3)
    assert norms(model) == pytest.approx(before, rel=1e-6)
    assert gates and all(model.get_parameter(name).item() != value for name, value in gates.items())
    report = merge(model)
    assert report.max_difference <= 1e-5 * report.max_logit


def test_a_step_that_is_undone_leaves_radius_and_weights() -> None:
    """What a skipped spike does."""
    model = model_with()
    optimizer = build_optimizer(model, "adamw", lr=0.01)
    take(model, optimizer, 2)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with undone(model, optimizer):
        take(model, optimizer, 1)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert all(RADIUS in optimizer.state[p] for _, p in fixed_norms(model))


def test_the_radius_comes_from_the_weights_of_a_checkpoint(tmp_path: Path) -> None:
    first = train(tiny(tmp_path, "name=first", steps=5))
    source = f"model={{from: {first.folder}}}"
    second = train(tiny(tmp_path, "name=second", source, "constraint=hyperball", steps=5))
    start, end = load_model(first.folder), load_model(second.folder)
    for entry in Registry(start):
        if entry.spec.role == "linear":
            was, now = entry.parameter.norm().item(), end.get_parameter(entry.name).norm().item()
            assert now == pytest.approx(was, rel=1e-6), entry.name


def test_torchs_state_dict_keeps_the_radius_of_bfloat16_weights() -> None:
    """torch casts slots to the dtype of the parameter, and the radius is to be kept to the last bit."""
    models = [build_model("gpt", **SIZES, constraint="hyperball").bfloat16() for _ in range(2)]
    one, other = (build_optimizer(model, "adamw", lr=0.01) for model in models)
    take(models[0], one, 1)
    other.load_state_dict(one.state_dict())
    for (_, mine), (_, theirs) in zip(*map(fixed_norms, models), strict=True):
        radius = other.state[theirs][RADIUS]
        assert radius.dtype == torch.float32 and torch.equal(radius, one.state[mine][RADIUS])


def test_explain_shows_the_sphere_and_counts_the_radius() -> None:
    config = load_config("gpt-tiny", ["constraint=hyperball", "optimizer.weight_decay=0"])
    plain = explain(load_config("gpt-tiny", ["optimizer.weight_decay=0"]))
    rows = {row.name: row for row in explain(config).rows}
    for before in plain.rows:
        kept = before.role == "linear"
        row = rows[before.name]
        assert (row.sphere == "whole", row.decays) == (kept, before.decays and not kept)
        assert row.state_bytes == (before.state_bytes or 0) + 4 * kept


@pytest.mark.parametrize("method", ["wesar", "residual", "multipliers", "weight_norm"])
def test_a_model_under_the_constraint_is_split(method: str) -> None:
    """The kind of its sphere, whole, was taken for the name of an axis."""
    model, free = model_with(), model_with(constraint="none")
    kept = [name for name, _ in fixed_norms(model)]
    done, of_free = split(model, method), split(free, method)
    assert done.tensors == of_free.tensors and done.max_difference < 1e-6
    assert [name for name, _ in fixed_norms(model)] == kept
    before = norms(model)
    take(model, build_optimizer(model, "adam", lr=0.01), 3)
    assert norms(model) == pytest.approx(before, rel=1e-6)


def test_ngpt_has_its_own_sphere(caplog: pytest.LogCaptureFixture) -> None:
    model = build_model("ngpt", **SIZES, constraint="hyperball")
    assert not any(fixed_norms(model))
    assert "idle on 8 of 8 matrices" in caplog.text


BAD: list[tuple[list[str], str]] = [
    (["constraint=hyperball"], "optimizer.weight_decay: 0.1 has no effect on matrices whose norm is kept"),
    (["constraint=hyperball", "optimizer={type: prodigy}"], "it estimates the length of the steps"),
    (
        [
            "constraint=hyperball",
            "schedule=constant",
            "optimizer={type: schedule_free, lr: 1e-3, weight_decay: 0}",
        ],
        "it evaluates an average",
    ),
    (["constraint=hyperball", "optimizer={type: soap, lr: 1e-3}"], "optimizer.weight_decay: 0.01"),
    (["constraint=hyperball", "optimizer={type: amos, lr: 0.01, extra_l2: 0.1}"], "optimizer.extra_l2: 0.1"),
    (
        ["constraint=hyperball", "optimizer={type: pytorch_optimizer.Lookahead, lr: 1e-3}"],
        "Lookahead",
    ),
    (
        ["constraint=hyperball", "optimizer={type: adafactor, lr: 0.01, relative_step: true}"],
        "relative_step has no effect on the matrices; expected a schedule",
    ),
    (["constraint={type: hyperball, matrices: some}"], "matrices"),
    (["constraint=hyperbola"], "did you mean 'hyperball'"),
    (["constraint=[hyperball, hyperball]"], "constraint"),
]


@pytest.mark.usefixtures("without_plugins")
@pytest.mark.parametrize(("changes", "message"), BAD, ids=lambda value: str(value)[:60])
def test_refused_when_the_file_is_read(changes: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        load_config("quickstart-gpt", changes)


def test_refused_on_a_model() -> None:
    with pytest.raises(ConfigError, match=r"blocks.0.attention.q.weight_up.* at zero"):
        build_model("gpt", **SIZES, reparam={"type": "lora", "rank": 2}, constraint="hyperball")
    model = model_with()
    with pytest.raises(ConfigError, match=r"a second one on blocks.0.attention.q.weight"):
        load_config({"constraint": "hyperball"}).constraint.apply(model)
    with pytest.raises(ConfigError, match=r"optimizer.weight_decay: 0.1 has no effect"):
        build_optimizer(model, "adamw", lr=0.01, weight_decay=0.1)
    with torch.no_grad():
        model.get_parameter("blocks.0.mlp.down.weight").zero_()
    with pytest.raises(ConfigError, match=r"keeps the norm of blocks.0.mlp.down.weight at zero"):
        build_optimizer(model, "adamw", lr=0.01)


def test_a_closure_is_refused() -> None:
    model = model_with()
    with pytest.raises(ZooError, match="a step with a closure"):
        build_optimizer(model, "adamw", lr=0.01).step(lambda: 0.0)


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_step_that_raises_puts_the_weights_back() -> None:
    """The matrices are zero within a step; an error in it left them so, and the next step trained on."""
    model = model_with()
    optimizer = AdamW(model.parameters(), lr=0.01)
    after_update = optimizer.register_step_post_hook(interrupt)
    attach(optimizer, model)
    LambdaLR(optimizer, lambda step: 1.0)  # which wraps the step once more
    before = {name: matrix.detach().clone() for name, matrix in fixed_norms(model)}
    with pytest.raises(KeyboardInterrupt):
        take(model, optimizer, 1)
    assert all(torch.equal(matrix, before[name]) for name, matrix in fixed_norms(model))
    after_update.remove()
    take(model, optimizer, 1)
    for name, matrix in fixed_norms(model):
        assert torch.cosine_similarity(matrix.flatten(), before[name].flatten(), dim=0) > 0.99
        assert matrix.norm().item() == pytest.approx(before[name].norm().item(), rel=1e-6)


def on_ranks(world: World) -> None:
    """Rows are sharded unevenly; the norm is that over both ranks."""
    for name in ("adamw", "muon", "lion"):
        alone, sharded = model_with(d_mlp=7), model_with(d_mlp=7)
        world.shard(sharded)
        expected: list[Tensor] = []
        for model in (alone, sharded):
            take(model, build_optimizer(model, name, lr=0.01), 3)
            expected = expected or [p.detach() for p in model.parameters()]
        for a, b in zip(expected, sharded.parameters(), strict=True):
            torch.testing.assert_close(whole(b.detach()), a, rtol=1e-5, atol=1e-5)


def test_two_ranks_are_one() -> None:
    on_two_ranks(on_ranks)
