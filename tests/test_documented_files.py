"""docs/run-folders.md has every file of a run and every key of its metrics; commands of other pages work."""

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from command_line import typed
from pages import DOCS, sections
from test_pages import python, small
from tiny_runs import TEXT

from zoo.train.spikes import Spike
from zoo.utils.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a book and notes, and no cache elsewhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("book.txt").write_text(TEXT, encoding="utf-8")
    lines = [f'{{"body": "A note of number {i}, which says little."}}\n' for i in range(40)]
    Path("notes.jsonl").write_text("".join(lines), encoding="utf-8")
    return tmp_path


def keys_in(value: object) -> Iterator[str]:
    """The keys of a record at any depth, without the names of tensors."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        if "." not in key:
            yield key
        yield from keys_in(inner)


def test_every_file_and_key_of_a_run_is_on_the_page(folder: Path) -> None:
    page = (DOCS / "run-folders.md").read_text("utf-8")
    intervals = [f"train.{key}_every=2" for key in ("log", "eval", "monitor", "checkpoint", "diagnose")]
    typed("train quickstart-gpt train.loggers=[tensorboard]", *small("train ", 4), *intervals)
    run = RunFolder(Path("runs/quickstart-gpt"))
    words = set(re.findall(r"`([\w.-]+)/?`", page))
    named = {path.name for path in run.path.iterdir()} | {
        path.name for path in run.checkpoint_after(4).path.iterdir()
    }
    assert {"config.yaml", "tensorboard", "model.safetensors", "state.json"} <= named <= words
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]* \| (.*) \|$", page.partition("## metrics.jsonl")[2], re.M))
    records = run.read_metrics()
    assert {str(r["kind"]) for r in records} == rows.keys() - {"spike", "diverged"}
    for record in records:
        assert {*keys_in(record)} - {"kind", "step"} <= {
            *re.findall(r"`(\w+)`", rows[str(record["kind"])])
        }, record
    assert {f.name for f in fields(Spike)} <= {*re.findall(r"`(\w+)`", rows["spike"])}


FEW = ("train.steps=2", "train.batch_size=2", "train.eval_batches=1", "train.device=cpu", "schedule.warmup=0")
"""What makes the commands of docs/data.md short; their models and data stay as they are."""
PIECES = ("data.tokenizer.vocab_size=300", "model.vocab_size=300")
"""A vocabulary for little text."""


def test_data(folder: Path) -> None:
    commands = 0
    for section in sections("data.md").values():
        for name, content in section.files.items():
            Path(name).write_text(content, encoding="utf-8")
        for command in section.commands:
            typed(command, *FEW, *(PIECES if "mixture" in command else ()))
            commands += 1
    assert commands == 4


def test_generation(folder: Path) -> None:
    typed("train quickstart-gpt", *small("train ", 2))
    pages = sections("generation.md")
    (block,) = python((DOCS / "generation.md").read_text("utf-8"))
    commands = [command for section in pages.values() for command in section.commands]
    assert len(commands) == 4
    for command in commands:
        typed(command, "--max-new-tokens", "5")
    names: dict[str, Any] = {}
    exec(block, names)
    assert names["continued"].shape == (2, 53)
