"""Any class of torch optimizers: named by its path, checked, saved, resumed, or refused with a reason."""

from __future__ import annotations

import importlib
import io
import re
from collections import deque
from pathlib import Path
from typing import Any

import optimizer_table
import pytest
import torch
from command_line import zoo
from optimizer_table import MODELS, PAGE, classes, on_ranks, refused_row, served_row, train
from plugin_state import plugins_forgotten
from rich.console import Console
from tiny_runs import assert_same, kill, tiny_fields
from torch import Tensor
from torch.optim import Optimizer
from two_ranks import on_two_ranks

from zoo import OPTIMIZERS, Registry, build_model, build_optimizer, load_model
from zoo.checkpoint.safetensors import read_tensors, write_tensors
from zoo.config.yaml import dump_yaml
from zoo.optim.state import flatten, load_state_by_name, restore, snapshot, state_by_name, unflatten
from zoo.run.config import load_config
from zoo.run.explanation import explain
from zoo.train.distributed import World
from zoo.train.run import train as run
from zoo.utils.errors import CheckpointError, ConfigError

OURS = frozenset(OPTIMIZERS)
"""The optimizers of zoo, read before a test adds the class of another package."""

SIZES: dict[str, Any] = {"vocab_size": 11, "d_model": 8, "n_layers": 1, "n_heads": 2, "d_mlp": 6}

LION = '''
import torch

class Lion(torch.optim.Optimizer):
    """Lion: the sign of an interpolated momentum."""

    def __init__(self, params, lr=1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is not None:
                    m = self.state[p].setdefault("momentum", torch.zeros_like(p))
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.sub_(m.lerp(p.grad, 1 - beta1).sign(), alpha=group["lr"])
                    m.lerp_(p.grad, 1 - beta2)
'''


pytestmark = pytest.mark.usefixtures("without_plugins")


# ---- by path, in a YAML file


def project(folder: Path, optimizer: Any, source: str = LION, **changes: Any) -> Path:
    """`my_opt.py` and a configuration beside it, in which `optimizer` stands in a line of its own."""
    (folder / "my_opt.py").write_text(source, encoding="utf-8")
    fields = tiny_fields(folder, steps=6, checkpoint_every=2, eval_every=3) | changes
    fields["optimizer"] = optimizer
    file = folder / "mine.yaml"
    file.write_text(dump_yaml(fields), encoding="utf-8")
    return file


NADAM = {"type": "torch.optim.NAdam", "lr": 0.01, "weight_decay": 0.1}
MINE = {"type": "my_opt.py:Lion", "lr": 0.001, "betas": [0.9, 0.98]}


@pytest.mark.parametrize("optimizer", [NADAM, MINE], ids=["torch", "file"])
def test_a_run_that_was_killed_goes_on_bit_for_bit(tmp_path: Path, optimizer: dict[str, Any]) -> None:
    """nGPT: the projection follows the steps of these optimizers as well."""
    file = project(tmp_path, optimizer, model={**tiny_fields(tmp_path)["model"], "type": "ngpt"})
    zoo("train", file, "name=whole")
    source = str(tmp_path / "my_opt.py:Lion") if optimizer is MINE else optimizer["type"]
    fields = load_config(file, ["name=killed"]).model_dump(mode="json")
    fields |= {"plugins": [], "optimizer": fields["optimizer"] | {"type": source}}
    kill(fields, "step", "global_norm", call=4)
    zoo("train", file, "name=killed", "--resume")
    assert_same(tmp_path / "runs/whole", tmp_path / "runs/killed")
    config = load_config(file)
    assert config.optimizer is not None
    assert config.optimizer.type == optimizer["type"]  # type: ignore[attr-defined]
    names = [plugin.name for plugin in config.plugins]
    assert names == (["my_opt.py"] if optimizer is MINE else [])


BAD: list[tuple[Any, str, str]] = [
    ("my_opt.py:NoOptimizer", "\nclass NoOptimizer: pass", r"NoOptimizer \(\S+my_opt\.py:2\): it is no subclass of torch"),
    ("my_opt.py:Lio", LION, r"no class called 'Lio'; did you mean 'Lion'\?"),
    ("my_opt.py", LION, r"'my_opt\.py': expected the path of a class, my_file\.py:Name or package\.module\.Name"),
    ("my_op.py:Lion", LION, r"my_op\.py: No such file or directory; did you mean '\S+my_opt\.py'"),
    ("my_opt.py:Lion", "import nowhere_to_be_found", r"my_opt\.py:1: the plugin cannot be imported: ModuleNot"),
    ("torch.optm.NAdam", LION, r"'torch\.optm': there is no such file, nor a module of that name"),
    ("torch.optim.NAdm", LION, r"no class called 'NAdm'; did you mean 'NAdam'\?"),
    ("torch.optim.Optimizer", LION, r"it is no subclass of torch\.optim\.Optimizer"),
    ("torch.optim.LBFGS", LION, r"torch\.optim\.LBFGS: it needs a closure that evaluates the loss again"),
    ("pytorch_optimizer.SAM", LION, r"SAM: it needs a closure that evaluates the loss again"),
    ("pytorch_optimizer.AliG", LION, r"AliG: its constructor takes no `lr`, which the schedule sets"),
    ("pytorch_optimizer.AdaHessian", LION, r"AdaHessian: it needs a second backward pass"),
    ("pytorch_optimizer.Lookahead", LION, r"its constructor takes `optimizer`, expected the parameters to"),
    ("pytorch_optimizer.Conda", LION, r"its state cannot be saved: \S+ is a GaLoreProjector, which cannot"),
    ("pytorch_optimizer.ASGD", LION, r"ASGD: it changes the learning rate of its groups, which the schedule"),
    ("torch.optim.SparseAdam", LION, r"a step raises RuntimeError: SparseAdam does not support dense grad"),
    ({"type": "my_opt.py:Lion", "lr": 1.0, "momentun": 0.9}, LION, r"\.momentun: unknown key; known: betas, lr, "),
    ({"type": "torch.optim.NAdam", "lr": 1.0, "beta": [0, 0]}, LION, r"\.beta: unknown key; did you mean 'betas'"),
    ({"type": "torch.optim.Adagrad"}, LION, r"optimizer\.lr: missing; expected: learning rate"),
    ({"type": "my_opt.py:Lion", "lr": 1.0, "betas": "x"}, LION, r"\.betas: value 'x': expected a list"),
    ({"type": "my_opt.py:Lion", "lr": 1.0, "betas": [0.9]}, LION, r"\.betas\.1: missing"),
    (
        {"type": "torch.optim.NAdam", "lr": 1.0, "betas": [2.0, 0.9]},
        LION,
        r"optimizer: torch\.optim\.NAdam: the constructor raises ValueError: Invalid beta parameter at index 0",
    ),
    (
        {"type": "pytorch_optimizer.MSVAG", "lr": 1.0, "weight_decay": 0.1},
        LION,
        r"optimizer\.weight_decay: unknown key; known: beta, foreach, lr, maximize, type",
    ),
    (
        {"type": "my_opt.py:Lion", "lr": 1.0},
        LION.replace("closure=None):", "closure=None):\n        self.no_such_attribute"),
        r"a step raises AttributeError: .*no_such_attribute' \(\S+my_opt\.py:12\)",
    ),
    (
        {"type": "my_opt.py:Lion", "lr": 1.0},
        LION.replace('"momentum", ', "object(), "),
        r"my_opt\.py:Lion: .*object, which cannot be saved",
    ),
    (
        {"type": "my_opt.py:Lion", "lr": 1.0},
        LION.replace("closure=None):", "closure=None):\n        self.n = [*getattr(self, 'n', ()), object()]").replace("alpha=group", "alpha=len(self.n) * group"),
        r"a step depends on more than its state and its groups: it cannot be resumed",
    ),
    (
        {"type": "my_opt.py:Lion", "lr": 1.0},
        LION.replace("betas: tuple", "model_size, betas: tuple").replace("lr=1e-4, model_size", "model_size, lr=1e-4"),
        r"optimizer\.model_size: missing; expected: argument model_size",
    ),
    ("my_opt.py:Lion", LION.replace("params, lr", "named_parameters, lr"), r"Lion \(\S+my_opt\.py:4\): its constructor takes `named_parameters`, pairs of a name"),
    ("my_opt.py:Lion", LION.replace('alpha=group["lr"]', "alpha=0.001"), r"my_opt\.py:Lion: its step does not use the `lr` of its groups, which zoo sets"),
    (
        {"type": "my_opt.py:Lion", "lr": 0.01, "weight_decay": 0.1},
        LION.replace('group["weight_decay"]', "0.1"),
        r"my_opt\.py:Lion: its step does not use the `weight_decay` of its groups, which zoo sets",
    ),
    ("my_opt.py:Lion", LION + "\n    def update_hessian(self):\n        pass\n", r"my_opt\.py:Lion: its `update_hessian` has to be called between the steps"),
    ("pytorch_optimizer.AdaFactor", LION, r"AdaFactor: its step does not use the `lr` of its groups, which zoo sets"),
]  # fmt: skip


def test_a_required_argument_needs_no_annotation(tmp_path: Path) -> None:
    source = LION.replace("(self, params, lr=1e-4,", "(self, params, model_size, lr=1e-4,")
    assert source != LION
    config: Any = load_config(
        project(tmp_path, {"type": "my_opt.py:Lion", "lr": 1.0, "model_size": 3}, source)
    )
    assert config.optimizer.model_size == 3


def test_a_rule_for_the_decay_of_a_class_needs_the_decay(tmp_path: Path) -> None:
    """The class' own default, which hides behind `**settings`, would stay as it is."""
    source = "import torch\n\nclass Mine(torch.optim.AdamW):\n    def __init__(self, params, lr=1e-3, **settings):\n"
    source += "        super().__init__(params, lr=lr, **settings)\n"
    rule = {"type": "horizon", "horizon": -0.5, "base": {"steps": 3}, "wd_transfer": "independent"}
    optimizer = {"type": "my_opt.py:Mine", "lr": 0.01}
    with pytest.raises(ConfigError, match=r"wd_transfer: .*default of .* expected optimizer\.weight_decay"):
        explain(load_config(project(tmp_path, optimizer, source, transfer=rule)))
    explain(load_config(project(tmp_path, optimizer | {"weight_decay": 0.01}, source, transfer=rule)))


@pytest.mark.parametrize("command", ["train", "explain", "sweep"])
def test_a_step_without_the_rate_is_refused_before_anything_is_trained(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run folder of a version that served it can still be read."""
    optimizer = {"type": "my_opt.py:Lion", "lr": 0.01}
    file = project(tmp_path, optimizer, LION.replace('alpha=group["lr"]', "alpha=0.001"))
    assert load_config(file).optimizer is not None
    if command == "sweep":
        sweep = tmp_path / "sweep.yaml"
        axes = {"optimizer.weight_decay": [0.0, 0.1]}
        sweep.write_text(dump_yaml({"base": "mine.yaml", "axes": axes, "out": str(tmp_path / "sweeps")}))
        file = sweep
    zoo(command, file, status=2)
    assert re.search(
        r"mine\.yaml:\d+: optimizer: my_opt\.py:Lion: its step does not use the `lr`", capsys.readouterr().err
    )
    assert not (tmp_path / "runs").exists() and not (tmp_path / "sweeps").exists()


@pytest.mark.parametrize(("optimizer", "source", "message"), BAD, ids=[case[2][:40] for case in BAD])
def test_bad_optimizers(
    optimizer: Any, source: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One clear error with the place in the file, and the status 2."""
    if isinstance(optimizer, str):
        optimizer = {"type": optimizer, "lr": 0.01}
    file = project(tmp_path, optimizer, source)
    zoo("train", file, status=2)
    shown = capsys.readouterr().err
    assert re.match(r"error: \S*mine\.yaml:\d+: optimizer", shown), shown
    assert re.search(message, shown), shown
    assert len(shown.strip().splitlines()) == 1


def test_a_run_folder_imports_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with plugins_forgotten():
        zoo("train", project(tmp_path, MINE))
    folder = tmp_path / "runs/tiny"
    zoo("train", folder, "--resume", "train.steps=8", status=2)
    assert "code is never imported from a run folder" in capsys.readouterr().err
    zoo("train", folder, "--resume", "train.steps=8", "--plugin", tmp_path / "my_opt.py")


# ---- from Python


def test_groups_come_from_the_registry_and_spheres_hold() -> None:
    model = build_model("ngpt", **SIZES)
    optimizer = build_optimizer(model, torch.optim.NAdam, lr=0.01, weight_decay=0.1)
    assert type(optimizer) is torch.optim.NAdam
    decays = {n: g["weight_decay"] for g in optimizer.param_groups for n in g["param_names"]}
    assert decays == {e.name: 0.1 if e.decays else 0.0 for e in Registry(model)}
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert optimizer_table.sphere_error(model) == 0.0
    rates = build_optimizer(build_model("gpt", **SIZES), torch.optim.SGD, lr=0.01, layer_decay=0.5)
    assert len({group["lr"] for group in rates.param_groups}) == 3


class Derived(torch.optim.AdamW):
    """It passes on what it does not know."""

    def __init__(self, params: Any, extra: float = 1.0, **options: Any) -> None:
        super().__init__(params, **options)
        self.extra = extra


def test_arguments_of_base_classes() -> None:
    optimizer = build_optimizer(build_model("gpt", **SIZES), Derived, lr=0.01, extra=2.0, eps=1e-6)
    assert isinstance(optimizer, Derived)
    assert (optimizer.extra, optimizer.param_groups[0]["eps"]) == (2.0, 1e-6)


class OwnDefaults(torch.optim.AdamW):
    """It has defaults of its own for what it passes on."""

    def __init__(self, params: Any, lr: float = 1e-3, **options: Any) -> None:
        super().__init__(params, lr, **{"betas": (0.9, 0.95), "weight_decay": 0.1, **options})


def test_arguments_of_base_classes_have_the_defaults_of_the_class() -> None:
    """What is not given is the class's own; what is given counts, also if the base class has it as default."""

    def groups(**options: Any) -> set[Any]:
        optimizer = build_optimizer(build_model("gpt", **SIZES), OwnDefaults, lr=0.01, **options)
        return {(group["betas"], group["weight_decay"]) for group in optimizer.param_groups}

    assert groups() == {((0.9, 0.95), 0.1), ((0.9, 0.95), 0.0)}
    given = {"betas": (0.9, 0.999), "weight_decay": 0.01}
    assert groups(**given) == {((0.9, 0.999), 0.01), ((0.9, 0.999), 0.0)}


@pytest.mark.parametrize(
    ("cls", "fields", "message"),
    [
        (torch.optim.NAdam, {"lr": 1.0, "epps": 1.0}, "optimizer: epps: unknown key; did you mean 'eps'"),
        (Derived, {"lr": 1.0, "fusd": True}, "optimizer: fusd: unknown key; did you mean 'fused'"),
        (torch.optim.SGD, {}, "optimizer: lr: missing"),
        (torch.optim.LBFGS, {"lr": 1.0}, r"torch\.optim\.lbfgs\.LBFGS: it needs a closure"),
        (torch.nn.Linear, {"lr": 1.0}, r"Linear: it is no subclass of torch\.optim\.Optimizer"),
        ("torch.optim.NAdm", {"lr": 1.0}, "no class called 'NAdm'; did you mean 'NAdam'"),
    ],
)
def test_bad_arguments(cls: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_optimizer(build_model("gpt", **SIZES), cls, **fields)


# ---- its state


class Hoarder(Optimizer):
    """Its state has everything that a state may consist of, and each step depends on all of it."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "d": 1e-6, "k": 0})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.steps += 1
        self.state["total"] = self.state.get("total", 0.0) + 0.1  # type: ignore[call-overload, index]
        for group in self.param_groups:
            group["k"] += 1
            group["d"] = max(group["d"], 0.1 * group["k"])
            group.setdefault("norms", deque(maxlen=2)).append(torch.tensor([group["d"]]))
            for p in group["params"]:
                self.move(p, group, self.state[p])

    def move(self, p: Tensor, group: dict[str, Any], state: dict[Any, Any]) -> None:
        if not state:
            state["pair"] = (torch.zeros_like(p), [None, True, "text", float("inf")])
            state["by_beta"] = {0.5: torch.zeros_like(p), "a/b": torch.tensor(3, dtype=torch.int64)}
            state["half"] = torch.zeros(p.shape, dtype=torch.bfloat16)
            state["mask"], state["dtype"], state["empty"] = p > 0, torch.float16, {}
            state["transposed"] = torch.zeros(3, 2).T
            state["a/slash"] = state[7] = torch.ones(())
        assert p.grad is not None
        state["pair"][0].add_(p.grad)
        state["by_beta"][0.5].lerp_(p.grad, 0.5)
        state["by_beta"]["a/b"] += 1
        state["half"].copy_(state["pair"][0])
        numbers = self.steps * self.state["total"] * sum(n.item() for n in group["norms"])  # type: ignore[index]
        update = state["by_beta"][0.5] + state["half"].float() * state["mask"] * state["a/slash"]
        p.sub_(update, alpha=group["lr"] * numbers / state["by_beta"]["a/b"].item())


def step(parameters: list[Tensor], optimizer: Optimizer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in parameters:
        p.grad = torch.randn(p.shape, generator=generator)
    optimizer.step()


def hoarders(count: int) -> tuple[list[list[Tensor]], list[Hoarder]]:
    parameters = [
        [torch.ones(3, 2, requires_grad=True), torch.ones(4, requires_grad=True)] for _ in range(count)
    ]
    return parameters, [Hoarder([("w", p[0]), ("b", p[1])]) for p in parameters]


def test_a_state_of_everything_goes_through_a_file(tmp_path: Path) -> None:
    parameters, (one, other) = hoarders(2)
    for seed in range(3):
        step(parameters[0], one, seed)
    write_tensors(tmp_path / "state", *as_file(one))
    saved = unflatten(*read_tensors(tmp_path / "state"))
    with torch.no_grad():
        for a, b in zip(*parameters, strict=True):
            b.copy_(a)
    load_state_by_name(other, saved)
    slots, mine = other.state[parameters[1][0]], one.state[parameters[0][0]]
    assert slots["pair"][1] == mine["pair"][1] == [None, True, "text", float("inf")]
    assert type(slots["pair"]) is tuple and slots["dtype"] is torch.float16 and slots["empty"] == {}
    assert slots["half"].dtype == torch.bfloat16 and slots["mask"].dtype == torch.bool
    assert slots["transposed"].stride() == mine["transposed"].stride() == (1, 2)
    assert other.param_groups[0]["norms"].maxlen == 2
    assert (other.steps, other.state["total"]) == (3, one.state["total"])  # type: ignore[index]
    for seed in range(3, 6):
        for p, optimizer in zip(parameters, (one, other), strict=True):
            step(p, optimizer, seed)
    assert all(torch.equal(a, b) for a, b in zip(*parameters, strict=True))


def as_file(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, str]]:
    tensors, metadata = flatten(state_by_name(optimizer))
    return {name: t.detach().clone().contiguous() for name, t in tensors.items()}, metadata


def test_a_step_can_be_undone() -> None:
    """As the control of loss spikes does: whatever the state is, and if there was none before."""
    (parameters, twins), (one, other) = hoarders(2)
    for seed in range(3):
        before, values = snapshot(one), [p.detach().clone() for p in parameters]
        step(parameters, one, 99)
        restore(one, before)
        with torch.no_grad():
            for p, value in zip(parameters, values, strict=True):
                p.copy_(value)
        step(parameters, one, seed)
        step(twins, other, seed)
    assert all(torch.equal(a, b) for a, b in zip(parameters, twins, strict=True))


def test_a_state_of_another_optimizer_is_refused_and_changes_nothing() -> None:
    parameters, (one, other) = hoarders(2)
    step(parameters[0], one, 0)
    good = unflatten(*as_file(one))
    sgd = torch.optim.SGD([("w", parameters[0][0])])
    with pytest.raises(CheckpointError, match="the state is that of 'Hoarder', expected that of 'SGD'"):
        load_state_by_name(sgd, good)
    for change, message in (
        (lambda s: s[""]["shapes"].pop("w"), "missing: w$"),
        (lambda s: s[""]["shapes"].update(x=(1,)), "unexpected: x$"),
        (lambda s: s[""]["shapes"].update(w=(2, 3)), r"w had shape \(2, 3\), expected \(3, 2\)"),
        (lambda s: s[""]["groups"].append({}), "has 2 parameter groups, expected 1"),
    ):
        bad = unflatten(*as_file(one))
        change(bad)  # type: ignore[no-untyped-call]
        with pytest.raises(CheckpointError, match=message):
            load_state_by_name(other, bad)
    assert not other.state
    one.state[parameters[0][0]]["object"] = object()
    with pytest.raises(CheckpointError, match="w/object is a object, which cannot be saved"):
        flatten(state_by_name(one))


# ---- evaluation elsewhere


def test_what_is_evaluated_and_written_is_the_average(tmp_path: Path) -> None:
    """Schedule-Free: a checkpoint holds the averaged weights, on the spheres, and the run goes on from its own."""
    optimizer = {"type": "pytorch_optimizer.ScheduleFreeAdamW", "lr": 0.01}
    model = {**tiny_fields(tmp_path)["model"], "type": "ngpt"}
    file = project(tmp_path, optimizer, model=model)
    whole = run(load_config(file, ["name=whole"]))
    parts = load_config(file, ["name=parts"])
    run(parts, until=3)
    run(parts, resume=True)
    assert_same(tmp_path / "runs/whole", tmp_path / "runs/parts")
    written = load_model(whole.folder)
    assert optimizer_table.sphere_error(written) == 0.0
    weights, _ = read_tensors(next(whole.folder.glob("checkpoints/step-00000006/optimizer.safetensors")))
    trained = {name.rpartition("/")[2]: t for name, t in weights.items() if name.startswith("/weights/")}
    assert trained.keys() == dict(written.named_parameters()).keys()
    assert any(not torch.equal(p, trained[name]) for name, p in written.named_parameters())


# ---- zoo explain


@pytest.mark.parametrize(
    ("optimizer", "bytes_of"),
    [
        ("torch.optim.NAdam", lambda rows, columns: 8 * rows * columns),
        ("torch.optim.SGD", lambda rows, columns: 0),
        ("pytorch_optimizer.FlashAdamW", None),
        ("pytorch_optimizer.Prodigy", lambda rows, columns: 16 * rows * columns),
    ],
)
def test_explain_says_the_bytes_of_the_state(optimizer: str, bytes_of: Any) -> None:
    """They are those of the optimizer after a step."""
    fields = {"model": {"type": "gpt", **SIZES}, "optimizer": {"type": optimizer, "lr": 0.01}}
    table = explain(load_config(fields))
    embedding = table.rows[0]
    if bytes_of is not None:
        assert embedding.state_bytes == bytes_of(11, 8)
    model = build_model("gpt", **SIZES)
    built = build_optimizer(model, fields["optimizer"])
    step(list(model.parameters()), built, 0)
    kept = [t for slots in built.state.values() for t in slots.values() if isinstance(t, Tensor) and t.dim()]
    assert table.totals.optimizer_bytes == sum(t.numel() * t.element_size() for t in kept)


def test_bytes_that_cannot_be_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prodigy reads numbers off tensors, which meta tensors do not have; large ones are not made."""
    monkeypatch.setattr("zoo.optim.foreign.LARGEST_TRIED", 0)
    fields = {
        "model": {"type": "gpt", **SIZES},
        "optimizer": {"type": "pytorch_optimizer.Prodigy", "lr": 1.0},
    }
    table = explain(load_config(fields))
    assert (table.rows[0].state_bytes, table.totals.optimizer_bytes) == (None, None)
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(table.table())
    assert "pytorch_optimizer.Prodigy: unknown" in console.export_text()


# ---- the table of docs/optimizers.md


def documented(begin: str) -> dict[str, str]:
    """The lines of a table of the page, by the class they are about."""
    lines = PAGE.read_text("utf-8").partition(f"<!-- begin {begin} -->")[2].partition("<!-- end")[0]
    return {found[1]: line for line in lines.splitlines() if (found := re.match(r"\| `([\w.]+)` \|", line))}


SERVED = documented("served")
SHOWN = [path for path in SERVED if path.startswith("pytorch_optimizer.")][::3]
"""Every third of pytorch_optimizer's: more than twenty."""


def test_the_page_has_every_class() -> None:
    assert [*SERVED, *documented("refused")] == sorted(classes(), key=lambda p: (p not in SERVED, p.lower()))
    assert len(SHOWN) >= 20
    works = [line for path, line in SERVED.items() if line.count("| yes ") >= 3]
    assert len(works) > 100


def test_what_is_refused_is_what_the_page_says() -> None:
    for path, line in documented("refused").items():
        assert line == f"| {' | '.join(refused_row(path))} |"


@pytest.mark.parametrize("path", SHOWN)
def test_two_steps_and_a_resume(path: str) -> None:
    cells = {kind: train(kind, classes()[path]) for kind in MODELS}
    line = SERVED[path]
    on_two = dict(enumerate(cell.strip() for cell in line.split("|")[-1 - len(MODELS) : -1]))
    assert line == f"| {' | '.join(served_row(path, cells, {str(k): v for k, v in on_two.items()}))} |"


ELEMENTWISE = [path for path in SHOWN if SERVED[path].count("| yes ") == 2 * len(MODELS)][::2]


def compare(ours: World) -> None:
    """On a rank."""
    for path in ELEMENTWISE:
        for kind in MODELS:
            assert on_ranks(ours, kind, classes()[path]) == "yes", f"{path} trains {kind}"
    for path in ("pytorch_optimizer.Lamb", "torch.optim.Rprop", "pytorch_optimizer.SPAM"):
        assert on_ranks(ours, "gpt", classes()[path]) == "one process", path


def test_two_ranks_equal_one() -> None:
    assert len(ELEMENTWISE) >= 6
    on_two_ranks(compare)


# ---- the examples of the page


def test_the_examples_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files train, its Python runs, and its sweep is planned."""
    blocks = re.findall(r"^```(?:yaml|python)\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    monkeypatch.chdir(tmp_path)
    files = [text for text in blocks if text.startswith("# ")]
    scripts = [text for text in blocks if text not in files]
    assert (len(files), len(scripts)) == (4, 2)
    for text in files:
        name = text.splitlines()[0].removeprefix("# ")
        Path(name).write_text(text, encoding="utf-8")
    for name in ("nadam", "lion"):
        zoo("train", f"{name}.yaml", "train.steps=5")
        assert (tmp_path / f"runs/{name}/metrics.jsonl").is_file()
    zoo("sweep", "compare.yaml", "--dry-run")
    for script in scripts:
        exec(script, {})


def test_the_page_names_the_class_of_every_optimizer() -> None:
    """The table of classes has every optimizer of zoo but torch's own, and each row names its class."""
    section = PAGE.read_text("utf-8").partition("## In your own training loop")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`\w+`[^|]*) \| ([^|]*) \|$", section, re.M)
    named = {name for kinds, _ in rows[1:] for name in re.findall(r"`(\w+)`", kinds)}  # without the heading
    assert named | {"adam"} == OURS
    paths = [path for _, classes in rows for path in re.findall(r"`(zoo\.[\w.]+)`", classes)]
    for path in paths:
        module, _, name = path.rpartition(".")
        assert issubclass(getattr(importlib.import_module(module), name), Optimizer), path
    reference = (PAGE.parent / "reference" / "optim.md").read_text("utf-8")
    assert {*paths} <= {*re.findall(r"^::: (\S+)$", reference, re.M)}
