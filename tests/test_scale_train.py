"""The runs of the study across scale: a tiny copy of it, mistakes before any work, and Q6's checkpoint."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.harness import RESULTS
from benchmarks.scale import __main__ as command
from benchmarks.scale import scores, source, study
from benchmarks.scale.chapters import judged
from benchmarks.scale.forgetting import fine_tuned
from benchmarks.scale.page import front_page, own_page
from benchmarks.scale.place import Place
from benchmarks.scale.questions import LADDERS, NEW, OLD, SECOND
from benchmarks.scale.scores import all_scores, read_scores, score
from benchmarks.scale.second_text import second_text
from benchmarks.scale.source import NAME, lay_source, source_run
from benchmarks.scale.tiny import write_tiny
from zoo.ablate.execute import plan_of_known
from zoo.ablate.ladder_plan import LadderPlanner
from zoo.ablate.lines import COLUMNS, config_hash
from zoo.ablate.outcome import Outcome
from zoo.ablate.plan import PlannedRun
from zoo.ablate.progress import progress
from zoo.ablate.sweep import Sweep
from zoo.utils.errors import ConfigError, DataError, ZooError

BY_KEY = {question.key: question for question in LADDERS}
Q1, Q6 = BY_KEY["q1"], BY_KEY["q6"]


class Zoo:
    """Stands in for the command: what it was asked, and how it ends, one time after the other."""

    def __init__(self, *statuses: int) -> None:
        self.commands: list[tuple[str, ...]] = []
        self.statuses = list(statuses)

    def __call__(self, *arguments: str, meanwhile: Callable[[], None] | None = None) -> int:
        self.commands.append(arguments)
        return self.statuses.pop(0)


@pytest.fixture
def tiny(tmp_path: Path) -> Place:
    return write_tiny(tmp_path / "tiny")


def loss_of(run: PlannedRun) -> float:
    rate = next(float(value) for value in run.point.values())
    return 3 - run.tokens / 1e4 + (rate / 4e-3 - 1) ** 2 * 0.01 + run.config.seed * 1e-4


def write_lines(sweep: Sweep) -> list[PlannedRun]:
    """The lines of a ladder that was trained to its end."""
    outcomes: dict[str, Outcome] = {}

    def look(run: PlannedRun) -> Outcome:
        return Outcome(run.steps, {run.steps: loss_of(run)}, ended=True)

    runs = plan_of_known(LadderPlanner(sweep), outcomes, look).runs
    assert sweep.lines is not None
    sweep.lines.file.parent.mkdir(parents=True, exist_ok=True)
    with sweep.lines.file.open("w", encoding="utf-8", newline="") as text:
        writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        for run in runs:
            names = ("variant", "size", "tokens", "seed", "rate", "second_key")
            row = dict(zip(names, run.key, strict=True)) | {"run": run.id, "spikes": 0}
            writer.writerow(row | {"loss": repr(loss_of(run)), "config": config_hash(run.config)})
    return list(runs)


class Report:
    """What `perplexity` returns, of texts with 10 tokens."""

    def __init__(self, *losses: float) -> None:
        self.scores = [SimpleNamespace(tokens=10, nats=10 * loss) for loss in losses]


def run_command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> str:
    """The end of `python -m benchmarks.scale`; "" if it ends well."""
    monkeypatch.setattr(sys, "argv", ["benchmarks.scale", *map(str, arguments)])
    try:
        command.main()
    except SystemExit as end:
        return str(end.code)
    return ""


def test_a_tiny_copy_has_every_question(tiny: Place) -> None:
    for question in LADDERS:
        state = progress(tiny.load(question))
        assert state.lines.file == tiny.sweeps / f"../../../docs/results/scale/{question.key}.csv"
        assert state.planned > 0
        for size in state.sweep.ladder:
            assert {side.steps(tokens) for side in size.sides for tokens in size.budgets} <= {8, 16}
    with pytest.raises(ZooError, match="expected a folder that is new"):
        write_tiny(tiny.sweeps.parents[2])


def test_mistakes_are_told_before_anything_is_trained(
    tiny: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zoo = Zoo()
    monkeypatch.setattr(study, "run_zoo", zoo)
    folder, lines = tmp_path / "tiny", tiny.results / "scale/q1.csv"
    write_lines(tiny.load(Q1))
    header, first, *rest = lines.read_text().splitlines()
    for text, message in (
        ("\n".join([header, first, first, *rest]), "q1.csv:3: this run stands at"),
        (header.replace("loss", "losses"), "q1.csv:1: expected the columns"),
        ("\n".join([header, first.replace(",0.0", ",x0.0", 1)]), "q1.csv:2: rate"),
    ):
        lines.write_text(text + "\n")
        assert message in run_command(monkeypatch, "--study", folder, "train", "q2-horizon", "q1")
    lines.unlink()
    tiny.file(BY_KEY["q1-context"]).unlink()
    for what in (("train", "q1", "q1-context"), ("train",), ("hours", "q1-context"), ("hours",), ("report",)):
        assert "q1-context.yaml" in run_command(monkeypatch, "--study", folder, *what)
    assert zoo.commands == []


def test_a_study_that_is_stopped_ends(tiny: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a sweep that was interrupted no other one begins; a diverged run stops nothing."""
    zoo = Zoo(1, 130)
    monkeypatch.setattr(study, "run_zoo", zoo)
    monkeypatch.setattr(study, "hours", lambda *_: "")
    assert run_command(monkeypatch, "--study", tmp_path / "tiny", "train", "q1", "q3", "q4") == "130"
    assert [(what, Path(file).stem) for what, file in zoo.commands] == [("sweep", "q1"), ("sweep", "q3")]


def test_the_checkpoint_of_a_run_that_has_ended(tiny: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tiny.load(Q1)
    with pytest.raises(ZooError, match=r"which has no line in .*q1.csv; expected Q1 to have been trained"):
        lay_source(first)
    runs = write_lines(first)
    first = tiny.load(Q1)
    run = source_run(first)
    wanted = [r for r in runs if (r.variant, r.tokens, r.config.seed) == ("model=gpt", 512, 0)]
    assert [run.id] == [r.id for r in wanted]

    zoo = Zoo(130, 130)
    monkeypatch.setattr(source, "run_zoo", zoo)
    with pytest.raises(SystemExit):  # the folder of the run is gone: it is trained again, and was interrupted
        lay_source(first)
    (first.out / NAME).mkdir()
    with pytest.raises(SystemExit):
        lay_source(first)
    assert zoo.commands == [
        ("train", str(first.out / f"{NAME}.yaml")),
        ("train", str(first.out / NAME), "--resume"),
    ]
    (first.out / NAME).rmdir()
    (first.runs / run.id).mkdir(parents=True)
    (first.runs / run.id / "config.yaml").write_text("")
    assert (lay_source(first) / "config.yaml").is_file()
    assert len(zoo.commands) == 2


def test_gain_and_forgetting(tiny: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = tiny.load(Q6)
    longest = [run for run in write_lines(sweep) if run.tokens == sweep.ladder[-1].budgets[-1]]
    sweep = tiny.load(Q6)
    for name in (NAME, *(f"runs/{run.id}" for run in longest[1:])):  # the folder of the first run is gone
        (sweep.out / name).mkdir(parents=True)

    asked: list[str] = []

    def perplexity(folder: Path, files: list[Path]) -> tuple[Report, list[Path]]:
        asked.append(folder.name)
        assert files == [tiny.texts[NEW], tiny.texts[OLD]]
        return Report(5 if folder.name == NAME else 4 - len(asked) / 100, 3 + len(asked) / 10), []

    monkeypatch.setattr(scores, "perplexity", perplexity)
    assert len(list(score(Q6, sweep, tiny.texts))) == len(longest)
    assert list(score(Q6, sweep, tiny.texts)) == []  # each once
    assert asked == [NAME, *(run.id for run in longest[1:])]
    assert all_scores(Q6, sweep)[NAME] == {NEW: 5.0, OLD: 3.1}

    found = fine_tuned(Q6, progress(sweep))
    assert found.picture == "gain"
    page = own_page(found)
    first, second = (run.variant for run in longest[:2])
    assert first == second
    assert f"| {first} | 1 | 3.9800 | 1.0200 | 3.2000 | 0.1000 |" in page
    assert "| before | – | 5.0000 | – | 3.1000 | – |" in page
    assert "Gain and forgetting" in front_page([found])
    assert {row.word.split(";")[0] for row in found.rows} <= {"undecided", "equal", "faster", "slower"}


def test_a_word_that_turns_around_on_the_second_text(tiny: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {run.id: run for run in write_lines(tiny.load(Q1))}
    sweep = tiny.load(Q1)
    longest = [run for run in runs.values() if run.tokens == sweep.ladder[-1].budgets[-1]]
    for run in longest[1:]:
        (sweep.runs / run.id).mkdir(parents=True)
    worse = {"model=gpt": 0.0, "model=ngpt": 0.0, "model=gpt again": 1.0}

    def perplexity(folder: Path, files: list[Path]) -> tuple[Report, list[Path]]:
        assert files == [tiny.texts[SECOND]]
        return Report(4 + worse[runs[folder.name].variant] + runs[folder.name].config.seed * 1e-4), []

    monkeypatch.setattr(scores, "perplexity", perplexity)
    assert list(score(replace(Q1, described=True), sweep, tiny.texts)) == []  # which has no text
    assert len(list(score(Q1, sweep, tiny.texts))) == len(longest) - 1  # of one run the folder is gone
    assert second_text(Q1, progress(sweep)) == []  # one run of the baseline has no interval
    (sweep.runs / longest[0].id).mkdir()
    assert len(list(score(Q1, sweep, tiny.texts))) == 1

    table = tiny.results / "scale/q1.csv"
    rows = list(csv.DictReader(table.read_text().splitlines()))
    with table.open("w", encoding="utf-8", newline="") as text:
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in rows:  # better by a nat on the validation set, and worse on the other text
            better = row["variant"] == "model=gpt again"
            writer.writerow(row | {"loss": repr(float(row["loss"]) - better)})
    found = {row.variant: row for row in second_text(Q1, progress(tiny.load(Q1)))}
    assert (found["model=ngpt"].turned, found["model=gpt again"].turned) == (False, True)
    assert found["model=gpt again"].there.difference == pytest.approx(1.1)  # seeds from 1000 on
    assert found["model=gpt again"].here.difference == pytest.approx(-0.9)
    chapter = judged(Q1, progress(tiny.load(Q1)))
    words = {row.claim: row.word for row in chapter.rows}
    assert [claim for claim, word in words.items() if "the other way around" in word] == [
        "GPT against itself, other seeds: no claim may hold"
    ]
    assert "+1.1000 (+1.0997 to +1.1003)" in own_page(chapter)


def test_a_second_text_is_scored_without_carriage_returns(
    tiny: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = tiny.load(Q1)
    run, *_ = (run for run in write_lines(sweep) if run.tokens == sweep.ladder[-1].budgets[-1])
    (sweep.runs / run.id).mkdir(parents=True)
    tiny.texts[SECOND].write_bytes(b"One\r\ntwo\r\n")
    read: list[bytes] = []

    def perplexity(folder: Path, files: list[Path]) -> tuple[Report, list[Path]]:
        read.extend(file.read_bytes() for file in files)
        return Report(4.0), []

    monkeypatch.setattr(scores, "perplexity", perplexity)
    assert len(list(score(Q1, sweep, tiny.texts))) == 1
    assert read == [b"One\ntwo\n"]


def test_scores_of_lines_that_were_taken_over(tiny: Place) -> None:
    """Another question's scores count for its runs, whose folders this one does not have."""
    (tiny.results / "scale").mkdir()
    (tiny.results / "scale/q1-scores.csv").write_text("run,second\na,4.5\n")
    assert all_scores(BY_KEY["q2-gpt"], tiny.load(BY_KEY["q2-gpt"])) == {"a": {SECOND: 4.5}}


def test_a_text_that_is_missing_is_told_before_anything_is_trained(
    tiny: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zoo = Zoo()
    monkeypatch.setattr(study, "run_zoo", zoo)
    tiny.texts[SECOND].unlink()
    assert "second.txt: there is no such file; q1" in run_command(
        monkeypatch, "--study", tmp_path / "tiny", "train", "q1"
    )
    assert zoo.commands == []


def test_runs_are_scored_while_a_sweep_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "PAUSE", 0.01)
    looks: list[int] = []
    assert source.run_zoo("list", "models", meanwhile=lambda: looks.append(1)) == 0
    assert len(looks) > 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run,new\n", "expected the columns run,new,old"),
        ("run,new,old\na,1,2\na,1,2\n", r":3: run: value 'a' stands twice"),
        ("run,new,old\na,1,x\n", r":2: new and old: expected numbers"),
        ("run,new,old\na,1\n", r":2: new and old: expected numbers"),
    ],
)
def test_scores_that_cannot_be_read(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "q6-scores.csv"
    file.write_text(text)
    with pytest.raises((ConfigError, DataError), match=message):
        read_scores(file, (NEW, OLD))


def test_all_questions_stand_in_the_plan_and_in_make() -> None:
    plan = (RESULTS / "scale/plan.md").read_text()
    targets = (RESULTS.parents[1] / "Makefile").read_text()
    (line,) = (line for line in targets.splitlines() if line.startswith("SCALE ?= "))
    assert line.removeprefix("SCALE ?= ").split() == [question.key for question in LADDERS]
    assert all(f"`{question.key}.yaml`" in plan for question in LADDERS)
