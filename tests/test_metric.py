"""What is judged is what is wanted: `metric:` of runs, sweeps and reports, each in its own direction."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_rel
from synthetic_runs import STEPS, curve, write_run, write_sweep
from test_classification import fields as classifier
from tiny_runs import of_kind, tiny_fields
from tiny_sweeps import sweep_file

from zoo.ablate.execute import execute
from zoo.ablate.manifest import FILE, read_manifest
from zoo.ablate.outcome import Outcome
from zoo.ablate.plan import Planner
from zoo.ablate.results import read_results
from zoo.ablate.scale.sources import read_table
from zoo.ablate.speedup import speedups, target_loss
from zoo.ablate.sweep import load_sweep
from zoo.ablate.tables import measure_table
from zoo.ablate.verdict import judge
from zoo.report.report import report
from zoo.run.config import load_config
from zoo.train.run import train
from zoo.utils.errors import ZooError
from zoo.utils.measures import MEASURES, find_measure

ACCURACIES = {"plain": [0.70, 0.72, 0.71], "wide": [0.80, 0.83, 0.81]}
"""Higher, while the losses below say the opposite."""
LOSSES = {"plain": [3.0, 3.01, 2.99], "wide": [3.1, 3.12, 3.09]}


def classified(folder: Path, finals: dict[str, list[float]] = ACCURACIES) -> Path:
    """A sweep of classifiers whose accuracy rises along a line to its end."""
    sweep = write_sweep(folder, LOSSES)
    for variant, values in finals.items():
        for seed, final in enumerate(values):
            file = sweep / f"runs/{variant}-{seed}/metrics.jsonl"
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            for line in lines:
                if line["kind"] == "validation":
                    line["accuracy"] = 0.5 + (final - 0.5) * line["step"] / STEPS
                    line["by_file"] = {"odd": {"cross_entropy": 1.0, "accuracy": 1 - line["accuracy"]}}
            file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return sweep


def test_every_direction_is_that_of_its_definition() -> None:
    """A model that is certain of the right answer has the best value of every measure."""
    certain = {"cross_entropy": 0.0, "perplexity": 1.0, "bits_per_byte": 0.0}
    certain |= {"accuracy": 1.0, "f1": 1.0, "matthews": 1.0}
    guessing = {"cross_entropy": math.log(2), "perplexity": 2.0, "bits_per_byte": 1.0}
    guessing |= {"accuracy": 0.5, "f1": 0.5, "matthews": 0.0}
    assert certain.keys() == MEASURES.keys()
    for name, measure in MEASURES.items():
        assert measure.cost(certain[name]) < measure.cost(guessing[name])
    assert find_measure("odd/accuracy").cost(0.9) < find_measure("odd/accuracy").cost(0.8)


def test_the_verdict_is_that_of_the_measure(tmp_path: Path) -> None:
    folder = classified(tmp_path / "sweep")
    by_loss, by_accuracy = (judge(read_results([folder], metric=m)) for m in (None, "accuracy"))
    assert [v.word for v in by_loss.verdicts] == ["baseline", "worse"]
    assert [v.word for v in by_accuracy.verdicts] == ["baseline", "better"]
    comparison = by_accuracy.verdicts[1].comparison
    assert comparison is not None
    assert comparison.difference == pytest.approx(0.31 / 3)
    assert comparison.p == pytest.approx(ttest_rel(ACCURACIES["wide"], ACCURACIES["plain"]).pvalue)
    assert by_accuracy.sentences[0].startswith("wide: better than plain. Its final accuracy differs by +0.10")
    # Accuracy rises along a line, so that 71 % is there at (.71 - .5) / (final - .5) of the steps.
    results = by_accuracy.results
    assert target_loss(results) == pytest.approx(0.71)
    steps = next(s for s in speedups(results) if s.cost == "steps")
    expected = [STEPS * 0.21 / (final - 0.5) for final in ACCURACIES["wide"]]
    assert list(steps.needed.values()) == pytest.approx(expected)
    assert [v.word for v in judge(read_results([folder], metric="odd/accuracy")).verdicts][1] == "worse"


def test_the_page_shows_every_measure_and_says_which_is_judged(tmp_path: Path) -> None:
    folder = classified(tmp_path / "sweep")
    table = measure_table(read_results([folder], metric="accuracy"))
    assert [c.title for c in table.columns] == [
        *("variant", "loss", "accuracy", "loss on odd", "accuracy on odd"),
    ]
    assert table.texts[1][:3] == ["wide", "3.1033 ± 0.0153", "0.8133 ± 0.0153"]
    judgement, page = report([folder], tmp_path / "out", metric="accuracy")
    assert judgement.results.measure.name == "accuracy"
    text = page.read_text(encoding="utf-8")
    for words in ("final accuracy", "Above 0: better than plain", "Only the accuracy is judged"):
        assert words in text
    assert (tmp_path / "out/measure.png").is_file()
    header, *_, last = (tmp_path / "out/curves.csv").read_text().splitlines()
    assert dict(zip(header.split(","), last.split(","), strict=True))["accuracy"] == "0.81"


def test_a_difference_without_noise_is_no_certainty(tmp_path: Path) -> None:
    """Counts of right answers may differ by one amount in every seed; a t test would be certain of it."""
    folder = classified(tmp_path / "sweep", {"plain": [0.70, 0.72], "wide": [0.71, 0.73]})
    verdict = judge(read_results([folder], metric="accuracy")).verdicts[1]
    assert (verdict.word, verdict.comparison) == ("undecided", None)
    assert "every seed differs by the same amount" in verdict.why


def scored(folder: Path, value: float, better: bool | None = True) -> None:
    """A tasks.json as `zoo eval --tasks` writes it."""
    score = {"task": "quiz", "metric": "acc", "filter": "none", "value": value, "higher_is_better": better}
    (folder / "tasks.json").write_text(json.dumps({"scores": [score]}), encoding="utf-8")


def test_runs_are_judged_by_the_score_of_a_task(tmp_path: Path) -> None:
    runs = []
    for name, losses in LOSSES.items():
        for seed, loss in enumerate(losses):
            wide = ["model.d_mlp=64"] * (name == "wide")
            runs.append(write_run(tmp_path / f"{name}-{seed}", curve(loss), seed=seed, overrides=wide))
            scored(runs[-1], ACCURACIES[name][seed])
    judgement = judge(read_results(runs, metric="tasks/quiz/acc"))
    assert [v.word for v in judgement.verdicts] == ["baseline", "better"]
    assert speedups(judgement.results) == []  # a score is measured once
    for run in runs:
        scored(run, 0.5, better=None)
    with pytest.raises(ZooError, match="does not say whether more or less of it is better"):
        read_results(runs, metric="tasks/quiz/acc")


def test_the_sweep_tunes_by_its_measure(tmp_path: Path) -> None:
    base = classifier(tmp_path)
    del base["name"], base["train"]["runs_dir"]
    file = sweep_file(
        tmp_path,
        base=base,
        tune={"grid": {"optimizer.lr": [1e-3, 1e-2]}, "seeds": [7]},
        metric="matthews",
    )
    sweep = load_sweep(file)
    assert sweep.measure.name == "matthews"
    steps = sweep.variants[0].steps
    outcomes = {
        sweep.run(variant, point, 7).name: Outcome(steps, {steps: sweep.measure.cost(value)}, ended=True)
        for variant in sweep.variants
        for point, value in enumerate((0.2, 0.9))
    }
    chosen = Planner(sweep).plan(outcomes).chosen
    assert {point.values["optimizer.lr"] for point in chosen.values()} == {1e-2}


def test_a_sweep_of_classifiers_from_end_to_end(tmp_path: Path) -> None:
    """The manifest, the verdict and the chosen rate follow the accuracy that the runs have logged."""
    base = classifier(tmp_path)
    base["train"] |= {"steps": 6, "eval_every": 3, "checkpoint_every": 6}
    del base["name"], base["train"]["runs_dir"]
    file = sweep_file(
        tmp_path,
        base=base,
        tune={"grid": {"optimizer.lr": [1e-5, 1e-2]}, "seeds": [5]},
        metric="accuracy",
    )
    sweep = load_sweep(file)
    manifest = execute(sweep, workers=1).manifest
    assert manifest.metric == "accuracy"
    assert manifest.tune is not None
    assert "the highest mean of the final validation accuracy" in manifest.tune.rule
    for variant in manifest.variants:
        tried = {
            run.tuned["optimizer.lr"]: of_kind(sweep.runs / run.id, "validation")[-1]["accuracy"]
            for run in manifest.runs
            if run.variant == variant.name and run.phases == ("tune",)
        }
        assert len(tried) == 2
        assert variant.tuned == {"optimizer.lr": max(tried, key=lambda rate: tried[rate])}
    results = read_results([sweep.folder])
    assert results.measure.name == "accuracy"
    for variant_name, verdict in zip(results.variants, judge(results).verdicts, strict=True):
        logged = [
            of_kind(sweep.runs / run.id, "validation")[-1]["accuracy"] for run in results.runs(variant_name)
        ]
        assert verdict.final is not None
        assert verdict.final.mean == pytest.approx(np.mean(logged))


def test_the_best_checkpoint_is_that_of_the_metric(tmp_path: Path) -> None:
    settings = classifier(tmp_path)
    settings["train"] |= {"steps": 12, "eval_every": 2, "keep_last": 1}
    run = train(load_config(settings, ["metric=matthews"])).folder
    lines = [line for line in of_kind(run, "validation") if line["step"]]
    top = max(lines, key=lambda line: line["matthews"])
    pointer = json.loads((run / "checkpoints/best.json").read_text())
    assert pointer == {"checkpoint": f"step-{top['step']:08d}", "matthews": top["matthews"]}


def test_old_manifests_are_judged_by_the_loss(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "sweep", LOSSES)
    text = (folder / FILE).read_text()
    assert '"metric": "cross_entropy"' in text
    (folder / FILE).write_text(text.replace('"metric": "cross_entropy"', '"metric": "validation"'))
    assert read_manifest(folder).metric == "cross_entropy"


def sweep_of_texts(tmp_path: Path, **more: Any) -> None:
    load_sweep(sweep_file(tmp_path, **more))


BAD: list[tuple[Callable[[Path], object], str]] = [
    (
        lambda folder: load_config(tiny_fields(folder), ["metric=acuracy"]),
        r"metric: value 'acuracy': 'acuracy' is no measure; did you mean 'accuracy'\?",
    ),
    (
        lambda folder: load_config(tiny_fields(folder), ["metric=accuracy"]),
        "metric: 'accuracy' is not recorded; expected one of bits_per_byte, cross_entropy, perplexity",
    ),
    (
        lambda folder: load_config(tiny_fields(folder), ["metric=cross_entropy", "data.validation=0"]),
        "metric: 'cross_entropy' is not recorded; there are no validation examples",
    ),
    (
        lambda folder: load_config(classifier(folder, best="f1"), ["metric=matthews"]),
        "metric: matthews, but data.best: f1; expected one of the two",
    ),
    (
        lambda folder: sweep_of_texts(folder, metric="f1"),
        r"tiny.yaml:\d+: metric: 'f1' is not recorded; expected one of bits_per_byte",
    ),
    (
        lambda folder: sweep_of_texts(
            folder, metric="tasks/quiz/acc", tune={"grid": {"seed": [1, 2]}, "halving": {}}
        ),
        "tune.halving: a task is scored when a run has ended; expected no halving",
    ),
    (
        lambda folder: sweep_of_texts(folder, tasks={"limit": 2}),
        "tasks: has no effect without metric: tasks/TASK/METRIC",
    ),
    (
        lambda folder: read_results([write_sweep(folder / "sweep", LOSSES)], metric="matthews"),
        "report: metric: 'matthews' is not recorded; expected one of cross_entropy, perplexity",
    ),
    (
        lambda folder: read_results([write_sweep(folder / "sweep", LOSSES)], metric="tasks/quiz/acc"),
        "report: metric: no run has recorded 'tasks/quiz/acc'; zoo eval RUN --tasks quiz records it",
    ),
    (
        lambda folder: read_results([write_sweep(folder / "sweep", LOSSES)], metric="tasks/acc"),
        "'tasks/acc': expected tasks/TASK/METRIC",
    ),
    (
        lambda folder: read_table([write_run(folder / "run", curve(3.0))], metric="accuracy"),
        "--metric accuracy: a speed-up in tokens is read from a loss; expected cross_entropy or bits_per",
    ),
    (
        lambda folder: read_table([write_run(folder / "run", curve(3.0))], metric="bits_per_byte"),
        "run: metric: 'bits_per_byte' is not recorded",
    ),
]


@pytest.mark.parametrize(("wrong", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_a_metric_that_nobody_records(tmp_path: Path, wrong: Callable[[Path], object], message: str) -> None:
    with pytest.raises(ZooError, match=message):
        wrong(tmp_path)
