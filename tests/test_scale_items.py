"""Scores of questions in the verdict across scale: claims, looks, clusters, accuracy, order."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import zoo
from numpy.typing import NDArray

from zoo.ablate.scale.document import VerdictDocument, document
from zoo.ablate.scale.items import ItemScores, compare_items
from zoo.ablate.scale.looks import Looks, spent_p
from zoo.ablate.scale.presentation import sentences
from zoo.ablate.scale.runs import FinishedRun, RunTable, read_runs
from zoo.ablate.scale.verdict import judge
from zoo.utils.errors import DataError

Array = NDArray[np.float64]
Items = Callable[[FinishedRun], tuple[float, ...]]


def one_size(factor: float, items: Items, seeds: int = 6) -> list[FinishedRun]:
    """Runs of a and b at 1M parameters and three budgets; b needs `factor` x fewer tokens."""
    runs = []
    for name, c in (("a", 1.0), ("b", factor)):
        for tokens in (5e6, 10e6, 20e6):
            for seed in range(seeds):
                noise = 0.004 * math.sin(2.1 * seed + 1.3 * tokens / 1e6 + c)
                loss = 0.7 + 2 * (c * tokens / 1e6) ** -0.3 + noise
                run = FinishedRun(name, 1e6, tokens, seed, loss, seconds=tokens)
                runs.append(replace(run, outcomes={"items": ItemScores(items(run))}))
    return runs


def noisy(better: float) -> Items:
    """Scores of 40 questions, `better` higher for b."""

    def items(run: FinishedRun) -> tuple[float, ...]:
        side = run.variant == "b"
        return tuple(better * side + math.sin(5 * run.seed + 7 * i + 2 * side) / 3 for i in range(40))

    return items


def test_items_at_one_size_are_claimed_after_the_tokens() -> None:
    """The chain is largest, items, seconds: without the first nothing further is claimed."""
    judged = judge(RunTable(tuple(one_size(1.5, noisy(0.5)))), "a")
    assert judged["b"].claims == ("largest", "items", "seconds")
    assert judged["b"].directions == dict.fromkeys(("largest", "items", "seconds"), "better")
    (sentence,) = sentences(judged, "a", None)
    assert " Seconds: " in sentence and " Items: +0.495 (" in sentence and sentence.endswith(" at 1M.")
    assert judge(RunTable(tuple(one_size(1.0, noisy(0.5)))), "a")["b"].claims == ()
    without = judge(RunTable(tuple(one_size(1.5, noisy(0.0)))), "a")["b"]
    assert without.claims == ("largest",), "seconds come after items"
    worse = judge(RunTable(tuple(one_size(1.5, noisy(-0.5)))), "a")
    assert worse["b"].directions["items"] == "worse"
    assert sentences(worse, "a", None)[0].endswith(" at 1M, worse.")


def test_items_without_noise_are_no_claim() -> None:
    """All right against all wrong, with every seed: a t test would take that for certainty."""
    found = judge(RunTable(tuple(one_size(1.5, lambda run: (float(run.variant == "b"),) * 4))), "a")["b"]
    assert found.measured.items is not None
    assert (found.measured.items.difference, found.measured.items.p_value) == (1, 1)
    assert found.claims == ("largest",)
    assert any(warning.startswith("items: every question differs by the same") for warning in found.warnings)


def test_seconds_at_one_size_must_exceed_what_tuning_makes() -> None:
    """As for tokens: three standard deviations of the error that all seeds share."""
    losses = (2.16, 2.14, 2.13, 2.14, 2.16)
    runs = []
    for name, cost in (("a", 1.0), ("b", 1.4911)):
        runs += [FinishedRun(name, 1e6, 5e6, 99, loss, 1e-3 * 2**k) for k, loss in enumerate(losses)]
        of_side = [run for run in one_size(1.5, noisy(0.5), seeds=12) if run.variant == name]
        runs += [replace(run, rate=4.1e-3, seconds=run.tokens * cost) for run in of_side]
    found = judge(RunTable(tuple(runs)), "a")["b"]
    gap, (seconds,) = found.measured.gap, found.measured.costs
    assert gap is not None
    assert seconds.half95 < seconds.ln_c < 3 * gap
    assert seconds.p_value < 0.05
    assert found.claims == ("largest", "items")


def test_items_at_looks_over_seeds_share_the_error() -> None:
    """After six of at most ten seeds items have 11 / 100 of the error, without a maximum 1 / 20."""
    parts = [1 / spent_p(1e-9, look, 3, None) for look in range(3, 1003)]
    assert sum(parts) * 1e-9 == pytest.approx(1 - 1 / 1001)
    assert spent_p(0.01, 6, 3, 10) == pytest.approx(0.01 * 100 / 11)
    assert spent_p(0.9, 2, 3, None) == spent_p(0.9, 3, 3, None) == 1.0
    table = RunTable(tuple(one_size(1.5, noisy(0.034))))
    once = judge(table, "a")["b"]
    assert once.measured.items is not None
    assert 0.05 * 11 / 100 < once.measured.items.p_value < 0.05
    assert once.claims == ("largest", "items", "seconds")
    clear = RunTable(tuple(one_size(1.5, noisy(0.5))))
    for looks in (Looks(max_seeds=10), Looks(anytime=True)):
        assert judge(table, "a", looks=looks)["b"].claims == ("largest",)
        assert judge(clear, "a", looks=looks)["b"].claims == ("largest", "items", "seconds")
    early = RunTable(tuple(run for run in clear.runs if run.seed < 2))
    assert judge(early, "a", looks=Looks(max_seeds=10))["b"].claims == ()


def test_the_level_of_items_at_one_size_is_told() -> None:
    judged = judge(RunTable(tuple(one_size(1.5, noisy(0.5)))), "a", alpha=0.2, looks=Looks(max_seeds=6))
    (sentence,) = sentences(judged, "a", None)
    assert sentence.endswith(" Intervals: 80 %, that of items 95 %.")
    assert document(judged, "a", margin=None, alpha=0.2).variants["b"].items is not None


def test_clusters_against_an_independent_computation() -> None:
    """V_items by the sum over pairs of questions in a cluster, V_residual by cells of seed and cluster."""
    random = np.random.default_rng(3)
    labels = np.array([7, 2, 2, 9, 7, 2, 9, 9, 9, 1])
    baseline, variant = random.normal(-1, 1, (3, 10)), random.normal(-1, 1, (3, 10))
    n, factor = 10, 4 / 3
    same = [(i, j) for i in range(n) for j in range(n) if labels[i] == labels[j]]

    def residual(scores: Array) -> float:
        centred = scores - scores.mean(1, keepdims=True)
        sums = [centred[:, labels == g].sum(1) for g in (1, 2, 7, 9)]
        return factor * float(sum(of.var(ddof=1) for of in sums)) / (len(scores) * n**2)

    for side, rest in (
        (variant, residual(variant - baseline)),
        (variant[:2], residual(baseline) + residual(variant[:2])),
    ):
        d = side.mean(0) - baseline.mean(0)
        d = d - d.mean()
        of_items = factor * sum(d[i] * d[j] for i, j in same) / n**2
        of_seeds = [of.mean(1).var(ddof=1) / len(of) for of in (baseline, side)]
        found = compare_items(baseline, side, list(labels))
        assert found.se**2 == pytest.approx(max(sum(of_seeds) + of_items - rest, of_items))
        assert found.difference == pytest.approx(side.mean() - baseline.mean())
    quiet = [baseline[:1] + random.normal(0, 0.01, (3, 10)), variant[:1] + random.normal(0, 0.01, (3, 10))]
    for clusters, df in ((list(labels), 3), (list(labels > 5), 1), ((), 9)):
        assert compare_items(quiet[0], quiet[1], clusters).df == df, "the seeds would allow more"
    for wrong in ([1] * n, list(labels[:-1])):
        with pytest.raises(ValueError, match="expected a cluster of each item, and at least two"):
            compare_items(baseline, variant, wrong)


def passages(random: np.random.Generator, clusters: int, size: int) -> list[Array]:
    """Scores of two recipes that are equal over all passages, of which each suits one or the other."""
    of_passage = np.repeat(random.normal(0, 0.3, clusters), size)
    of_question = random.normal(0, 0.3, clusters * size)
    level = random.normal(-1, 0.5, clusters * size)
    return [
        level + sign * (of_passage + of_question) / 2 + random.normal(0, 0.3, (4, clusters * size))
        for sign in (-1, 1)
    ]


def test_questions_of_one_passage_alarm_unless_they_are_clustered() -> None:
    """Thirty passages with ten questions each; 600 studies of equal recipes, at .05."""
    random = np.random.default_rng(11)
    labels = [i // 10 for i in range(300)]
    alarms = np.zeros(2)
    for _ in range(600):
        ours, theirs = passages(random, 30, 10)
        alarms += [compare_items(ours, theirs, clusters).p_value < 0.05 for clusters in ((), labels)]
    independent, clustered = alarms / 600
    assert independent > 0.2
    assert 0.02 < clustered < 0.08


HEADER = "variant,size,tokens,seed,loss"


def write_table(file: Path, columns: str, fields: Callable[[FinishedRun], str]) -> Path:
    """A CSV of the runs of `one_size`, with further fields."""
    rows = [
        f"{run.variant},{run.size},{run.tokens},{run.seed},{run.loss},{fields(run)}"
        for run in one_size(1.5, noisy(0.5), seeds=3)
    ]
    file.write_text("\n".join([f"{HEADER},{columns}", *rows]))
    return file


def scores(run: FinishedRun, n: int = 6) -> str:
    return " ".join(f"{-1 - math.sin(3 * i + run.seed + (run.variant == 'b')):.4f}" for i in range(n))


def test_clusters_of_a_table(tmp_path: Path) -> None:
    """The names of clusters, one per question, are the same in all runs."""
    table = write_table(tmp_path / "runs.csv", "items,clusters", lambda r: f"{scores(r)},x y x y z z")
    found = judge(read_runs(table), "a")["b"].measured
    sides = [
        np.array(
            [
                [float(s) for s in scores(r).split()]
                for r in one_size(1.5, noisy(0.5), 3)
                if r.variant == name and r.tokens == 20e6
            ]
        )
        for name in ("a", "b")
    ]
    assert found.items == compare_items(sides[0], sides[1], [0, 1, 0, 1, 2, 2])
    for columns, fields, message in (
        ("items,clusters", lambda r: f"{scores(r)},x y", "RUNS:2: clusters: 2 names .*, and 6 scores"),
        ("items,clusters", lambda r: ",x y", "RUNS:2: clusters: 2 names .*, and 0 scores"),
        ("clusters", lambda r: "x", "RUNS:1: clusters: there are no scores .* expected a column 'items'"),
        (
            "items,clusters",
            lambda r: f"{scores(r)},{'x y x y z z' if r.seed else 'x x x y y y'}",
            "clusters: other clusters of the questions at RUNS:17 than at",
        ),
    ):
        write_table(table, columns, fields)
        with pytest.raises(DataError, match=message.replace("RUNS", re.escape(str(table)))):
            read_runs(table)
    write_table(table, "items,clusters", lambda r: f"{scores(r)},x x x x x x")
    one = judge(read_runs(table), "a")["b"]
    assert one.measured.items is None
    assert any("in two clusters if they have some" in warning for warning in one.warnings)


def write_samples(folder: Path, run: FinishedRun, **changes: Any) -> str:
    """Samples of lm-evaluation-harness: two questions on each of three passages."""
    name = f"{run.variant}-{run.seed}.jsonl"
    lines = []
    for i, score in enumerate(map(float, scores(run).split())):
        line = {
            "doc_id": i,
            "doc": {"passage": f"text {i % 3}", "query": i},
            "doc_hash": str(i),
            "filter": "none",
            "target": "0",
            "filtered_resps": [[str(score), "False"], ["-9", "False"]],
            "metrics": ["acc"],
            "acc": i <= run.seed + (run.variant == "b"),
        }
        lines.append(json.dumps(line | changes))
    (folder / name).write_text("\n".join(lines))
    return name


def judged_json(capsys: pytest.CaptureFixture[str], file: Path, *options: str) -> Any:
    zoo("verdict", file, "--baseline", "a", "--json", *options)
    return json.loads(capsys.readouterr().out)["variants"]["b"]


def test_the_cluster_of_samples_is_a_field_of_the_question(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_table(tmp_path / "runs.csv", "items", lambda r: write_samples(tmp_path, r))
    named = write_table(tmp_path / "named.csv", "items,clusters", lambda r: f"{scores(r)},0 1 2 0 1 2")
    plain, wanted = (judged_json(capsys, file)["items"] for file in (table, named))
    found = judged_json(capsys, table, "--item-cluster", "passage")["items"]
    assert (plain["clusters"], found["clusters"], found["questions"]) == (None, 3, 6)
    assert [found[key] for key in ("difference", "se", "df")] == [
        wanted[key] for key in ("difference", "se", "df")
    ]
    assert plain["se"] != found["se"]
    for file, field, message in (
        (table, "pasage", "items: .*jsonl:1: doc: no field 'pasage'; did you mean 'passage'"),
        (named, "passage", "--item-cluster: has no effect on .*named.csv"),
    ):
        zoo("verdict", file, "--baseline", "a", "--item-cluster", field, status=2)
        assert re.search(message, capsys.readouterr().err)
    write_table(table, "items,clusters", lambda r: f"{write_samples(tmp_path, r)},x x x y y y")
    with pytest.raises(DataError, match="clusters: scores come from a file of samples; expected --item-clus"):
        read_runs(table)
    write_table(table, "items", lambda r: write_samples(tmp_path, r, doc="text"))
    with pytest.raises(DataError, match="no `doc`, whose field 'passage'"):
        read_runs(table, "passage")


def test_accuracy_is_shown_beside_the_log_probability(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of six questions one, two and three are right, and one more with b: it is shown, not judged."""
    table = write_table(tmp_path / "runs.csv", "items", lambda r: write_samples(tmp_path, r))
    found = judged_json(capsys, table, "--out", str(tmp_path / "page"))["items"]["accuracy"]
    for side, mean in (("baseline", 1 / 3), ("variant", 1 / 2)):
        assert found[side] == pytest.approx({"mean": mean, "sd": 1 / 6})
    page = (tmp_path / "page/report.md").read_text()
    assert "0.333 ± 0.167" in page and "0.500 ± 0.167" in page
    assert "it is shown, not judged" in page
    assert '"shown, not judged' in json.dumps(VerdictDocument.model_json_schema())
    write_table(table, "items", lambda r: write_samples(tmp_path, r) + "#acc")
    judged = judged_json(capsys, table)["items"]
    assert judged["accuracy"] is None, "it is what is judged"
    assert judged["difference"] == pytest.approx(1 / 6)

    def without(run: FinishedRun) -> str:
        changes: dict[str, Any] = {"metrics": []} if (run.variant, run.seed) == ("b", 1) else {}
        return write_samples(tmp_path, run, **changes)

    write_table(table, "items", without)
    assert judged_json(capsys, table)["items"]["accuracy"] is None, "a run has none"
    write_table(table, "items", lambda r: write_samples(tmp_path, r, acc="nan"))
    with pytest.raises(DataError, match="jsonl:1: score 'nan'; expected a finite number"):
        read_runs(table)


def test_the_first_outcome_that_is_named_enters_the_chain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Others are description, in whatever order they stand, and do not take its place."""

    def flat(run: FinishedRun) -> str:
        phase = 5 * run.seed + 2 * (run.variant == "b")
        return " ".join(f"{-1 - math.sin(3 * i + phase):.4f}" for i in range(6))

    def better(run: FinishedRun) -> str:
        level = -2 + (run.variant == "b")
        return " ".join(f"{level + 0.01 * i * (run.seed + 1):.4f}" for i in range(6))

    table = tmp_path / "runs.csv"
    write_table(table, "items:piqa,items:arc,clusters:arc", lambda r: f"{flat(r)},{better(r)},x x y y z z")
    found = judged_json(capsys, table, "--out", str(tmp_path / "page"))
    assert found["claims"] == ["largest"]
    assert (found["items"]["name"], found["items"]["clusters"]) == ("items:piqa", None)
    (described,) = found["described_items"]
    assert (described["name"], described["clusters"], described["p_value"]) == ("items:arc", 3, None)
    assert described["difference"] == pytest.approx(1.0)
    assert " Items (piqa): " in found["sentence"] and "arc" not in found["sentence"]
    page = (tmp_path / "page/report.md").read_text()
    assert "no: description" in page and "The first outcome that the table names is judged" in page

    write_table(table, "items:arc,items:piqa", lambda r: f"{better(r)},{flat(r)}")
    assert judged_json(capsys, table)["claims"] == ["largest", "items"]
    write_table(table, "items:piqa,items:arc", lambda r: f",{better(r)}")
    found = judged_json(capsys, table)
    assert found["claims"] == ["largest"] and found["items"] is None
    assert [outcome["name"] for outcome in found["described_items"]] == ["items:arc"]
    assert any("no other takes its place" in warning for warning in found["warnings"])

    write_table(table, "one,two", lambda r: f"{better(r)},{flat(r)}")
    for option, claims in (
        ("items:arc=one,items:piqa=two", ["largest", "items"]),
        ("items:piqa=two,items:arc=one", ["largest"]),
    ):
        assert judged_json(capsys, table, "--columns", option)["claims"] == claims
    for columns, message in (
        ("items:,items:arc", "unknown column 'items:'"),
        ("items:arc,clusters:piqa", "clusters:piqa: there are no scores .* expected a column 'items:piqa'"),
    ):
        write_table(table, columns, lambda r: f"{flat(r)},{better(r)}")
        with pytest.raises(DataError, match=message):
            read_runs(table)
