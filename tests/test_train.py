"""One training step and a whole run, tiny: what is computed, written and refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import TEXT, of_kind, reproducible, tiny
from torch import Tensor

import zoo.train.step
from zoo import build_model, build_optimizer, load_model
from zoo.ablate.results import read_results
from zoo.checkpoint.model import find_checkpoint
from zoo.checkpoint.safetensors import read_tensors
from zoo.init import Registry
from zoo.models import Model
from zoo.nn.loss import LossParts
from zoo.optim.clip import Clip
from zoo.run.config import RunConfig, load_config
from zoo.train.checkpoints import Checkpoints
from zoo.train.distributed import World
from zoo.train.environment import describe
from zoo.train.evaluate import evaluate
from zoo.train.monitor import Monitor
from zoo.train.run import train
from zoo.train.step import Stepper, StepResult
from zoo.utils.device import available, find_device
from zoo.utils.errors import CheckpointError, ConfigError, DataError, DivergenceError, ZooError
from zoo.utils.run_folder import RunFolder
from zoo.utils.sharded import norms

ALONE = World(0, 1, torch.device("cpu"))


def model_and_batch() -> tuple[Model, tuple[Tensor, Tensor]]:
    """A GPT and 8 sequences, of which the first four have only few targets that count."""
    model = build_model("gpt", vocab_size=50, d_model=16, n_layers=2, n_heads=2, seed=3)
    rows = torch.randint(0, 50, (8, 13), generator=torch.Generator().manual_seed(0))
    tokens, targets = rows[:, :-1].contiguous(), rows[:, 1:].clone()
    targets[:4, 2:] = -1
    return model, (tokens, targets)


def stepper(model: Model, **changes: Any) -> Stepper:
    """A step of plain SGD, whose update is the gradient."""
    settings: dict[str, Any] = {"accumulation": 1, "precision": "fp32", "clip": Clip(None), "z_loss": 0.0}
    settings |= changes
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    return Stepper(model, model.loss, sgd, ALONE, **settings)


def no() -> bool:
    return False


def take(step: Stepper, batch: tuple[Tensor, Tensor]) -> StepResult:
    """The gradient of a batch, and the step on it."""
    result = step.gradient(batch, no)
    step.update(result)
    return result


def test_data_without_targets_is_told() -> None:
    """As a data set of a plugin may have: it is neither a division by zero nor a rate that is too high."""
    model, (tokens, targets) = model_and_batch()
    ignored, before = torch.full_like(targets, -1), [p.detach().clone() for p in model.parameters()]
    with pytest.raises(DataError, match="data: a training batch has no targets: all are -1"):
        take(stepper(model), (tokens, ignored))
    assert all(map(torch.equal, before, model.parameters()))
    with pytest.raises(DataError, match="data: the validation examples have no targets: all are -1"):
        evaluate(model, model.loss, [(tokens, ignored)], ALONE, "fp32")


@pytest.mark.parametrize("accumulation", [2, 4, 8])
def test_accumulation_equals_the_big_batch(accumulation: int) -> None:
    """Also when the parts have very different numbers of targets."""
    results, weights = [], []
    for parts in (1, accumulation):
        model, batch = model_and_batch()
        results.append(take(stepper(model, accumulation=parts, z_loss=0.1), batch))
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    whole, divided = results
    for name in ("loss", "cross_entropy", "z_loss", "grad_norm"):
        assert getattr(divided, name) == pytest.approx(getattr(whole, name), rel=1e-6)
    torch.testing.assert_close(weights[1], weights[0], atol=1e-6, rtol=0)


def test_z_loss_is_reported_apart() -> None:
    model, batch = model_and_batch()
    plain = take(stepper(model), batch)
    model, batch = model_and_batch()
    with_z = take(stepper(model, z_loss=0.1), batch)
    assert plain.z_loss == 0
    assert plain.loss == plain.cross_entropy == with_z.cross_entropy
    assert with_z.loss == with_z.cross_entropy + with_z.z_loss
    assert with_z.z_loss > 0.1


def test_clipping_is_by_the_global_norm() -> None:
    model, batch = model_and_batch()
    before = [p.detach().clone() for p in model.parameters()]
    result = take(stepper(model, clip=Clip(0.01)), batch)
    moved = torch.cat([(p - b).flatten() for p, b in zip(model.parameters(), before, strict=True)])
    assert result.grad_norm > 0.1
    assert moved.norm().item() == pytest.approx(0.01, rel=1e-4)


def test_bf16_keeps_weights_gradients_and_slots_in_float32() -> None:
    model, batch = model_and_batch()
    seen = []
    model.get_submodule("blocks.0.mlp").register_forward_hook(lambda *a: seen.append(a[2].dtype))
    optimizer = build_optimizer(model, "amos", lr=0.01, momentum=0.9)
    gradients: list[Tensor | None] = []
    optimizer.register_step_pre_hook(lambda *_: gradients.extend(p.grad for p in model.parameters()))
    take(Stepper(model, model.loss, optimizer, ALONE, 1, "bf16", Clip(1.0), 0.0), batch)
    slots = {s.dtype for state in optimizer.state.values() for s in state.values() if isinstance(s, Tensor)}
    assert seen == [torch.bfloat16]
    found = {t.dtype for t in (*model.parameters(), *gradients) if t is not None}
    assert found | slots == {torch.float32}


def test_evaluation_weighs_by_targets_and_has_no_z_loss() -> None:
    model, (tokens, targets) = model_and_batch()
    parts = [(tokens[:5], targets[:5]), (tokens[5:], targets[5:])]
    expected = model.loss(tokens, targets).cross_entropy.item()
    found = evaluate(model, model.loss, parts, ALONE, "fp32")
    assert found.cross_entropy == pytest.approx(expected, rel=1e-6)
    assert found.accuracy is None
    assert model.training


def test_monitor_measures_what_it_says() -> None:
    model, batch = model_and_batch()
    registry = Registry(model)
    entry = registry["blocks.0.mlp.down.weight"]
    before = entry.parameter.detach().clone()
    monitor = Monitor(registry)
    step = stepper(model)
    result = step.gradient(batch, no)
    gradient = entry.parameter.grad
    assert gradient is not None
    expected = gradient.norm().item()
    monitor.see_gradient()
    step.update(result)
    after = entry.parameter.detach()
    rows = monitor.measure()
    row = rows[entry.name]
    assert len(rows) == 2 + 2 * 7
    assert row["update_ratio"] == pytest.approx(((after - before).norm() / before.norm()).item())
    assert row["norm"] == pytest.approx(after.norm().item())
    assert row["gradient_norm"] == pytest.approx(expected)
    m2 = after.square().mean().sqrt().item()
    assert row["m2"] == pytest.approx(m2)
    assert row["eta"] == entry.eta
    assert row["m2_over_eta"] == pytest.approx(m2 / entry.eta)


def test_norms_of_bfloat16_are_float32() -> None:
    """`train.storage: bf16` keeps matrices in bfloat16, whose next number above 4 is 4.03."""
    rounded = torch.linspace(-1, 1, 48).bfloat16()
    assert norms([rounded]).item() == pytest.approx(rounded.double().norm().item(), rel=1e-6)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 40 steps."""
    return train(tiny(tmp_path_factory.mktemp("run"), z_loss=1e-4)).folder


def test_it_learns_and_says_so(run: Path) -> None:
    losses = of_kind(run, "validation")
    assert [line["step"] for line in losses] == [0, 10, 20, 30, 40]
    assert losses[0]["cross_entropy"] == pytest.approx(math.log(256), abs=0.5)
    assert losses[-1]["cross_entropy"] < losses[0]["cross_entropy"] - 1


def test_lines_of_metrics(run: Path) -> None:
    train_lines = of_kind(run, "train")
    assert [line["step"] for line in train_lines] == list(range(1, 41))
    for line in train_lines:
        assert line["loss"] == line["cross_entropy"] + line["z_loss"]
        assert line["tokens"] == line["step"] * 4 * 16
    assert [line["lr"] for line in train_lines[:5]] == pytest.approx([0.002, 0.004, 0.006, 0.008, 0.01])
    assert train_lines[-1]["lr"] < 1e-4
    monitors = of_kind(run, "monitor")
    assert [line["step"] for line in monitors] == [10, 20, 30, 40]
    model = load_model(run)
    (size,) = of_kind(run, "size")
    parameters = sum(p.numel() for p in model.parameters())
    assert size["parameters"] == parameters
    assert size["optimizer_bytes"] == 8 * parameters + 4 * len(list(model.parameters()))


def test_what_multiplies_bfloat16_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: f"name of {device}")
    product = [describe(World(0, 1, torch.device(on)), 0)["bfloat16_product"] for on in ("cuda", "cpu")]
    assert product[0] == "name of cuda"
    assert product[1] in ("processor", "float32, rounded")


def test_the_run_folder_is_complete(run: Path) -> None:
    environment = json.loads((run / "environment.json").read_text())
    version = torch.__version__.partition("+")[0]  # of a CUDA wheel the metadata have no build after a plus
    assert environment[0]["packages"]["torch"].partition("+")[0] == version
    assert load_config(run).name == "tiny"
    assert (run / "tokenizer").is_dir()
    kept = sorted(p.name for p in (run / "checkpoints").iterdir())
    assert kept[:2] == ["best.json", "last.json"]
    assert kept[-1] == "step-00000040"


def test_the_best_checkpoint_is_the_one_it_says(run: Path) -> None:
    lines = {line["step"]: line["cross_entropy"] for line in of_kind(run, "validation")}
    pointer = json.loads((run / "checkpoints/best.json").read_text())
    assert pointer["cross_entropy"] == min(lines.values())
    state = json.loads((find_checkpoint(run, "best") / "state.json").read_text())
    assert state["step"] == min(lines, key=lines.__getitem__)


def test_keeps_the_last_and_the_best(tmp_path: Path) -> None:
    model, _ = model_and_batch()
    optimizer = build_optimizer(model, "amos", lr=0.01)
    checkpoints = Checkpoints(RunFolder(tmp_path), ALONE, keep_last=2, data="")
    for step, best in [(5, 3.0), (10, 2.5), (15, None), (20, None), (25, None)]:
        checkpoints.save(step, model, optimizer, {} if best is None else {"best": best})
    checkpoints.finish()
    kept = {p.name for p in (tmp_path / "checkpoints").glob("step-*")}
    assert kept == {"step-00000010", "step-00000020", "step-00000025"}
    assert find_checkpoint(tmp_path / "checkpoints/step-00000010").name == "step-00000010"
    later = Checkpoints(RunFolder(tmp_path), ALONE, keep_last=2, data="")
    assert not later.improvements({"best": 2.5})
    assert later.improvements({"best": 2.4, "best-new": 9.0}) == {"best": 2.4, "best-new": 9.0}


def test_the_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    a, b, c = (
        train(tiny(tmp_path, f"name={name}", f"seed={seed}", steps=10)).folder
        for name, seed in [("a", 0), ("b", 0), ("c", 1)]
    )
    assert reproducible(a) == reproducible(b) != reproducible(c)
    left, right = (read_tensors(find_checkpoint(f) / "model.safetensors")[0] for f in (a, b))
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_without_validation_text(tmp_path: Path) -> None:
    result = train(tiny(tmp_path, "data.validation=0", steps=5))
    assert (result.validation, result.best) == (None, None)
    load_model(result.folder)


def spoil(monkeypatch: pytest.MonkeyPatch, config: RunConfig, step: int, value: float) -> None:
    """Make the loss of a step NaN or infinite."""
    original = zoo.train.step.Stepper.backward
    calls = 0

    def backward(self: Stepper, *args: Any) -> Tensor:
        nonlocal calls
        calls += 1
        sums = original(self, *args)
        if calls == step:
            sums[0] = value
        return sums

    monkeypatch.setattr(zoo.train.step.Stepper, "backward", backward)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_keeps_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    config = tiny(tmp_path)
    spoil(monkeypatch, config, 23, value)
    with pytest.raises(DivergenceError) as caught:
        train(config)
    assert str(caught.value).startswith(f"step 23: the loss is {value}")
    assert "the last good checkpoint is" in str(caught.value)
    assert "step-00000020" in str(caught.value)
    assert "lower optimizer.lr" in str(caught.value)
    model = load_model(tmp_path / "runs/tiny")
    assert all(p.isfinite().all() for p in model.parameters())


def test_a_divergence_is_recorded_until_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(tmp_path)
    with monkeypatch.context() as patch:
        spoil(patch, config, 23, math.nan)
        with pytest.raises(DivergenceError):
            train(config)
    folder = tmp_path / "runs/tiny"
    last = RunFolder(folder).read_metrics()[-1]
    assert (last["kind"], last["step"]) == ("diverged", 23)
    assert last["reason"].startswith("the loss is nan")
    (run,) = read_results([folder]).manifest.runs
    assert run.status == "failed"
    assert str(run.error).startswith("step 23: the loss is nan")
    train(config, resume=True)
    assert all(record["kind"] != "diverged" for record in RunFolder(folder).read_metrics())
    assert read_results([folder]).manifest.runs[0].status == "finished"


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    """The loss of step 1 is fine, but its update is not."""
    with pytest.raises(DivergenceError, match=r"step [12]: .*there is no checkpoint yet"):
        train(tiny(tmp_path, "optimizer.lr=1e38", "optimizer.weight_decay=1", "schedule.warmup=0"))
    assert not list((tmp_path / "runs/tiny").glob("checkpoints/step-*"))


def test_a_gradient_that_is_not_finite_moves_nothing() -> None:
    model, batch = model_and_batch()
    before = [p.detach().clone() for p in model.parameters()]
    right = model.loss

    def steep(*args: Any, **options: Any) -> LossParts:
        parts = right(*args, **options)
        return LossParts(parts.total * math.inf, parts.cross_entropy, parts.z_loss)

    step = Stepper(model, steep, torch.optim.SGD(model.parameters(), 1.0), ALONE, 1, "fp32", Clip(1.0), 0.0)
    with pytest.raises(DivergenceError, match=r"norm of its gradient (nan|inf)"):
        take(step, batch)
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))


BAD = [
    ("optimizer=null", ConfigError, "to train, the configuration needs optimizer as well"),
    ("train=null", ConfigError, "the configuration needs train"),
    (
        "train.device=cuda:7",
        ConfigError,
        "override 'train.device=cuda:7': train.device: device 'cuda:7': there is none here; "
        "this machine has: cpu",
    ),
    ("train.device=gpu", ConfigError, "'gpu' is not a device; expected auto, cpu, mps, cuda or cuda:N"),
    ("train.accumulation=3", ConfigError, "batch_size 4 is not divisible by accumulation 3"),
    ("train.steps=0", ConfigError, "greater than or equal to 1"),
    ("train.batch_size=-4", ConfigError, "greater than or equal to 1"),
    ("train.precision=fp16", ConfigError, "fp16"),
    ("train.clip_norm=0", ConfigError, "greater than 0"),
    ("train.step=7", ConfigError, "did you mean 'steps'?"),
    ("model.vocab_size=100", ZooError, "the tokenizer 'byte' has 256 tokens, but model.vocab_size is 100"),
    ("data.context=100000", ZooError, "one example of 100,000 is made from 100,001"),
    (
        "model={type: gpt2, vocab_size: 256, d_model: 16, n_layers: 1, n_heads: 2, context: 8}",
        ZooError,
        "data.context is 16, but the model has vectors for 8 positions",
    ),
    ("schedule.warmup=50", ConfigError, "schedule.warmup 50 is longer than the run of 40 steps"),
]


@pytest.mark.parametrize(("override", "error", "message"), BAD, ids=[b[0] for b in BAD])
def test_bad_input(tmp_path: Path, override: str, error: type[ZooError], message: str) -> None:
    with pytest.raises(error) as caught:
        train(tiny(tmp_path, override))
    assert message in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_devices() -> None:
    assert find_device("cpu") == torch.device("cpu")
    assert str(find_device("auto")) in available()
    with pytest.raises(ZooError, match="4 processes cannot share it"):
        find_device("cuda:0", 1, 4)


def test_a_gpu_that_is_not_there_names_what_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ZooError, match="device 'cuda:0': there is none here; this machine has: cpu"):
        find_device("cuda")


def test_resume_refuses_other_text(tmp_path: Path) -> None:
    """The batches to come would not be those of the run."""
    train(tiny(tmp_path, steps=6))
    (tmp_path / "text.txt").write_text(TEXT + "One line more.\n", encoding="utf-8")
    with pytest.raises(CheckpointError, match="the run was trained on other data"):
        train(tiny(tmp_path, steps=8), resume=True)
