"""The commands of docs/instructions.md, typed as they stand there, with the files that are printed there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command_line import typed
from pages import DOCS

PAGE = (DOCS / "instructions.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)
    return found


def test_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("answers.jsonl").write_text(blocks("json")[0], encoding="utf-8")
    (settings,) = [code for code in blocks("yaml") if code.startswith("# answers.yaml")]
    Path("answers.yaml").write_text(settings, encoding="utf-8")
    (commands,) = blocks("console")
    for command in commands.splitlines():
        typed(command.removeprefix("$ zoo "))
        assert capsys.readouterr().out.strip(), command
    assert {run.name for run in Path("runs").iterdir()} == {"gpt-tiny", "answers", "own-words", "lora"}
