"""The command line on terminals of any width, colour and encoding, and on systems without fcntl."""

import ast
import io
import json
import os
import platform
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import get_args

import pytest
from command_line import zoo
from jsonschema import Draft202012Validator
from rich.console import Console
from synthetic_runs import write_sweep
from tiny_runs import ROOT, environment, tiny_fields
from tiny_sweeps import FixedSpeed

import zoo as package
from benchmarks.screens import draw
from zoo.ablate.conclusion import conclusion
from zoo.ablate.config import sweep_schema
from zoo.ablate.estimate import estimate
from zoo.ablate.ladder_estimate import estimate_ladder
from zoo.ablate.results import read_results
from zoo.ablate.scale.presentation import verdict_table
from zoo.ablate.sweep import load_sweep
from zoo.ablate.verdict import judge
from zoo.commands.app import app, console
from zoo.config.yaml import dump_yaml, read_yaml
from zoo.evaluation.perplexity_report import PerplexityReport
from zoo.evaluation.score import Score
from zoo.evaluation.task_report import TaskReport, TaskScore
from zoo.run.explanation import COLUMNS, LEFT_OUT, explain
from zoo.run.train_config import Recompute
from zoo.train.forecast import Activations, Forecast
from zoo.utils.errors import ZooError
from zoo.utils.fitting import FittingTable, folded
from zoo.utils.lock import locked


def shown(renderable: object, width: int) -> str:
    stream = StringIO()
    Console(file=stream, width=width, markup=False).print(renderable)
    return stream.getvalue()


# ---- widths


def test_names_are_folded_at_dots() -> None:
    name = "blocks.0.attention_residual.alpha.scale"
    assert folded(name, 100) == name
    assert folded(name, 20) == "blocks.0\n  .attention_residual\n  .alpha.scale"
    assert "".join(part.strip() for part in folded(name, 8).split("\n")) == name


@pytest.mark.parametrize("config", ["wesar-130m", "ngpt-tiny"])
def test_explain_keeps_its_numbers_at_80_columns(config: str) -> None:
    explanation = explain(config)
    text = shown(explanation.table(), 80)
    assert max(map(len, text.splitlines())) <= 80
    heading = next(line for line in text.splitlines() if "parameter" in line)
    assert all(word in heading for word in ("sigma", "eta", "gate"))
    body = "".join(re.split(r"\s*│\s*", text))
    for row in explanation.rows:
        for value in (row.sigma, row.eta, row.gate):
            assert value is None or f"{value:.4g}" in text
        assert row.name.rpartition(".")[2] in body
    (said,) = re.findall(r"left out at 80 columns: (.*)", text)
    absent = set(said.split(", "))
    assert absent <= set(LEFT_OUT)
    assert not any(name in heading.split() for name in absent)
    assert "…" not in text


def test_columns_are_left_out_in_the_stated_order() -> None:
    drop = ("c", "b")
    table = FittingTable("t", ["a", "b", "c", "d"], [["x" * 10, "bbbb", "cccc", "dddd"]], drop)
    widths = {width: shown(table, width) for width in (60, 28, 22)}
    assert "left out" not in widths[60]
    assert widths[28].endswith("left out at 28 columns: c\n")
    assert "left out at 22 columns: b, c" in " ".join(widths[22].split())
    assert all("dddd" in text and "x" * 10 in text for text in widths.values())


def test_names_of_settings_are_folded_at_commas() -> None:
    name = "optimizer.lr=0.001,init=small,reparam=wesar"
    assert folded(name, 30) == "optimizer.lr=0.001,init=small,\n  reparam=wesar"


@pytest.mark.parametrize("ladder", [False, True])
def test_a_dry_run_cuts_nothing_off(tmp_path: Path, ladder: bool) -> None:
    scale = "scale: {sizes: [{model.n_layers: 1}, {model.n_layers: 2}], budgets: {steps: [8, 16]}}"
    optimizers = "[{type: adamw, weight_decay: 0.1, lr: 1}, {type: amos, lr: 1}]"
    axes = f"axes: {{optimizer: {optimizers}, init: [he, small], model.d_mlp: [8, 9]}}"
    (tmp_path / "s.yaml").write_text(f"base: gpt-tiny\n{axes}\n{scale if ladder else 'seeds: [0]'}\n")
    sweep = load_sweep(tmp_path / "s.yaml")
    text = shown((estimate_ladder if ladder else estimate)(sweep, FixedSpeed(1)), 80)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    words = "".join(text.split())
    settings = {part for variant in sweep.variants for part in variant.name.split(",")}
    assert ladder or all(setting in words for setting in settings)
    assert ("core-hours" if ladder else "100%") in words


def test_tables_of_eval_at_80_columns() -> None:
    name = "corpora/a.long.name.of.a.file.that.no.narrow.table.has.room.for.txt"
    score = Score(name, 1024, 512, tokens=12_345_678, words=2_345_678, utf8_bytes=45_678_901, nats=3.4e7)
    perplexities = PerplexityReport("runs/x", 1024, True, [score])
    task = TaskScore(
        "a_task_whose_name_is_as_long_as_they_are",
        "exact_match",
        "flexible-extract",
        0.1234,
        0.0123,
        True,
        5,
        1000,
        "1",
        None,
    )
    tasks = TaskReport("runs/x", None, 1024, None, "0.4", False, None, [task])
    for report, kept, dropped in (
        (perplexities, (name, "15.71", "1,024"), "stride"),
        (tasks, (task.task, "exact_match (flexible-extract) ↑", "0.1234"), "examples, questions"),
    ):
        text = shown(report.table(), 80)
        assert max(map(len, text.splitlines())) <= 80
        assert "…" not in text
        body = "".join(text.split())
        assert all("".join(part.split()) in body for part in kept[1:])
        assert f"left out at 80 columns: {dropped}" in text
        assert "left out" not in shown(report.table(), 200)
        assert kept[0] in shown(report.table(), 200)


def test_the_forecast_at_80_columns() -> None:
    ways = [
        Activations(way, 123_456_789_012, 12_345_678_901, 234_567_890_123, 10**17, True)
        for way in get_args(Recompute)
    ]
    cost = Forecast(8, 1, 4, 2, 10**10, 10**10, 10**10, 10**9, ways, [], "none", False, [])
    for width in (70, 80):
        text = shown(cost.table(), width)
        assert "…" not in text
        assert max(map(len, text.splitlines()[-8:])) <= width
        assert all(way in text for way in get_args(Recompute))
        assert "(configured)" in text


def test_nothing_is_left_out_of_a_wide_terminal() -> None:
    text = shown(explain("ngpt-tiny").table(), 200)
    heading = text.splitlines()[2]
    assert all(column in heading for column in COLUMNS)


def test_wide_and_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    zoo("explain", "ngpt-tiny", "--wide")
    out = capsys.readouterr().out
    assert "left out" not in out
    assert all(column in out for column in COLUMNS)
    zoo("explain", "ngpt-tiny", "--wide", "--json", status=2)
    assert "--wide has no effect with --json" in capsys.readouterr().err


def test_the_verdict_at_80_columns(tmp_path: Path) -> None:
    finals = {"base": [3.0, 3.01, 2.99], "a_rather_long_variant_name": [2.9, 2.92, 2.89]}
    judgement = judge(read_results([write_sweep(tmp_path / "sweep", finals)]))
    text = shown(conclusion(judgement), 80)
    assert max(map(len, text.splitlines())) <= 80
    comparison = judgement.verdicts[1].comparison
    assert comparison is not None
    assert f"{comparison.difference:+.4f} ({comparison.low:+.4f} to {comparison.high:+.4f})" in text
    table = text[: text.index("left out")]
    assert "better" in table
    assert text[text.index("left out") :].startswith("left out at 80 columns: seeds, best loss, p, ")


def test_the_verdict_across_scale_keeps_the_difference() -> None:
    table = verdict_table({}, "base")
    titles = [column.title for column in table.columns]
    assert set(table.drop) < set(titles)
    assert not {"variant", "word", "largest", "loss difference"} & set(table.drop)


# ---- version, completion, schemas


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    zoo("--version")
    assert capsys.readouterr().out == f"zoo {package.__version__}\n"


def test_a_shell_completes_commands_and_configs(monkeypatch: pytest.MonkeyPatch) -> None:
    def completed(line: str) -> str:
        variables = {"_ZOO_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        stream = StringIO()
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(SystemExit):
            app(prog_name="zoo", args=[])
        return stream.getvalue()

    assert "explain" in completed("zoo exp").split()
    assert {"quickstart-gpt", "quickstart-ngpt"} <= set(completed("zoo train quick").split())


def read(file: Path) -> dict[str, object]:
    """A YAML file as zoo reads it."""
    content: dict[str, object] = read_yaml(file.read_text(encoding="utf-8"), str(file), []).plain()
    return content


SWEEPS = [file for file in sorted((ROOT / "configs/sweeps").rglob("*.yaml")) if "base" in read(file)]


@pytest.fixture(scope="module")
def sweeps() -> Draft202012Validator:
    return Draft202012Validator(sweep_schema())


@pytest.mark.parametrize("file", SWEEPS, ids=lambda file: file.stem)
def test_shipped_sweeps_are_valid(file: Path, sweeps: Draft202012Validator) -> None:
    sweeps.validate(read(file))


@pytest.mark.parametrize(
    "wrong", [{"axis": {}}, {"seeds": ["a"]}, {"base": {"modle": {}}}, {"scale": {"budgets": {"step": [1]}}}]
)
def test_the_schema_finds_mistakes_in_sweeps(wrong: dict[str, object], sweeps: Draft202012Validator) -> None:
    assert list(sweeps.iter_errors({"base": "gpt-tiny", **wrong}))


def test_schema_command(capsys: pytest.CaptureFixture[str]) -> None:
    zoo("schema", "sweep")
    assert set(json.loads(capsys.readouterr().out)["properties"]) >= {"axes", "base", "tune", "scale"}
    zoo("schema", "sweeps", status=2)
    assert "'sweeps'; expected config or sweep" in capsys.readouterr().err


# ---- colours and encodings


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("wanted", [True, False])
def test_no_color(wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TTY_COMPATIBLE", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    if not wanted:
        monkeypatch.setenv("NO_COLOR", "1")
    out, err = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    zoo("list", "inits")
    zoo("train", "quickstart-gtp", status=2)
    colours = [bool(re.search(r"\x1b\[[\d;]*3\d", stream.getvalue())) for stream in (out, err)]
    assert colours == [wanted, wanted]
    assert "error: no config called 'quickstart-gtp'" in err.getvalue()


def test_a_closed_standard_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `>&-` in a shell."""
    monkeypatch.setattr(sys, "stdout", None)
    zoo("--version")
    zoo("schema", "sweep")


def test_pictures_in_names_stay_names(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = StringIO()
    console(stream=stream).print("runs/:x:/[bold]")
    assert stream.getvalue() == "runs/:x:/[bold]\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_consoles_of_other_encodings(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True) for _ in range(2))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    zoo("explain", "ngpt-tiny", "--fold")
    zoo("train", "\u0142\u00f3\u017a", status=2)
    written = err.buffer.getvalue().decode(encoding)
    assert "\\u0142" in written
    assert b"sigma" in out.buffer.getvalue()


def test_a_prompt_that_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tiny.yaml"
    talk = tmp_path / "talk.jsonl"
    talk.write_text('{"prompt": "over", "response": "13 lazy dogs"}\n' * 20, encoding="utf-8")
    data = {
        "type": "instructions",
        "train": str(talk),
        "validation": str(talk),
        "template": "plain",
        "tokenizer": "byte",
    }
    file.write_text(dump_yaml({**tiny_fields(tmp_path, steps=6), "data": data}), encoding="utf-8")
    zoo("train", file, "--quiet")
    run = tmp_path / "runs/tiny"
    for arguments in (["a\udcff"], ["a", "--system", "\udcff"]):
        err = StringIO()
        monkeypatch.setattr(sys, "stderr", err)
        zoo("generate", run, *arguments, status=2)
        assert "is not UTF-8" in err.getvalue()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\xff\n"), encoding="utf-8"))
    monkeypatch.setattr(sys, "stderr", err := StringIO())
    zoo("generate", run, "--chat", status=2)
    assert "error: " in err.getvalue()
    assert "not UTF-8" in err.getvalue()


# ---- systems without fcntl

WITHOUT = """
import os, sys, torch
for name in ("fcntl", "resource", "termios", "pwd"):
    sys.modules[name] = None
for name in ("register_at_fork", "O_NONBLOCK", "O_CLOEXEC", "pread", "pwrite", "uname", "sysconf"):
    delattr(os, name)
from zoo.commands.cli import main
main(["train", sys.argv[1], "--quiet"])
"""
UNIX = {"fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}
"""Modules of the standard library that Windows does not have."""


def test_a_run_without_what_windows_lacks(tmp_path: Path) -> None:
    """The run folder is locked all the same, and the lock is gone at the end."""
    file = tmp_path / "tiny.yaml"
    file.write_text(dump_yaml(tiny_fields(tmp_path, steps=6)), encoding="utf-8")
    # filelock, which guards the prepared data, warns where a system has neither fcntl nor Windows' locks.
    command = [sys.executable, "-W", "ignore:only soft file lock", "-c", WITHOUT, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment())
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "runs/tiny/checkpoints").is_dir()
    assert not list((tmp_path / "runs/tiny").glob("*lock*"))


def test_no_module_needs_what_windows_lacks() -> None:
    """Such modules are imported inside functions, which do without them."""
    for file in (ROOT / "zoo").rglob("*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not UNIX.intersection(names), file


def test_a_lock_without_fcntl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name in the file decides: of a process that lives, of one that is gone, and of another host."""
    monkeypatch.setitem(sys.modules, "fcntl", None)
    file = tmp_path / "lock"
    with locked(file, "first"):
        assert file.read_text().split()[1] == str(os.getpid())
        with pytest.raises(ZooError, match="second"), locked(file, "second"):
            pass
    assert not file.exists()
    file.write_text(f"process {os.getppid()} on {platform.node()}\n")
    with pytest.raises(ZooError, match=rf"third .process {os.getppid()} on "), locked(file, "third"):
        pass
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    file.write_text(f"process {gone.pid} on {platform.node()}\n")
    with locked(file, "fourth"):
        pass
    file.write_text("process 1 on elsewhere\n")
    with pytest.raises(ZooError, match=r"fifth .process 1 on elsewhere"), locked(file, "fifth"):
        pass


def test_the_pictures_of_the_documentation(tmp_path: Path) -> None:
    """They are drawn at both widths, and load nothing from elsewhere."""
    draw(tmp_path)
    drawn = {file.name: file.read_text(encoding="utf-8") for file in tmp_path.iterdir()}
    assert drawn.keys() == {file.name for file in (ROOT / "docs/screens").iterdir()}
    assert {name.rpartition("-")[2] for name in drawn} == {"80.svg", "200.svg"}
    for name, picture in drawn.items():
        words = ("sigma", "eta") if name.startswith("explain") else ("difference", "better")
        assert all(word in picture for word in words), name
        assert not re.search(r"url\(.?http", picture)
        assert ("left&#160;out" in picture) == name.endswith("-80.svg")
