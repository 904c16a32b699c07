"""A run folder can be copied, renamed and moved: the folder that a user names is the folder that is meant."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from command_line import zoo
from tiny_runs import TEXT, assert_same, saved, tiny, tiny_fields

from zoo.run.config import RunConfig, load_config
from zoo.train.run import train
from zoo.train.start import _may_change, differences
from zoo.utils.errors import CheckpointError, ConfigError, DataError, ZooError
from zoo.utils.run_folder import CheckpointFolder, RunFolder, model_folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


def step(run: Path) -> int:
    checkpoint = RunFolder(run).checkpoint()
    assert checkpoint is not None
    return checkpoint.step


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of 20 steps of one configuration: `whole` was never interrupted, `half` was, at step 12."""
    folder = tmp_path_factory.mktemp("runs")
    train(tiny(folder, "name=whole", steps=20, checkpoint_every=4))
    train(tiny(folder, "name=half", steps=20, checkpoint_every=4), until=12)
    return folder / "runs"


def copied(half: Path, place: Path) -> Path:
    return Path(shutil.copytree(half, place / "runs/copy"))


def renamed(half: Path, place: Path) -> Path:
    return half.rename(half.with_name("A name with blanks (2)"))


def moved(half: Path, place: Path) -> Path:
    (place / "deep/er").mkdir(parents=True)
    return Path(shutil.move(half, place / "deep/er/half"))


@pytest.mark.parametrize("relocate", [copied, renamed, moved])
@pytest.mark.parametrize("spelling", ["absolute", "relative", "here", "config"])
def test_the_folder_that_is_named_goes_on(
    runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    relocate: Callable[[Path, Path], Path],
    spelling: str,
) -> None:
    """Bit for bit like the run that was never interrupted, and no other folder is touched."""
    own = Path(shutil.copytree(runs, tmp_path / "own"))
    run = relocate(own / "half", tmp_path)
    before = content(runs), content(own / "half") if (own / "half").exists() else None
    if spelling == "relative":
        monkeypatch.chdir(run.parent)
    if spelling == "here":
        monkeypatch.chdir(run)
    names: dict[str, Path | str] = {
        "absolute": run,
        "relative": run.name,
        "here": ".",
        "config": run / "config.yaml",
    }
    zoo("train", names[spelling], "--resume")
    assert step(run) == 20
    assert before == (content(runs), content(own / "half") if (own / "half").exists() else None)
    assert_same(run, runs / "whole")
    zoo("train", names[spelling])  # the run has all its steps: nothing to do
    assert_same(run, runs / "whole")


def test_training_in_a_thread_is_that_of_the_main_thread(runs: Path, tmp_path: Path) -> None:
    """Python lets only the main thread handle signals; that of a notebook or a server may be another."""
    config = tiny(tmp_path, "name=whole", steps=20, checkpoint_every=4)
    before = signal.getsignal(signal.SIGTERM)
    with ThreadPoolExecutor(1) as pool:
        trained = pool.submit(train, config)
    assert trained.result().step == 20
    assert signal.getsignal(signal.SIGTERM) is before
    assert_same(tmp_path / "runs/whole", runs / "whole")


def test_a_run_as_the_configuration_of_another_one(runs: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(runs / "half", tmp_path / "copy"))
    zoo("train", copy, "name=new", f"train.runs_dir={tmp_path}", "train.steps=6")
    assert step(tmp_path / "new") == 6
    assert step(copy) == 12
    with pytest.raises(ConfigError, match=r"copy: a run is there already, at step 12; add --resume"):
        train(load_config(copy), folder=RunFolder(copy))


@pytest.mark.parametrize("override", ["name=other", "train.runs_dir=there", "train={runs_dir: there}"])
def test_no_other_place_for_a_run_that_goes_on(
    runs: Path, override: str, capsys: pytest.CaptureFixture[str]
) -> None:
    zoo("train", runs / "half", override, "--resume", status=2)
    assert f"half: {override} has no effect with --resume" in capsys.readouterr().err


def test_every_command_opens_the_folder_that_is_named(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content(runs)
    Path(shutil.copytree(runs / "whole", tmp_path / "a/renamed"))
    monkeypatch.chdir(tmp_path / "a")
    (tmp_path / "a/text.txt").write_text(TEXT[:2000], encoding="utf-8")
    zoo("generate", "renamed", "--prompt", "Line ", "--max-new-tokens", "4")
    zoo("eval", "renamed", "--perplexity", "text.txt")
    zoo("inspect", "renamed")
    zoo("report", "renamed", "--out", "page")
    written = ["sample.txt", "perplexity.json", "inspect/inspect.html"]
    assert all((tmp_path / "a/renamed" / name).is_file() for name in written)
    assert "renamed" in (tmp_path / "a/page/report.md").read_text(encoding="utf-8")
    assert content(runs) == before


def test_suggest_lr_reads_the_folder_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = tiny_fields(tmp_path, steps=10)
    fields["optimizer"] = {"type": "amos", "lr": 0.01}
    run = train(load_config(fields)).folder
    zoo("suggest-lr", run)
    expected = capsys.readouterr().out
    run.rename(tmp_path / "elsewhere")
    zoo("suggest-lr", tmp_path / "elsewhere")
    assert capsys.readouterr().out == expected


def test_a_run_whose_data_and_first_checkpoint_lie_elsewhere_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative paths start at the working directory; the tokenizer comes along with the run."""
    home, other = tmp_path / "home", tmp_path / "other"
    home.mkdir()
    fields = tiny_fields(home, steps=6, checkpoint_every=4)
    fields["data"] |= {"corpus": {"type": "text", "paths": ["text.txt"]}, "cache_dir": "cache"}
    fields["train"]["runs_dir"] = "runs"
    monkeypatch.chdir(home)
    train(load_config({**fields, "name": "first"}))
    data = {key: value for key, value in fields["data"].items() if key != "tokenizer"}
    tuned = {**fields, "name": "tuned", "model": {"from": "runs/first"}, "data": data}
    tuned["train"] = {**fields["train"], "steps": 10}
    whole = train(load_config({**tuned, "name": "whole"})).folder.rename(tmp_path / "whole")
    train(load_config(tuned), until=4)

    (other / "texts").mkdir(parents=True)
    (home / "runs/tuned").rename(other / "run")
    (home / "text.txt").rename(other / "texts/text.txt")
    shutil.rmtree(home)
    monkeypatch.chdir(other)
    with pytest.raises(DataError, match=rf"text.txt: no such file or directory in {other}"):
        train(load_config("./run"), resume=True, folder=RunFolder(other / "run"))
    zoo("train", "run", "--resume", "data.corpus.paths=texts/text.txt", "data.cache_dir=kept")
    assert step(other / "run") == 10
    left, right = saved(other / "run"), saved(whole)
    assert left.keys() == right.keys()
    assert all(torch.equal(tensor, right[name]) for name, tensor in left.items())
    zoo("inspect", "run", "--out", "pictures")
    assert json.loads((other / "pictures/inspect.json").read_text())["attention"].startswith("on ")


def test_other_text_at_another_place_is_refused(runs: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(runs / "half", tmp_path / "copy"))
    (tmp_path / "text.txt").write_text(TEXT + "One more line.", encoding="utf-8")
    config = load_config(copy, [f"data.corpus.paths={tmp_path / 'text.txt'}"])
    with pytest.raises(CheckpointError, match="was trained on other data"):
        train(config, resume=True, folder=RunFolder(copy))


def test_a_run_with_a_validation_corpus_goes_on_from_an_earlier_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoint has the fingerprint without the number of files of each corpus."""
    (tmp_path / "valid.txt").write_text(TEXT[:400], encoding="utf-8")
    fields = tiny_fields(tmp_path, steps=6, checkpoint_every=4)
    del fields["data"]["validation"]
    fields["data"]["validation_corpus"] = {"type": "text", "paths": [str(tmp_path / "valid.txt")]}
    whole = train(load_config(fields, ["name=whole"])).folder
    run = RunFolder(train(load_config(fields), until=4).folder)
    checkpoint = run.checkpoint()
    assert checkpoint is not None and checkpoint.data is not None
    (manifest,) = (tmp_path / "cache/tokens").glob("*/manifest.json")
    described = json.loads(manifest.read_text())
    rules = [{k: v for k, v in corpus.items() if k != "paths"} for corpus in described["corpora"]]
    key = [described["version"], rules, 0.0, described["sources"], described["tokenizer"]["hash"]]
    earlier = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    assert earlier != checkpoint.data
    checkpoint.write_state({**checkpoint.read_state(), "data": earlier})
    train(load_config(run.path), resume=True, folder=run)
    assert_same(run.path, whole)


def mixed(folder: Path, *overrides: str) -> RunConfig:
    """A tiny run on a mixture of two halves of the text, one of them in a mixture of its own."""
    parts = {"first.txt": TEXT[: len(TEXT) // 2], "second.txt": TEXT[len(TEXT) // 2 :]}
    for name, text in parts.items():
        (folder / name).write_text(text, encoding="utf-8")
    first, second = ({"type": "text", "paths": [str(folder / name)]} for name in parts)
    fields = tiny_fields(folder, steps=6, checkpoint_every=4)
    inner = {"type": "mixture", "corpora": [second]}
    fields["data"]["corpus"] = {"type": "mixture", "corpora": [first, inner]}
    return load_config(fields, overrides)


def test_a_run_whose_mixture_lies_elsewhere_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train(mixed(tmp_path, "name=whole")).folder
    run = train(mixed(tmp_path), until=4).folder
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("first.txt", "second.txt"):
        (tmp_path / name).rename(moved / name)
    monkeypatch.chdir(tmp_path)
    key = "data.corpus.corpora"
    places = [f"{key}.0.corpus.paths=[moved/first.txt]"]
    places += [f"{key}.1.corpus.corpora.0.corpus.paths=[moved/second.txt]"]
    with pytest.raises(ConfigError, match=rf"configuration: {key}.1.weight was 1.0, is 2.0. Undo"):
        train(load_config(run, [*places, f"{key}.1.weight=2"]), resume=True, folder=RunFolder(run))
    (moved / "others.txt").write_text(TEXT, encoding="utf-8")
    others = [places[0], places[1].replace("second", "others")]
    with pytest.raises(CheckpointError, match="was trained on other data"):
        train(load_config(run, others), resume=True, folder=RunFolder(run))
    zoo("train", run, "--resume", *places)
    assert_same(run, whole)


def test_loggers_may_change_one_by_one() -> None:
    old, new = ({"train": {"loggers": [{"type": "wandb", "mode": mode}]}} for mode in ("online", "offline"))
    assert [*differences(old, new)] == [("train.loggers.0.mode", "online", "offline")]
    assert [*differences(old, {"train": {"loggers": []}})] == [("train.loggers", old["train"]["loggers"], [])]
    assert _may_change("train.loggers.0.mode", "online", "offline")


def test_a_checkpoint_finds_its_run(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    checkpoint = run.checkpoint_after(40)
    assert checkpoint.path == tmp_path / "checkpoints/step-00000040"
    assert checkpoint.run == run
    assert CheckpointFolder(tmp_path / "somewhere").run is None
    checkpoint.path.mkdir(parents=True)
    assert model_folder(checkpoint.model) == run  # a checkpoint of zoo before it described itself
    checkpoint.config.touch()
    assert model_folder(checkpoint.model) == checkpoint


BROKEN = [
    ("state.json", "", "state.json: not a JSON file that zoo wrote"),
    ("state.json", "[1]", 'state.json: expected {"step": ..., "data": ...}'),
    ("state.json", '{"step": "x", "data": ""}', 'state.json: expected {"step": ..., "data": ...}'),
    ("../last.json", "{", "last.json: not a JSON file that zoo wrote"),
]


@pytest.mark.parametrize(("file", "text", "message"), BROKEN)
def test_files_that_were_edited(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, text: str, message: str
) -> None:
    copy = Path(shutil.copytree(runs / "half", tmp_path / "copy"))
    (copy / "checkpoints/step-00000012" / file).resolve().write_text(text, encoding="utf-8")
    zoo("train", copy, "--resume", status=2)
    assert message in capsys.readouterr().err


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ZooError, match=r"config.yaml: no such file; expected a run folder"):
        RunFolder(tmp_path).required()
