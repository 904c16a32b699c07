"""README.md and the first pages, whose commands are typed and whose Python is run; the site."""

from __future__ import annotations

import importlib
import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import typed
from hub_models import saved
from pages import DOCS, sections
from tiny_runs import ROOT, TEXT

import zoo
from zoo.config.registry import Kind
from zoo.utils.run_folder import RunFolder

SMALL = [
    *("model.d_model=16", "model.n_layers=1", "model.n_heads=2", "model.vocab_size=300", "data.context=32"),
    *("data.tokenizer.vocab_size=300", "data.corpus={type: text, paths: [book.txt]}", "train.device=cpu"),
    *("train.batch_size=2", "train.eval_batches=1", "schedule.warmup=0", "schedule.type=constant"),
]


def small(command: str, steps: int) -> list[str]:
    """What to add to a command, so that it has little to do."""
    return [*SMALL, f"train.steps={steps}"] if command.startswith("train ") else []


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_plugins: None) -> Path:
    """An empty folder with a book, and no cache elsewhere; what a page registers is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("book.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path


def python(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)


def test_first_steps(folder: Path) -> None:
    commands = 0
    for section in sections("first-steps.md").values():
        for name, content in section.files.items():
            Path(name).write_text(content, encoding="utf-8")
        for command in section.commands:
            typed(command, *small(command, 6 if "--resume" in command else 4))
            commands += 1
    assert commands == 10
    blocks = python((DOCS / "first-steps.md").read_text("utf-8"))
    assert len(blocks) == 3
    for block in blocks:
        names: dict[str, Any] = {}
        exec(block, names)
        if "continued" in names:
            assert names["continued"].shape == (1, 12)


def test_dashboards(folder: Path) -> None:
    for section in sections("logging.md").values():
        for name, content in section.files.items():
            Path(name).write_text(content, encoding="utf-8")
        for command in section.commands:
            typed(command, *small(command, 2))
    assert list(Path("runs/logged/tensorboard").glob("events*"))
    assert list(Path("runs/tracked/wandb").glob("offline-run-*"))
    with_csv = Path("runs/with_csv")
    losses = [
        [str(r["step"]), str(r["loss"])] for r in RunFolder(with_csv).read_metrics() if r["kind"] == "train"
    ]
    rows = [line.split(",") for line in (with_csv / "steps.csv").read_text("utf-8").splitlines()]
    assert rows == losses
    assert len(rows) == 2


def test_readme(folder: Path) -> None:
    page = (ROOT / "README.md").read_text("utf-8")
    (block,) = python(page)
    names: dict[str, Any] = {}
    exec(block, names)
    assert math.log(512) < names["loss"].total.item() < 7  # nats per token
    saved("llama", Path("path/to/hf-folder"))
    typed("train quickstart-gpt", *small("train ", 4))
    lines = re.findall(r"^zoo (.*)$", page, re.M)
    assert len(lines) == 9
    for line in lines:
        command = line.split("  #")[0].split(" # ")[0].replace("configs/", f"{ROOT}/configs/")
        typed(command, *small(command, 4))


def test_the_reference_has_everything_public() -> None:
    """What zoo exports, and everything that the table of CONTRIBUTING.md says to derive from."""
    pages = "".join(page.read_text("utf-8") for page in (DOCS / "reference").glob("*.md"))
    shown = re.findall(r"^::: ([\w.]+)$", pages, re.M)
    assert len(shown) == len(set(shown))
    registries = [name for name in zoo.__all__ if isinstance(getattr(zoo, name), Kind)]
    assert all(f"`zoo.{name}`" in pages for name in registries)
    assert {f"zoo.{n}" for n in zoo.__all__ if n not in registries} - {"zoo.__version__"} <= set(shown)
    for path in shown:
        module, name = path.rsplit(".", 1)
        assert getattr(importlib.import_module(module), name).__doc__, path
    table = re.findall(r"^\| \w.*\|$", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.M)
    bases = re.findall(r"`(?:[a-z]\w*\.)*([A-Z]\w*[a-z]\w*)`", "".join(table))
    assert len(bases) >= 10
    assert set(bases) <= {path.rsplit(".", 1)[1] for path in shown}


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    listed = re.findall(r": (\S+\.md)$", text, re.M)
    assert sorted(listed) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


def test_the_site_loads_nothing_from_elsewhere() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    assert site["theme"]["font"] is False
    assert [plugin if isinstance(plugin, str) else next(iter(plugin)) for plugin in site["plugins"]] == [
        "search",
        "mkdocstrings",
    ]
    assert not {"extra_css", "extra_javascript"} & site.keys()
