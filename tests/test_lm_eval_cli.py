"""`zoo eval --tasks`: what is written, the page that describes it, and the mistakes one makes."""

from __future__ import annotations

import json
import logging
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from command_line import typed, zoo
from lm_eval.tasks import TaskManager
from local_tasks import DATA, no_network, write_tasks
from tiny_runs import ROOT, SIZES, tiny

from zoo import build_model, save_model
from zoo.data.instructions.files import Message
from zoo.data.tokenizers.byte import ByteTokenizer
from zoo.evaluation.task_report import tasks
from zoo.evaluation.text_generator import TextGenerator
from zoo.sampling import Sampling
from zoo.train.run import train
from zoo.utils.errors import DataError, ZooError

PAGE = (ROOT / "docs" / "evaluation.md").read_text("utf-8")
PASSAGES = [{"text": "Two lazy dogs and a quick brown fox"}, {"text": "The fox jumps over the lazy dog"}]
TASK = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: quiz.jsonl}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
fewshot_split: test
"""


@pytest.fixture(scope="module", autouse=True)
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Without the network, and with less of what takes seconds: one task as the harness's own, and no metric
    in the library where it looks for those it does not know.
    """
    own = tmp_path_factory.mktemp("own")
    (own / "far.yaml").write_text(TASK.format(name="far_away").replace(": json", ": some/where"), "utf-8")
    with no_network(tmp_path_factory.mktemp("cache")), pytest.MonkeyPatch.context() as patch:
        patch.setattr("lm_eval.tasks.manager.__file__", str(own / "manager.py"))
        patch.setitem(sys.modules, "evaluate", ModuleType("evaluate"))
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tiny(tmp_path_factory.mktemp("trained"), "data.context=48", steps=20)).folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("local") / "tasks")


def write_page(folder: Path) -> None:
    """The files that the page shows, and the data that it speaks of."""
    for path, content in re.findall(r"```yaml\n# (\S+)\n(.*?)```", PAGE, re.DOTALL):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(content, encoding="utf-8")
    for name, questions in (("quiz", DATA["quiz"]), ("lambada_test", PASSAGES)):
        lines = "".join(json.dumps(question) + "\n" for question in questions)
        for place in (folder, folder / "tasks"):
            (place / f"{name}.jsonl").write_text(lines, encoding="utf-8")


def test_the_page(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its commands run, and its lines of Python find the same scores."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, "runs/my-run")
    write_page(tmp_path)
    lines = [line.removeprefix("$ zoo ").split("  #")[0] for line in PAGE.splitlines() if "--tasks" in line]
    commands = [line for line in lines if line.startswith("eval ")]
    assert len(commands) == 3
    for command in commands:
        typed(command)
        captured = capsys.readouterr()
        if "--json" in command:
            assert captured.out == Path("runs/my-run/tasks.json").read_text("utf-8")
            assert {score["fewshot"] for score in json.loads(captured.out)["scores"]} == {2}
        else:
            assert "acc_norm" in captured.out
            assert ("lambada" in captured.out) == ("Only the first 2 of each" in captured.out)
            assert captured.out.endswith("wrote runs/my-run/tasks.json\n")
        assert captured.err == ""
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)  # asks the machine for long
    (block,) = re.findall(r"```python\n(import lm_eval\n.*?)```", PAGE, re.DOTALL)
    for fewshot in (0, 2):
        found: dict[str, Any] = {}
        exec(block.replace("tasks=[", f"num_fewshot={fewshot}, tasks=["), found)
        report, _ = tasks(
            Path("runs/my-run"), ["quiz"], task_path=Path("tasks"), num_fewshot=fewshot, device="cpu"
        )
        expected = found["results"]["results"]["quiz"]
        assert {s.metric: s.value for s in report.scores} == {
            name: expected[f"{name},none"] for name in ("acc", "acc_norm")
        }


def test_what_is_written(run: Path, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "scores.json"
    names = ["quiz", "book", "write", "last_word"]
    report, written = tasks(run, names, task_path=folder, contexts=[32], device="cpu", out=out)
    assert written == [out]
    plain = json.loads(out.read_text("utf-8"))
    assert {key: plain[key] for key in ("model", "context", "limit")} == {
        "model": str(run), "context": 32, "limit": None
    }  # fmt: skip
    scores = {(s["task"], s["metric"]): s for s in plain["scores"]}
    assert {task for task, _ in scores} == set(names)
    accuracy = scores["quiz", "acc"]
    assert (accuracy["documents"], accuracy["fewshot"], accuracy["higher_is_better"]) == (4, 0, True)
    assert (accuracy["filter"], accuracy["version"]) == ("none", None)
    assert accuracy["stderr"] == pytest.approx((accuracy["value"] * (1 - accuracy["value"]) / 3) ** 0.5)
    assert scores["last_word", "perplexity"]["stderr"] > 0
    assert scores["book", "word_perplexity"]["stderr"] is None
    assert [vars(score) for score in report.scores] == plain["scores"]


def test_a_group(run: Path, folder: Path, tmp_path: Path) -> None:
    local = tmp_path / "tasks"
    shutil.copytree(folder, local)
    (local / "all.yaml").write_text(
        "group: all\ntask: [quiz, last_word]\naggregate_metric_list: [{metric: acc}]\n", encoding="utf-8"
    )
    report, _ = tasks(run, ["all"], task_path=local, device="cpu", out=tmp_path / "out.json")
    by_task = {(s.task, s.metric): s for s in report.scores}
    quiz, last, both = (by_task[name, "acc"].value or 0.0 for name in ("quiz", "last_word", "all"))
    assert both == pytest.approx((4 * quiz + 3 * last) / 7)
    assert by_task["all", "acc"].documents is None


ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"names": []}, "no tasks; expected one or more names"),
    (
        {"names": ["quizz"]},
        r"no task called 'quizz'; did you mean 'quiz'\?; looked in .*tasks \(tasks there: ",
    ),
    (
        {"names": ["physics"]},
        "no task called 'physics'; looked in .* and among the 1 of lm-evaluation-harness",
    ),
    ({"names": ["quiz"], "task_path": None}, "looked among the 1 .* task files of yours: --task-path FOLDER"),
    (
        {"names": ["tasks/quiz.yaml"]},
        "of a task file give the folder, --task-path FOLDER, and --tasks the name",
    ),
    ({"names": ["far_away"]}, "task 'far_away': its data is not on this machine, and nothing is fetched"),
    ({"task_path": Path("nowhere")}, "--task-path nowhere: expected a folder with task files"),
    ({"limit": 0}, "limit is 0; expected at least 1"),
    ({"num_fewshot": -1}, "num_fewshot is -1; expected 0 or more"),
    ({"batch_size": 0}, "batch_size is 0"),
    ({"contexts": [8, 16]}, r"contexts are \[8, 16\]; expected one with tasks"),
    ({"contexts": [0]}, "context is 0"),
    (
        {"chat_template": True},
        "the model was not trained on conversations, and its tokenizer 'byte' has no chat",
    ),
    ({"out": Path("scores.txt")}, r"ends in \.json"),
    ({"device": "cuda:99"}, "cuda:99"),
    ({"path": Path("nowhere")}, "nowhere"),
]


@pytest.mark.parametrize(("changes", "message"), ARGUMENTS, ids=lambda value: str(value)[:40])
def test_arguments(run: Path, folder: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    out = tmp_path / "out.json"
    given = {"path": run, "names": ["quiz"], "task_path": folder, "device": "cpu", "out": out, **changes}
    with pytest.raises(ZooError, match=message):
        tasks(given.pop("path"), given.pop("names"), **given)
    assert not out.exists()


def test_an_unknown_name_is_told_before_anything_is_loaded(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without parsing the harness's own files, which takes many seconds, and before the model."""

    def local_only(include_path: Path, include_defaults: bool = True) -> TaskManager:
        assert not include_defaults
        return TaskManager(include_path=include_path, include_defaults=False)

    monkeypatch.setattr("zoo.evaluation.tasks.TaskManager", local_only)
    for task_path in (None, folder):
        with pytest.raises(ZooError, match="no task called 'far_awya'; did you mean 'far_away'"):
            tasks(tmp_path / "no model", ["far_awya"], task_path=task_path)


QUESTIONS: list[tuple[str, list[str], list[int | None]]] = [
    ("null", ["b", "c"], [0, None]),
    ("high", ["b", "c"], [1, 2]),
    ("none", [], [0, 0]),
    ("long", ["b", "c" * 100], [0, 1]),
]
FILES: list[tuple[str, str, str]] = [
    ("{{question}}", "{{qestion}}", "task 'odd': UndefinedError: 'qestion' is undefined"),
    ("quiz.jsonl", "quizz.jsonl", "quizz.jsonl'; paths of data are relative to .*tasks, the folder of"),
    ("quiz.jsonl", "broken.jsonl", "task 'odd': ArrowInvalid: JSON parse error"),
    ("quiz.jsonl", "empty.jsonl", "task 'odd': its data is empty"),
    ("test_split: test", "test_split: tset", "task 'odd': no 'tset' in its data, neither a split"),
    ("multiple_choice", "multiple_choices", "task 'odd': .* invalid output_type 'multiple_choices'"),
    ("test_split", "test_spilt", "task 'odd': no key called 'test_spilt'; did you mean 'test_split'"),
    ("test_split: test", "", "task 'odd': no key 'test_split' in its file; expected one with"),
    ("dataset_path: json", "", "task 'odd': no key 'dataset_path' in its file"),
    ("dataset_kwargs: {data_files: {test: quiz.jsonl}}", "", "task 'odd': no key 'dataset_kwargs' in its"),
    ('doc_to_text: "{{question}}"', "", "task 'odd': no key 'doc_to_text' in its file"),
    ('doc_to_target: "{{answer}}"', "", "task 'odd': no key 'doc_to_target' in its file"),
    ('doc_to_choice: "{{choices}}"', "", "task 'odd': no key 'doc_to_choice' in its file; expected one with"),
    ("test_split", "metric_list: [{metric: acc, aggregation: meen}]\ntest_split",
     "task 'odd': metric acc has no aggregation called 'meen'; did you mean 'mean'"),
    ("quiz.jsonl", "null.jsonl", "task 'odd': the answer of question 2 is 'None', which is none of its cho"),
    ("quiz.jsonl", "high.jsonl", "task 'odd': the answer of question 2 is 2, .* expected a number from 0"),
    ("quiz.jsonl", "none.jsonl", "task 'odd': the answer of a question is the number of a choice that it"),
    ("quiz.jsonl", "long.jsonl", "task 'odd': a continuation has 101 tokens; expected at most 48"),
    ("fewshot_split: test", "", "task 'odd': num_fewshot is 1, but the task has no split of solved ex"),
    ("test_split", "metric_list: [{metric: accc, aggregation: mean, higher_is_better: true}]\ntest_split",
     "task 'odd': no metric called 'accc'; did you mean 'acc'"),
    ("test_split", "metric_list: [{metric: acc}, {metric: bleu}]\ntest_split",
     "task 'odd': metric bleu is not computed for output_type multiple_choice; expected one of acc, acc_"),
    ("multiple_choice", "generate_until\nmetric_list: [{metric: acc}]",
     "task 'odd': metric acc is not computed for output_type generate_until; expected one of bleu, chrf, ex"),
    ("multiple_choice", "generate_until", "task 'odd': generation_kwargs: max_gen_toks is 256, but"),
    ("test_split", "num_fewshot: 0\ntest_split", "task 'odd': num_fewshot 1 has no effect, as the task"),
    ("test_split", "metric_list: [{metric: ours}]\ntest_split", "task 'odd': a metric has no 'aggregation'"),
    ("test_split", "process_results: !function code.fails\ntest_split",
     r"task 'odd': ZeroDivisionError: division by zero \(.*code\.py:2\)"),
    ("task: odd", "tasks: odd", r"not a task, by a mistake in the file or without the key 'task': odd.yaml"),
    ("task: odd", "task: [odd", r"without the key 'task': odd.yaml"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after", "message"), FILES, ids=[after[:30] for _, after, _ in FILES])
def test_task_files(run: Path, folder: Path, tmp_path: Path, before: str, after: str, message: str) -> None:
    local, out = tmp_path / "tasks", tmp_path / "out.json"
    shutil.copytree(folder, local)
    (local / "broken.jsonl").write_text('{"question": "a", "choices"\n', encoding="utf-8")
    (local / "empty.jsonl").touch()
    for name, choices, answers in QUESTIONS:
        lines = (json.dumps({"question": "a", "choices": choices, "answer": answer}) for answer in answers)
        (local / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (local / "code.py").write_text("def fails(question, results):\n    return 1 / 0\n", encoding="utf-8")
    text = TASK.format(name="odd")
    assert before in text
    (local / "odd.yaml").write_text(text.replace(before, after), encoding="utf-8")
    with pytest.raises(ZooError, match=message):
        tasks(run, ["odd"], task_path=local, num_fewshot=1, device="cpu", out=out)
    assert not out.exists()


def test_solved_examples_of_a_task_of_the_harness(
    run: Path,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its file is not the user's to change, so its scores are those of the harness, with a warning."""
    local = tmp_path / "tasks"
    shutil.copytree(folder, local)
    text = TASK.format(name="odd").replace("fewshot_split: test", "")
    (local / "odd.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setattr("zoo.evaluation.tasks.is_local", lambda task, folder: False)
    monkeypatch.setattr(logging.getLogger("zoo"), "propagate", False)  # to pytest's own handler
    tasks(run, ["odd"], task_path=local, num_fewshot=1, device="cpu", out=tmp_path / "out.json")
    assert "task 'odd': num_fewshot is 1, but the task has no split" in capsys.readouterr().err


def test_a_metric_that_cannot_be_computed(run: Path, folder: Path, tmp_path: Path) -> None:
    """All tasks are named, as the harness does not say which of them raised an error."""
    local, out = tmp_path / "tasks", tmp_path / "out.json"
    shutil.copytree(folder, local)
    (local / "code.py").write_text("def fails(**given):\n    return 1 / 0\n", encoding="utf-8")
    generated = TASK.replace("multiple_choice", "generate_until")
    metric = "{metric: !function code.fails, aggregation: mean, higher_is_better: true}"
    settings = f"generation_kwargs: {{max_gen_toks: 2}}\nmetric_list: [{metric}]\n"
    (local / "odd.yaml").write_text(generated.format(name="odd") + settings, encoding="utf-8")
    with pytest.raises(ZooError, match=r"tasks quiz, odd: ZeroDivisionError: .*code\.py:2"):
        tasks(run, ["quiz", "odd"], task_path=local, device="cpu", out=out)
    assert not out.exists()


def test_an_error_of_the_model_is_none_of_the_task(
    run: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("zoo.evaluation.harness.log_likelihoods", fails)
    with pytest.raises(RuntimeError, match=r"^a bug$"):
        tasks(run, ["quiz"], task_path=folder, device="cpu", out=tmp_path / "out.json")


def test_a_metric_without_a_score_is_told(
    run: Path,
    folder: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The harness leaves out metrics that it does not compute for an output type, without a word.

    In a file of the user's this is an error; those of the harness are not the user's to change.
    """
    monkeypatch.setattr("zoo.evaluation.tasks.is_local", lambda task, folder: False)
    local = tmp_path / "tasks"
    shutil.copytree(folder, local)
    metrics = "metric_list: [{metric: acc}, {metric: bleu}]\n"
    (local / "odd.yaml").write_text(TASK.format(name="odd") + metrics, encoding="utf-8")
    report, _ = tasks(run, ["odd"], task_path=local, device="cpu", out=tmp_path / "out.json")
    assert {score.metric for score in report.scores} == {"acc"}
    assert "task 'odd': no score of bleu" in caplog.text


def test_more_examples_than_there_are(run: Path, folder: Path, tmp_path: Path) -> None:
    """Of quiz, whose examples are its four questions, a question has the three others."""
    message = "task 'quiz': num_fewshot is 4, but a question has 3 examples; expected at most 3"
    with pytest.raises(ZooError, match=message):
        tasks(run, ["quiz"], task_path=folder, num_fewshot=4, device="cpu", out=tmp_path / "out.json")
    assert not (tmp_path / "out.json").exists()


def test_a_run_on_texts_answers_no_conversation(run: Path) -> None:
    """It is told that, and no key of a configuration that it does not have."""
    with pytest.raises(DataError, match=r"runs/tiny: the model was not trained on conversations"):
        TextGenerator(run, "cpu").answer([Message("user", "a")], 1, Sampling())


COMMANDS = [
    ("", "expected either --perplexity FILE... or --tasks NAMES"),
    ("--tasks quiz --perplexity book.txt", "expected either --perplexity FILE... or --tasks NAMES"),
    ("--tasks quiz --stride 3", "--stride has no effect with --tasks"),
    ("--tasks quiz book.txt", "more files has no effect with --tasks"),
    ("--tasks quiz --no-lines", "--lines has no effect with --tasks"),
    ("--tasks ,", "no tasks"),
    ("--perplexity book.txt --limit 3", "--limit has no effect with --perplexity"),
    ("--perplexity book.txt --num-fewshot 3", "--num-fewshot has no effect with --perplexity"),
    ("--perplexity book.txt --task-path a", "--task-path has no effect with --perplexity"),
    ("--perplexity book.txt --contexts ''", "--contexts '': expected numbers"),
]


@pytest.mark.parametrize(("options", "message"), COMMANDS)
def test_command_lines(options: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    zoo("eval", "somewhere", *shlex.split(options), status=2)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["bert", "t5"])
def test_models_that_do_not_predict_the_next_token(tmp_path: Path, folder: Path, name: str) -> None:
    sizes: dict[str, Any] = SIZES
    file = save_model(build_model(name, **sizes), tmp_path)
    ByteTokenizer().save(tmp_path)
    with pytest.raises(ZooError, match=f"type '{name}' .* gives a text no probability"):
        tasks(file, ["quiz"], task_path=folder, device="cpu")


def test_without_the_extra(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoo.evaluation.task_report.find_spec", lambda name: None)
    with pytest.raises(ZooError, match=r"--tasks needs lm-evaluation-harness: pip install '\.\[eval\]'"):
        tasks(run, ["quiz"])
