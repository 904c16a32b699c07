"""What is shown obeys nobody: markup, terminal escapes, HTML and formulas are shown as they are written."""

from __future__ import annotations

import csv
import json
import logging
import re
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
from rich.table import Table
from rich.text import Text
from tiny_runs import ROOT, environment, tiny, tiny_fields

from zoo.commands import inference
from zoo.commands.app import console, echo
from zoo.commands.terminal import InertConsole
from zoo.hub.model_card import model_card
from zoo.report.csv_files import _csv
from zoo.report.markdown import markdown_page
from zoo.report.page import TEMPLATES, html_page
from zoo.report.plot import Plot, Series, View
from zoo.report.section import Sample, Section
from zoo.report.style import line_styles
from zoo.run.config import load_config
from zoo.train.progress import TrainingBar
from zoo.train.run import train
from zoo.utils.errors import ZooError
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


class Terminal(StringIO):
    """What is written to a terminal."""

    def isatty(self) -> bool:
        return True


ESCAPED = r"a\x1b[2Jb\x07"
"""What is shown of a text that would clear the screen and ring."""


def test_what_a_terminal_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generated text, names in tables and bars, and warnings; colours are still sent."""
    text, terminal = "a\x1b[2Jb\x07", Terminal()
    table = Table("name")
    table.add_row(text)
    shown = InertConsole(file=terminal, force_terminal=True, width=60, color_system="standard")
    shown.print(table, text, highlight=False)
    assert terminal.getvalue().count(ESCAPED) == 2
    shown.print(Text("x\x1b[2J", style="bold"))
    assert "\x1b[1mx\\x1b[2J" in terminal.getvalue()
    assert isinstance(console(), InertConsole)
    output = Terminal()
    monkeypatch.setattr(sys, "stdout", output)
    echo(text)
    assert output.getvalue() == f"{ESCAPED}\n"
    zoo("list", "configs")
    record = logging.LogRecord("zoo", logging.WARNING, "", 0, "%s", (text,), None)
    assert logging.lastResort is not None
    assert logging.lastResort.format(record) == ESCAPED
    commands = Path(inference.__file__).parent.glob("*.py")
    assert [file.name for file in commands if "typer.echo(" in file.read_text()] == ["app.py"]


def test_a_generated_text_is_kept_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no terminal gets the text; joiners, which words and pictures need, are shown everywhere."""
    output = StringIO()
    monkeypatch.setattr(sys, "stdout", output)
    echo("a\x02b")
    assert output.getvalue() == "a\x02b\n"
    assert printable("\u0645\u06cc\u200c\u062e") == "\u0645\u06cc\u200c\u062e"


FENCED = "a\n```\n<img src=x onerror=alert(1)>"


def test_the_readme_of_an_export(tmp_path: Path) -> None:
    """The configuration is code, whatever its texts; names are no HTML and no cells."""
    name = "<img src=x>|`b`"
    fields = tiny_fields(tmp_path, steps=6) | {"description": FENCED}
    run = train(load_config(fields)).folder
    score = {"task": name, "metric": "acc", "filter": "none", "value": 0.5, "stderr": 0.1, "documents": 3}
    (run / "tasks.json").write_text(json.dumps({"scores": [score]}))
    told = {"architecture": "GPT", "parameters": 1, "dtype": "float32", "comparison": ""}
    text = model_card(run.rename(run.with_name("<b>tiny")), **told)  # type: ignore[arg-type]
    assert "# &lt;b>tiny\n" in text
    assert r"| &lt;img src=x>\|'b' | 3 | acc | 0.5 | 0.1 |" in text
    outside = re.sub(r"^(````+)yaml\n.*?^\1$", "", text, flags=re.S | re.M)
    assert "onerror" in text
    assert "onerror" not in outside


@pytest.mark.parametrize(
    "content", ["[]", '{"scores": [1]}', '{"scores": [{"value": 0.5}]}', '{"scores": 3}']
)
def test_tasks_that_zoo_did_not_write(tmp_path: Path, content: str) -> None:
    run = train(tiny(tmp_path, steps=6)).folder
    (run / "tasks.json").write_text(content)
    with pytest.raises(ZooError, match=r"tasks.json: is not as `zoo eval --tasks` wrote it"):
        model_card(run, architecture="GPT", parameters=1, dtype="float32", comparison="")


def test_markdown_of_a_report() -> None:
    text = markdown_page("a\x1b[2Jb\x07", [], [Section("s", [Sample("samples", "run", "c\x1b[2Jd")])])
    assert ESCAPED in text
    assert "\x1b" not in text


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
