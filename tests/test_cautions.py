"""A run that failed for another reason than divergence has no result; a cause of doubt is told once."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import zoo
from synthetic_runs import write_sweep
from tiny_sweeps import sweep_file

from zoo.ablate.caveats import caveats
from zoo.ablate.execute import planner_of
from zoo.ablate.manifest import FILE, LadderRecord, read_manifest
from zoo.ablate.outcome import Outcome
from zoo.ablate.results import Results, read_results
from zoo.ablate.scale.sources import sweep_table
from zoo.ablate.sweep import load_sweep
from zoo.ablate.verdict import judge

FINALS = {"base": [3.0, 3.01, 2.99], "new": [2.9, 2.92, 2.89], "third": [3.1, 3.12, 3.09]}
GONE = "OSError: No space left on device"


@pytest.mark.parametrize("choose", ["best", "parabola"])
def test_a_crash_is_no_infinite_loss(tmp_path: Path, choose: str) -> None:
    """The same losses: of a run that diverged the rate is the worst; of one that crashed it is unknown."""
    grid = {"optimizer.lr": [1e-3, 2e-3, 4e-3, 8e-3]}
    sweep = load_sweep(sweep_file(tmp_path, tune={"grid": grid, "seeds": [7], "choose": choose}))
    planner = planner_of(sweep)

    def chosen(worst: Outcome) -> set[float]:
        outcomes: dict[str, Outcome] = {}
        for _ in range(3):
            for run in planner.plan(outcomes).runs:
                lr = float(run.point["optimizer.lr"])
                loss = 3 + math.log(lr / 2e-3) ** 2
                known = Outcome(run.steps, {run.steps: loss}, ended=True)
                outcomes[run.id] = worst if lr == 8e-3 else known
        plan = planner.plan(outcomes)
        return {choice.values["optimizer.lr"] for choice in plan.chosen.values()}

    assert chosen(Outcome(error="step 3: the loss is nan", ended=True)) == {2e-3}
    assert chosen(Outcome(error=GONE, crashed=True)) == set()


def edited(folder: Path, **changes: Any) -> Results:
    """A sweep whose manifest was changed: for each run's id the fields of `changes`."""
    content = json.loads((folder / FILE).read_text())
    for run in content["runs"]:
        run |= changes.get("runs", {}).get(run["id"], {})
    for variant in content["variants"]:
        variant |= changes.get("variants", {}).get(variant["name"], {})
    (folder / FILE).write_text(json.dumps(content))
    return read_results([folder])


def test_what_failed_in_the_tuning_is_said(tmp_path: Path) -> None:
    rates = {name: {1e-3: 3.1, 3e-3: 3.0, 1e-2: 3.2} for name in FINALS}
    finals: dict[str, list[float]] = {"base": FINALS["base"], "new": [], "third": []}
    crashed = {"status": "failed", "error": GONE, "crashed": True}
    results = edited(
        write_sweep(tmp_path / "sweep", finals, tune=rates),
        runs={"new-lr0.01": crashed, "third-lr0.01": crashed},
        variants={"new": {"tuned": None}, "third": {"tuned": None}},
    )
    judgement = judge(results)
    assert [verdict.word for verdict in judgement.verdicts] == ["baseline", "no result", "no result"]
    told = [caution for caution in caveats(judgement) if GONE in caution]
    assert told == [
        "new, third: not tuned and not compared: failed, so that their results are not known (2 runs, the "
        f"first of them new, optimizer.lr 0.01, seed 0): {GONE}"
    ]
    assert not [caution for caution in caveats(judgement) if "no run of the comparison yet" in caution]


def test_a_ladder_leaves_out_what_crashed_and_keeps_what_diverged(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "sweep", FINALS)
    of_size: dict[str, dict[str, Any]] = {
        f"{v}-{s}": {"params": 1000, "tokens": 6400} for v in FINALS for s in range(3)
    }
    of_size["new-1"] |= {"status": "failed", "error": GONE, "crashed": True}
    of_size["new-2"] |= {"status": "failed", "error": "step 7: the loss is nan"}
    edited(folder, runs=of_size)
    manifest = read_manifest(folder).model_copy(update={"ladder": LadderRecord(sizes=(1000,))})
    (folder / FILE).write_text(manifest.model_dump_json())
    losses = {(run.variant, run.seed): run.loss for run in sweep_table(folder).runs}
    assert losses["new", 2] == math.inf
    assert ("new", 1) not in losses
    assert len(losses) == 8


def test_a_ladder_keeps_what_halving_stopped_of_a_side_that_goes_on(tmp_path: Path) -> None:
    """Their rates were tried, and others were better; of a side without an end nothing is known yet."""
    folder = write_sweep(tmp_path / "sweep", FINALS)
    of_size: dict[str, dict[str, Any]] = {
        f"{v}-{s}": {"params": 1000, "tokens": 6400} for v in FINALS for s in range(3)
    }
    stopped = {"status": "stopped", "phases": ["tune"]}
    of_size |= {run: of_size[run] | stopped for run in ("new-0", "third-0", "third-1")}
    of_size["third-2"] |= {"status": "waiting"}
    edited(folder, runs=of_size)
    manifest = read_manifest(folder).model_copy(update={"ladder": LadderRecord(sizes=(1000,))})
    (folder / FILE).write_text(manifest.model_dump_json())
    table = sweep_table(folder)
    assert table.variants == ["base", "new"]
    (run,) = (run for run in table.runs if run.stopped)
    assert (run.variant, run.seed, run.loss, run.tuning, run.final) == ("new", 0, math.inf, True, False)


def test_zoo_verdict_names_the_runs_that_a_ladder_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `zoo report` does: what is said before the end, or without a run that crashed, is no final word."""
    folder = write_sweep(tmp_path / "sweep", FINALS)
    of_size: dict[str, dict[str, Any]] = {
        f"{v}-{s}": {"params": 1000, "tokens": 6400} for v in FINALS for s in range(3)
    }
    of_size["new-1"] |= {"status": "failed", "error": GONE, "crashed": True}
    of_size["new-2"] |= {"status": "waiting"}
    edited(folder, runs=of_size)
    ladder = {"ladder": LadderRecord(sizes=(1000,)), "description": "New against base."}
    (folder / FILE).write_text(read_manifest(folder).model_copy(update=ladder).model_dump_json())
    zoo("verdict", str(folder), "--baseline", "base", "--out", str(tmp_path / "page"))
    printed = capsys.readouterr().out
    page = (tmp_path / "page/report.md").read_text(encoding="utf-8")
    in_json = json.loads((tmp_path / "page/report.json").read_text(encoding="utf-8"))["missing"]
    zoo("verdict", str(folder), "--baseline", "base", "--json")
    assert json.loads(capsys.readouterr().out)["missing"] == in_json
    told = ("1 of the 9 runs known so far have not ended", f"(new, seed 1): {GONE}")
    for words, sentence in zip(told, in_json, strict=True):
        assert words in sentence and words in printed and words in page
    zoo("report", str(folder), "--baseline", "base", "--out", str(tmp_path / "report"))
    assert "New against base." in page
    assert (tmp_path / "report/report.md").read_text(encoding="utf-8") == page


def test_runs_that_diverged_before_their_first_checkpoint_have_no_other_data(tmp_path: Path) -> None:
    results = read_results([write_sweep(tmp_path / "sweep", FINALS, status={("new", 2): "failed"})])

    def found(data: dict[str, str | None]) -> list[str]:
        metrics = {run: replace(m, data=data.get(run, "a")) for run, m in results.metrics.items()}
        return [c for c in caveats(judge(replace(results, metrics=metrics))) if "differ in" in c]

    assert found({"new-2": None}) == []
    assert found({"new-2": "b"}) == [
        "the runs differ in data, which may be the cause of differences between variants"
    ]


def test_a_tuning_of_which_every_run_diverged_has_no_best_rate(tmp_path: Path) -> None:
    """Whether its first rate was compared or none: the rate is not the best one, at the edge or inside."""
    rates = {name: {1e-3: 3.1, 3e-3: 3.0, 1e-2: 3.2} for name in FINALS}
    folder = write_sweep(tmp_path / "sweep", FINALS, tune=rates, border=["new", "third"])
    diverged = {"status": "failed", "error": "step 7: the loss is nan"}
    results = edited(
        folder,
        runs={f"{name}-lr{lr:g}": diverged for name in ("new", "third") for lr in rates["new"]},
        variants={"third": {"tuned": None}},
    )
    told = [caution for caution in caveats(judge(results)) if "lr" in caution]
    assert told == [
        "new, third: every run of the tuning diverged, so that no optimizer.lr that was tried is better than "
        "another"
    ]


def test_a_cause_is_told_once(tmp_path: Path) -> None:
    """Another machine differs in several ways, and several variants may share a weakness."""
    rates = {"base": {1e-3: 3.1, 1e-2: 3.2}, "new": {1e-3: 3.1, 1e-2: 3.0}, "third": {1e-3: 3.1, 1e-2: 3.2}}
    status = {("new", 2): "failed", ("third", 2): "failed"}
    folder = write_sweep(tmp_path / "sweep", FINALS, tune=rates, border=list(FINALS), status=status)
    sessions = folder / "runs/new-1/environment.json"
    sessions.write_text(json.dumps([{"device": "cuda", "threads": 3, "git_commit": "abc"}]))
    told = caveats(judge(read_results([folder])))
    assert [caution for caution in told if "differ in" in caution] == [
        "the runs differ in machine, number of threads or ranks and commit of zoo, which may be the cause of "
        "differences between variants"
    ]
    assert [caution for caution in told if "edge" in caution] == [
        "base (0.001), new (0.01), third (0.001): the best optimizer.lr tried lies at the edge of its range; "
        "a better one may lie outside"
    ]
    assert [caution for caution in told if "failed" in caution] == [
        "new, third: 1 of 3 runs failed and count in no mean (seed 2: step 7: the loss is nan)"
    ]


def test_tuning_with_one_seed_is_told_with_the_noise_of_a_seed(tmp_path: Path) -> None:
    """Once for all variants; the number is the root of the mean variance of the comparison's runs."""
    rates = {name: {1e-3: 3.1, 3e-3: 3.0, 1e-2: 3.2} for name in FINALS}
    results = read_results([write_sweep(tmp_path / "sweep", FINALS, tune=rates)])
    assert [caution for caution in caveats(judge(results)) if "one seed" in caution] == [
        "tuned with one seed: each value that was tried has a single run, and the seed alone moves a run by "
        "0.014 (standard deviation); that seed may have chosen (tune.seeds: two or more)"
    ]
    runs = [
        run.model_copy(update={"seed": 1}) if run.tuned == {"optimizer.lr": 3e-3} else run
        for run in results.manifest.runs
    ]
    two = replace(results, manifest=results.manifest.model_copy(update={"runs": tuple(runs)}))
    assert not [caution for caution in caveats(judge(two)) if "one seed" in caution]
