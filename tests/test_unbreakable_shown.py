"""What is shown obeys nobody: markup, terminal escapes, HTML and formulas are shown as they are written."""

from __future__ import annotations

import csv
import signal
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import pytest
from command_line import zoo
from rich.console import Console
from tiny_runs import ROOT, environment, tiny

from zoo.commands.app import console
from zoo.report.csv_files import _csv
from zoo.report.page import TEMPLATES
from zoo.train.progress import TrainingBar
from zoo.train.run import train
from zoo.utils.printable import printable

NAMES = ["[/x]", "[bold]x", "</script><img onerror=alert(1)>", "\x1b[2Jgone", "a\u202eb", "=1+1"]


def test_control_characters_are_written_out() -> None:
    assert printable("a\tb\nc\x1b[2J\u202e\udcff\r") == "a\tb\nc\\x1b[2J\\u202e\\udcff\\r"
    assert printable("é 文 😀") == "é 文 😀"


@pytest.mark.parametrize("name", NAMES)
def test_errors(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    zoo("train", name, status=2)
    shown = capsys.readouterr().err
    assert printable(name) in shown
    assert "\x1b[2J" not in shown


@pytest.mark.parametrize("name", ["[/x]", "[bold]x"])
def test_folders_with_brackets(tmp_path: Path, name: str) -> None:
    """Rich took the path of a run for markup, and [/x] for a mistake in it."""
    output = StringIO()
    shown = Console(file=output, width=300, markup=False)
    config = tiny(tmp_path, steps=6, runs_dir=str(tmp_path / name))
    train(config, console=shown)
    train(config, console=shown)
    assert f"{tmp_path / name}/tiny has all its 6 steps already" in output.getvalue()
    assert not console()._markup
    with TrainingBar(shown, name, 0, 1, "tokens"):
        pass
    assert name in output.getvalue()


def test_cells_of_spreadsheets() -> None:
    rows = list(csv.reader(StringIO(_csv([["=1+1", "@x", "-y", -1.5, "plain"]]))))
    assert rows == [["'=1+1", "'@x", "'-y", "-1.5", "plain"]]


@pytest.mark.parametrize("name", NAMES)
def test_pages(name: str) -> None:
    page = TEMPLATES.from_string("<p>{{ text }}</p><script>{{ {'text': text} | tojson }}</script>").render(
        text=name
    )
    assert page.count("<") == 4
    assert "<img" not in page


HELD = """
import hashlib, signal, sys
import zoo.train.interrupt as interrupt
interrupt.GRACE_SECONDS = 0.3
with interrupt.Interrupt() as asked:
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # Python handles no signal before it ends
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_what_python_cannot_interrupt(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HELD], cwd=ROOT, env=environment(), stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        time.sleep(0.5)
        assert process.poll() is None  # the first one waits for the end of the step
        process.send_signal(number)
        try:
            assert process.wait(30) == 128 + number
        finally:
            process.kill()
