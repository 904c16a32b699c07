"""The report: complete, self-contained, the same for the same runs, and a clear error for what is no run."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import save_file
from synthetic_runs import EVERY, STEPS, TOKENS, curve, write_run, write_sweep
from tiny_runs import of_kind, tiny

from zoo.ablate.curve import Curve
from zoo.ablate.manifest import FILE, Tuning, read_manifest, write_manifest
from zoo.ablate.results import read_results
from zoo.checkpoint.integrity import CHECKSUMS
from zoo.checkpoint.model import load_model
from zoo.report.chapter import _slug, _unique
from zoo.report.loss_plots import loss_plots
from zoo.report.plot import Plot, Series, View
from zoo.report.report import report
from zoo.report.sensitivity import sensitivity_plots
from zoo.report.static import draw_png
from zoo.report.style import line_styles
from zoo.report.variable_plots import Curves, _summary
from zoo.train.run import train
from zoo.utils.errors import ZooError
from zoo.utils.measures import CROSS_ENTROPY
from zoo.utils.permissions import Permissions
from zoo.utils.plotting import COLOURS
from zoo.utils.run_folder import RunFolder

FINALS = {"adamw": [3.0, 3.01, 2.99], "amos": [2.9, 2.92, 2.89], "muon": [3.0, 2.99, 3.03]}
RATES = {
    name: {1e-4: best + 0.03, 1e-3: best, 1e-2: best + 0.05}
    for name, best in (("adamw", 3.0), ("amos", 2.9), ("muon", 3.0))
}
MONITOR = [
    {
        "kind": "monitor",
        "step": step,
        "matrices": {
            name: {"update_ratio": 1 / (size * step), "norm": size, "m2_over_eta": size, "eta": 1.0}
            for name, size in (("blocks.0.up.weight", 2.0), ("blocks.0.down.weight", 4.0))
        },
    }
    for step in (10, 20, 30)
]
VOID = {"meta", "img", "wbr"}


class Balanced(HTMLParser):
    """Checks that tags close in order, and collects the text; of scripts and styles, nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words = ""
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {key for key, _ in attrs}
        self.addresses += [value or "" for key, value in attrs if key in ("src", "href", "srcset")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.words += data


def parse(page: Path) -> Balanced:
    parser = Balanced()
    parser.feed(page.read_text(encoding="utf-8"))
    assert parser.open == []
    return parser


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweeps") / "optimizers"
    return write_sweep(folder, FINALS, tune=RATES, border=["muon"], more=MONITOR)


@pytest.fixture(scope="module")
def written(sweep: Path) -> Path:
    return report([sweep], sweep.parent / "report")[1].parent


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two real runs, one with a sample that wants to be markup, one without validation."""
    folder = tmp_path_factory.mktemp("runs")
    first = train(tiny(folder, "name=first", steps=20)).folder
    amos = ("optimizer.type=amos", "optimizer.lr=0.01")
    second = train(tiny(folder, "name=second", "data.validation=0", *amos, steps=5))
    (first / "sample.txt").write_text("<script>alert('x')</script> $title", encoding="utf-8")
    return [first, second.folder]


def test_the_page_stands_alone(written: Path) -> None:
    page = parse(written / "report.html")
    assert all(address.startswith(("data:", "#")) for address in page.addresses)
    for words in ("Verdict", "Speed-up", "Sensitivity", "Time and memory", "Inside the training", "Runs"):
        assert words in page.words
    assert "amos: better than adamw" in page.words
    assert "muon: the best optimizer.lr tried, 0.001, lies at the edge of its range" in page.words


def test_names_and_texts_are_no_markup(tmp_path: Path) -> None:
    """A variant, a run, an error and a generated text that want to end the script or to start one."""
    evil = "</script><img src=x onerror=alert(1)>"
    finals = {"base": [3.0, 3.01], evil: [2.9, 2.92]}
    folder = write_sweep(
        tmp_path / "sweep", finals, status={(evil, 1): "failed"}, tune={v: {1e-3: 3.0} for v in finals}
    )
    manifest = json.loads((folder / FILE).read_text())
    run = next(run for run in manifest["runs"] if run["status"] == "failed")
    run["error"] = evil
    renamed = folder / "runs" / "<img src=x onerror=alert(2)>"
    (folder / run["folder"]).rename(renamed)
    run["folder"] = f"runs/{renamed.name}"
    manifest["name"] = evil
    (folder / FILE).write_text(json.dumps(manifest))
    (folder / "runs/base-0/sample.txt").write_text(evil)
    out = report([folder], tmp_path / "report")[1].parent
    page = parse(out / "report.html")
    assert page.words.count(evil) > 5
    assert page.tags.count("script") == 3
    assert page.tags.count("img") == len(list(out.glob("*.png")))
    assert not [name for name in page.attributes if name.startswith("on")]
    assert "<img" not in (out / "report.md").read_text().replace(f"    {evil}", "")  # a code block shows it


@pytest.mark.parametrize("rows", [False, True])
def test_names_are_no_formulas(rows: bool) -> None:
    """Matplotlib reads what is between two dollar signs as a formula, and raises where it is none."""
    name = "a$x_$b"
    series = Series(name, name, [1.0], [name]) if rows else Series(name, name, [1.0, 2.0], [1.0, 2.0])
    plot = Plot("key", name, [View(name, name, name, [series])], variant_rows=rows)
    assert draw_png(plot, line_styles([name])).startswith(b"\x89PNG")


def test_every_plot_has_a_picture(written: Path) -> None:
    pictures = {path.stem for path in written.glob("*.png")}
    text = (written / "report.html").read_text(encoding="utf-8")
    data = re.search(r'<script type="application/json" id="plots">(.*?)</script>', text)
    assert data is not None
    plots = json.loads(data[1])
    assert {plot["key"] for plot in plots} == pictures
    assert pictures == {
        *("verdict", "loss", "difference", "runs", "sensitivity", "time", "memory"),
        *("update-ratio", "norm", "m2-over-eta"),
    }
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written.glob("*.png"))
    linked = re.findall(r"!\[.*?\]\((.*?)\.png\)", (written / "report.md").read_text(encoding="utf-8"))
    assert set(linked) == pictures
    views = {plot["key"]: [view["name"] for view in plot["views"]] for plot in plots}
    assert views["loss"] == ["steps", "tokens", "flops", "seconds"]
    assert views["norm"] == ["all matrices", "blocks.0.up.weight", "blocks.0.down.weight"]


def test_the_numbers_agree(written: Path) -> None:
    """Page, Markdown and CSV, against what was put into the runs."""
    page, markdown = parse(written / "report.html").words, (written / "report.md").read_text("utf-8")
    for shown in ("2.9033 ± 0.0153", "-0.0967 (-0.1110 to -0.0823)", "paired t", "0.0024"):
        assert shown in page
        assert shown in markdown
    cells = {
        (line["table"], line["variant"], line["column"]): line["value"]
        for line in rows(written / "report.csv")
    }
    assert float(cells["verdict", "amos", "difference"]) == pytest.approx(-0.29 / 3)
    assert cells["verdict", "muon", "verdict"] == "undecided"
    # Losses fall from 6 along a line: 3.0, of 100 steps, is there at (6 - 3) / (6 - final) of them.
    steps = [STEPS * 3.0 / (6.0 - final) for final in FINALS["amos"]]
    assert float(cells["speed-up", "amos", "steps"]) == pytest.approx(sum(steps) / 3)
    assert float(cells["speed-up", "amos", "steps factor"]) == pytest.approx(STEPS * 3 / sum(steps))
    assert cells["speed-up", "muon", "reached"] == "in 2 of 3 seeds"
    assert ("speed-up", "muon", "steps factor") not in cells
    points = rows(written / "curves.csv")
    assert len(points) == (9 + 9) * (STEPS // EVERY + 1)
    last = points[STEPS // EVERY]
    assert (last["variant"], last["steps"], last["tokens"]) == ("adamw", f"{STEPS}.0", f"{STEPS * TOKENS}.0")
    assert (last["seconds"], last["loss"]) == ("50.0", "3.0")


def rows(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_real_runs(runs: list[Path], tmp_path: Path) -> None:
    judgement, path = report(runs, tmp_path / "new/page")
    page = parse(path)
    assert [verdict.word for verdict in judgement.verdicts] == ["baseline", "no result"]
    assert "<script>alert('x')</script> $title" in page.words
    losses = [line["cross_entropy"] for line in of_kind(runs[0], "validation")]
    (size,) = of_kind(runs[1], "size")
    for shown in ("first", "second", f"{losses[-1]:.4f}", f"{min(losses):.4f}", f"{size['parameters']:,}"):
        assert shown in page.words


def test_weights_that_are_not_finite(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are allowed explicitly, but no plot of a model can be made of them."""
    shutil.copytree(runs[1], tmp_path / "run", symlinks=True)
    checkpoint = RunFolder(tmp_path / "run").checkpoint()
    assert checkpoint is not None
    model = load_model(checkpoint.path)
    model.get_parameter("blocks.1.mlp.down.weight").data[0, 0] = math.nan
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    with safe_open(checkpoint.path / "model.safetensors", "pt") as opened:
        header = {key: value for key, value in opened.metadata().items() if key != CHECKSUMS}
    save_file(tensors, checkpoint.path / "model.safetensors", header)
    monkeypatch.setattr(Permissions, "non_finite", True)
    with pytest.raises(ZooError, match=r"blocks\.1\.mlp\.down\.weight has entries that are not finite"):
        report([tmp_path / "run"], tmp_path / "page")
    assert not (tmp_path / "page").exists()


def test_a_real_run_as_data(runs: list[Path]) -> None:
    results = read_results(runs)
    found = results.metrics[str(runs[0])]
    assert (found.training.tokens[0], found.training.steps[-1]) == (4 * 16, 20)
    assert list(found.validation.tokens) == [0, 640, 1280]
    assert found.complete
    assert found.data is not None
    assert found.tokens_per_second is not None
    assert found.tokens_per_second > 0
    assert (found.validation.flops[1:] > found.validation.tokens[1:]).all()
    # What the clock of the only session says is what adding up the stretches gives.
    clock = [json.loads(line) for line in (runs[0] / "metrics.jsonl").read_text().splitlines()]
    seconds = [line["timing"]["seconds"] for line in clock if line["kind"] == "train"]
    assert found.training.seconds == pytest.approx(seconds)
    # A run that ended between its last step and the validation after it has no final loss yet.
    cut = Curve(**{name: values[:-1] for name, values in vars(found.validation).items()})
    assert not replace(found, validation=cut).complete
    without = results.metrics[str(runs[1])]
    assert (without.final(CROSS_ENTROPY), without.best(CROSS_ENTROPY), without.sample) == (None, None, None)


def test_the_same_runs_give_the_same_files(sweep: Path, written: Path, tmp_path: Path) -> None:
    again = report([sweep], tmp_path / "again")[1].parent
    files = sorted(path.name for path in written.iterdir())
    assert files == sorted(path.name for path in again.iterdir())
    assert all((written / name).read_bytes() == (again / name).read_bytes() for name in files)


def test_run_folders_are_grouped_by_everything_but_the_seed(tmp_path: Path) -> None:
    losses = [3.0, 2.5]
    base = [write_run(tmp_path / f"small-seed{s}", losses, seed=s) for s in (0, 1)]
    wide = [write_run(tmp_path / f"wide-{s}", losses, seed=s, overrides=["model.d_mlp=64"]) for s in (0, 1)]
    fast = write_run(tmp_path / "fast", losses, overrides=["optimizer.lr=0.01", "train.log_every=5"])
    results = read_results([*wide, *base, fast])
    manifest = results.manifest
    assert manifest.baseline == "wide"
    assert [variant.name for variant in manifest.variants] == ["wide", "small", "fast"]
    assert manifest.variants[2].settings == {"model.d_mlp": "32", "optimizer.lr": "0.01"}
    assert {run.status for run in manifest.runs} == {"interrupted"}  # 10 of 100 steps
    assert read_results([*wide, *base], "small").manifest.baseline == "small"


def test_runs_that_meet_spikes_otherwise_are_variants(tmp_path: Path) -> None:
    actions = ["log", "skip", "rollback"]
    runs = [write_run(tmp_path / a, [3.0, 2.5], overrides=[f"train.spikes.action={a}"]) for a in actions]
    assert [variant.name for variant in read_results(runs).manifest.variants] == actions


def test_a_curve_is_as_long_as_the_finished_runs(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "sweep", FINALS, status={("amos", 2): "running"})
    shutil.rmtree(folder / "runs/amos-2")
    write_run(folder / "runs/amos-2", curve(2.9)[:3], seed=2)
    loss, difference, _ = loss_plots(read_results([folder]))
    for plot in (loss, difference):
        assert [series.x[-1] for series in plot.views[0].series] == [STEPS] * len(plot.views[0].series)


@pytest.mark.parametrize(("losses", "first"), [([6.0, 3.0], 0), ([6.0, 3.5, 3.0], 10)])
def test_the_loss_before_the_first_step(tmp_path: Path, losses: list[float], first: int) -> None:
    """A line needs two points: where there are only two, the first one is drawn and not called left out."""
    loss = next(loss_plots(read_results([write_run(tmp_path / "run", losses)])))
    assert [series.x[0] for series in loss.views[0].series] == [first]
    assert ("before the first step is left out" in loss.note) is (first > 0)


def test_one_look_per_variant() -> None:
    assert len(set(COLOURS)) == len(COLOURS)
    seen = line_styles(f"v{i}" for i in range(4 * len(COLOURS)))
    assert len(set(seen.values())) == len(seen)


@pytest.mark.parametrize("cone", ["protan", "deutan", "tritan"])
def test_colours_of_the_colour_blind(cone: str) -> None:
    """Every two colours stay apart when one kind of cone is missing (Machado et al. 2009, severity 1)."""
    missing = {
        "protan": (
            (0.152286, 1.052583, -0.204868),
            (0.114503, 0.786281, 0.099216),
            (-0.003882, -0.048116, 1.051998),
        ),
        "deutan": (
            (0.367322, 0.860646, -0.227968),
            (0.280085, 0.672501, 0.047413),
            (-0.011820, 0.042940, 0.968881),
        ),
        "tritan": (
            (1.255528, -0.076749, -0.178779),
            (-0.078411, 0.930809, 0.147602),
            (0.004733, 0.691367, 0.303900),
        ),
    }[cone]

    def linear(value: int) -> float:
        share = value / 255
        return share / 12.92 if share <= 0.04045 else float(((share + 0.055) / 1.055) ** 2.4)

    def lab(colour: str) -> tuple[float, float, float]:
        rgb = [linear(int(colour[i : i + 2], 16)) for i in (1, 3, 5)]
        r, g, b = (min(1.0, max(0.0, sum(w * c for w, c in zip(row, rgb, strict=True)))) for row in missing)
        x = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505
        y = 0.2126 * r + 0.7152 * g + 0.0722 * b
        z = (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089
        fx, fy, fz = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
        return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)

    seen = [lab(colour) for colour in COLOURS]
    distances = [
        sum((p - q) ** 2 for p, q in zip(a, b, strict=True)) ** 0.5
        for i, a in enumerate(seen)
        for b in seen[:i]
    ]
    assert min(distances) > 10  # 2.3 is just noticeable


def test_what_is_no_comparison(sweep: Path, runs: list[Path], tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"kind": "train", "step": 1}\nnonsense\n')
    twin = shutil.copytree(runs[0], tmp_path / "twin")
    odd = shutil.copytree(sweep, tmp_path / "odd")
    manifest = (odd / FILE).read_text()
    (odd / FILE).write_text(manifest.replace('"seed":1', '"seed":7').replace('"seed": 1', '"seed": 7'))
    gone = shutil.copytree(sweep, tmp_path / "gone")
    shutil.rmtree(gone / "runs/amos-1")
    broken = shutil.copytree(sweep, tmp_path / "broken")
    (broken / FILE).write_text("{}")
    bad: list[tuple[list[Path], dict[str, Any], str]] = [
        ([], {}, "report: no runs"),
        ([tmp_path / "no"], {}, "no: expected the folder of a sweep, or a run folder made by `zoo train`"),
        (
            [sweep.parent],
            {},
            f"{sweep.parent}: expected the folder of a sweep, or a run folder made by `zoo train`, of which "
            f"{sweep.parent} holds 1, for instance {sweep}",
        ),
        ([tmp_path], {}, "metrics.jsonl:2: expected"),
        ([sweep, runs[0]], {}, "is a sweep; expected it alone"),
        ([runs[0], twin], {}, "seed 0 included; expected each run once"),
        ([sweep], {"baseline": "amoz"}, "no variant is named 'amoz'; did you mean 'amos'?"),
        ([sweep], {"alpha": 5.0}, "alpha 5: expected a probability between 0 and 1"),
        ([odd], {}, "one of them was changed by hand"),
        ([gone], {}, "calls this run finished"),
        ([broken], {}, "not a manifest that `zoo sweep` wrote"),
    ]
    for given, options, message in bad:
        with pytest.raises(ZooError, match=re.escape(message)):
            report(given, tmp_path / "out", **options)
        assert not (tmp_path / "out").exists()


def test_the_ticks_of_an_axis_have_one_form() -> None:
    def texts(*ticks: float) -> list[str]:
        return View("sizes", "parameters", "c", [], ticks=ticks).tick_texts

    assert texts(5144, 12_288) == ["5.14k", "12.3k"]
    assert texts(512, 2048) == ["512", "2048"]
    assert texts() == []


def test_sweeps_have_parts_of_file_names_of_their_own() -> None:
    names = _unique(["lr", "lr-2", "lr", "LR"])
    assert names == ["lr", "lr-2", "lr 3", "LR 4"]
    assert len({_slug(name) for name in names}) == len(names)


def test_many_tried_values_have_no_tick_each(tmp_path: Path) -> None:
    """Labels of values that lie close together would overlap."""
    random = {name: {1e-3 * 1.1**k: 3.0 + 0.01 * k for k in range(5)} for name in FINALS}
    for folder, tune, ticks in (("grid", RATES, [1e-4, 1e-3, 1e-2]), ("random", random, [])):
        (plot,) = sensitivity_plots(read_results([write_sweep(tmp_path / folder, FINALS, tune=tune)]))
        (view,) = plot.views
        assert list(view.ticks) == ticks


def test_switches_are_no_numbers(tmp_path: Path) -> None:
    """A tuned `true` and `false` have no place on an axis of numbers."""
    folder = write_sweep(tmp_path / "sweep", FINALS, tune=RATES)
    manifest = read_manifest(folder)
    runs = [
        run.model_copy(
            update={"tuned": run.tuned and {"optimizer.cautious": run.tuned["optimizer.lr"] > 1e-3}}
        )
        for run in manifest.runs
    ]
    tune = Tuning(keys=("optimizer.cautious",), rule="lowest final loss")
    write_manifest(folder, manifest.model_copy(update={"runs": tuple(runs), "tune": tune}))
    assert not list(sensitivity_plots(read_results([folder])))


def test_a_line_over_variables_that_begin_later() -> None:
    """The steps of a variable whose first values are unknown are in order among those of the others."""
    early: tuple[list[float], list[float | None]] = ([100.0, 200.0, 300.0], [None, 1.0, 1.0])
    curves: Curves = {"early": early, "late": ([100.0, 200.0], [2.0, 2.0])}
    line = _summary("v", curves, min)
    assert (line.x, line.y) == ([100.0, 200.0, 300.0], [2.0, 1.0, 1.0])
