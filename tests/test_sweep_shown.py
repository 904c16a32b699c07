"""What a sweep shows: its cost before, its runs meanwhile."""

from __future__ import annotations

import json
from io import StringIO
from itertools import count
from pathlib import Path

import pytest
from command_line import zoo
from rich.console import Console
from tiny_sweeps import FixedSpeed, base, sweep_file

from zoo.ablate.estimate import SpeedProbe, estimate
from zoo.ablate.execute import execute
from zoo.ablate.live import Display, RunProgress, read_progress
from zoo.ablate.manifest import Run
from zoo.ablate.pool import worker_count
from zoo.ablate.sweep import load_sweep
from zoo.run.config import load_config
from zoo.run.explanation import explain
from zoo.utils.errors import ZooError
from zoo.utils.measures import MEASURES
from zoo.utils.progress import format_duration

TUNE = {"grid": {"optimizer.lr": [0.001, 0.01, 0.1]}, "seeds": [0, 9], "halving": {"at": [0.5], "keep": 0.3}}


def shown(content: object) -> list[list[str]]:
    """The words of every line."""
    console = Console(file=StringIO(), width=200)
    with console.capture() as capture:
        console.print(content)
    return [line.split() for line in capture.get().splitlines()]


def test_what_a_sweep_costs(tmp_path: Path) -> None:
    file = sweep_file(tmp_path, tune=TUNE, base=base(tmp_path, eval_batches=2))
    sweep = load_sweep(file)
    waits: list[str] = []
    probe = SpeedProbe(2, waits.append)
    _, _, he, small, total, *_ = shown(estimate(sweep, probe))
    # Tuning: 3 points with 2 seeds for 4 of 12 steps, ceil(0.9) = 1 of them to the end; seed 1 is left.
    steps = 2 * (3 * 4 + 1 * 8) + 12
    tokens = steps * 4 * 8
    assert sweep.variants[0].rungs == (4, 12)
    assert he[1:4] == ["7", str(steps), f"{tokens:,}"]
    totals = explain(load_config(base(tmp_path))).totals
    # Two batches are evaluated every four steps.
    flops = tokens * (totals.training_flops + totals.forward_flops * 2 / 4)
    assert he[4:6] == [f"{flops:.2e}", "100%"]
    assert small[1:6] == he[1:6]
    assert total[:5] == ["all", "14", str(2 * steps), f"{2 * tokens:,}", f"{2 * flops:.2e}"]
    assert not (tmp_path / "sweeps").exists()
    shown(estimate(sweep, probe))
    assert waits == [f"{sweep.name}: measuring the speed of {sweep.variants[0].name} in 4 steps"]


def test_what_is_left_of_a_sweep(tmp_path: Path) -> None:
    execute(load_sweep(sweep_file(tmp_path, seeds=[0])), workers=1)
    sweep = load_sweep(sweep_file(tmp_path, seeds=[0, 1]))
    lines = shown(estimate(sweep, SpeedProbe(1)))
    assert lines[2][5] == lines[4][5] == "50%"
    assert "that of 2 finished runs" in " ".join(lines[5])


def test_finished_runs_that_another_folder_does_not_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = base(tmp_path)
    shared["data"]["corpus"]["paths"] = ["text.txt"]
    file = sweep_file(tmp_path, base=shared, seeds=[0])

    def told() -> str:
        lines = shown(estimate(load_sweep(file), FixedSpeed(1)))
        return "\n".join(" ".join(line) for line in lines)

    (tmp_path / "elsewhere").mkdir()
    again = f"tiny: 2 runs that {tmp_path / 'sweeps/tiny/sweep.json'} has as finished will be trained again"
    monkeypatch.chdir(tmp_path)
    execute(load_sweep(file), workers=1)
    assert "trained again" not in told()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert again in told()
    console = Console(file=StringIO(), width=500)
    with console.capture() as capture:
        execute(load_sweep(file), 1, console)
    assert again in capture.get()
    assert "trained again" not in told()


@pytest.mark.usefixtures("without_plugins")
def test_an_edited_plugin_trains_its_runs_again(tmp_path: Path) -> None:
    """Also after an edit of a comment; the note says so, and the runs of other variants stay."""
    optimizer = tmp_path / "mine.py"
    optimizer.write_text("import torch\n\nclass Mine(torch.optim.SGD):\n    pass\n", encoding="utf-8")
    types = ("adamw", "mine.py:Mine")
    file = sweep_file(tmp_path, axes={"optimizer": [{"type": t, "lr": 0.01} for t in types]}, seeds=[0])
    execute(load_sweep(file), workers=1)
    optimizer.write_text(optimizer.read_text(encoding="utf-8") + "# a remark\n", encoding="utf-8")
    told = " ".join(word for line in shown(estimate(load_sweep(file), FixedSpeed(1))) for word in line)
    assert "tiny: 1 run that " in told and "by another content of a plugin's file" in told


def run(name: str, status: str, **more: object) -> Run:
    fields = {"id": name, "variant": name, "seed": 0, "phases": ["final"], "folder": "x", "status": status}
    return Run.model_validate({**fields, **more})


ROWS = [
    RunProgress(run("a", "waiting"), 100, 0, None),
    RunProgress(run("b", "finished", tuned={"optimizer.lr": 0.01}), 100, 100, 1.5),
    RunProgress(run("c", "running"), 100, 25, 2.25),
    RunProgress(run("d", "failed", error="ZooError: [no]"), 100, 3, None),
]


def test_a_table_on_a_terminal() -> None:
    console = Console(file=StringIO(), width=120, force_terminal=True, color_system=None)
    with Display(console, "study") as display, console.capture() as capture:
        display.show(ROWS)
    text = capture.get()
    assert "study: 1 running, 1 failed, 1 waiting, 1 finished" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["c", "final", "running", "0", "25/100", "2.2500"] in lines
    assert ["b", "0.01", "final", "finished", "0", "100/100", "1.5000"] in lines


def test_as_many_runs_as_fit_are_drawn_and_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of hundreds of runs took half a second to draw, twice a second."""
    console = Console(file=StringIO(), width=120, height=24, force_terminal=True, color_system=None)
    ticks = count()
    monkeypatch.setattr("zoo.ablate.live.time.monotonic", lambda: next(ticks) / 1000)
    rows = [RunProgress(run(f"v{i}", "waiting"), 100, 0, None) for i in range(300)]
    with console.capture() as capture, Display(console, "study") as display:
        for step in range(500):
            display.show([*rows, RunProgress(run("at-work", "running"), 500, step, 2.25)])
    frames = capture.get().split("study:")[1:]
    assert 3 <= len(frames) <= 17  # a frame in at least thirty times the time of drawing it, and the last
    assert frames[-1].startswith(" 1 running, 300 waiting") and "and 281 more" in frames[-1]
    lines = [line.split() for line in frames[-1].splitlines()]
    assert len(lines) <= 24
    assert [line[:6] for line in lines if line[:1] == ["at-work"]] == [
        ["at-work", "final", "running", "0", "499/500", "2.2500"]
    ]


def test_a_line_per_event_without_one() -> None:
    console = Console(file=StringIO(), width=60)
    with Display(console, "study") as display, console.capture() as capture:
        display.show([])
        display.show(ROWS)
        display.show(ROWS)
    assert capture.get().splitlines() == [
        "2/4 finished: b seed 0, optimizer.lr 0.01, loss 1.5000",
        "2/4 failed: d seed 0, step 3 of 100, ZooError: [no]",
    ]


def test_runs_that_an_earlier_session_finished_are_counted_in_one_line() -> None:
    """A run that failed keeps its line, which has the error."""
    before = [*(RunProgress(run(f"b{i}", "finished"), 100, 100, 1.5) for i in range(20)), *ROWS[2:]]
    before.append(RunProgress(run("e", "stopped"), 100, 30, 9.0))
    after = [*before[:20], RunProgress(run("c", "finished"), 100, 100, 2.0), *before[21:]]
    console = Console(file=StringIO(), width=60)
    with Display(console, "study") as display, console.capture() as capture:
        display.show(before)
        display.show(before)
        display.show(after)
    assert capture.get().splitlines() == [
        "21/23 had ended before: 20 finished, 1 stopped",
        "22/23 failed: d seed 0, step 3 of 100, ZooError: [no]",
        "23/23 finished: c seed 0, loss 2.0000",
    ]


def test_a_run_of_a_ladder_is_shown_with_its_size_and_budget() -> None:
    rows = [RunProgress(run("b", "finished", params=12_288, tokens=2_000_000), 100, 100, 1.5)]
    console = Console(file=StringIO(), width=100)
    with Display(console, "study") as display, console.capture() as capture:
        display.show([])
        display.show(rows)
    assert capture.get().splitlines() == ["1/1 finished: b 12.3k, 2M tokens, seed 0, loss 1.5000"]
    console = Console(file=StringIO(), width=120, force_terminal=True, color_system=None)
    with Display(console, "study") as display, console.capture() as capture:
        display.show(rows)
    lines = [line.split() for line in capture.get().splitlines()]
    assert ["b", "final", "finished", "12.3k", "2M", "0", "100/100", "1.5000"] in lines


def test_what_is_judged_is_shown() -> None:
    """Before the loss, which says how a run comes along that has not been judged yet."""
    rows = [
        RunProgress(run("b", "finished"), 100, 100, 1.5, 0.75),
        RunProgress(run("c", "running"), 100, 25, 2.25),
        RunProgress(run("d", "failed", error="no"), 100, 3, 7.0),
    ]
    console = Console(file=StringIO(), width=100)
    with Display(console, "study", MEASURES["accuracy"]) as display, console.capture() as capture:
        display.show([])
        display.show(rows)
    assert capture.get().splitlines() == [
        "2/3 finished: b seed 0, accuracy 0.7500, loss 1.5000",
        "2/3 failed: d seed 0, step 3 of 100, loss 7.0000, no",
    ]
    console = Console(file=StringIO(), width=120, force_terminal=True, color_system=None)
    with Display(console, "study", MEASURES["accuracy"]) as display, console.capture() as capture:
        display.show(rows)
    lines = [line.split() for line in capture.get().splitlines()]
    assert ["variant", "tuned", "for", "status", "seed", "step", "accuracy", "loss", "left"] in lines
    assert ["b", "final", "finished", "0", "100/100", "0.7500", "1.5000"] in lines
    assert ["c", "final", "running", "0", "25/100", "2.2500"] in lines


def test_a_run_at_work_is_seen_in_its_metrics(tmp_path: Path) -> None:
    assert read_progress(tmp_path) == (0, None, None)
    lines = [{"kind": "train", "step": i, "cross_entropy": 5 - i / 1000} for i in range(1, 1000)]
    text = "".join(json.dumps(line) + "\n" for line in [*lines, {"kind": "monitor", "step": 999}])
    (tmp_path / "metrics.jsonl").write_text(text + '{"kind": "tr')
    assert read_progress(tmp_path) == (999, 5 - 0.999, None)
    last = json.dumps({"kind": "validation", "step": 999, "cross_entropy": 4.5, "accuracy": 0.25}) + "\n"
    (tmp_path / "metrics.jsonl").write_text(text + last)
    assert read_progress(tmp_path, MEASURES["accuracy"]) == (999, 4.5, 0.25)
    assert read_progress(tmp_path, MEASURES["f1"]) == (999, 4.5, None)


def test_durations() -> None:
    assert [format_duration(s) for s in (12.3, 119, 5400)] == ["12 s", "2 min", "1.5 h"]


def test_at_least_one_worker() -> None:
    with pytest.raises(ZooError, match=r"sweep: --workers 0: expected at least 1"):
        worker_count(0)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(sweep_file(tmp_path, seeds=[0]))
    for options, told in [
        (["--dry-run"], "what it costs"),
        (["train.log_every=3"], "2/2 finished: init="),
        (["train.log_every=3"], "2/2 had ended before: 2 finished\n"),
        ([], f"The page with all of it: zoo report {tmp_path / 'sweeps/tiny'} --out DIR"),
    ]:
        zoo("sweep", file, *options)
        assert told in capsys.readouterr().out
    page = tmp_path / "page" / "report.html"
    zoo("sweep", file, "--report", str(page.parent))
    assert f"wrote {page}" in capsys.readouterr().out
    by_sweep = page.read_bytes()
    zoo("report", str(tmp_path / "sweeps/tiny"), "--out", str(page.parent))
    assert page.read_bytes() == by_sweep
    zoo("sweep", file, "--report", str(page.parent), "--dry-run", status=2)
    assert "--report has no effect with --dry-run" in capsys.readouterr().err
    zoo("sweep", file, "--report", str(page), "--out", str(tmp_path / "other"), status=2)
    assert f"{page}: cannot be written" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
    zoo("sweep", file, "optimizer.lr=1e30", "train.clip_norm=null", status=1)
