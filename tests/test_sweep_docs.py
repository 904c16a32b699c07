"""docs/ablations.md and the sweeps of configs/: what stands there works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command_line import typed
from tiny_runs import ROOT

from zoo.ablate.sweep import load_sweep

PAGE = (ROOT / "docs/ablations.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ zoo (.*?) *(?:#.*)?$", PAGE, re.M)
TINY = ["train.steps=4", "train.eval_every=2", "train.batch_size=1", "train.eval_batches=1", "data.context=8"]
SWEEPS = sorted((ROOT / "configs/sweeps").rglob("*.yaml"))


def is_sweep(file: Path) -> bool:
    return re.search(r"^axes:|^zip:", file.read_text(encoding="utf-8"), re.M) is not None


@pytest.mark.parametrize("file", [*filter(is_sweep, SWEEPS)], ids=lambda file: file.stem)
def test_a_shipped_sweep_loads(file: Path) -> None:
    assert load_sweep(file).variants


def test_the_commands_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "book.txt").write_text("".join(f"It is {i} o'clock.\n\n" for i in range(3000)))
    example = tmp_path / "configs/sweeps/example.yaml"
    example.parent.mkdir(parents=True)
    (tmp_path / "configs/quickstart-gpt.yaml").symlink_to(ROOT / "configs/quickstart-gpt.yaml")
    shipped = (ROOT / "configs/sweeps/example.yaml").read_text()
    example.write_text(
        shipped.replace("seeds: [0, 1, 2]", "seeds: [0]").replace("[3e-3, 1e-2, 3e-2]", "[3e-3, 1e-2]")
    )
    text = "data.corpus={type: text, paths: [book.txt]}"
    assert text in PAGE
    assert [command.split()[0] for command in COMMANDS] == ["sweep", "sweep", "report"]
    for command in COMMANDS:
        more = [text, "schedule.warmup=0", *TINY] if command.startswith("sweep") else []
        typed(command, *more)
    assert "Verdict" in capsys.readouterr().out
    assert (tmp_path / "sweeps/example/sweep.json").is_file()
    assert list((tmp_path / "report").glob("*.html"))


def test_the_file_shown_is_one(tmp_path: Path) -> None:
    example = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)[0]
    (tmp_path / "mine.yaml").write_text(example, encoding="utf-8")
    sweep = load_sweep(tmp_path / "mine.yaml")
    assert len(sweep.variants) == 2 * 2 * 2 * 2 - 4
    assert "optimizer=amos,model.n_layers=2,method=wesar,model.d_model=128,model.n_heads=4" in [
        c.name for c in sweep.variants
    ]
