"""docs/diagnostics.md and docs/spikes.md: their commands work, at a reduced size."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from command_line import typed
from tiny_runs import ROOT, TEXT, of_kind, tiny_fields

from zoo.run.config import dump_config, load_config

DOCS = ROOT / "docs"
INSIDE, SPIKES = ((DOCS / name).read_text(encoding="utf-8") for name in ("diagnostics.md", "spikes.md"))
AMOS = ["optimizer.type=amos", "optimizer.lr=0.01"]
SMALL = ["model.d_model=8", "model.n_layers=1", "data.context=16", "data.validation=0.2"]
SHORT = ["train.steps=24", "train.batch_size=2", "train.eval_every=24", "train.eval_batches=1"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a user works: with a book, and with data that is quickly read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "book.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path


def test_the_commands_on_diagnostics(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A config of one's own stands for the shipped one, and runs of it for those of the page."""
    fields = tiny_fields(folder, steps=100, diagnose_every=100)
    (folder / "small.yaml").write_text(dump_config(load_config(fields, AMOS)), encoding="utf-8")
    typed("train small.yaml", "name=my-run")
    for name in ("sweeps/my-sweep", "models/llama"):
        shutil.copytree("runs/my-run", name)
    commands = re.findall(r"^\$ zoo (.*?) *(?:#.*)?$", INSIDE, re.M)
    assert [command.split()[0] for command in commands] == ["inspect"] * 2 + ["suggest-lr"] * 2 + ["report"]
    for command in commands:
        typed(command.replace("quickstart-wesar-amos", "small.yaml --steps 100"))
    told = capsys.readouterr().out
    assert told.count("suggested: optimizer.lr=") == 2
    seen = {path.name for path in (folder / "runs/my-run/inspect").iterdir()}
    assert {"inspect.html", "inspect.json", "ratio.png"} < seen
    assert (folder / "seen/attention-entropy.png").is_file()
    assert (folder / "report/report.html").is_file()


def test_the_commands_on_spikes(folder: Path) -> None:
    """So short that there is no spike: the actions are variants that come out equal."""
    commands = re.findall(r"^    zoo (train .*)$", SPIKES, re.M)
    names = ["log", "skip", "rollback"]
    assert len(commands) == len(names)
    for command in commands:
        typed(command, "data.corpus={type: text, paths: [book.txt]}", *SMALL, *SHORT)
    for name in names:
        assert len(of_kind(folder / "runs" / name, "train")) == 24
    typed("report " + " ".join(f"runs/{name}" for name in names))
    assert "| rollback | equal |" in (folder / "report/report.md").read_text("utf-8")
