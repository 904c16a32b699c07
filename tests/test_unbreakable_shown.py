"""What is shown obeys nobody: markup, terminal escapes, HTML and formulas are shown as they are written."""

from __future__ import annotations

import csv
import signal
import subprocess
import sys
import time
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import pytest
from command_line import zoo
from rich.console import Console
from tiny_runs import ROOT, environment, tiny

from zoo.commands.app import console
from zoo.report.csv_files import _csv
from zoo.report.page import TEMPLATES, html_page
from zoo.report.plot import Plot, Series, View
from zoo.report.section import Section
from zoo.report.style import line_styles
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


class Page(HTMLParser):
    """The policy of a page, its scripts, and the places that it loads something from."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.policy, self.loads = "", list[str]()
        self.scripts: list[str] = []
        self._runs = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"]
        self.loads += [value for key, value in given.items() if key in ("src", "href", "srcset", "data")]
        assert not [key for key in given if key.startswith("on")]
        self._runs = tag == "script" and "type" not in given
        if self._runs:
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self._runs:
            self.scripts[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._runs = False


def test_pages_run_their_own_scripts_alone_and_load_nothing() -> None:
    """tests/test_report_browser.py sees that a browser agrees."""
    plot = Plot("loss", "Loss", [View("steps", "x", "y", [Series("a", "a", [1, 2], [3, 4])])])
    sections = [Section("Loss", [plot])]
    page = Page(html_page("t", [], sections, line_styles("a"), {"loss": b"png"}))
    directives = dict(part.strip().split(" ", 1) for part in page.policy.split(";"))
    assert directives["default-src"] == "'none'"
    hashes = [b64encode(sha256(script.encode()).digest()).decode() for script in page.scripts]
    assert directives["script-src"].split() == [f"'sha256-{digest}'" for digest in hashes]
    assert len(hashes) == 2  # plotly.js and page.js
    assert directives["img-src"].split() == ["data:", "blob:"]
    assert page.loads
    assert all(place.startswith(("data:", "#")) for place in page.loads)
    plain = Page(html_page("t", [], [], {}, {}))
    assert len(plain.scripts) == 1  # page.js sorts the tables
    assert "'unsafe" not in plain.policy.split("script-src")[1].split(";")[0]


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
