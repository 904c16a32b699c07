"""Models in files: what is saved comes back, and what is no checkpoint is refused in one sentence."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forks
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_runs import assert_same, of_kind, tiny
from torch import Tensor

import zoo.checkpoint.safetensors
import zoo.train.checkpoints
from zoo import Registry, build_model, build_optimizer, load_model, merge, save_model, split
from zoo.checkpoint.format import metadata
from zoo.models import Model
from zoo.optim.state import flatten, state_by_name, unflatten
from zoo.train.checkpoints import load_progress
from zoo.train.distributed import World
from zoo.train.metrics import MetricsLog
from zoo.train.run import train
from zoo.train.start import Start
from zoo.utils.errors import CheckpointError, ZooError
from zoo.utils.run_folder import CheckpointFolder, RunFolder

SIZES = {"vocab_size": 40, "d_model": 16, "n_layers": 2, "n_heads": 2}
RECIPES: list[dict[str, Any]] = [
    {"source": "gpt"},
    {"source": "gpt", "tied": True, "qk_norm": True, "mlp": "gelu", "n_kv_heads": 1},
    {"source": "gpt", "init": "small", "reparam": {"type": "wesar", "sigma2": 1e-3}},
    {"source": "gpt", "init": "he", "reparam": {"type": "wesar", "train_gates": False}},
    {"source": "ngpt", "alpha": {"signed": True}, "s_z": {"kind": "fixed", "init": 2.0}},
]
ALONE = World(0, 1, torch.device("cpu"))


def model(**changes: Any) -> Model:
    return build_model(**{"source": "gpt", **SIZES, "seed": 1, **changes})


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
@pytest.mark.parametrize("place", ["model.safetensors", "folder"])
def test_what_is_saved_comes_back(tmp_path: Path, recipe: dict[str, Any], place: str) -> None:
    original = model(**recipe)
    file = save_model(original, tmp_path / place)
    loaded = load_model(tmp_path / place)
    tokens, _ = original.example()
    assert file.suffix == ".safetensors"
    assert torch.equal(loaded(tokens), original(tokens))
    assert loaded.recipe == original.recipe
    assert list(loaded.state_dict()) == list(original.state_dict())


@pytest.mark.parametrize("train_gates", [True, False])
def test_a_split_model_keeps_its_gates(tmp_path: Path, train_gates: bool) -> None:
    """They start where the matrices were, which the recipe does not tell."""
    original = model(init="gpt2")
    split(original, {"type": "wesar", "train_gates": train_gates})
    save_model(original, tmp_path)
    loaded = load_model(tmp_path)
    tokens, _ = original.example()
    assert torch.equal(loaded(tokens), original(tokens))
    facts = [[(entry.name, entry.eta, entry.spec) for entry in Registry(m)] for m in (original, loaded)]
    assert facts[0] == facts[1]
    merge(loaded)
    save_model(loaded, tmp_path)
    torch.testing.assert_close(load_model(tmp_path)(tokens), original(tokens), atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_models_of_few_bits_come_back(tmp_path: Path, dtype: torch.dtype) -> None:
    """Their values are read into float32, which has them all, or into the dtype that is asked for."""
    original = model().to(dtype)
    save_model(original, tmp_path / "model.safetensors")
    for wanted in (None, dtype):
        loaded = load_model(tmp_path / "model.safetensors", dtype=wanted)
        for name, tensor in loaded.state_dict().items():
            assert tensor.dtype == (wanted or torch.float32)
            assert torch.equal(tensor.to(dtype), original.state_dict()[name])


def test_all_ways_into_a_run(tmp_path: Path) -> None:
    run = train(tiny(tmp_path, steps=20)).folder
    step = run / "checkpoints/step-00000020"
    tensors = [load_model(p).state_dict() for p in (run, str(run), step, step / "model.safetensors")]
    for other in tensors[1:]:
        assert all(torch.equal(other[name], tensor) for name, tensor in tensors[0].items())
    load_model(run, which="best")
    with pytest.raises(CheckpointError, match=f"{run}: no checkpoint called 'bst'; did you mean 'best'"):
        load_model(run, which="bst")


def test_a_model_is_not_saved_into_a_folder_of_another_kind(tmp_path: Path) -> None:
    """Its files would no longer belong together, or the saved model would not be read."""
    run = train(tiny(tmp_path, steps=5)).folder
    step = run / "checkpoints/step-00000005"
    hub, adapter = tmp_path / "hub", tmp_path / "adapter"
    for folder, marker in ((hub, "config.json"), (adapter, "adapter_config.json")):
        folder.mkdir()
        (folder / marker).write_text("{}")
    weights = (step / "model.safetensors").read_bytes()
    for folder, kind in (
        (run, "a run, "),
        (step, "a checkpoint of a run, "),
        (hub, r"a folder as on the Hugging Face hub \(config\.json\), "),
        (adapter, r"a folder as on the Hugging Face hub \(adapter_config\.json\), "),
    ):
        before = sorted(folder.rglob("*"))
        expected = f"{folder}: {kind}.*; expected a new folder or a .safetensors file"
        with pytest.raises(CheckpointError, match=expected):
            save_model(model(), folder)
        assert sorted(folder.rglob("*")) == before
    assert (step / "model.safetensors").read_bytes() == weights
    for seed in (1, 2):  # a folder of `save_model` may be saved again, and a file may be named anywhere
        saved = model(seed=seed)
        for place in (tmp_path / "mine", hub / "zoo.safetensors"):
            save_model(saved, place)
            tensors = load_model(place).state_dict()
            assert all(torch.equal(tensors[name], tensor) for name, tensor in saved.state_dict().items())


def test_optimizer_state_goes_by_name(tmp_path: Path) -> None:
    state = {"a/b": torch.zeros(2)}
    assert flatten({"x.weight": {"m": state["a/b"]}}) == ({"x.weight/m": state["a/b"]}, {})
    original = {"x.weight": {"m": torch.ones(2), "v": torch.ones(1)}, "y": {"m": torch.ones(3)}}
    assert unflatten(*flatten(original)) == original


GOOD = "good.safetensors"


def change(path: Path, edit: Callable[[dict[str, Tensor], dict[str, str]], None]) -> None:
    """Rewrite a file with other tensors or another header."""
    tensors, header = load_file(path), metadata(model())
    edit(tensors, header)
    save_file(tensors, path, header)


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 100)


def only_a_header(path: Path) -> None:
    os.truncate(path, 4)


def pickled(path: Path) -> None:
    torch.save({"weight": torch.zeros(3)}, path)


def text(path: Path) -> None:
    path.write_text("not a checkpoint, but long enough to have a header of eight bytes")


def foreign(path: Path) -> None:
    save_file({"transformer.wte.weight": torch.zeros(3, 2)}, path, {"format": "pt"})


def another_architecture(path: Path) -> None:
    save_file(model(source="ngpt").state_dict(), path, metadata(model()))


def another_width(path: Path) -> None:
    save_file(model(d_model=32).state_dict(), path, metadata(model()))


def lacking(path: Path) -> None:
    change(path, lambda tensors, _: tensors.__delitem__("norm.scale"))


def double(path: Path) -> None:
    change(path, lambda tensors, _: tensors.update({"norm.scale": tensors["norm.scale"].double()}))


def newer(path: Path) -> None:
    change(path, lambda _, header: header.update(version="2"))


def broken_recipe(path: Path) -> None:
    change(path, lambda _, header: header.update(recipe='{"model": {"type": "gpt"}}'))


def unknown_model(path: Path) -> None:
    recipe = '{"model": {"type": "gtp"}, "init": {"type": "he"}, "reparam": {"type": "none"}}'
    change(path, lambda _, header: header.update(recipe=recipe))


DAMAGED = [
    (truncated, "not a complete safetensors file"),
    (only_a_header, "not a complete safetensors file"),
    (pickled, "it looks like torch.save's pickle"),
    (text, "not a complete safetensors file"),
    (
        foreign,
        "zoo did not write it (no recipe in its header); expected one from save_model, a hub folder",
    ),
    (another_architecture, "does not belong to this model: lacks"),
    (another_width, "embedding.weight is float32 [40, 32], expected float32 [40, 16]"),
    (lacking, "lacks norm.scale"),
    (double, "norm.scale is float64 [16], expected float32 [16]"),
    (newer, "version 2 of the format; expected 1"),
    (broken_recipe, "the recipe in its header does not describe a model"),
    (unknown_model, "no model called 'gtp'; did you mean 'gpt'?"),
    (
        Path.unlink,
        "no such file or folder; expected a run, a checkpoint, a .safetensors file or a Hugging Face folder "
        "(nothing is downloaded)",
    ),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGED, ids=[d.__name__ for d, _ in DAMAGED])
def test_damaged_files(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    path = save_model(model(), tmp_path / GOOD)
    damage(path)
    with pytest.raises(CheckpointError) as caught:
        load_model(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


WRONG_ARGUMENTS = [
    ({"format": "ngpt"}, "no format called 'ngpt'; known: ngpt-reference"),
    ({"n_heads": 2}, "n_heads has no effect without a format"),
    (
        {"format": "ngpt-reference"},
        "good.safetensors: its format needs n_heads, an argument of load",
    ),
    ({"format": "ngpt-reference", "heads": 2}, "no option called 'heads'; did you mean 'n_heads'?"),
    ({"format": "ngpt-reference", "n_heads": 2}, "not a state dict of the nGPT authors' code"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG_ARGUMENTS, ids=str)
def test_wrong_arguments(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    path = save_model(model(), tmp_path / GOOD)
    with pytest.raises(ZooError) as caught:
        load_model(path, **arguments)
    assert message in str(caught.value)


def test_a_run_without_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("name: x")
    with pytest.raises(CheckpointError, match="has no last checkpoint yet"):
        load_model(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/last.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"last.json: expected \{\"checkpoint\""):
        load_model(tmp_path)


OPTIMIZERS: list[tuple[str, dict[str, Any], str]] = [
    ("adamw", {}, "unexpected: blocks.0.attention.k.weight/exp_avg"),
    ("amos", {"reduction": "none", "momentum": 0.9}, "has shape (40, 16), expected (40, 1)"),
    ("amos", {}, "missing: blocks.0.attention.k.weight/m"),
]


@pytest.mark.parametrize(("name", "fields", "message"), OPTIMIZERS, ids=str)
def test_state_of_another_optimizer(tmp_path: Path, name: str, fields: dict[str, Any], message: str) -> None:
    slots, _ = flatten(state_by_name(build_optimizer(model(), name, lr=0.1, **fields)))
    save_file(
        {key: tensor.contiguous().clone() for key, tensor in slots.items()},
        tmp_path / "optimizer.safetensors",
    )
    own = build_optimizer(model(), "amos", lr=0.1, momentum=0.9)
    with pytest.raises(CheckpointError) as caught:
        load_progress(CheckpointFolder(tmp_path), own, ALONE)
    assert str(tmp_path / "optimizer.safetensors") in str(caught.value)
    assert message in str(caught.value)


def test_a_resume_from_a_truncated_checkpoint(tmp_path: Path) -> None:
    run = train(tiny(tmp_path, steps=10)).folder
    for name in ("model", "optimizer", "random"):
        path = run / f"checkpoints/step-00000010/{name}.safetensors"
        content = path.read_bytes()
        path.write_bytes(content[:-20])
        with pytest.raises(CheckpointError, match=f"{name}.safetensors: not a complete"):
            train(tiny(tmp_path, steps=20), resume=True)
        path.write_bytes(content)


def train_on(folder: Path) -> None:
    """Go on with a run where no file may be larger than 20 kB."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    try:
        train(tiny(folder, steps=20), resume=True)
    except ZooError as error:
        print(error)


def test_a_file_the_system_refuses_to_write(tmp_path: Path) -> None:
    """The system itself says no, in a process that may not write files as large as the checkpoint."""
    run = train(tiny(tmp_path, steps=10)).folder
    before = {p: p.read_bytes() for p in (run / "checkpoints").rglob("*") if p.is_file()}
    done = forks.run(train_on, tmp_path, folder=tmp_path)
    assert "step-00000020: cannot be written: " in done.output
    assert "what was saved before is intact" in done.output
    assert {p: p.read_bytes() for p in (run / "checkpoints").rglob("*") if p.is_file()} == before


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_model(model(), tmp_path / GOOD)
    before = path.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(zoo.checkpoint.safetensors, "write_checked", full)
    with pytest.raises(CheckpointError, match="cannot be written: No space left on device; what was"):
        save_model(model(seed=2), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [GOOD]


def test_a_checkpoint_that_cannot_be_written_ends_the_run_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when the next one is due: without a checkpoint the steps in between would be lost."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(zoo.train.checkpoints, "write_tensors", full)
    with pytest.raises(CheckpointError, match="step-00000005: cannot be written: No space left on device"):
        train(tiny(tmp_path, checkpoint_every=5, eval_every=40))
    assert len(of_kind(tmp_path / "runs/tiny", "train")) in (6, 7)  # the steps that ended in the meantime


def test_a_disk_that_is_full_for_a_line_of_the_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The explained error stays, although the file cannot be closed either."""
    opened = Path.open

    def full(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        is_log = (path.name, mode) == ("metrics.jsonl", "a")
        return opened(Path("/dev/full") if is_log else path, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(CheckpointError, match="cannot be written: No space left on device; what was saved"):
        train(tiny(tmp_path, steps=10))


def test_a_disk_that_is_full_when_the_metrics_are_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network's file system notices it only then."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with MetricsLog(RunFolder(tmp_path), Start()) as log:
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(CheckpointError, match=r"metrics.jsonl: cannot be written: No space left on dev"):
            log.flush()
        monkeypatch.undo()


@pytest.mark.parametrize("share", [0.8, 1.0, None])
def test_a_disk_that_is_too_small_for_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float | None
) -> None:
    """The run ends after its first step, not at its first checkpoint, and goes on where there is room.

    A disk of size 0 does not tell how much room there is.
    """
    whole = train(tiny(tmp_path, "name=whole")).folder
    last = RunFolder(whole).checkpoint("last")
    assert last is not None
    needed = last.model.stat().st_size + last.optimizer.stat().st_size
    usage = shutil.disk_usage(tmp_path)
    usage = usage._replace(total=0, free=0) if share is None else usage._replace(free=int(share * needed))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    if share != 0.8:
        assert train(tiny(tmp_path)).finished
        return
    with pytest.raises(CheckpointError, match=r"tiny: a checkpoint of this run takes .* KiB, and its disk"):
        train(tiny(tmp_path))
    run = RunFolder(tmp_path / "runs/tiny")
    assert run.checkpoint("last") is None
    assert not of_kind(run.path, "train")
    monkeypatch.undo()
    assert_same(whole, train(tiny(tmp_path), resume=True).folder)


def test_the_header_is_plain(tmp_path: Path) -> None:
    """Any program can read the recipe."""
    header = metadata(model(reparam="wesar"))
    recipe = json.loads(header["recipe"])
    assert header["format"] == "zoo"
    assert recipe["model"]["type"] == "gpt"
    assert recipe["model"]["d_model"] == 16
    assert recipe["reparam"]["type"] == "wesar"
