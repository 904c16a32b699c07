"""Rates are tuned by the score of a task: measured of every run of a sweep, in the task's own direction."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import zoo
from local_tasks import no_network, write_tasks
from tiny_sweeps import base, sweep_file

from zoo.ablate.execute import execute
from zoo.ablate.jobs import write_jobs
from zoo.ablate.manifest import read_manifest
from zoo.ablate.results import read_results
from zoo.ablate.run_metrics import read_run_metrics
from zoo.ablate.sweep import Sweep, load_sweep
from zoo.utils.errors import ConfigError, ZooError

RATES = [1e-5, 3e-2]


def scored_sweep(
    folder: Path, metric: str = "tasks/last_word/perplexity", context: int = 48, **tasks: Any
) -> Sweep:
    """One variant, whose learning rate is tuned with one seed."""
    if not (folder / "questions").exists():
        write_tasks(folder / "questions")
    shared = base(folder)
    shared["data"]["context"] = context  # by default with room for the questions
    fields: dict[str, Any] = {
        "base": shared,
        "axes": {},
        "seeds": [0],
        "tune": {"grid": {"optimizer.lr": RATES}, "seeds": [0]},
        "metric": metric,
        "tasks": {"path": "questions", **tasks},
    }
    return load_sweep(sweep_file(folder, **fields))


def test_the_rate_with_the_better_score_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Perplexity of a task is better when lower, which nothing but the task says."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    sweep = scored_sweep(tmp_path)
    with no_network(tmp_path / "cache"):
        result = execute(sweep, 1)
    assert result.finished
    scores = {}
    for run in result.manifest.runs:
        [score] = [
            s
            for s in json.loads((sweep.runs / run.id / "tasks.json").read_text())["scores"]
            if s["metric"] == "perplexity"
        ]
        scores[run.tuned["optimizer.lr"]] = score["value"]
    assert sorted(scores) == RATES
    [variant] = read_manifest(sweep.folder).variants
    assert variant.tuned == {"optimizer.lr": min(RATES, key=lambda rate: scores[rate])}
    assert "the lowest mean of the final perplexity on last_word" in str(result.manifest.tune)
    results = read_results([sweep.folder])
    assert results.measure.name == "tasks/last_word/perplexity" and results.measure.lower_is_better
    # Scores of other questions do not count: the runs are asked again, and not trained again.
    assert all(sweep.outcome(run.id).ended for run in result.manifest.runs)
    asked_less = scored_sweep(tmp_path, limit=1)
    assert not any(asked_less.outcome(run.id).ended for run in result.manifest.runs)
    assert {asked_less.outcome(run.id).step for run in result.manifest.runs} == {12}


def test_scores_of_other_questions_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A task file that has changed, or another one of the same name; without a change nothing is asked."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    sweep = scored_sweep(tmp_path)
    with no_network(tmp_path / "cache"):
        runs = execute(sweep, 1).manifest.runs
        files = [sweep.runs / run.id / "tasks.json" for run in runs]
        first = [(file.stat().st_mtime_ns, file.read_text()) for file in files]
        execute(scored_sweep(tmp_path), 1)
        assert [file.stat().st_mtime_ns for file in files] == [written for written, _ in first]
        data = tmp_path / "questions" / "write.jsonl"
        data.write_text(data.read_text().replace("lazy dog.", "lazy cat."))
        execute(scored_sweep(tmp_path), 1)
    assert all(file.read_text() != text for file, (_, text) in zip(files, first, strict=True))
    # The score of an earlier step of the same run is none of the end.
    content = json.loads(files[0].read_text())
    assert content["step"] == 12
    files[0].write_text(json.dumps(content | {"step": 6}))
    assert [sweep.outcome(run.id).ended for run in runs] == [False, True]
    assert "tasks/last_word/perplexity" in read_run_metrics(files[1].parent).measured
    with caplog.at_level("WARNING", "zoo"):
        assert "tasks/last_word/perplexity" not in read_run_metrics(files[0].parent).measured
    assert "has the scores of step 6, and the run is at step 12" in caplog.text


@pytest.mark.parametrize(
    ("metric", "tasks", "message"),
    [
        ("tasks/quiz/accuracy", {}, "metric: task 'quiz' has no metric 'accuracy'; known: acc, acc_norm"),
        ("tasks/quiz/acc", {"path": "nowhere"}, "nowhere: expected a folder with task files"),
        ("tasks/quizz/acc", {}, "no task called 'quizz'; did you mean 'quiz'"),
        ("tasks/write/exact_match", {"context": 12}, "max_gen_toks is 12, but .* the context of 12 tokens"),
        (
            "tasks/quiz/acc",
            {"context": 20},
            "'quiz' has an answer of 31 tokens; expected at most 20, the context",
        ),
    ],
)
def test_mistakes_are_known_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metric: str, tasks: dict[str, Any], message: str
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    sweep = scored_sweep(tmp_path, metric, **tasks)
    with no_network(tmp_path / "cache"), pytest.raises(ZooError, match=message):
        execute(sweep, 1)
    assert not sweep.runs.exists()


def test_a_dry_run_reads_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    scored_sweep(tmp_path, "tasks/quiz/accuracy")
    with no_network(tmp_path / "cache"):
        zoo("sweep", tmp_path / "tiny.yaml", "--dry-run", status=2)
    assert "metric: task 'quiz' has no metric 'accuracy'" in capsys.readouterr().err


def test_schedulers_are_given_no_runs_that_need_a_score(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape("--jobs cannot measure tasks/last_word/perplexity")):
        write_jobs(scored_sweep(tmp_path))
