"""`zoo inspect` and the sections of a report: complete, readable by programs, clear about bad input."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from test_grid import TINY
from tiny_runs import TEXT, of_kind, tiny, tiny_fields

from zoo import build_model, load_model, save_model
from zoo.commands.cli import main
from zoo.diagnose.entropy import attention_entropy
from zoo.diagnose.examples import text_examples
from zoo.diagnose.history import read_history
from zoo.hub.export import export
from zoo.report.inspection import inspect
from zoo.report.training_figures import training_images
from zoo.run.config import load_config
from zoo.train.run import train
from zoo.utils.errors import ZooError
from zoo.utils.permissions import Permissions

MATRICES = {"embeddings", "condition-numbers", "spectra", "scale-over-eta"}
CURVES = {"update-ratio", "norm", "m2-over-eta", "gradient-norm", "ratio"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A run on the sphere, one with gates, and one that measured nothing."""
    folder = tmp_path_factory.mktemp("runs")
    ngpt = "model={type: ngpt, vocab_size: 256, d_model: 16, n_layers: 5, n_heads: 2, d_mlp: 24}"
    often: dict[str, Any] = {"steps": 6, "monitor_every": 2, "diagnose_every": 2}
    return [
        train(tiny(folder, "name=sphere", ngpt, **often)).folder,
        train(tiny(folder, "name=gates", "reparam=wesar", "init=he", **often)).folder,
        train(tiny(folder, "name=nothing", steps=5, monitor_every=None, diagnose_every=None)).folder,
    ]


def names(files: list[Path]) -> set[str]:
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files if file.suffix == ".png")
    return {file.stem for file in files if file.suffix == ".png"}


def test_a_run_from_all_sides(runs: list[Path]) -> None:
    page, numbers, *pictures = inspect(runs[0])
    assert page.parent == runs[0] / "inspect"
    assert names(pictures) == MATRICES | CURVES | {"scalings", "scaling-distributions", "attention-entropy"}
    text = page.read_text(encoding="utf-8")
    assert not re.search(r'(src|href)="(?!data:|#)', text), "nothing beside it"
    assert text.count("data:image/png") == len(pictures)
    found = json.loads(numbers.read_text(encoding="utf-8"))
    assert found["attention"] == "on 4 validation examples"
    assert len(found["attention_entropy"]) == 5
    rows = [row for row in found["condition_numbers"].values() if row["label"] == "attention.q"]
    assert [(row["layer"], len(row["heads"])) for row in rows] == [(i, 2) for i in range(1, 6)]
    alpha = [row for row in found["vectors"].values() if row["label"] == "mlp_residual.alpha"]
    assert all(0.01 < row["mean"] < 0.2 for row in alpha)
    assert all(row["norms"]["std"] < 1e-6 for row in found["embeddings"].values())


def test_a_run_that_measured_nothing_has_no_curves(runs: list[Path]) -> None:
    assert training_images(runs[2]) == []


@pytest.mark.parametrize("name", ["resnet", "lstm"])
def test_a_file_that_is_no_run(tmp_path: Path, name: str) -> None:
    """What the model has not is left out; the same file gives the same pictures and numbers."""
    file = save_model(build_model(name, **TINY[name], seed=0), tmp_path / "model.safetensors")
    files, again = (inspect(file, out=tmp_path / folder) for folder in "ab")
    vocabulary = {"embeddings"} if name == "lstm" else {"norm-scales"}
    assert names(files) == {"condition-numbers", "scale-over-eta"} | vocabulary
    assert "attention was not measured: nobody knows" in files[0].read_text(encoding="utf-8")
    for a, b in zip(files, again, strict=True):
        assert a.read_bytes() == b.read_bytes()


def test_a_folder_of_the_hub_with_a_text(tmp_path: Path) -> None:
    """Exported with its tokenizer, a text can be given; attention looks as widely as in the run."""
    text = tmp_path / "given.txt"
    text.write_text(TEXT[:400], encoding="utf-8")
    run = train(tiny(tmp_path, steps=5)).folder
    export(run, tmp_path / "hub", to="hf")
    files = inspect(tmp_path / "hub", text, tmp_path / "seen")
    found = json.loads(files[1].read_text(encoding="utf-8"))
    assert found["attention"] == "on given.txt"
    model = load_model(run).eval()
    (tokens,) = text_examples(load_model(tmp_path / "hub"), tmp_path / "hub", text)
    expected = [e.heads.tolist() for e in attention_entropy(model, tokens)]
    for row, heads in zip(found["attention_entropy"], expected, strict=True):
        assert row["heads"] == pytest.approx(heads, abs=1e-5)


def test_a_history(runs: list[Path]) -> None:
    history = read_history(runs[0])
    assert history.layers == [0, 1, 2, 3, 4, 5]
    curve = history.in_layer(history.monitor["update_ratio"], 5)["attention.q"]
    assert list(curve[0]) == [2, 4, 6]
    assert "mlp_residual.alpha" in history.in_layer(history.diagnosis["m2_over_eta"], 5)


def test_weights_that_did_not_move(runs: list[Path], tmp_path: Path) -> None:
    """Ratios of 0 have no place on a logarithmic axis: there is no picture of them."""
    still = shutil.copytree(runs[0], tmp_path / "still")
    metrics = still / "metrics.jsonl"
    text = re.sub(r'"update_ratio": [^,}]+', '"update_ratio": 0.0', metrics.read_text(encoding="utf-8"))
    metrics.write_text(text, encoding="utf-8")
    assert {image.key for image in training_images(still)} == CURVES - {"update-ratio"}


def test_etas_are_those_of_the_training(tmp_path: Path) -> None:
    """Measured when the run began, and overridden: M2 over eta is the run's last measurement."""
    amos = "optimizer={type: amos, lr: 0.01, beta: 0.95}"
    overridden = "eta_overrides=[{role: embedding, eta: 0.5}]"
    often: dict[str, Any] = {"steps": 6, "diagnose_every": 6, "eval_every": 6, "checkpoint_every": 6}
    start = train(tiny(tmp_path, "name=start", amos, overridden, **often)).folder
    fields = tiny_fields(tmp_path, **often) | {
        "name": "tuned",
        "model": {"from": str(start)},
        "eta": "measured",
    }
    tuned = train(load_config(fields, [amos])).folder
    for run in (start, tuned):
        expected = {k: v["m2_over_eta"] for k, v in of_kind(run, "diagnose")[-1]["variables"].items()}
        (checkpoint,) = (run / "checkpoints").glob("step-*")
        for path in (run, checkpoint):
            found = json.loads(inspect(path, out=tmp_path / "seen")[1].read_text(encoding="utf-8"))
            got = {k: v["m2_over_eta"] for k, v in found["scales"].items()}
            assert got == pytest.approx(expected, rel=1e-5), path
    alone = shutil.copytree(checkpoint, tmp_path / "alone")
    page, numbers, *pictures = inspect(alone, out=tmp_path / "lone")
    assert json.loads(numbers.read_text(encoding="utf-8"))["scales"] == {}
    assert "scale-over-eta" not in names(pictures)
    assert "Etas were measured when the run began" in page.read_text(encoding="utf-8")


def test_names_are_no_markup(tmp_path: Path) -> None:
    """Neither the name of the model's file nor that of the text becomes a tag of the page."""
    run = train(tiny(tmp_path, steps=5)).folder
    evil = run.rename(run.with_name("<img src=x onerror=alert(1)>"))
    text = tmp_path / "<script>alert(2)<"
    text.write_text(TEXT[:400], encoding="utf-8")
    page = inspect(evil, text, tmp_path / "out")[0].read_text(encoding="utf-8")
    assert "<h1>&lt;img src=x onerror=alert(1)&gt;</h1>" in page
    assert "attention on &lt;script&gt;alert(2)&lt;." in page
    assert "<script>alert" not in page
    assert "onerror=alert(1)>" not in page


def test_the_command(runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["inspect", str(runs[1]), "--out", str(tmp_path / "seen"), "--device", "cpu"])
    assert not done.value.code
    assert "inspect.html" in capsys.readouterr().out
    assert (tmp_path / "seen/gates.png").is_file()


def test_what_cannot_be_looked_at(runs: list[Path], tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"\xff\xfe\xff")
    (tmp_path / "short").write_text("a", encoding="utf-8")
    t5 = save_model(build_model("t5", **TINY["t5"], seed=0), tmp_path / "t5.safetensors")
    table: list[tuple[Path, str | None, str]] = [
        (tmp_path / "no", None, "no such file or folder"),
        (tmp_path / "latin", None, "latin"),
        (runs[0], "no", "no: No such file or directory"),
        (runs[0], "latin", "latin: byte 0 (0xff) is not UTF-8"),
        (runs[0], "short", "short: 1 tokens; expected two or more"),
        (t5, "short", "a model of type 't5' is trained by span-corruption"),
    ]
    for path, text, message in table:
        with pytest.raises(ZooError, match=re.escape(message)):
            inspect(path, None if text is None else tmp_path / text, tmp_path / "out")
        assert not (tmp_path / "out").exists()
    for folder in (tmp_path, tmp_path / "no"):
        with pytest.raises(ZooError, match="expected a run folder"):
            training_images(folder)


def test_weights_that_are_not_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model("gpt", **TINY["gpt"], seed=0)
    model.get_parameter("blocks.0.attention.q.weight").data[0, 0] = math.inf
    file = save_model(model, tmp_path / "gpt.safetensors")
    monkeypatch.setattr(Permissions, "non_finite", True)
    with pytest.raises(ZooError, match=r"gpt\.safetensors: blocks\.0\.attention\.q\.weight has entries"):
        inspect(file, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
