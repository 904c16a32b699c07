"""The pages of the study across scale: from lines alone, at every stage, without a diff."""

from __future__ import annotations

import csv
import io
import math
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib
import numpy as np
import pytest
from PIL import Image
from tiny_sweeps import base

from benchmarks.drift.cells import Part, Side, configuration
from benchmarks.drift.lines import Line as DriftLine
from benchmarks.drift.lines import Table
from benchmarks.drift.training import due
from benchmarks.harness import RESULTS, ROOT
from benchmarks.scale.__main__ import chapters
from benchmarks.scale.chapters import Chapter, judged
from benchmarks.scale.machines import compare_machines
from benchmarks.scale.page import BEGIN, END, claims, front_page, own_page, pages, readme, texts, write
from benchmarks.scale.place import THE_STUDY
from benchmarks.scale.questions import DRIFTING, LADDERS, Claim, Question
from benchmarks.scale.rates import drifting
from benchmarks.scale.stability import searches, stability
from benchmarks.scale.together import added_up, together
from zoo.ablate.estimate import SpeedProbe
from zoo.ablate.execute import plan_of_known
from zoo.ablate.ladder_estimate import ladder_costs
from zoo.ablate.ladder_plan import LadderPlanner
from zoo.ablate.lines import ADDED, COLUMNS, Lines, config_hash
from zoo.ablate.outcome import Outcome
from zoo.ablate.plan import PlannedRun
from zoo.ablate.progress import LadderProgress, progress
from zoo.ablate.sweep import Sweep, load_sweep
from zoo.ablate.table import Table as Shown
from zoo.ablate.tuning import Point
from zoo.commands.cli import main
from zoo.config.yaml import dump_yaml
from zoo.report.interactive import plotly_figure
from zoo.report.ladder_plots import WIDEST
from zoo.report.static import draw_png
from zoo.report.style import line_styles
from zoo.run.config import RunConfig
from zoo.run.job import Job

WIDTHS = (8, 12, 16, 24, 32)
BEST = 1e-2
"""The best rate of the law below."""
SHADES = 2
"""Largest difference, of 255, between pixels of the same picture drawn on two processors."""
ASKED = Question(
    "asked",
    "Is Small faster than He?",
    (Claim("init=small", "Small needs fewer tokens", "1.5 x"), Claim("init=he again", "no claim may hold")),
)


def ladder(folder: Path, **changes: Any) -> Sweep:
    fields = {
        "description": "Which start needs fewer tokens?",
        "base": base(folder, eval_every=100, checkpoint_every=100) | {"schedule": {"type": "constant"}},
        "axes": {"init": ["he", "small"]},
        "scale": {
            "sizes": [{"model.d_model": width} for width in WIDTHS],
            "budgets": {"steps": [10, 20, 40]},
            "seeds": 3,
            "margin": 1.05,
            "again": True,
        },
        "tune": {"grid": {"optimizer.lr": [5e-3, 1e-2, 2e-2]}, "choose": "parabola", "seeds": [100]},
        "lines": str(folder / "asked.csv"),
        **changes,
    }
    file = folder / "asked.yaml"
    file.write_text(dump_yaml({key: value for key, value in fields.items() if value is not None}))
    return load_sweep(file)


def law(run: PlannedRun) -> float:
    """The losses of docs/verdict-across-scale.md's worked example, with 1.3 x for Small."""
    c = 1.3 if run.variant == "init=small" else 1.0
    noise = 0.004 * math.sin(1.9 * run.params + 2.3 * run.tokens + 2.4 * run.config.seed)
    rate = next((float(value) for value in run.point.values()), BEST)
    off = 0.05 * math.log(rate / BEST) ** 2
    loss: float = (
        0.45 + 0.25 * (run.params / 1e4) ** -0.3 + 0.8 * (c * run.tokens / 1e3) ** -0.3 + noise + off
    )
    return loss


def row_of(run: PlannedRun, loss: float) -> dict[str, str]:
    variant, size, tokens, seed, rate, _ = run.key
    values = {"variant": variant, "size": f"{size:.0f}", "tokens": f"{tokens:.0f}", "seed": str(seed)}
    values |= {"rate": "" if rate is None else repr(rate), "loss": repr(loss), "run": run.id, "spikes": "1"}
    return dict.fromkeys(COLUMNS, "") | values | {"config": config_hash(run.config), "worker_seconds": "36.0"}


def trained(sweep: Sweep) -> Iterator[dict[str, str]]:
    """The lines of a ladder, one after the other, as if every run had the loss of the law."""
    planner, outcomes = LadderPlanner(sweep), dict[str, Outcome]()
    ended: set[str] = set()

    def look(run: PlannedRun) -> Outcome:
        return Outcome(run.steps, {run.steps: law(run)}, ended=True)

    for run in plan_of_known(planner, outcomes, look).runs:
        if run.id not in ended:
            ended.add(run.id)
            yield row_of(run, law(run))


def write_rows(file: Path, rows: list[dict[str, str]]) -> None:
    with file.open("w", encoding="utf-8", newline="") as text:
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    return list(trained(ladder(tmp_path_factory.mktemp("law"))))


def chapter(folder: Path, rows: list[dict[str, str]]) -> tuple[Chapter, LadderProgress]:
    sweep = ladder(folder)
    if rows:
        write_rows(folder / "asked.csv", rows)
    found = progress(sweep)
    return judged(ASKED, found), found


def first_of(rows: list[dict[str, str]], sizes: int) -> list[dict[str, str]]:
    """The lines of the smallest sizes."""
    kept = sorted({float(row["size"]) for row in rows})[:sizes]
    return [row for row in rows if float(row["size"]) in kept]


def test_a_side_that_is_not_trained_yet_keeps_its_share(tmp_path: Path) -> None:
    """Of three variants, one of which has no complete size, two look at their fourth size."""
    sweep = ladder(tmp_path, axes={"init": ["he", "small", "gpt2", "bert"]})
    done = [row for row in first_of(list(trained(sweep)), 4) if row["variant"] != "init=bert"]
    write_rows(tmp_path / "asked.csv", done)
    verdicts = progress(sweep).verdicts()
    assert "init=bert" not in verdicts
    for name in ("init=small", "init=gpt2"):
        assert any("3 variants share the error of 0.05" in note for note in verdicts[name].warnings)


def test_without_a_line(tmp_path: Path) -> None:
    found, _ = chapter(tmp_path, [])
    assert (
        found.status == "No run yet; 180 are planned."
    )  # 5 sizes x 3 sides x (3 rates + 3 budgets x 3 seeds)
    assert {row.word for row in found.rows} == {"no run yet"}
    front = front_page([found])
    assert "no question has all its runs" in front
    before, after = front.split("## Planned and not trained")
    assert found.rows[0].claim in after
    assert "| claim |" not in before
    assert readme("# zoo\n\n## Install\n", [found]) == "# zoo\n\n## Install\n"


def test_a_begun_question_says_what_is_known(tmp_path: Path, rows: list[dict[str, str]]) -> None:
    found, state = chapter(tmp_path, rows[:3])  # a part of the tuning
    assert found.status.startswith("3 runs have ended, in 0.03 core-hours; 180 were planned, without ")
    assert {row.word for row in found.rows} == {"begun"}
    assert not state.complete

    three, _ = chapter(tmp_path, first_of(rows, 3))
    assert [row.word for row in three.rows] == ["so far: undecided"] * 2
    notes = [str(note) for section in three.sections for note in section.notes]
    assert any("the first look at the declared sizes is at 4: no word before" in note for note in notes)
    assert "Nothing yet" in front_page([three])
    assert "not trained" not in front_page([three])
    assert readme("## Install\n", [three]) == "## Install\n"

    four, _ = chapter(tmp_path, first_of(rows, 4))
    assert four.rows[0].word.startswith("so far: faster")
    assert any("not all runs have ended" in str(note) for s in four.sections for note in s.notes)
    front = readme("## Install\n", [four])
    assert front.index(BEGIN) < front.index("| so far: faster") < front.index(END) < front.index("## Install")
    # A size of which one run is missing does not count.
    last = [row for row in first_of(rows, 4) if row["variant"] == "init=small"][-1]
    fewer, _ = chapter(tmp_path, [row for row in first_of(rows, 4) if row is not last])
    assert fewer.rows[0].word.startswith("so far: undecided")


def test_lines_of_a_variant_that_the_sweep_file_no_longer_has(
    tmp_path: Path, rows: list[dict[str, str]]
) -> None:
    other = [{**row, "variant": "init=gpt2"} for row in rows if row["variant"] == "init=small"]
    found, state = chapter(tmp_path, [*rows, *other])
    assert state.complete and not state.is_whole and not found.command
    assert len(state.unplanned) == len(other) and "does not plan" in state.doubt


def test_every_word_is_that_of_zoo_verdict(
    tmp_path: Path, rows: list[dict[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    four, _ = chapter(tmp_path, first_of(rows, 4))  # the command that the page names, with its declared sizes
    with pytest.raises(SystemExit):
        main(shlex.split(four.command.replace("docs/results/scale", str(tmp_path)))[1:])
    said = capsys.readouterr().out
    assert four.sentences and all(sentence in said for sentence in four.sentences)
    found, state = chapter(tmp_path, rows)
    assert state.complete
    assert "--declared-sizes" not in found.command
    assert found.status.startswith("All runs have ended, 180, in 1.8 core-hours")
    with pytest.raises(SystemExit):
        main(["verdict", str(tmp_path / "asked.csv"), "--baseline", "init=he", "--margin", "1.05"])
    said = capsys.readouterr().out
    for sentence in found.sentences:
        assert sentence in said
    small, again = found.rows
    assert small.word == "faster"
    assert small.here.startswith("1.3")
    assert again.word.split(";")[0] in ("undecided", "equal")
    doubtful = replace(ASKED, claims=(replace(ASKED.claims[0], caution="its rate is too high"),))
    assert judged(doubtful, state).rows[0].word == "faster; its rate is too high"
    page = front_page([found])
    assert page.index("| claim |") < page.index("## Questions")
    assert found.sentences[0] in page.split("## What a reader may conclude")[1]
    front = readme("# zoo\n\nText.\n\n## Install\n\nMore.\n", [found])
    assert front.index("Text.") < front.index(BEGIN) < front.index("| faster |") < front.index(END)
    assert front.endswith("## Install\n\nMore.\n")
    assert readme(front, [found]) == front


def test_the_pages_twice_are_the_same(tmp_path: Path, rows: list[dict[str, str]]) -> None:
    (tmp_path / "README.md").write_text("## Install\n")
    results = tmp_path / "results"
    stale = results / "scale/asked/ladder-9.png"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"")
    contents = []
    for _ in range(2):
        write(results, tmp_path / "README.md", [chapter(tmp_path, first_of(rows, 1))[0]])
        files = [file for file in results.rglob("*") if file.is_file()]
        contents.append({file: file.read_bytes() for file in files})
    assert contents[0] == contents[1]
    assert not stale.exists()
    assert "across-sizes.png" in {file.name for file in contents[0]}
    assert (tmp_path / "README.md").read_text() == "## Install\n"


WORD = r"[:|] (faster|slower|equal)\b"
"""As sentences and tables have it."""


def test_an_alarm_withholds_all_words(tmp_path: Path, rows: list[dict[str, str]]) -> None:
    """The baseline with other seeds needs fewer tokens than itself: the set-up is at fault."""
    wrong = [dict(row) for row in rows]
    for row in wrong:
        if row["variant"] == "init=he again":
            row["loss"] = repr(float(row["loss"]) - 0.1)
    found, _ = chapter(tmp_path, wrong)
    right, _ = chapter(tmp_path, rows)
    assert found.alarms
    for told in texts([right]).values():
        assert re.search(WORD, told)
    for page in texts([found, replace(right, key="another")]).values():  # nor is a word of another question
        assert not re.search(WORD, page)
    page = front_page([found])
    assert "No word of the study counts" in page
    assert "withheld" in claims([found])
    front = readme(readme("## Install\n", [right]), [found])  # a word that was told is taken back
    assert "No word of the study counts" in front
    assert "withheld" in front
    assert "| faster" not in front


def test_lines_of_another_ladder_are_taken_over(tmp_path: Path, rows: list[dict[str, str]]) -> None:
    """The same runs under another name are copied and not trained, and their hours count once."""
    others = tmp_path / "others"
    others.mkdir()
    write_rows(others / "asked.csv", rows)
    axes = {"start": {"plain": {"init": "he"}, "wesar": {"init": "he", "reparam": "wesar"}}}
    changes: dict[str, Any] = {"axes": axes, "lines_of": [str(others / "asked.csv")]}
    sweep = ladder(tmp_path, **changes)
    assert sweep.lines is not None
    run = LadderPlanner(sweep).plan({}).runs[0]
    assert run.variant == "start=plain"
    outcome = sweep.lines.outcome(run.key, run.config, run.steps)
    assert outcome is not None
    assert outcome.losses == {run.steps: law(run)}
    assert progress(sweep).ended == 0  # not before it is taken over
    sweep.lines.add(run.key, run.config, tmp_path / "no folder", outcome, "")
    (line,) = Lines(tmp_path / "asked.csv")
    assert line.run.variant == "start=plain"
    assert line.name in {row["run"] for row in rows}
    state = progress(ladder(tmp_path, **changes))
    assert "1 of them taken over" in judged(ASKED, state).status
    assert state.taken_over == 1 and not state.hours


def test_hours_of_workers_on_a_gpu_are_no_core_hours(
    tmp_path: Path, rows: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    there = {"machine": "NVIDIA H200", "bfloat16_product": "NVIDIA H200", "worker_seconds": "1.8"}
    here = {"machine": "AMD EPYC", "bfloat16_product": "processor"}
    found, state = chapter(tmp_path, [rows[0] | there, rows[1] | there, rows[2] | here])
    assert state.hours == pytest.approx({"NVIDIA H200": 0.001, "": 0.01})
    assert "in 0.001 worker-hours on NVIDIA H200 and 0.01 core-hours" in found.status
    cost = ladder_costs(ladder(tmp_path), SpeedProbe(1, lambda what: None))[0]
    assert cost.measured_in == "lines"
    assert cost.speed == pytest.approx(float(rows[2]["tokens"]) / 36)


def test_the_page_of_the_gpu_has_the_differences_of_the_lines() -> None:
    page = (RESULTS / "gpu-small.md").read_text(encoding="utf-8")
    assert compare_machines(THE_STUDY) in page, "python -m benchmarks.scale machines"


def test_a_side_has_the_same_rates_whatever_it_is_compared_with(tmp_path: Path) -> None:
    """The line of rates is over the side's own size; the baseline's would shift it by a rounding."""

    def loss(run: PlannedRun) -> float:
        model: Any = run.config.model  # of GPT
        best = 1e-2 * model.d_model**-0.37
        return math.log(next(float(value) for value in run.point.values()) / best) ** 2

    def rates(baseline: str) -> set[float]:
        axis = {"own": {}, "tied": {"model": {"tied": True}}}
        sweep = ladder(tmp_path, axes={"table": axis}, baseline={"table": baseline}, lines=None)

        def look(run: PlannedRun) -> Outcome:
            return Outcome(run.steps, {run.steps: loss(run)}, ended=True)

        runs = plan_of_known(LadderPlanner(sweep), {}, look).runs
        assert len({side.params for side in sweep.ladder[-1].sides}) == 2
        return {float(v) for run in runs if run.variant == "table=tied" for v in run.point.values()}

    assert rates("own") == rates("tied")


@pytest.mark.parametrize("missing", [ADDED[i:] for i in range(len(ADDED))])
def test_lines_without_columns_that_were_added_later(
    tmp_path: Path, rows: list[dict[str, str]], missing: tuple[str, ...]
) -> None:
    old = [name for name in COLUMNS if name not in missing]
    with (tmp_path / "old.csv").open("w", encoding="utf-8", newline="") as text:
        writer = csv.DictWriter(text, old, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[:2])
    seconds = None if "worker_seconds" in missing else 36.0
    assert [line.seconds for line in Lines(tmp_path / "old.csv")] == [seconds, seconds]


def test_the_largest_stable_rate(tmp_path: Path) -> None:
    axes = {"method": {"small": {"init": "small"}, "he": {}}, "optimizer.lr": [1e-3, 2e-3, 4e-3]}
    scale = {"sizes": [{"model.n_layers": n} for n in (1, 2)], "budgets": {"steps": [10]}, "seeds": 2}
    sweep = ladder(tmp_path, axes=axes, scale=scale, tune=None)
    written = list(trained(sweep))
    for row in written:
        if row["variant"] == "method=he,optimizer.lr=0.004" and row["seed"] == "1":
            row["loss"] = "inf"
        if row["variant"] in ("method=small,optimizer.lr=0.001", "method=small,optimizer.lr=0.004"):
            row["loss"] = repr(float(row["loss"]) + 2)
    write_rows(tmp_path / "asked.csv", written[:-1])  # the last rate of the last method has one seed
    found = progress(sweep)
    asked = replace(ASKED, claims=(Claim("he", "He trains at larger rates"),))
    sides = list(searches(found))
    stable = {side.method: side.largest_stable for side in sides}
    # Small has its lowest loss at 2e-3, by 2 nats: 1e-3 was too slow, and 4e-3 is too fast.
    assert stable == {"small": 2e-3, "he": 2e-3}
    shown = stability(asked, found)
    assert shown.status.endswith("planned.")  # nothing is tuned, so that no rate is added
    assert shown.picture in shown.plots
    assert [row.word for row in shown.rows] == ["begun"]
    (table,) = (block for section in shown.sections for block in section.blocks if isinstance(block, Shown))
    for (_, method, _, largest, best, over, lost, _, *spikes), side in zip(table.rows, sides, strict=True):
        top = "≥ " * (stable[method] == max(side.rates))
        assert largest == f"{top}{stable[method]:.3g}"
        assert lost == min(fmean(run.loss for run in of_rate) for of_rate in side.rates.values())
        assert over == f"{top}{stable[method] / best:.3g}"
        assert spikes == [1, 1 if 4 * best in side.rates else None, None]  # every run has one


def test_a_described_question_with_all_runs(tmp_path: Path) -> None:
    axes = {"method": {"small": {"init": "small"}, "he": {}}, "optimizer.lr": [1e-3, 4e-3, 16e-3]}
    scale = {"sizes": [{"model.n_layers": n} for n in (1, 2)], "budgets": {"steps": [10]}, "seeds": 2}
    sweep = ladder(tmp_path, axes=axes, scale=scale, tune=None)
    written = list(trained(sweep))
    for row in written:
        rate = float(row["variant"].rpartition("=")[2])
        row["loss"] = repr(3 + math.log(rate / 1e-3) / 10)
        row["spikes"] = str(round(rate / 1e-3) + int(row["seed"]))
        if row["variant"].startswith("method=small") and rate == 16e-3:
            row["loss"] = "inf"
    write_rows(tmp_path / "asked.csv", written)
    shown = stability(replace(ASKED, claims=(Claim("he", "He trains at larger rates"),)), progress(sweep))
    assert shown.complete
    (only,) = shown.rows
    assert only.here == "rates up to ≥ 16 x (4.76k) and ≥ 16 x (5.42k) the best one; small 4 x and 4 x"
    assert only.word == "no word: described below"
    assert not only.looked_at  # README has only claims with words
    assert "2 sizes" in only.scale
    (table,) = (block for section in shown.sections for block in section.blocks if isinstance(block, Shown))
    assert [cells[-3:] for cells in table.rows] == [[1.5, 4.5, 16.5]] * 4
    assert len(shown.sentences) == 4
    assert shown.sentences[0].endswith(
        ", method=small, the baseline, ends at 3.000 nats with its best rate, 0.001. It trains with rates up "
        "to 4 times as high. A run has 1.5 spikes at 1 x; 4.5 spikes at 4 x; 16 spikes at 16 x, where not "
        "all runs train."
    )
    assert "up to at least 16 times" in shown.sentences[1]


def test_what_two_methods_gain_together(tmp_path: Path) -> None:
    """The gain of Small alone is in another ladder; the gains of both are .05 to .09 less than the sum."""
    sizes = [{"model.n_layers": n} for n in (1, 2)]
    scale = {"sizes": sizes, "budgets": {"steps": [10, 20]}, "seeds": 2, "margin": 1.05}
    lion = {"optimizer": {"type": "lion", "lr": 1e-3}}
    axes = {"init": ["he", "small"], "optimizer": {"adamw": {}, "lion": lion}}
    left_out = {"exclude": [{"init": "small", "optimizer": "adamw"}]}
    (tmp_path / "alone").mkdir()
    alone = ladder(tmp_path / "alone", scale=scale, tune=None)
    both = ladder(tmp_path, axes=axes, scale=scale, tune=None, **left_out)
    smallest = min(size.params for size in both.ladder)
    seeds_differ, gain_of_small, gain_of_lion = 0.01, 0.1, 0.2
    for sweep in (alone, both):
        written = list(trained(sweep))
        for row in written:
            small, fast = "small" in row["variant"], "lion" in row["variant"]
            lost = 0.05 if float(row["size"]) == smallest else 0.09
            gain = gain_of_small * small + gain_of_lion * fast - lost * (small and fast)
            row["loss"] = repr(3 - gain + seeds_differ * int(row["seed"]))
            if small and fast and row["seed"] == "1" and row["tokens"] == written[0]["tokens"]:
                row["loss"] = "inf"  # its cell is left out
        assert sweep.lines is not None
        write_rows(sweep.lines.file, written)
    first, second = together(progress(both), progress(alone))
    for gains in (first, second):
        assert gains.variant == "init=small,optimizer=lion"
        assert [gain.mean for gain in gains.alone] == pytest.approx([gain_of_small, gain_of_lion])
        assert gains.excess.n == 2
        assert gains.excess.mean == pytest.approx(-0.07)
        assert gains.both.mean == pytest.approx(0.23)
    assert second.excess.low == pytest.approx(-0.07 - 12.7062 * 0.02)  # t of one degree of freedom
    section = added_up(ASKED, progress(both), progress(alone)).sections[-1]
    assert section.title == "Alone and together"
    none_yet = ladder(tmp_path / "alone", scale=scale, tune=None, lines=str(tmp_path / "no-run.csv"))
    assert not list(together(progress(both), progress(none_yet)))


def test_points_of_one_size_stand_beside_each_other(tmp_path: Path, rows: list[dict[str, str]]) -> None:
    """They are drawn beside the size, within 10 % of it, and the pointer is told the size itself."""
    shown, state = chapter(tmp_path, rows)
    (view,) = shown.plots["across-sizes"].views
    points = [series for series in view.series if series.points]
    assert len({x for series in points for x in series.drawn_x}) == sum(len(series.x) for series in points)
    sizes = {size.params for size in state.sweep.ladder}
    assert {x for series in points for x in series.x} == sizes
    assert all(1 / 1.1 < series.beside < 1.1 for series in points)
    traces = plotly_figure(shown.plots["across-sizes"], line_styles(shown.styled))["views"][0]["data"]
    told = [trace for trace in traces if "customdata" in trace]
    assert {x for trace in told for x in trace["customdata"]} == sizes
    assert all("%{customdata" in trace["hovertemplate"] for trace in told)


def test_an_interval_that_is_too_wide_for_the_picture_ends_in_an_arrow(
    tmp_path: Path, rows: list[dict[str, str]]
) -> None:
    """The interval of a size with a seed that went astray must not hide the others."""
    astray = (rows[0]["size"], "init=small", "1")
    changed = [
        row | {"loss": repr(float(row["loss"]) * 1.25)}
        if (row["size"], row["variant"], row["seed"]) == astray
        else row
        for row in rows
    ]
    shown, _ = chapter(tmp_path, changed)
    plot = shown.plots["across-sizes"]
    (view,) = plot.views
    assert view.limits is not None
    least, most = view.limits
    estimates = [float(y) for series in view.series for y in series.y]
    assert least < min(*estimates, 1.0)
    assert most > max(*estimates, 1.0)
    assert max(end for series in view.series for end in series.high) > most
    assert most / least < (WIDEST**2 * max(*estimates, 1.0) / min(*estimates, 1.0)) ** 1.2
    layout = plotly_figure(plot, line_styles(shown.styled))["views"][0]["layout"]
    assert layout["yaxis"]["range"] == pytest.approx([math.log10(least), math.log10(most)])
    wide = replace(
        view, series=[replace(s, high=[1e6 for _ in s.high]) if s.points else s for s in view.series]
    )
    drawn, wider = (draw_png(replace(plot, views=[v]), line_styles(shown.styled)) for v in (view, wide))
    assert Image.open(io.BytesIO(drawn)).size == Image.open(io.BytesIO(wider)).size
    assert drawn != wider


def test_the_drift_table_as_a_picture_and_in_words(tmp_path: Path) -> None:
    sides = tuple(Side("gpt", "adamw", rule) for rule in ("none", "mup"))
    table, file = Table([]), tmp_path / "drift.csv"
    empty = drifting(DRIFTING, file)
    assert empty.status.startswith("No run yet")
    assert not empty.picture
    while runs := due(table, Part(sides, ("width",), sizes=3)):
        cell, rate = runs[0]
        best = 3e-3 * (cell.width / 64) ** (-0.5 if cell.rule == "none" else 0)
        values = (cell.model, cell.optimizer, cell.rule, cell.width, cell.layers, cell.horizon, cell.seed)
        line = DriftLine(*values, rate, 2 + 0.1 * math.log(rate / best) ** 2, 36.0)
        table.append(file, replace(line, config=hash_of(line)))
    found = drifting(DRIFTING, file)
    assert found.picture == "drift"
    drawn = plotly_figure(found.plots["drift"], line_styles(found.styled))
    assert drawn["views"][0]["layout"]["xaxis"]["range"] == [-3, 3]
    assert [list(series.y) for series in found.plots["drift"].views[0].series] == [
        ["gpt adamw"],
        ["gpt adamw, mup"],
    ]
    [sentence] = found.sentences
    assert sentence.startswith(
        "gpt with adamw, width 64 to 256: the best rate moves without a rule: -1.00 (-1.00 to -1.00); "
        "stays within half an octave with mup: "
    )
    assert sentence in own_page(found)
    assert not found.complete  # 36 rows are missing
    front = front_page([chapter(tmp_path, [])[0], replace(found, complete=True)])
    assert f"**{found.title}**\n\n* {sentence}" in front.split("## What a reader may conclude")[1]


@pytest.fixture(scope="module")
def sweeps() -> dict[str, Sweep]:
    return {question.key: THE_STUDY.load(question) for question in LADDERS}


def test_every_claim_is_about_a_variant(sweeps: dict[str, Sweep]) -> None:
    for question in LADDERS:
        variants = [variant for size in sweeps[question.key].ladder for variant in size.variants]
        claimed = {claim.variant for claim in question.claims}
        if question.described:
            assert claimed <= {variant.settings["method"] for variant in variants}
        else:
            assert {variant.name for variant in variants} - {sweeps[question.key].baseline} == claimed


def hash_in_blocks(config: RunConfig) -> str:
    """The hash of a configuration that is compiled block by block."""
    train = Job.of(config).train.model_copy(update={"compile": "blocks"})
    return config_hash(config.model_copy(update={"train": train}))


def test_questions_share_runs(sweeps: dict[str, Sweep]) -> None:
    """The baselines of Q2 are sides of questions before it, so that their lines are taken over.

    Two of them are compiled as a whole, for a GPU, and trained again; all other settings are the same.
    """

    def runs(key: str, variant: str, hash_of: Callable[[RunConfig], str] = config_hash) -> set[str]:
        sweep = sweeps[key]
        runs = LadderPlanner(sweep).plan({}).runs  # the tuning of the smallest size
        return {hash_of(run.config) for run in runs if run.variant == variant}

    def sides(
        key: str, variant: str, hash_of: Callable[[RunConfig], str] = config_hash
    ) -> list[tuple[str, tuple[Point, ...]]]:
        every = [side for size in sweeps[key].ladder for side in size.sides]
        return [(hash_of(side.config), side.points) for side in every if side.variant == variant]

    gpt, ngpt = runs("q1", "model=gpt"), runs("q1-start", "model=ngpt")
    assert len(gpt) == len(ngpt) == 3
    assert runs("q2-gpt", "optimizer=adamw") == runs("q2-horizon", "run=cosine") == gpt
    assert runs("q2-amos", "optimizer=adamw", hash_in_blocks) == gpt
    assert runs("q2-ngpt", "optimizer=adamw", hash_in_blocks) == ngpt
    assert ngpt.isdisjoint(runs("q1", "model=ngpt"))
    assert sides("q1-start", "model=gpt") == sides("q1", "model=gpt")
    assert sides("q1-context-start", "model=gpt") == sides("q1-context", "model=gpt")
    assert runs("q1-context-start", "model=ngpt").isdisjoint(runs("q1-context", "model=ngpt"))
    assert runs("q2-horizon", "run=amos") == runs("q2-gpt", "optimizer=amos")
    assert runs("q2-wsd", "run=adamw-cont") == runs("q2-horizon", "run=adamw-cont")
    assert sides("q2-wsd", "run=adamw-cont") == sides("q2-horizon", "run=adamw-cont")
    assert sides("q2-gpt", "optimizer=adamw") == sides("q2-horizon", "run=cosine") == sides("q1", "model=gpt")
    assert sides("q2-amos", "optimizer=adamw", hash_in_blocks) == sides("q1", "model=gpt")
    assert sides("q2-ngpt", "optimizer=adamw", hash_in_blocks) == sides("q1-start", "model=ngpt")
    assert sides("q2-horizon", "run=amos") == sides("q2-gpt", "optimizer=amos")
    assert runs("q3-weight-norm", "method=small") == runs("q3", "method=small")
    assert sides("q3-weight-norm", "method=small") == sides("q3", "method=small")
    assert runs("q4", "method=small,optimizer=adamw") == runs("q3", "method=small")
    with_adamw = [variant.name for variant in sweeps["q4"].variants if "optimizer=adamw" in variant.name]
    assert with_adamw == ["method=small,optimizer=adamw"]  # the words on the others are those of q3


def test_every_side_is_tuned_over_as_wide_a_grid(sweeps: dict[str, Sweep]) -> None:
    for question in LADDERS:
        for size in sweeps[question.key].ladder:
            for side in size.sides if sweeps[question.key].tune else ():
                low, middle, high = side.grids(["optimizer.lr"])["optimizer.lr"]
                place = f"{question.key}, {side.variant}"
                assert (middle / low, high / middle) == pytest.approx((2, 2)), place


def test_methods_are_tried_at_neighbouring_rates_when_deep(sweeps: dict[str, Sweep]) -> None:
    rates: dict[str, list[float]] = {}
    for variant in sweeps["q3-deep"].variants:
        rates.setdefault(variant.settings["method"], []).append(float(variant.settings["optimizer.lr"]))
    assert {method: len(tried) for method, tried in rates.items()} == {
        "small": 10,
        "he": 11,
        "wesar": 8,
        "wesar-sigma": 9,
        "sigma-reparam-sigma": 9,
    }
    for tried in rates.values():
        steps = [math.log2(b / a) for a, b in pairwise(tried)]
        assert steps == pytest.approx([1] * len(steps))


def test_the_committed_pages_are_those_of_the_committed_lines() -> None:
    """`make scale-report` leaves no diff: texts are equal, and pictures too with the pinned matplotlib."""
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = f"matplotlib=={matplotlib.__version__}" in pins
    for name, content in pages(list(chapters())).items():
        file = RESULTS / name
        assert file.is_file(), f"{name}: make scale-report"
        if isinstance(content, str):
            assert file.read_text(encoding="utf-8") == content, f"{name}: make scale-report"
        else:
            drawn, kept = (Image.open(io.BytesIO(data)) for data in (content, file.read_bytes()))
            assert drawn.size == kept.size, f"{name}: make scale-report"
            if pinned:
                shades = np.asarray(drawn, dtype=int) - np.asarray(kept, dtype=int)
                assert abs(shades).max() <= SHADES, f"{name}: make scale-report"


def hash_of(line: DriftLine) -> str:
    return config_hash(configuration(line.cell, line.rate, Path()))
