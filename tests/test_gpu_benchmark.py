"""`make gpu` as far as a processor can try it: every cell at a tiny size, failures, and going on."""

from __future__ import annotations

import ast
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded_graphs import RecordedGraphs

from benchmarks.gpu import __main__ as program
from benchmarks.gpu.cells import CELLS, TINY, Generation, Training
from benchmarks.gpu.measure import figures
from benchmarks.gpu.page import TESTS
from benchmarks.gpu.records import Record, Records, attempt
from benchmarks.gpu.requirements import ROOTS, chosen, closure
from benchmarks.gpu.tests import FILE
from benchmarks.harness import ROOT

CPU = ["--tiny", "--device", "cpu"]
PAIR = ("update gpt-0.5b adamw", "update gpt-0.5b amos")


@pytest.fixture(autouse=True)
def handler_of_this_process() -> Iterator[None]:
    """The program sets one."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def says(code: str) -> list[str]:
    """The command of a small program."""
    return [sys.executable, "-I", "-S", "-c", code]


@pytest.mark.parametrize("key", CELLS)
def test_every_cell_is_measured(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # takes longer than all the rest
    monkeypatch.setattr("zoo.sampling.loop.CUDAGraphs", RecordedGraphs)
    cell, found = CELLS[key], figures(CELLS[key], torch.device("cpu"), TINY)
    json.dumps(found)
    assert found["parameters"] > 0
    assert min(found["seconds"]) > 0
    if isinstance(cell, Training):
        assert found["tokens_per_s"] == pytest.approx(TINY.tokens / statistics.median(found["seconds"]))
        assert 0 < found["loss"] < 10
        assert found["mfu"] is None
    elif isinstance(cell, Generation):
        assert found["tokens_per_s"] == pytest.approx(
            cell.batch * TINY.new / statistics.median(found["seconds"])
        )
    else:
        assert found["state_bytes"] > 0


def test_both_libraries_have_models_of_one_size() -> None:
    found = [
        figures(Training("gpt-0.5b", 16, package, "none"), torch.device("cpu"), TINY)
        for package in ("zoo", "transformers")
    ]
    assert found[0]["parameters"] == found[1]["parameters"]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("raise ValueError('planned')", "status 1: ValueError: planned"),
        ("import os; os.abort()", "status -6: it said nothing"),
        ("print('no number')", "no figures: no number"),
        ("", "no figures: it said nothing"),
        ("import time; time.sleep(600)", "not done after 0.5 s"),
    ],
)
def test_what_fails_is_a_line(code: str, error: str) -> None:
    record = attempt(says(code), 0.5 if "sleep" in code else 600)
    assert record == Record(record.seconds, error=error)


def test_a_cell_has_a_process_of_its_own(tmp_path: Path) -> None:
    program.main([*CPU, "--only", PAIR[0], "--limit", "3600", "--name", "try", "--out", str(tmp_path)])
    (record,) = json.loads((tmp_path / "gpu-try.json").read_text())["cells"].values()
    assert record["error"] == ""
    assert len(record["figures"]["seconds"]) == TINY.steps


def test_it_goes_on_where_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: dict[str, Any] = {"parameters": 2, "first_s": 9.0, "peak_bytes": 2**30, "state_bytes": 8}
    outcomes = {
        PAIR[0]: f"print({json.dumps(json.dumps({**measured, 'seconds': [3.0, 4.0, 5.0]}))})",
        PAIR[1]: "raise RuntimeError('out | of memory')",
    }
    started: list[str] = []

    def command(key: str, device: str, tiny: bool) -> list[str]:
        started.append(key)
        return says(outcomes[key])

    def call(*arguments: str) -> str:
        program.main([*CPU, "--name", "try", "--out", str(tmp_path), *arguments])
        capsys.readouterr()
        return (tmp_path / "gpu-try.md").read_text()

    monkeypatch.setattr(program, "command", command)
    text = call("--only", PAIR[0])
    assert started == [PAIR[0]]
    assert "| adamw | gpt-0.5b | 4000.00 | 9.0 | 1.00 | 4 |" in text
    assert f"* {PAIR[1]}" in text  # what was not measured
    monkeypatch.setitem(outcomes, f"{PAIR[1]} momentum=0.9", "raise SystemExit('planned')")
    text = call("--only", "update")
    assert started[1:] == [f"{PAIR[1]} momentum=0.9", PAIR[1]]
    assert "status 1: RuntimeError: out \\| of memory |" in text
    assert "## Ratios" not in text
    call("--only", "update")
    assert len(started) == 3  # failures stay too, unless
    outcomes[PAIR[1]] = outcomes[PAIR[0]].replace("3.0, 4.0, 5.0", "1.0, 2.0, 3.0")
    text = call("--only", PAIR[1], "--again")
    assert started[3:] == [f"{PAIR[1]} momentum=0.9", PAIR[1]]
    assert f"| Amos / fused AdamW: {PAIR[1]} | 0.500 |" in text
    assert "out \\| of memory" not in text

    file = tmp_path / "gpu-try.json"
    file.write_text(file.read_text().replace('"tiny": true', '"tiny": false'))
    with pytest.raises(SystemExit, match="is of another machine"):
        call("--only", "update")


def test_no_cell_begins_when_the_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "command", lambda *_: pytest.fail("it has begun a cell"))
    program.main([*CPU, "--minutes", "-1", "--out", str(tmp_path)])
    assert "minutes are over" in capsys.readouterr().err


def test_a_cell_that_the_end_cuts_off_is_left_to_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "command", lambda *_: says("import time; time.sleep(600)"))
    call = [*CPU, "--only", PAIR[0], "--name", "try", "--out", str(tmp_path)]
    program.main([*call, "--minutes", "0.01"])
    assert "minutes are over" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]
    program.main([*call, "--limit", "0.5"])
    (record,) = json.loads((tmp_path / "gpu-try.json").read_text())["cells"].values()
    assert record["error"] == "not done after 0.5 s"


def test_no_cell_is_left_behind_by_a_call_that_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By SIGTERM, as `timeout` sends it: the cell, which would sleep, has ended when the call has."""
    note = tmp_path / "pid"
    ends = f"import os; open({str(note)!r}, 'w').write(str(os.getpid())); os.kill(os.getppid(), 15)"
    monkeypatch.setattr(program, "command", lambda *_: says(f"{ends}; import time; time.sleep(600)"))
    with pytest.raises(SystemExit) as end:
        program.main([*CPU, "--only", PAIR[0], "--name", "try", "--out", str(tmp_path)])
    assert end.value.code == 143
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)
    assert not (tmp_path / "gpu-try.json").exists()


def test_no_cell_is_left_behind_that_was_being_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[str]] = []

    class Interrupted(subprocess.Popen[str]):
        """A process during whose start the caller gets SIGTERM."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    monkeypatch.setattr(program, "command", lambda *_: says("import time; time.sleep(600)"))
    with pytest.raises(SystemExit) as end:
        program.main([*CPU, "--only", PAIR[0], "--name", "try", "--out", str(tmp_path)])
    assert end.value.code == 143
    assert [process.returncode for process in started] == [-signal.SIGKILL]


def test_machines_of_one_kind_may_differ_in_their_processors(tmp_path: Path) -> None:
    file = tmp_path / "gpu-try.json"
    machine = {"cpu": "one", "cores": 16, "gpu": "H", "torch": "2.11"}
    Records(file, machine).add("a", Record(1.0))
    again = Records(file, {**machine, "cpu": "two"})
    assert again.machine == {**machine, "cpu": "one or two"}
    again.add("b", Record(2.0))
    third = Records(file, machine)
    assert third.machine == {**machine, "cpu": "one or two"}
    assert [*third.cells] == ["a", "b"]
    with pytest.raises(SystemExit, match="is of another machine"):
        Records(file, {**machine, "torch": "2.12"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cpu"], "too large for a processor; expected --tiny"),
        ([*CPU, "--only", "nothing"], "--only nothing: no such cell"),
        pytest.param(["--device", "cuda"], "there is no GPU here", id="no GPU"),
    ],
)
def test_mistakes(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as end:
        program.main(arguments)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_tests_are_among_what_runs() -> None:
    assert program.KEYS[0] == TESTS
    assert program.command(TESTS, "cuda", False)[-1] == "benchmarks.gpu.tests"


def imported_by(file: Path) -> Iterator[str]:
    """The modules that a file imports when it is read."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_a_machine_with_torch_and_the_wheels_has_all_that_is_imported() -> None:
    """The measurements and the tests, with what they import from their own folders."""
    waiting = [*(ROOT / "benchmarks" / "gpu").glob("*.py"), ROOT / FILE]
    seen, needed = set(waiting), set[str]()
    for file in waiting:
        for module in imported_by(file):
            inside = [ROOT / f"{module.replace('.', '/')}.py", ROOT / "tests" / f"{module}.py"]
            found = [path for path in inside if path.is_file() and not module.startswith("zoo")]
            needed |= set() if found else {module.split(".")[0]}
            new = [path for path in found if path not in seen]
            seen.update(new)
            waiting += new
    others = needed - sys.stdlib_module_names - {"benchmarks"}
    assert {"zoo", "torch", "pytest"} <= others
    assert others <= {"torch", *(package.replace("-", "_") for package in ("zoo", *distributions()))}


def distributions() -> set[str]:
    """The names of what `make gpu-wheels` downloads."""
    return {requirement.split("==")[0] for requirement in closure(ROOTS)}


def test_the_wheels_are_what_zoo_needs_besides_torch() -> None:
    names = distributions()
    assert {"pydantic", "pydantic-core", "annotated-types", "transformers", "tokenizers", "pytest"} <= names
    assert not {name for name in names if name in ("zoo", "torch", "triton") or name.startswith("nvidia-")}
    assert [requirement.split("==")[0] for requirement in chosen(["pydantic-core"])] == ["pydantic-core"]
    with pytest.raises(SystemExit, match="not needed: pydantics; expected some of"):
        chosen(["pydantics"])
