"""Muon with another optimizer for the rest: who trains what, and that together they are one."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from test_grid import TINY
from torch import nn

from zoo import Registry, build_model, build_optimizer
from zoo.config.registry import MODELS, SCHEDULES
from zoo.init import Entry, EtaOverride
from zoo.models import Model
from zoo.nn.linear import matrix
from zoo.nn.sphere import project
from zoo.optim import Amos, Combined, Muon, MuonConfig, NorMuon
from zoo.optim.adamw import AdamWConfig
from zoo.optim.matrices import MatrixLayout
from zoo.optim.muon import update_factor
from zoo.optim.newton_schulz import orthogonal
from zoo.run.config import load_config
from zoo.run.explanation import explain
from zoo.spec import ParamSpec, Role
from zoo.utils.errors import CheckpointError, ConfigError

SIZES: dict[str, Any] = {"vocab_size": 23, "d_model": 8, "n_layers": 1, "n_heads": 2, "d_mlp": 6}
HIDDEN = {
    "gpt": ["attention.q", "attention.k", "attention.v", "attention.o", "mlp.u", "mlp.nu", "mlp.down"],
    "ngpt": ["attention.q", "attention.k", "attention.v", "attention.o", "mlp.u", "mlp.nu", "mlp.down"],
}
AMOS = {"type": "amos", "lr": 0.02, "momentum": 0.9}


def trained_by_muon(optimizer: torch.optim.Optimizer) -> list[str]:
    assert isinstance(optimizer, Combined)
    muon, *_ = optimizer.parts
    assert isinstance(muon, Muon)
    return [name for group in muon.param_groups for name in group["param_names"]]


@pytest.mark.parametrize("name", HIDDEN)
@pytest.mark.parametrize("tied", [False, True])
def test_blocks_matrices_and_no_others(name: str, tied: bool) -> None:
    model = build_model(name, **SIZES, tied=tied)
    optimizer = build_optimizer(model, "muon", lr=0.01)
    assert trained_by_muon(optimizer) == [f"blocks.0.{part}.weight" for part in HIDDEN[name]]
    assert sum(len(g["params"]) for g in optimizer.param_groups) == len(list(model.parameters()))


@pytest.mark.parametrize("name", sorted(MODELS.choices))
def test_in_every_model_inputs_outputs_and_vectors_are_left_to_the_rest(name: str) -> None:
    """The read-out is what has as many entries along an axis as there are logits; an image has 3 channels."""
    outputs = {"classes": 5} if "classes" in TINY[name] else {"vocab_size": 23}
    model = build_model(name, **(TINY[name] | outputs))
    inputs = model.example(2, 8)[:-1]
    (count,) = outputs.values()
    assert model(*inputs).shape[-1] == count
    by_muon = set(trained_by_muon(build_optimizer(model, "muon", lr=0.01)))
    for entry in Registry(model):
        kernel = entry.spec.role in (Role.LINEAR, Role.CONV)
        hidden = kernel and count not in entry.spec.shape and 3 not in entry.spec.shape[:2]
        assert (entry.name in by_muon) == hidden, entry.name


def by_hand(entries: Iterable[Entry], hidden: set[str], lr: float) -> list[torch.optim.Optimizer]:
    """torch's Muon and torch's AdamW, decay on matrices."""
    groups: dict[str, list[nn.Parameter]] = {"hidden": [], "decayed": [], "rest": []}
    for entry in entries:
        part = "hidden" if entry.name in hidden else "decayed" if entry.decays else "rest"
        groups[part].append(entry.parameter)
    muon = torch.optim.Muon(groups["hidden"], lr=lr, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    rest = [
        {"params": groups["decayed"], "weight_decay": 0.1},
        {"params": groups["rest"], "weight_decay": 0.0},
    ]
    return [muon, torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.95))]


@pytest.mark.parametrize("name", ["gpt", "ngpt"])
def test_under_a_schedule_it_is_torchs_muon_and_torchs_adamw(name: str) -> None:
    """20 steps in float64, on nGPT with the projection after each."""
    model = build_model(name, **SIZES, reparam="wesar", init="he").double()
    twin = copy.deepcopy(model)
    ours = build_optimizer(model, "muon", lr=0.02, weight_decay=0.1)
    registry = Registry(twin)
    theirs = by_hand(registry, set(trained_by_muon(ours)), 0.02)
    schedule = SCHEDULES["cosine"](warmup=3)
    scheduler = schedule.build(ours, 20)
    for i in range(20):
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            generator = torch.Generator().manual_seed(i)
            p.grad = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            q.grad = p.grad.clone()
        ours.step()
        scheduler.step()
        for optimizer in theirs:
            for group in optimizer.param_groups:
                group["lr"] = 0.02 * schedule.factor(i, 20)
            optimizer.step()
        project((e.parameter, e.sphere_dim) for e in registry if e.sphere_dim is not None)
    for (parameter, a), b in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10, msg=parameter)


def train(model: Model, optimizer: torch.optim.Optimizer, steps: int) -> float:
    loss = torch.tensor(0.0)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model.loss(*model.example(4, 16)).total
        torch.autograd.backward(loss)
        optimizer.step()
    return loss.item()


@pytest.mark.parametrize("rest", [None, AMOS, {"type": "adamw", "lr": 0.01}])
def test_ngpt_learns_with_it(rest: dict[str, Any] | None) -> None:
    model = build_model("ngpt", **SIZES)
    optimizer = build_optimizer(model, "muon", lr=0.02, rest=rest)
    assert train(model, optimizer, 40) < 0.85 * train(build_model("ngpt", **SIZES), optimizer, 1)


def test_amos_has_its_eta_for_the_rest() -> None:
    model = build_model("gpt", **SIZES)
    registry = Registry(model)
    optimizer = build_optimizer(model, "muon", lr=0.01, rest=AMOS)
    assert isinstance(optimizer, Combined)
    _, amos = optimizer.parts
    assert isinstance(amos, Amos)
    etas = {name: g["eta"] for g in amos.param_groups for name in g["param_names"]}
    assert etas == {e.name: e.eta for e in registry if e.name not in trained_by_muon(optimizer)}
    assert {g["lr"] for g in amos.param_groups} == {0.02}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"adjust": "spectral"}, r"optimizer: .*expected `rest: \{type: adamw, lr: \.\.\.\}`"),
        ({"rest": {"type": "adamw"}}, r"optimizer\.rest\.lr: missing"),
        ({"rest": {"type": "muon", "lr": 0.1}}, r"optimizer\.rest\.type: value 'muon'"),
        ({"rest": {"type": "amos", "lr": 0.1, "eps": 1e-6}}, r"optimizer\.rest\.eps: unknown key"),
        ({"ns_steps": 0}, r"optimizer\.ns_steps"),
    ],
)
def test_bad_fields_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config({"optimizer": {"type": "muon", "lr": 0.01, **fields}})


def test_overrides_of_eta_need_a_rest_that_uses_them() -> None:
    overrides = [{"role": "embedding", "eta": 1.0}]
    fields = {"model": {"type": "gpt", **SIZES}, "eta_overrides": overrides}
    muon = {"type": "muon", "lr": 0.01}
    assert load_config({**fields, "optimizer": {**muon, "rest": AMOS}}).eta_overrides
    with pytest.raises(ConfigError, match="eta_overrides have no effect"):
        load_config({**fields, "optimizer": muon})


def test_parameters_without_hidden_matrices_are_refused() -> None:
    """The model may have some that are frozen."""
    embedding = [e for e in Registry(build_model("gpt", **SIZES)) if e.spec.role is Role.EMBEDDING]
    with pytest.raises(ConfigError, match="muon is for hidden matrices, and none is trained"):
        MuonConfig(lr=0.1).build(embedding)


def test_explain_counts_one_average_of_hidden_matrices_and_two_of_the_rest() -> None:
    fields = {"model": {"type": "gpt", **SIZES}, "optimizer": {"type": "muon", "lr": 0.01}}
    table = explain(load_config(fields))
    hidden = {f"blocks.0.{part}.weight" for part in HIDDEN["gpt"]}
    for row in table.rows:
        entries = torch.Size(row.shape).numel()
        assert row.state_bytes == entries * (4 if row.name in hidden else 8)
    assert table.totals.optimizer_bytes == sum(row.state_bytes or 0 for row in table.rows)


def test_a_copy_of_the_optimizer_is_whole() -> None:
    model = build_model("gpt", **SIZES)
    optimizer = build_optimizer(model, "muon", lr=0.01, rest=AMOS)
    train(model, optimizer, 2)
    twin, loaded = copy.deepcopy((model, optimizer))
    train(model, optimizer, 2)
    train(twin, loaded, 2)
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)


def two_parts() -> Combined:
    w, v = nn.Parameter(torch.eye(4)), nn.Parameter(torch.ones(4))
    combined = Combined([Muon([w], lr=0.1), torch.optim.AdamW([v], lr=0.1)])
    for parameter in (w, v):
        parameter.grad = torch.ones_like(parameter)
    combined.step()
    return combined


@pytest.mark.parametrize("sizes", [[1], [1, 1, 1], [1, 2]])
def test_a_state_with_other_groups_is_refused_and_changes_nothing(sizes: list[int]) -> None:
    """Too few groups were a bare StopIteration, and further ones were accepted."""
    combined = two_parts()
    before, saved = copy.deepcopy(combined.state_dict()), two_parts().state_dict()
    saved["param_groups"] = [{**saved["param_groups"][0], "params": list(range(n))} for n in sizes]
    with pytest.raises(CheckpointError, match=re.escape(f"have {sizes} parameters, expected [1, 1]")):
        combined.load_state_dict(saved)
    after = combined.state_dict()
    assert after["param_groups"] == before["param_groups"]
    torch.testing.assert_close(after["state"], before["state"])


def test_where_a_part_refuses_a_state_the_others_keep_theirs() -> None:
    """The first part had loaded its share, and the groups of a schedule were no longer its own."""
    w, v = nn.Parameter(torch.eye(4)), nn.Parameter(torch.ones(4))
    combined = Combined([Muon([w], lr=0.1), Amos([{"params": [v], "eta": 1.0, "reduce": ()}], lr=0.1)])
    saved = copy.deepcopy(combined.state_dict())
    saved["param_groups"][0]["lr"], saved["param_groups"][1]["eta"] = 0.5, 2.0
    with pytest.raises(CheckpointError, match=r"eta is 2\.0, but the model's is 1\.0"):
        combined.load_state_dict(saved)
    groups = [group for part in combined.parts for group in part.param_groups]
    assert all(ours is theirs for ours, theirs in zip(combined.param_groups, groups, strict=True))
    assert all(part.state is combined.state for part in combined.parts)
    assert [group["lr"] for group in groups] == [0.1, 0.1]


def test_an_override_of_what_muon_trains_is_refused() -> None:
    model = build_model("gpt", **SIZES)
    of_kernels = EtaOverride(role=Role.LINEAR, axes=("mlp",), factor=2.0)
    with pytest.raises(ConfigError, match=r"eta_overrides\[0\] has no effect: this optimizer reads no eta"):
        build_optimizer(model, "muon", lr=0.02, rest=AMOS, eta_overrides=[of_kernels])
    of_tables = EtaOverride(role=Role.EMBEDDING, factor=2.0)
    build_optimizer(model, "muon", lr=0.02, rest=AMOS, eta_overrides=[of_tables])


def test_a_parameter_is_split_into_the_matrices_that_its_declaration_says() -> None:
    """Rows of q by heads, columns of o by heads, and every expert of a stack in any case."""
    q = matrix(("heads", 6), ("embed", 4), parts=(("heads", 2),))
    o = matrix(("embed", 4), ("heads", 6), parts=(("heads", 2),))
    stack = ParamSpec(
        Role.LINEAR, (3, 5, 4), ("experts", "mlp", "embed"), fan_in=("embed",), parts=(("experts", 3),)
    )
    conv = ParamSpec(Role.CONV, (5, 2, 3, 3), ("out", "in", "y", "x"), fan_in=("in", "y", "x"))
    for spec, heads, shape in [
        (q, False, (1, 6, 4)),
        (q, True, (2, 3, 4)),
        (o, True, (2, 4, 3)),
        (stack, False, (3, 5, 4)),
        (conv, True, (1, 5, 18)),
    ]:
        layout, tensor = MatrixLayout.of(spec, heads), torch.randn(spec.shape)
        matrices = layout.split(tensor)
        assert matrices.shape == shape
        assert torch.equal(layout.join(matrices, spec.shape), tensor)
    assert torch.equal(
        MatrixLayout.of(q, True).split(torch.arange(24.0).view(6, 4))[1], torch.arange(12.0, 24).view(3, 4)
    )
    assert torch.equal(
        MatrixLayout.of(o, True).split(torch.arange(24.0).view(4, 6))[1][0], torch.tensor([3.0, 4.0, 5.0])
    )


@pytest.mark.parametrize("kind", ["muon", "normuon"])
def test_split_heads_are_steps_of_their_own(kind: str) -> None:
    """Every head's rows of q move as if they were the only matrix."""
    model = build_model("gpt", **SIZES, seed=0).double()
    optimizer = build_optimizer(model, kind, lr=0.01, split_heads=True)
    name = "blocks.0.attention.q.weight"
    q = model.get_parameter(name)
    heads = [nn.Parameter(part.detach().clone()) for part in q.chunk(2)]
    makers: dict[str, Any] = {"muon": Muon, "normuon": NorMuon}
    alone = makers[kind](heads, lr=0.01)
    for step in range(3):
        for p in model.parameters():
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(step), dtype=p.dtype)
        for part, grad in zip(heads, q.grad.chunk(2) if q.grad is not None else (), strict=True):
            part.grad = grad.clone()
        optimizer.step()
        alone.step()
    torch.testing.assert_close(q.detach(), torch.cat([h.detach() for h in heads]), rtol=0, atol=1e-12)


def test_polar_express_converges_to_the_orthogonal_factor() -> None:
    """Singular values of at least 1e-3 of the norm: near 1 after 5 steps, and 1 after 8."""
    u, _, v = torch.linalg.svd(torch.randn(20, 12, dtype=torch.float64), full_matrices=False)
    given = u @ torch.diag(torch.logspace(-2.5, 0, 12, dtype=torch.float64)) @ v
    for steps, error in ((5, 0.2), (8, 0.02)):
        found = torch.linalg.svdvals(orthogonal(given, steps, "polar_express"))
        assert (found - 1).abs().max() < error, steps
    jordan = torch.linalg.svdvals(orthogonal(given, 8, "newton_schulz"))
    assert (jordan - 1).abs().max() > 0.1


def test_update_factors_and_their_former_names() -> None:
    wide, tall = (4, 16), (16, 4)
    assert [update_factor(*wide, "shape"), update_factor(*tall, "shape")] == [1, 2]
    assert [update_factor(*wide, "spectral"), update_factor(*tall, "spectral")] == [0.5, 2]
    assert update_factor(*wide, "match_adam") == update_factor(*tall, "match_adam") == 0.8
    with pytest.warns(DeprecationWarning, match="'original' is now called 'shape'"):
        config = load_config(
            {
                "optimizer": {
                    "type": "muon",
                    "lr": 0.1,
                    "adjust": "original",
                    "rest": {"type": "adamw", "lr": 0.1},
                }
            }
        )
    assert config.optimizer == MuonConfig(lr=0.1, adjust="shape", rest=AdamWConfig(lr=0.1))


def test_heads_need_a_model_that_has_some() -> None:
    with pytest.raises(ConfigError, match="split_heads has no effect"):
        build_optimizer(build_model("resnet", **TINY["resnet"]), "muon", lr=0.1, split_heads=True)


def test_cautious_muon_is_the_authors_mask() -> None:
    """The mask multiplies the averaged gradient, before Newton-Schulz: written out for one matrix."""
    g = [torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    p = nn.Parameter(torch.zeros(5, 4, dtype=torch.float64))
    optimizer, m, expected = (
        Muon([p], lr=0.1, cautious=True, adjust="shape", dtype=torch.float64),
        torch.zeros(5, 4),
        torch.zeros(5, 4),
    )
    for grad in g:
        p.grad = grad.clone()
        optimizer.step()
        m = 0.95 * m + 0.05 * grad
        mask = (m * grad > 0).double()
        u = (0.05 * grad + 0.95 * m) * mask / mask.mean()
        expected = expected - 0.1 * (5 / 4) ** 0.5 * orthogonal(u, 5)
    torch.testing.assert_close(p.detach(), expected, rtol=0, atol=1e-12)
