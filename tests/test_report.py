"""The comparison page: self-contained, complete, and a clear error for what is no run."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tiny_runs import of_kind, tiny

from zoo.errors import ZooError
from zoo.report.compare import compare
from zoo.report.runs import SAMPLE, read_run
from zoo.train.run import train

VOID = {"meta", "img"}


class Balanced(HTMLParser):
    """Checks that tags close in order, and collects the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs, one with a sample that wants to be markup, one without validation."""
    folder = tmp_path_factory.mktemp("runs")
    first = train(tiny(folder, "name=first", steps=20)).folder
    amos = ("optimizer.type=amos", "optimizer.lr=0.01")
    second = train(tiny(folder, "name=second", "data.validation=0", *amos, steps=5))
    (first / SAMPLE).write_text("<script>alert('x')</script> $title", encoding="utf-8")
    return [first, second.folder]


def test_the_page(runs: list[Path], tmp_path: Path) -> None:
    page = compare(runs, tmp_path / "new/page.html")
    text = page.read_text(encoding="utf-8")
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert "<script>alert('x')</script> $title" in parser.words
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert (tmp_path / "new/page.png").read_bytes().startswith(b"\x89PNG")
    losses = [line["cross_entropy"] for line in of_kind(runs[0], "validation")]
    (size,) = of_kind(runs[1], "size")
    numbers = [f"{losses[-1]:.4f}", f"{min(losses):.4f}", f"{size['parameters']:,}"]
    for shown in ("first", "second", "amos, lr 0.01", *numbers):
        assert shown in parser.words


def test_a_run_as_data(runs: list[Path]) -> None:
    run = read_run(runs[0])
    assert run.step == 20
    assert run.train[0][0] == 4 * 16
    assert run.validation[0] == [0, 640, 1280]
    assert run.tokens_per_second is not None
    assert run.tokens_per_second > 0
    without = read_run(runs[1])
    assert (without.last, without.best, without.sample) == (None, None, None)


def test_the_same_runs_give_the_same_page(runs: list[Path], tmp_path: Path) -> None:
    assert compare(runs, tmp_path / "a.html").read_bytes() == compare(runs, tmp_path / "b.html").read_bytes()


def test_what_is_no_run(runs: list[Path], tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"kind": "train", "step": 1}\nnonsense\n')
    for given, out, message in [
        ([], "page.html", "compare: no runs"),
        (runs, "page.pdf", "expected a name that ends in .html"),
        ([tmp_path / "no"], "page.html", "no such file; expected a run folder made by `zoo train`"),
        ([tmp_path], "page.html", "metrics.jsonl:2: expected"),
    ]:
        with pytest.raises(ZooError, match=re.escape(message)):
            compare(given, tmp_path / out)
