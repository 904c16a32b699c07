"""Transfer rules: the identity at the base size, their papers' tables, and what they refuse."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import assert_same, tiny_fields
from torch import nn

from zoo import build_model, build_optimizer, load_model, save_model
from zoo.init.transfer import NoTransfer
from zoo.models import Model
from zoo.nn.scaling import Scaling
from zoo.run.config import load_config
from zoo.run.explanation import explain
from zoo.run.first_weights import initial_model
from zoo.spec import declared
from zoo.train.run import train
from zoo.utils.errors import ConfigError

WIDTHS = {"embed": 16, "heads": 16, "kv_heads": 16, "mlp": 64}
BASE = {"mup": WIDTHS, "spectral": WIDTHS, "completep": WIDTHS | {"layers": 2}}
BASE["nugpt"] = {"embed": 16, "layers": 2}
RULES = ["mup", "completep", "spectral"]
SPECTRAL = {"type": "muon", "adjust": "shape", "lr": 0.02, "rest": {"type": "adamw", "lr": 1e-3}}


def config(rule: str, width: int, layers: int, **fields: Any) -> Any:
    kind = "ngpt" if rule == "nugpt" else "gpt"
    model = {"type": kind, "vocab_size": 31, "d_model": width, "n_layers": layers, "n_heads": width // 8}
    optimizer = SPECTRAL if rule == "spectral" else {"type": "adamw", "lr": 1e-2}
    settings = {"model": model, "optimizer": optimizer, "transfer": {"type": rule, "base": BASE[rule]}}
    return load_config(settings | fields)


def trained(settings: Any, steps: int = 3) -> Model:
    model = initial_model(settings).model
    optimizer = build_optimizer(model, settings.optimizer, transfer=settings.transfer, steps=steps)
    batch = torch.randint(31, (4, 9), generator=torch.Generator().manual_seed(0))
    for _ in range(steps):
        model.loss(batch[:, :-1], batch[:, 1:]).total.backward()  # type: ignore[no-untyped-call]  # torch
        optimizer.step()
        optimizer.zero_grad()
    return model


@pytest.mark.parametrize(
    ("rule", "reparam"),
    [*((rule, reparam) for rule in RULES for reparam in ("none", "wesar")), ("nugpt", "none")],
)
def test_at_the_base_size_nothing_changes(rule: str, reparam: str) -> None:
    """Bit for bit: starts, three steps, decay."""
    with_rule = config(rule, 16, 2, reparam=reparam)
    without = config(rule, 16, 2, reparam=reparam, transfer="none")
    expected = trained(without).state_dict()
    for name, tensor in trained(with_rule).state_dict().items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize(
    ("model", "rule", "base"),
    [("t5", "completep", BASE["completep"]), ("ngpt-t5", "nugpt", BASE["nugpt"])],
)
def test_the_depth_of_an_encoder_decoder_is_that_of_its_encoder(
    model: str, rule: str, base: dict[str, int]
) -> None:
    sizes = {"type": model, "vocab_size": 31, "d_model": 16, "n_layers": 2, "n_heads": 2, "d_mlp": 64}
    given = {"model": sizes, "optimizer": {"type": "adamw", "lr": 1e-2}}
    ruled = load_config(given | {"transfer": {"type": rule, "base": base}})
    rows = explain(ruled).rows
    assert {row.lr for row in rows} == {1.0}
    plain = initial_model(load_config(given)).model.state_dict()
    for name, tensor in initial_model(ruled).model.state_dict().items():
        assert torch.equal(tensor, plain[name]), name


@pytest.mark.parametrize(("rule", "factors"), [("mup", [1.0, 0.5]), ("spectral", [1.0, 1.0])])
def test_the_width_of_all_heads_is_not_their_number(rule: str, factors: list[float]) -> None:
    """With qk_norm: unit, whose s_qk has an entry for each head, rates of all matrices are the rule's."""
    for width, factor in zip((16, 32), factors, strict=True):
        model = {"type": "gpt", "vocab_size": 31, "d_model": width, "n_layers": 2, "n_heads": width // 8}
        given = config(rule, width, 2, model=model | {"attention": {"qk_norm": "unit"}})
        rows = {row.name: row.lr for row in explain(given).rows}
        found = [rows[f"blocks.0.attention.{name}.weight"] for name in "qkvo"]
        assert found == pytest.approx([factor] * 4)


HALF = 2**-0.5
Q, OUT, DOWN, NORM = "attention.q.weight", "attention.o.weight", "mlp.down.weight", "mlp_residual.norm.scale"
TABLE: list[tuple[str, dict[str, Any], str, tuple[float, float, float, float]]] = [
    # at twice the width and four times the layers: start, lr, weight decay, eps
    ("mup", {}, "embedding.weight", (1, 1, 1, 1)),
    ("mup", {}, f"blocks.0.{Q}", (HALF, 1 / 2, 2, 1)),
    ("mup", {}, f"blocks.7.{OUT}", (HALF / 2, 1 / 2, 2, 1)),
    ("mup", {}, "norm.scale", (1, 1, 1, 1)),
    ("mup", {}, "read_out.matrix.weight", (1 / 2, 1 / 2, 2, 2)),
    ("mup", {"wd_transfer": "constant"}, f"blocks.0.{Q}", (HALF, 1 / 2, 1, 1)),
    ("mup", {"wd_transfer": "sqrt"}, f"blocks.0.{Q}", (HALF, 1 / 2, 2**0.5, 1)),
    ("mup", {"wd_transfer": "sqrt"}, "embedding.weight", (1, 1, 1, 1)),
    ("mup", {"wd_transfer": "sqrt"}, "read_out.matrix.weight", (1 / 2, 1 / 2, 2, 2)),
    ("mup", {"wd_transfer": "inverse_width"}, f"blocks.0.{Q}", (HALF, 1 / 2, 1, 1)),
    ("mup", {"base": WIDTHS | {"steps": 10}, "horizon": -0.5}, "norm.scale", (1, 0.5, 1, 1)),
    ("mup", {"base": WIDTHS | {"steps": 10}, "horizon": -0.5}, f"blocks.0.{Q}", (HALF, 1 / 4, 2, 1)),
    (
        "mup",  # lr times wd is constant over the horizon as well
        {"base": WIDTHS | {"steps": 10}, "horizon": -0.5, "wd_transfer": "independent"},
        f"blocks.0.{Q}",
        (HALF, 1 / 4, 4, 1),
    ),
    ("completep", {}, "embedding.weight", (1, 1, 1, 1 / 2)),
    ("completep", {}, f"blocks.3.{Q}", (HALF, 1 / 2, 2, 1 / 8)),
    ("completep", {}, f"blocks.3.{DOWN}", (HALF / 4, 1 / 8, 8, 1 / 2)),
    ("completep", {}, f"blocks.3.{NORM}", (1, 1, 1, 1 / 8)),
    ("completep", {}, "norm.scale", (1, 1, 1, 1 / 2)),
    ("completep", {}, "read_out.matrix.weight", (1 / 2, 1 / 2, 2, 1)),
    ("completep", {"alpha": 0.5}, f"blocks.3.{Q}", (HALF, 1 / 4, 2, 1 / 4)),
    ("completep", {"alpha": 0.5}, f"blocks.3.{NORM}", (1, 1 / 2, 1, 1 / 4)),
    ("spectral", {}, f"blocks.3.{Q}", (HALF, 1, 1 / 2, 1)),
    ("spectral", {}, "embedding.weight", (1, 1, 1, 1)),
    ("spectral", {}, "read_out.matrix.weight", (1 / 2, 1 / 2, 2, 2)),
]


@functools.cache
def built(rule: str, settings: str, layers: int, width: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `explain` says of each parameter, and its group in the built optimizer."""
    optimizer: Any = {"type": "adamw", "lr": 1e-3, "weight_decay": 0.1}
    if rule == "spectral":
        optimizer = SPECTRAL | {"weight_decay": 0.1, "rest": optimizer}
    transfer = {"type": rule, "base": BASE[rule], **json.loads(settings)}
    given = config(rule, width, layers, init="gpt2", optimizer=optimizer, transfer=transfer)
    model = initial_model(given).model
    steps = {2: 10, 8: 40}[layers]
    made = build_optimizer(model, given.optimizer, transfer=given.transfer, steps=steps)
    names = {p.parameter: p.name for p in declared(model)}
    groups = {names[p]: group for group in made.param_groups for p in group["params"]}
    return {row.name: row for row in explain(given).rows}, groups


@pytest.mark.parametrize(("rule", "settings", "name", "expected"), TABLE)
def test_the_tables(rule: str, settings: Any, name: str, expected: tuple[float, ...]) -> None:
    """The papers' tables, by hand; a factor behind a matrix is in its start, rate, decay and eps."""
    small, before = built(rule, json.dumps(settings), 2, 16)
    large, after = built(rule, json.dumps(settings), 8, 32)
    block = re.sub(r"blocks\.\d", "blocks.1", name)
    found = [(large[name].sigma or 1) / (small[block].sigma or 1)]
    keys = ("lr", "weight_decay", "eps")
    found += [after[name].get(key, 1) / (before[block].get(key, 1) or 1) for key in keys]
    if not before[block]["weight_decay"]:
        expected = (*expected[:2], 0, expected[3])
    assert found == pytest.approx(list(expected))


def test_eps_of_the_cautious_form() -> None:
    """CompleteP's eps at twice the width and twice the layers, by hand, whichever form of AdamW trains."""
    optimizer = {"type": "adamw", "lr": 1e-2, "eps": 1e-8, "cautious": True}
    settings = config("completep", 32, 4, optimizer=optimizer)
    model = initial_model(settings).model
    made = build_optimizer(model, settings.optimizer, transfer=settings.transfer)
    eps = {p: group["eps"] for group in made.param_groups for p in group["params"]}
    expected = {
        "embedding.weight": 5e-9,
        f"blocks.3.{Q}": 2.5e-9,
        f"blocks.3.{DOWN}": 5e-9,  # with the factor 1/2 behind the branch
        "read_out.matrix.weight": 1e-8,  # with the factor 1/2 behind it
    }
    assert {name: eps[model.get_parameter(name)] for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize("adjust", ["shape", "spectral"])
def test_an_orthogonal_update_grows_by_the_spectral_condition(adjust: str) -> None:
    """Its spectral norm, measured, where the width doubles and the hidden layer of the MLP does not."""
    base, updates = WIDTHS | {"mlp": 64}, {}
    muon = SPECTRAL | {"adjust": adjust, "coefficients": "polar_express", "ns_steps": 12, "weight_decay": 0.1}
    for width in (16, 32):
        model = {
            "type": "gpt",
            "vocab_size": 31,
            "d_model": width,
            "n_layers": 1,
            "n_heads": width // 8,
            "d_mlp": 64,
        }
        given = config(
            "spectral", width, 1, model=model, optimizer=muon, transfer={"type": "spectral", "base": base}
        )
        net = initial_model(given).model
        made = build_optimizer(net, given.optimizer, transfer=given.transfer)
        decays = {p: g["lr"] * g["weight_decay"] for g in made.param_groups for p in g["params"]}
        for name, p in net.named_parameters():
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(0))
            updates[name, width] = p.detach().clone(), decays[p]
        made.step()
        for name, p in net.named_parameters():
            before, decay = updates[name, width]
            updates[name, width] = (p.detach() - (1 - decay) * before, decay)
    for name, outputs, inputs in ((Q, 2, 2), (OUT, 2, 2), ("mlp.u.weight", 1, 2), (DOWN, 2, 1)):
        (small, decay_before), (large, decay_after) = (
            updates[f"blocks.0.{name}", width] for width in (16, 32)
        )
        grown = torch.linalg.matrix_norm(large, 2) / torch.linalg.matrix_norm(small, 2)
        assert grown.item() == pytest.approx((outputs / inputs) ** 0.5, rel=0.02), name  # bfloat16
        assert decay_after / decay_before == pytest.approx(1 / inputs), name


TIED = {"type": "gpt2", "vocab_size": 31, "d_model": 32, "n_layers": 2, "n_heads": 4}


@pytest.mark.parametrize("reparam", ["none", "wesar"])
def test_a_tied_table_at_the_base_size(reparam: str) -> None:
    """No factor is attached, and three steps are the same bit for bit."""
    tied = config("mup", 16, 2, model=TIED | {"d_model": 16, "n_heads": 2}, reparam=reparam, init="small")
    expected = trained(tied.model_copy(update={"transfer": NoTransfer()})).state_dict()
    for name, tensor in trained(tied).state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def train_alike(*sides: tuple[nn.Module, Any], steps: int) -> None:
    """Train two models, each by its optimizer, on the same tokens: their losses are equal to 1e-9."""
    batch = torch.randint(31, (4, 9), generator=torch.Generator().manual_seed(0))
    for _ in range(steps):
        losses = []
        for net, mover in sides:
            loss = nn.functional.cross_entropy(net(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
            loss.backward()  # type: ignore[no-untyped-call]  # torch
            mover.step()
            mover.zero_grad()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(losses[1], abs=1e-9)


@pytest.mark.parametrize("init", ["gpt2", "small"])
def test_a_tied_table_is_an_embedding_whose_logits_have_a_factor(init: str) -> None:
    """MuSharedReadout by hand: a hook halves the logits of the plain model, the table has the plain rate."""
    settings = config("mup", 32, 2, model=TIED, init=init)
    model = initial_model(settings).model.double()
    optimizer = build_optimizer(model, settings.optimizer, transfer=settings.transfer)
    # The scheme's factors on looked-up vectors are those of the base size.
    narrow = initial_model(config("mup", 16, 2, model=TIED | {"d_model": 16, "n_heads": 2}, init=init)).model
    plain = load_config({"model": TIED, "init": init})
    behind = initial_model(plain).model.double()
    for p in declared(narrow):
        owner: Any = behind.get_submodule(p.name.rpartition(".")[0])
        owner.reparameterised.update(p.module.reparameterised)
    behind.load_state_dict(model.state_dict())
    head: Any = behind.get_submodule("lm_head")
    head.register_forward_hook(lambda _module, _inputs, output: output / 2)
    groups = []
    for p in declared(behind):
        hidden = p.spec.role == "linear"
        groups.append({"params": [p.parameter], "lr": 1e-2 / (2 if hidden else 1)})
    by_hand = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0)
    train_alike((model, optimizer), (behind, by_hand), steps=3)


WIDE = {"embed": 32, "heads": 32, "kv_heads": 32, "mlp": 128}


def sized(kind: str, width: int, base: dict[str, int], init: str = "gpt2", **fields: Any) -> Any:
    """A model with muP, its settings, and one step of Adam by gradients that are the same at every width."""
    if kind != "lstm":
        fields |= {"n_layers": 1, "n_heads": width // 16}
    settings: Any = load_config(
        {
            "model": {"type": kind, "vocab_size": 500, "d_model": width, **fields},
            "init": init,
            "optimizer": {"type": "adamw", "lr": 1e-2},
            "transfer": {"type": "mup", "base": base},
        }
    )
    return initial_model(settings).model, settings


@pytest.mark.parametrize("init", ["gpt2", "he", "amos"])
@pytest.mark.parametrize("tied", [False, True])
@torch.no_grad()
def test_scaled_embeddings_start_and_move_alike_at_every_width(tied: bool, init: str) -> None:
    """sqrt(d) behind a table is a constant that grows, by which muP's table must not."""
    found = []
    for width in (32, 512):
        model, settings = sized("gpt", width, WIDE, init, scaled_embedding=True, tied=tied)
        optimizer = build_optimizer(model, settings.optimizer, transfer=settings.transfer)
        tokens = torch.arange(500)[None]
        before = model.embed(tokens, None).clone()
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
        moved = (model.embed(tokens, None) - before).abs().mean().item()
        logits = model.lm_head(torch.ones(1, 1, width)).std().item() * (width / 32) ** 0.5
        found.append((before.std().item(), moved, logits))
    assert found[1][:2] == pytest.approx(found[0][:2], rel=0.05)
    if init == "he":  # which scales the vectors, so that the stream starts with 1
        assert found[1][0] == pytest.approx(1.0, rel=0.02)
    if tied:  # of inputs without alignment, times 1/m; the sum has sqrt(m) times the standard deviation
        assert found[1][2] == pytest.approx(found[0][2], rel=0.1)


def test_s_qk_moves_alike_at_every_width() -> None:
    """Its trained value starts at d^(-1/2), which the layer divides it by; Adam's first step is the rate."""
    found = []
    for width in (32, 512):
        model, settings = sized("gpt", width, WIDE, attention={"qk_norm": "unit"})
        optimizer = build_optimizer(model, settings.optimizer, transfer=settings.transfer)
        s_qk = next(m for m in model.modules() if isinstance(m, Scaling))
        before = torch.as_tensor(s_qk()).detach()
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
        found.append((s_qk() - before).abs().mean().item())
    assert found[0] == pytest.approx(1e-2 * 32**0.5, rel=1e-4)
    assert found[1] == pytest.approx(found[0], rel=1e-4)


@pytest.mark.parametrize("init", ["t5", "amos"])
@torch.no_grad()
def test_the_first_t5_has_mups_factor_behind_its_read_out(init: str) -> None:
    """1/sqrt(d) is there already: together 1/m, with a table that starts alike at every width."""
    factors, tables, looked_up = [], [], []
    for width in (32, 512):
        model, _ = sized("t5", width, WIDE, init, tied=True, mlp="relu")
        head = model.read_out
        ones = torch.ones(1, width)
        trained = head.projection.weight
        factors.append((head(ones) / (ones @ trained.T)).mean().item())
        tables.append(trained.std().item())
        looked_up.append(model.embedding(torch.arange(500)).std().item())
    assert factors[1] / factors[0] == pytest.approx(1 / 16, rel=1e-5)
    assert tables[1] == pytest.approx(tables[0], rel=0.05)
    assert looked_up[1] == pytest.approx(looked_up[0], rel=0.05)


@pytest.mark.parametrize("tied", [False, True])
def test_an_lstm_has_mups_kernel(tied: bool) -> None:
    """Its ranges are d^(-1/4); the matrices follow m^(-1/2), the tables none, the read-out 1/m."""
    base = {"embed": 32, "inputs": 64, "gates": 512, "memory": 128}
    starts = []
    for width in (32, 512):
        model, _ = sized("lstm", width, base, "amos", d_memory=4 * width, tied=tied)
        starts.append({name: p.std().item() for name, p in model.named_parameters() if p.dim() > 1})
    expected = {"embedding.weight": 1.0, "lstm.weight": 1 / 4, "lstm.projection": 1 / 4}
    expected |= {} if tied else {"read_out.matrix.weight": 1 / 16}
    found = {name: std / starts[0][name] for name, std in starts[1].items()}
    assert found == pytest.approx(expected, rel=0.05)


def test_rules_and_models_from_checkpoints(tmp_path: Path) -> None:
    """The factor on the logits is in the checkpoint; one without it is refused, as is a sphere."""
    settings = config("mup", 32, 2, model=TIED)
    model = initial_model(settings).model
    save_model(model, tmp_path / "rule")
    loaded = load_model(tmp_path / "rule")
    batch = torch.randint(31, (2, 9), generator=torch.Generator().manual_seed(0))
    assert torch.equal(loaded(batch), model(batch))
    goes_on = config("mup", 32, 2, model={"from": str(tmp_path / "rule")})
    assert explain(goes_on).rows[0].lr == 1
    save_model(initial_model(load_config({"model": TIED})).model, tmp_path / "plain")
    with pytest.raises(ConfigError, match=r"times 0\.5, and the checkpoint has them times 1"):
        explain(config("mup", 32, 2, model={"from": str(tmp_path / "plain")}))
    save_model(initial_model(load_config({"model": TIED | {"type": "ngpt"}})).model, tmp_path / "sphere")
    with pytest.raises(ConfigError, match="mup is about models without matrices on a sphere"):
        explain(config("mup", 32, 2, model={"from": str(tmp_path / "sphere")}))


def test_explain_builds_the_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Any] = []
    kind: Any = type(config("mup", 32, 2).model)
    make = kind.build

    def counted(model: Any) -> Model:
        built.append(model)
        return make(model)  # type: ignore[no-any-return]

    monkeypatch.setattr(kind, "build", counted)
    explain(config("mup", 32, 2))
    assert len(built) == 1


def test_factors_are_those_of_a_factor_behind_the_module() -> None:
    """CompleteP trains as GPT-2 with 1/m behind its read-out and 1/L behind each branch, biases included."""
    sizes = {"type": "gpt2", "vocab_size": 31, "d_model": 32, "n_layers": 4, "n_heads": 4, "tied": False}
    rule = {"type": "completep", "base": BASE["completep"]}
    settings: Any = {"model": sizes, "optimizer": {"type": "adamw", "lr": 1e-2}, "transfer": rule}
    settings = load_config(settings)
    model = initial_model(settings).model.double()
    optimizer = build_optimizer(model, settings.optimizer, transfer=settings.transfer)
    plain = load_config({"model": sizes, "optimizer": {"type": "adamw", "lr": 1e-2}})
    behind = initial_model(plain).model.double()
    behind.load_state_dict(model.state_dict())
    halve: Any = lambda _module, _inputs, output: output / 2  # noqa: E731
    head: Any = behind.lm_head
    head.register_forward_hook(halve)
    groups = []
    for p in declared(behind):
        hidden = p.spec.role == "linear" and "vocab" not in p.spec.axes
        ends, readout = p.spec.residual_branches > 1, "vocab" in p.spec.axes and p.spec.role == "linear"
        if ends or readout:
            p.parameter.data *= 2
        if ends and p.local == "weight":
            p.module.register_forward_hook(halve)
        eps = 1e-8 / 2 / (2 if 1 <= p.depth <= 4 else 1)
        groups.append({"params": [p.parameter], "lr": 1e-2 / (2 if hidden else 1), "eps": eps})
    by_hand = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0)
    train_alike((model, optimizer), (behind, by_hand), steps=5)


def test_a_fixed_scaling_has_no_trained_value_under_nugpt() -> None:
    """Only its constant follows the rule; the configuration that a checkpoint records can be read again."""
    sphere = {"type": "ngpt", "vocab_size": 31, "d_model": 32, "n_layers": 2, "n_heads": 4}
    settings = config("nugpt", 32, 2, model=sphere | {"s_z": {"kind": "fixed", "init": 3.0}})
    recorded: Any = initial_model(settings).model.recipe.model
    assert (recorded.s_z.init, recorded.s_z.scale) == (pytest.approx(3 * 2**0.5), None)
    assert type(recorded).model_validate(recorded.model_dump()) == recorded


def test_nugpt() -> None:
    """Section 3.1: rates of each kind, starts of the scalings, the horizon of -1/3."""
    large = config(
        "nugpt", 32, 8, transfer={"type": "nugpt", "base": {"embed": 16, "layers": 2, "steps": 10}}
    )
    model = initial_model(large).model
    optimizer = build_optimizer(model, large.optimizer, transfer=large.transfer, steps=80)
    names = {p.parameter: p.name for p in declared(model)}
    rates = {names[p]: group["lr"] / 1e-2 for group in optimizer.param_groups for p in group["params"]}
    horizon = (80 / 10) ** (-1 / 3)
    assert rates["embedding.weight"] == pytest.approx(2**-0.5 * horizon)
    assert rates["blocks.5.mlp.down.weight"] == pytest.approx(2**-0.75 * horizon)
    assert rates["read_out.matrix.weight"] == pytest.approx(2**-0.75 * horizon)
    assert rates["read_out.s_z.scale"] == pytest.approx(horizon)
    scalings = {n: m for n, m in model.named_modules() if type(m).__name__ == "Scaling"}
    alpha, s_qk = scalings["blocks.0.mlp_residual.alpha"], scalings["blocks.0.attention.qk.s_qk"]
    for scaling, start in ((alpha, 0.05 / 4), (s_qk, 1.0), (scalings["read_out.s_z"], 2**0.5)):
        assert scaling.scale.unique().tolist() == pytest.approx([0.25])
        assert scaling().unique().tolist() == pytest.approx([start])


def test_nugpt_of_a_classifier_is_that_of_its_trunk() -> None:
    """The scalings start as in the language model of the same sizes; s_z of the head as of the read-out."""
    rule: Any = {"transfer": {"type": "nugpt", "base": {"embed": 16, "layers": 2}}}
    language = config("nugpt", 32, 4, **rule)
    trunk = {"type": "ngpt", "vocab_size": 31, "d_model": 32, "n_layers": 4, "n_heads": 4}
    classifier = config("nugpt", 32, 4, model={"type": "classifier", "trunk": trunk, "classes": 3}, **rule)

    def starts(settings: Any) -> dict[str, list[set[float]]]:
        found = {}
        for name, scaling in initial_model(settings).model.named_modules():
            if isinstance(scaling, Scaling):
                values = (scaling.get_parameter("scale"), torch.as_tensor(scaling.forward()))
                name = name.removeprefix("trunk.").replace("head.", "read_out.")
                found[name] = [set(value.flatten().tolist()) for value in values]
        return found

    expected = starts(language)
    assert list(expected["blocks.3.mlp_residual.alpha"][1]) == pytest.approx([0.05 / 2])
    assert starts(classifier) == expected


@pytest.mark.parametrize(("alignment", "exponent"), [("full", 1.0), ("none", 0.5), (0.92, 0.92), (1, 1.0)])
def test_the_alignment_of_nugpt(alignment: str | float, exponent: float) -> None:
    """Rates of matrices go as m^-a; those of tables and scalings do not depend on a."""
    rule = {"type": "nugpt", "base": {"embed": 16, "layers": 2}, "alignment": alignment}
    large = config("nugpt", 64, 2, transfer=rule)
    model = initial_model(large).model
    optimizer = build_optimizer(model, large.optimizer, transfer=large.transfer, steps=1)
    names = {p.parameter: p.name for p in declared(model)}
    rates = {names[p]: group["lr"] / 1e-2 for group in optimizer.param_groups for p in group["params"]}
    assert rates["blocks.0.mlp.down.weight"] == pytest.approx(4**-exponent)
    assert rates["embedding.weight"] == pytest.approx(4**-0.5)
    assert rates["read_out.s_z.scale"] == pytest.approx(1.0)


@pytest.mark.parametrize("alignment", [0.49, 1.01, "half", True])
def test_an_alignment_that_is_none(alignment: object) -> None:
    """An exponent lies between that of random signs, 1/2, and that of one sign, 1."""
    rule = {"type": "nugpt", "base": {"embed": 16, "layers": 2}, "alignment": alignment}
    with pytest.raises(ConfigError, match=r"transfer\.alignment"):
        config("nugpt", 32, 2, transfer=rule)


def test_gates_carry_the_starts() -> None:
    """WeSaR: the matrix has one deviation at all sizes; its rate is over the start that its gate has."""
    small, large = (
        initial_model(config("mup", width, 2, init="gpt2", reparam="wesar")).model for width in (16, 32)
    )
    gates = [dict(net.named_parameters())[f"blocks.0.{Q}_gate"].item() for net in (small, large)]
    assert gates[1] / gates[0] == pytest.approx(HALF)
    settings = config("mup", 32, 2, init="gpt2", reparam="wesar")
    optimizer = build_optimizer(large, settings.optimizer, transfer=settings.transfer)
    names = {p.parameter: p.name for p in declared(large)}
    rates = {names[p]: group["lr"] / 1e-2 for group in optimizer.param_groups for p in group["params"]}
    assert rates[f"blocks.0.{Q}"] == pytest.approx(1 / 2 / HALF)
    assert rates[f"blocks.0.{Q}_gate"] == pytest.approx(HALF)


@pytest.mark.parametrize("rule", RULES)
def test_the_horizon_reaches_gates(rule: str) -> None:
    """Four times the steps, and the exponent -1/2: half of every rate, also those of WeSaR's gates."""
    transfer = {"type": rule, "base": BASE[rule] | {"steps": 10}, "horizon": -0.5}
    settings = config(rule, 32, 4, reparam="wesar", transfer=transfer)
    model = initial_model(settings).model
    names = {p.parameter: p.name for p in declared(model)}
    rates = []
    for steps in (10, 40):
        made = build_optimizer(model, settings.optimizer, transfer=settings.transfer, steps=steps)
        rates.append({names[p]: group["lr"] for group in made.param_groups for p in group["params"]})
    assert f"blocks.0.{Q}_gate" in rates[0]
    assert rates[1] == pytest.approx({name: rate / 2 for name, rate in rates[0].items()})


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"transfer": {"type": "mup"}}, r"transfer\.base: no embed"),
    ({"transfer": {"type": "mup", "base": {"embd": 16}}}, r"base\.embd: .* no axis .*; did you mean 'embed'"),
    (
        {"transfer": {"type": "mup", "base": {"embed": 16, "heads": 16, "mlp": 64}}},
        "kv_heads has no base size",
    ),
    (
        {
            "model": {"type": "bert", "vocab_size": 31, "d_model": 32, "n_layers": 2, "n_heads": 4},
            "transfer": {"type": "mup", "base": WIDTHS},
        },
        "a matrix transformed x embed grows, but transformed has no base size",
    ),
    (
        {
            "model": {"type": "lstm", "vocab_size": 31, "d_model": 32, "d_memory": 128},
            "transfer": {"type": "mup", "base": {"embed": 16, "memory": 64}},
        },
        "a matrix gates x inputs grows, but gates and inputs have no base sizes; expected the size of every",
    ),
    ({"transfer": {"type": "mup", "base": WIDTHS | {"hiden": 3}}}, r"base\.hiden: the model has no axis"),
    (
        {"transfer": {"type": "mup", "base": WIDTHS | {"heads": 2}}},  # the number of heads
        r"transfer\.base\.heads: value 2; expected a multiple of 8, the size of a head: heads is the",
    ),
    (
        {"transfer": {"type": "mup", "base": WIDTHS | {"kv_heads": 12}}},
        r"transfer\.base\.kv_heads: value 12; expected a multiple of 8",
    ),
    (
        {
            "model": {"type": "t5", "vocab_size": 31, "d_model": 32, "n_layers": 2, "n_heads": 4},
            "transfer": {"type": "completep", "base": WIDTHS | {"heads": 4, "layers": 2}},
        },
        r"transfer\.base\.heads: value 4; expected a multiple of 8",
    ),
    ({"transfer": {"type": "mup", "base": WIDTHS | {"layers": 2}}}, "says nothing of depth"),
    ({"transfer": {"type": "mup", "base": WIDTHS | {"steps": 2}}}, "have no effect without each other"),
    ({"transfer": {"type": "mup", "base": WIDTHS, "horizon": -0.3}}, "have no effect without each other"),
    (
        {"transfer": {"type": "mup", "base": WIDTHS | {"steps": 1}, "horizon": 1e308}},
        r"transfer\.horizon: value 1e\+308",
    ),
    ({"transfer": {"type": "mup", "base": WIDTHS | {"embed": 0}}}, r"transfer\.base\.embed: value 0"),
    (
        {"transfer": {"type": "mup", "base": WIDTHS | {"embed": 10**400}}},
        r"transfer\.base\.embed: value 10{20}",
    ),
    ({"transfer": {"type": "none", "base": WIDTHS}}, "`base` has no effect"),
    ({"transfer": {"type": "nugpt", "base": BASE["nugpt"]}}, "with matrices on the sphere"),
    ({"transfer": {"type": "completep", "base": WIDTHS}}, r"transfer\.base: no layers"),
    ({"optimizer": {"type": "amos", "lr": 0.01}}, "mup says nothing of the optimizer 'amos'"),
    ({"optimizer": SPECTRAL}, "mup says nothing of the optimizer 'muon'"),
    (
        {"optimizer": {"type": "adam", "lr": 0.01, "weight_decay": 0.1}},
        "says nothing of the optimizer 'adam'",
    ),
    ({"reparam": "weight_norm"}, "says nothing of reparam 'weight_norm'"),
    (
        {"optimizer": {"type": "adamw", "lr": 0.01, "weight_decay": 0.0}, "constraint": "hyperball"},
        r"mup says nothing of matrices whose norm is kept \(constraint\)",
    ),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_a_rule_says_nothing_of(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        explain(config("mup", 32, 2, **changes))


def test_models_of_which_rules_say_nothing() -> None:
    sphere = {"type": "ngpt", "vocab_size": 31, "d_model": 32, "n_layers": 2, "n_heads": 4}
    with pytest.raises(ConfigError, match="mup is about models without matrices on a sphere"):
        explain(config("mup", 32, 2, model=sphere))
    resnet = {"type": "resnet", "depth": 18, "classes": 10, "width": 8}
    for base in ({}, {"embed": 16}, {"width": 16}):
        with pytest.raises(ConfigError, match="mup follows the axis embed, which no parameter of the model"):
            explain(config("mup", 32, 2, model=resnet, transfer={"type": "mup", "base": base}))
    with pytest.raises(ConfigError, match="which are one tensor"):
        explain(config("nugpt", 32, 2, model=sphere | {"tied": True}))
    with pytest.raises(ConfigError, match="has no weight decay"):
        explain(config("nugpt", 32, 2, optimizer={"type": "adamw", "lr": 0.01, "weight_decay": 0.1}))
    with pytest.raises(ConfigError, match="expected numbers in the place of `auto`"):
        config("nugpt", 32, 2, model=sphere | {"alpha": {"init": "auto"}})
    with pytest.raises(ConfigError, match="completep says nothing of reparam 'residual'"):
        explain(config("completep", 32, 2, reparam="residual"))


@pytest.mark.parametrize("norms", ["after", "both"])
def test_completep_refuses_a_norm_behind_each_branch(norms: str) -> None:
    """The norm cancels the factor of the depth; muP, which has no such factor, covers the model."""
    model = {"type": "gpt", "vocab_size": 31, "d_model": 32, "n_layers": 2, "n_heads": 4, "norms": norms}
    explain(config("mup", 32, 2, model=model))
    with pytest.raises(ConfigError, match=r"'gpt' normalises the output of a branch next.*norms: before"):
        explain(config("completep", 32, 2, model=model))


@pytest.mark.parametrize("optimizer", [SPECTRAL, SPECTRAL | {"type": "normuon"}])
def test_the_spectral_rule_refuses_updates_of_single_heads(optimizer: dict[str, Any]) -> None:
    """The spectral norm of the whole update grows with the number of heads."""
    explain(config("spectral", 32, 2, optimizer=optimizer))
    with pytest.raises(ConfigError, match=r"spectral says nothing of .* whole matrices .*split_heads: false"):
        explain(config("spectral", 32, 2, optimizer=optimizer | {"split_heads": True}))


HORIZON = {"type": "horizon", "horizon": -0.5, "base": {"steps": 10}}


@pytest.mark.parametrize("optimizer", ["adamw", "amos", "muon", "adafactor", "soap"])
@pytest.mark.parametrize(
    ("model", "reparam"),
    [("gpt", "none"), ("gpt", "wesar"), ("gpt", "weight_norm"), ("t5", "none"), ("ngpt", "none")],
)
def test_the_horizon_covers_every_model_and_optimizer(model: str, reparam: str, optimizer: str) -> None:
    """Four times the steps: half of every rate, the same start and decay."""
    sizes = {"type": model, "vocab_size": 31, "d_model": 16, "n_layers": 2, "n_heads": 2}
    fields: dict[str, Any] = {"model": sizes, "reparam": reparam}
    fields["optimizer"] = {"type": optimizer, "lr": 1e-2}
    plain, ruled = settings = [load_config(fields | {"transfer": rule}) for rule in ("none", HORIZON)]
    models = [initial_model(each).model for each in settings]
    for name, tensor in models[1].state_dict().items():
        assert torch.equal(tensor, models[0].state_dict()[name]), name
    expected, halved, same = (
        build_optimizer(m, fields["optimizer"], transfer=each.transfer, steps=steps).param_groups
        for m, each, steps in ((models[0], plain, 40), (models[1], ruled, 40), (models[1], ruled, 10))
    )
    assert [group["lr"] for group in halved] == [group["lr"] / 2 for group in expected]
    assert [group["lr"] for group in same] == [group["lr"] for group in expected]
    decays = [[group.get("weight_decay") for group in groups] for groups in (expected, halved)]
    assert decays[0] == decays[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base": {}}, r"transfer\.base: no steps; expected its size at the base"),
        ({"base": {"steps": 10, "embed": 16}}, r"`base\.embed` has no effect: the rule is about steps alone"),
        ({"horizon": 0}, r"transfer\.horizon and transfer\.base\.steps have no effect without each other"),
        ({"horizon": None}, r"transfer\.horizon: value null"),
        ({"wd_transfer": "sqrt"}, r"transfer\.wd_transfer: value 'sqrt'"),
    ],
)
def test_settings_of_a_horizon_without_effect(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        explain(config("mup", 32, 2, transfer=HORIZON | changes))


def test_every_parameter_of_mars_gets_the_factor_once() -> None:
    """Its groups share their decays: with lr wd constant and rates of a half, both decays are doubled."""
    transfer = load_config({"transfer": HORIZON | {"wd_transfer": "independent"}}).transfer
    model = build_model("gpt", vocab_size=11, n_layers=2, n_heads=4, d_model=32)
    mars = build_optimizer(model, "mars", lr=0.01, weight_decay=0.1, transfer=transfer, steps=40)
    assert {(g["weight_decay"], g["weight_decay_1d"]) for g in mars.param_groups} == {(0.2, 0.2)}


@pytest.mark.parametrize(
    ("model", "rule", "optimizer"),
    [
        ("ngpt-tiny", {"type": "nugpt", "base": {"embed": 16, "layers": 1}, "wd_transfer": "sqrt"}, "adam"),
        ("gpt-tiny", HORIZON | {"wd_transfer": "independent"}, "amos"),
        ("gpt-tiny", HORIZON | {"wd_transfer": "independent"}, "adam"),
    ],
)
def test_a_transfer_of_decays_that_there_are_not(model: str, rule: dict[str, Any], optimizer: str) -> None:
    with pytest.raises(ConfigError, match=r"wd_transfer.* has no effect"):
        explain(
            load_config({"extends": model, "optimizer": {"type": optimizer, "lr": 0.01}, "transfer": rule})
        )


def test_a_transfer_of_a_decay_of_zero_that_is_written() -> None:
    """It may be one of the values of a sweep."""
    optimizer = {"type": "adamw", "lr": 0.01, "weight_decay": 0}
    rule = HORIZON | {"wd_transfer": "independent"}
    explain(load_config({"extends": "gpt-tiny", "optimizer": optimizer, "transfer": rule}))


@pytest.mark.parametrize("rule", ["completep", "nugpt"])
def test_a_resumed_run_goes_on_with_the_rule(tmp_path: Path, rule: str) -> None:
    """Eight steps at once, and four and four, end with the same bytes."""
    settings = tiny_fields(tmp_path, steps=8, checkpoint_every=4, keep_last=2)
    settings["model"]["type"] = "ngpt" if rule == "nugpt" else "gpt"
    base = {"embed": 8, "layers": 1}
    if rule == "completep":
        base |= {"heads": 8, "kv_heads": 8, "mlp": 16}
    settings["transfer"] = {"type": rule, "base": base}
    whole = train(load_config(settings)).folder
    settings["name"] = "again"
    settings["train"]["runs_dir"] = str(tmp_path / "again")
    again = train(load_config(settings), until=4).folder
    train(load_config(str(again)), resume=True)
    assert_same(again, whole)
