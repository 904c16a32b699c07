"""The commands on classification of docs/fine-tuning.md, typed as they stand there."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import typed
from pages import sections
from test_classification import THINGS, reviews
from test_finetune_docs import demo as demo  # a fixture

SECTION = sections("fine-tuning.md")["Classifying texts"]


def test_the_commands(
    demo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(demo)
    reviews(demo, "reviews.tsv", THINGS)
    Path("sentiment.yaml").write_text(SECTION.files["sentiment.yaml"], encoding="utf-8")
    outputs = {}
    assert len(SECTION.commands) == 6
    for command in SECTION.commands:
        typed(command)
        captured = capsys.readouterr()
        outputs[command.split("  ")[0]] = captured.out
    said = " ".join(outputs["train sentiment.yaml"].split())
    assert "20 tensors loaded, 1 unused (read_out.matrix.weight), 2 new (head.linear.weight, head" in said
    header, line = outputs['classify runs/sentiment --text "a fine film"'].splitlines()
    assert header.split("\t") == ["label", "bad", "good"]
    assert line.split("\t")[0] in ("bad", "good")
    assert len(outputs["classify runs/sentiment --file reviews.tsv"].splitlines()) == 46
    assert "matthews" in outputs["classify runs/sentiment --score reviews.tsv"]
