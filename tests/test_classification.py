"""Learning to classify: measures, the best checkpoint, ranks, and the command that uses the result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn import metrics
from test_cli import zoo as zoo  # a fixture
from tiny_runs import of_kind
from two_ranks import train_on_two_ranks

from zoo import load_model
from zoo.data.classification.files import Example
from zoo.diagnose.entropy import attention_entropy
from zoo.diagnose.examples import validation_examples
from zoo.evaluation.text_classifier import TextClassifier
from zoo.run.config import load_config
from zoo.train.confusion import accuracy, confusions, f1, matthews
from zoo.train.run import train
from zoo.utils.errors import ConfigError, DataError
from zoo.utils.run_folder import RunFolder

WORDS = {"good": ("fine", "great", "lovely"), "bad": ("dull", "awful", "weak")}
THINGS = ("film", "book", "song", "play", "dance", "tale", "poem", "show")


def reviews(folder: Path, name: str, things: tuple[str, ...], swapped: bool = False) -> str:
    """Every word with every thing; one class has more texts than the other. With swapped labels if asked."""
    named = (
        dict(zip(WORDS, reversed(WORDS), strict=True)) if swapped else dict(zip(WORDS, WORDS, strict=True))
    )
    texts = [(f"a {w} {t}", named[label]) for label, words in WORDS.items() for w in words for t in things]
    lines = ["sentence\tlabel", *(f"{text}\t{label}" for text, label in texts[: len(texts) - 3])]
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(folder / name)


def fields(folder: Path, **data: Any) -> dict[str, Any]:
    """A small GPT that learns the reviews in 40 steps."""
    return {
        "name": "reviews",
        "model": {
            "type": "classifier",
            "classes": 2,
            "trunk": {"type": "gpt", "vocab_size": 256, "d_model": 32, "n_layers": 1, "n_heads": 2},
        },
        "optimizer": {"type": "adamw", "lr": 1e-2},
        "data": {
            "type": "classification",
            "train": reviews(folder, "train.tsv", THINGS[:5]),
            "validation": reviews(folder, "dev.tsv", THINGS[5:]),
            "text": "sentence",
            "context": 24,
            **data,
        },
        "train": {
            "steps": 40,
            "batch_size": 8,
            "device": "cpu",
            "eval_every": 10,
            "eval_batches": None,
            "log_every": 10,
            "monitor_every": None,
            "diagnose_every": None,
            "checkpoint_every": 40,
            "runs_dir": str(folder / "runs"),
        },
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files and a finished run in runs/reviews."""
    made = tmp_path_factory.mktemp("reviews")
    train(load_config(fields(made)))
    return made


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("right", [0.0, 0.3, 1.0])
def test_measures_are_those_of_scikit_learn(classes: int, right: float) -> None:
    generator = torch.Generator().manual_seed(classes)
    labels = torch.randint(classes, (200,), generator=generator)
    drawn = torch.randint(classes, (200,), generator=generator)
    predicted = torch.where(torch.rand(200, generator=generator) < right, labels, drawn)
    labels[::7] = -1
    matrix = confusions(labels, predicted, classes)
    y, p = labels[labels >= 0].numpy(), predicted[labels >= 0].numpy()
    assert matrix.tolist() == metrics.confusion_matrix(y, p, labels=range(classes)).tolist()
    average = "binary" if classes == 2 else "macro"
    assert accuracy(matrix.double()) == pytest.approx(metrics.accuracy_score(y, p))
    assert f1(matrix.double()) == pytest.approx(metrics.f1_score(y, p, average=average))
    assert matthews(matrix.double()) == pytest.approx(metrics.matthews_corrcoef(y, p))


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        ([[3, 0], [2, 0]], (0.6, 0.0, 0.0)),  # only class 0 is predicted
        ([[0, 4], [0, 6]], (0.6, 0.75, 0.0)),  # only class 1
        ([[5, 0], [0, 0]], (1.0, 0.0, 0.0)),  # one class alone
        ([[0, 2], [3, 0]], (0.0, 0.0, -1.0)),
        ([[2, 0, 0], [0, 2, 0], [0, 0, 0]], (1.0, 2 / 3, 1.0)),  # a class that nobody has counts as 0
    ],
)
def test_measures_at_their_ends(matrix: list[list[int]], expected: tuple[float, float, float]) -> None:
    counts = torch.tensor(matrix).double()
    assert (accuracy(counts), f1(counts), matthews(counts)) == pytest.approx(expected)


def test_it_learns_and_the_log_is_what_scikit_learn_says(folder: Path) -> None:
    run = folder / "runs/reviews"
    last = of_kind(run, "validation")[-1]
    classifier = TextClassifier.load(run, which="last")
    examples = classifier.read(folder / "dev.tsv")
    said = [verdict.label for verdict in classifier.predict(examples)]
    true = [line.split("\t")[1] for line in (folder / "dev.tsv").read_text().splitlines()[1:]]
    assert len(said) == len(true) == 15
    assert last["accuracy"] > 0.9
    assert last["accuracy"] == pytest.approx(metrics.accuracy_score(true, said))
    assert last["f1"] == pytest.approx(metrics.f1_score(true, said, pos_label="good"))
    assert last["matthews"] == pytest.approx(metrics.matthews_corrcoef(true, said))
    scores = classifier.score(folder / "dev.tsv")
    assert scores.evaluation._asdict() == pytest.approx(
        {k: last[k] for k in scores.evaluation._fields}, abs=1e-6
    )


@pytest.mark.parametrize("trunk", ["bert", "ngpt", "ngpt-t5"])
def test_every_kind_of_trunk_learns(tmp_path: Path, trunk: str) -> None:
    settings = fields(tmp_path)
    settings["model"]["trunk"]["type"] = trunk
    settings["train"] |= {"steps": 20, "eval_every": 20, "checkpoint_every": 20}
    run = train(load_config(settings)).folder
    assert of_kind(run, "validation")[-1]["accuracy"] > 0.9


@pytest.mark.parametrize("best", [None, "cross_entropy", "f1", "matthews"])
def test_the_best_checkpoint_is_kept_by_its_measure(tmp_path: Path, best: str | None) -> None:
    settings = fields(tmp_path, **({} if best is None else {"best": best}))
    settings["train"] |= {"steps": 12, "eval_every": 2, "keep_last": 1}
    run = train(load_config(settings)).folder
    measure = best or "accuracy"
    sign = -1 if measure == "cross_entropy" else 1
    lines = [line for line in of_kind(run, "validation") if line["step"]]
    pointer = json.loads((run / "checkpoints/best.json").read_text())
    top = max(lines, key=lambda line: sign * line[measure])
    assert pointer == {"checkpoint": f"step-{top['step']:08d}", measure: top[measure]}
    assert TextClassifier.load(run, "best").score(tmp_path / "dev.tsv").evaluation._asdict()[
        measure
    ] == pytest.approx(top[measure], abs=1e-6)


def test_two_ranks_measure_all_texts(tmp_path: Path) -> None:
    """15 texts do not divide by two; the measures are those of one process."""
    settings = fields(tmp_path)
    settings["train"] |= {"steps": 4, "eval_every": 2}
    one = train(load_config({**settings, "name": "one"})).folder
    train_on_two_ranks({**settings, "name": "two"})
    for a, b in zip(of_kind(one, "validation"), of_kind(one.parent / "two", "validation"), strict=True):
        assert b == pytest.approx(a, abs=1e-6)


def test_a_run_goes_on_where_it_was(folder: Path, tmp_path: Path) -> None:
    settings = fields(tmp_path)
    settings["train"] |= {"steps": 6, "eval_every": 3, "checkpoint_every": 3}
    whole = train(load_config({**settings, "name": "whole"})).folder
    parts = load_config({**settings, "name": "parts"})
    train(parts, until=3)
    resumed = train(parts, resume=True).folder
    assert of_kind(resumed, "validation") == of_kind(whole, "validation")
    assert of_kind(resumed, "train") == of_kind(whole, "train")


def test_classify_a_text_a_file_and_compare(zoo: Any, folder: Path) -> None:
    run = str(folder / "runs/reviews")
    status, out, _ = zoo("classify", run, "--text", "a lovely tale")
    header, line = out.splitlines()
    assert status == 0
    assert header.split("\t") == ["label", "bad", "good"]
    label, *shares = line.split("\t")
    assert label == "good"
    assert float(shares[1]) > 0.5
    assert sum(map(float, shares)) == pytest.approx(1, abs=1e-5)
    _, out, _ = zoo("classify", run, "--file", str(folder / "dev.tsv"))
    assert len(out.splitlines()) == 16
    _, out, _ = zoo("classify", run, "--score", str(folder / "dev.tsv"), "--json")
    scores = json.loads(out)
    assert scores["texts"] == 15
    assert set(scores) == {"file", "texts", "cut", "cross_entropy", "accuracy", "f1", "matthews"}
    _, out, _ = zoo("classify", run, "--score", str(folder / "dev.tsv"), "--which", "last")
    assert "accuracy" in out
    checkpoint = str(folder / "runs/reviews/checkpoints/step-00000040")
    for model in (checkpoint, f"{checkpoint}/model.safetensors"):
        assert zoo("classify", model, "--text", "a dull poem")[1].splitlines()[1].startswith("bad")


def test_texts_that_are_cut_are_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    classifier = TextClassifier.load(folder / "runs/reviews")
    classifier.predict([Example("short", "a fine film")])
    assert not caplog.text
    classifier.predict([Example("short", "a fine film"), Example("long", "a fine film " * 9)])
    assert "1 of 2 texts are longer than the 24 tokens that the model reads" in caplog.text


def test_pairs(tmp_path: Path) -> None:
    """Whether two texts agree, told by a BERT with segments."""
    lines = [
        json.dumps({"a": x, "b": y, "label": int(x == y)})
        for x in "pqrstu"
        for y in "pqrstu"
        for _ in range(2)
    ]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines), encoding="utf-8")
    columns = {"text": "a", "pair": "b", "train": str(tmp_path / "pairs.jsonl"), "validation": None}
    settings = fields(tmp_path, **columns, labels=["0", "1"])
    settings["model"]["trunk"] |= {"type": "bert"}
    run = train(load_config(settings), until=3).folder
    classifier = TextClassifier.load(run)
    assert classifier.encoder.segments == 2
    assert classifier.predict([Example("here", "p", "p")])[0].label in ("0", "1")
    with pytest.raises(DataError, match="here: the model was trained on a pair of texts"):
        classifier.predict([Example("here", "p")])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "expected one of --text, --file and --score"),
        (("--text", "a", "--score", "x.tsv"), "expected one of --text, --file and --score"),
        (("--text", ""), "--text: empty; expected a text"),
        (("--text", "a\udcff"), "--text: character 1 is not UTF-8; expected text"),
        (("--text", "a", "--pair", "b"), "--text: the model was trained on one text, no pair"),
        (("--file", "x.tsv", "--pair", "b"), "--pair has no effect without --text"),
        (("--text", "a", "--json"), "--json has no effect without --score"),
        (("--text", "a", "--which", "first"), "--which first: expected best or last"),
        (("--score", "missing.tsv"), "missing.tsv: No such file"),
    ],
)
def test_ways_to_ask_wrongly(zoo: Any, folder: Path, arguments: tuple[str, ...], message: str) -> None:
    status, out, err = zoo("classify", str(folder / "runs/reviews"), *arguments)
    assert (status, out) == (2, "")
    assert message in err


def test_a_classifier_writes_no_text(zoo: Any, folder: Path) -> None:
    status, _, err = zoo("generate", str(folder / "runs/reviews"), "--prompt", "a")
    assert status == 2
    assert "a model that is trained on data of type 'classification' writes no text" in " ".join(err.split())


def test_a_run_that_classifies_nothing(zoo: Any, tmp_path: Path) -> None:
    status, _, err = zoo("classify", str(tmp_path / "missing"), "--text", "a")
    assert status == 2
    assert "no such file or folder" in err


def test_two_validation_files_and_the_best_checkpoint_of_each(tmp_path: Path) -> None:
    """As MNLI has: both are evaluated at once, and no checkpoint that is best is deleted."""
    files = {
        "matched": reviews(tmp_path, "a.tsv", THINGS[5:7]),
        "other": reviews(tmp_path, "b.tsv", THINGS[7:], swapped=True),  # the better learned, the worse here
    }
    given = fields(tmp_path, validation=files, best="cross_entropy")
    given["train"] |= {"eval_every": 5, "keep_last": 1}
    folder = train(load_config(given)).folder
    lines = of_kind(folder, "validation")
    assert all(list(line["by_file"]) == ["matched", "other"] for line in lines)
    assert all(line["cross_entropy"] == line["by_file"]["matched"]["cross_entropy"] for line in lines)
    for name, pointer in (("matched", "best-matched"), ("other", "best-other"), ("matched", "best")):
        best = min(lines[1:], key=lambda line: line["by_file"][name]["cross_entropy"])
        named = json.loads((folder / "checkpoints" / f"{pointer}.json").read_text())
        assert named["checkpoint"] == f"step-{best['step']:08d}"
        assert named["cross_entropy"] == best["by_file"][name]["cross_entropy"]
        # Measured again, by another path: the texts one by one, and scikit-learn.
        classifier = TextClassifier.load(folder, pointer)
        examples = classifier.read(Path(files[name]))
        labels = [line.split("\t")[1] for line in Path(files[name]).read_text().splitlines()[1:]]
        texts = [Example(e.place, e.text, e.pair) for e in examples]
        predicted = [p.label for p in classifier.predict(texts)]
        assert metrics.accuracy_score(labels, predicted) == pytest.approx(best["by_file"][name]["accuracy"])
    assert len({RunFolder(folder).checkpoint(name) for name in RunFolder(folder).best_names()}) > 1


def test_a_resumed_run_knows_the_best_of_each_file(tmp_path: Path) -> None:
    files = {"a": reviews(tmp_path, "a.tsv", THINGS[5:7]), "b": reviews(tmp_path, "b.tsv", THINGS[7:])}
    pointers = []
    for name, stops in (("whole", [None]), ("parts", [15, None])):
        given = {**fields(tmp_path, validation=files), "name": name}
        given["train"] |= {"eval_every": 5, "checkpoint_every": 5, "steps": 30}
        for i, until in enumerate(stops):
            folder = train(load_config(given), resume=i > 0, until=until).folder
        run = RunFolder(folder)
        pointers.append({which: run.read_pointer(which) for which in run.best_names()})
    assert pointers[0] == pointers[1]
    assert set(pointers[0]) == {"best", "best-a", "best-b"}


def test_files_by_names_replace_a_file(tmp_path: Path) -> None:
    """A string is no set of the name `type`."""
    one, two = (str(reviews(tmp_path, name, THINGS[5:])) for name in ("a.tsv", "b.tsv"))
    config = load_config(fields(tmp_path, validation=one), [f"data.validation.web={two}"])
    assert config.data is not None
    assert dict(config.data)["validation"] == {"web": two}
    again = load_config(fields(tmp_path, validation={"web": two}), [f"data.validation={one}"])
    assert dict(again.data or ())["validation"] == one


@pytest.mark.parametrize(
    ("validation", "message"),
    [
        ("{a: x.tsv, a: y.tsv}", r":\d+: data.validation.a: .*twice"),
        ("{a: x.tsv, b: x.tsv}", r"validation: a and b are the same file, x.tsv"),
        ("{a/b: x.tsv}", r"validation: 'a/b': expected a name of letters, digits, - and _"),
        ("{}", r"validation: no file; expected name: file"),
    ],
)
def test_bad_validation_files(tmp_path: Path, validation: str, message: str) -> None:
    file = tmp_path / "run.yaml"
    trunk = "{type: gpt, vocab_size: 256, d_model: 8, n_layers: 1, n_heads: 1}"
    model = f"model: {{type: classifier, classes: 2, trunk: {trunk}}}"
    data = f"data:\n  type: classification\n  train: x.tsv\n  validation: {validation}"
    file.write_text(f"{model}\n{data}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(file)
    assert len(str(caught.value).splitlines()) == 1, caught.value


def test_the_entropy_of_attention_leaves_padding_out(folder: Path) -> None:
    run = folder / "runs" / "reviews"
    model = load_model(run).eval()
    inputs, mask, _ = validation_examples(model, run)
    assert inputs is not None
    assert mask is not None
    lengths = mask.sum(1)
    row = int(lengths.argmin())
    assert lengths[row] < mask.shape[1]
    found = attention_entropy(model, *(t[row : row + 1] for t in inputs), mask=mask[row : row + 1])
    alone = attention_entropy(model, *(t[row : row + 1, : lengths[row]] for t in inputs))
    for of_batch, of_text in zip(found, alone, strict=True):
        assert of_batch.uniform == pytest.approx(of_text.uniform)
        assert of_batch.heads.tolist() == pytest.approx(of_text.heads.tolist(), rel=1e-4)
