"""Pages of sweeps: several on one, main effects, descriptions, short names, and what seconds are worth."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import ttest_1samp
from synthetic_runs import curve, write_run, write_sweep

from zoo.ablate.axes import variant_name
from zoo.ablate.main_effects import main_effects
from zoo.ablate.manifest import read_manifest, write_manifest
from zoo.ablate.quiet import disturbance
from zoo.ablate.results import read_results
from zoo.ablate.tables import speedup_table
from zoo.commands.cli import main
from zoo.report.interactive import plotly_figure
from zoo.report.report import report, report_sweeps
from zoo.report.style import line_styles
from zoo.report.variant_rows import cost_plots
from zoo.utils.errors import ZooError

LOSSES = {
    ("adamw", "he", "2"): [3.00, 3.05, 2.98],
    ("adamw", "small", "2"): [3.10, 3.17, 3.06],
    ("amos", "he", "2"): [2.90, 2.93, 2.89],
    ("amos", "small", "2"): [2.94, 2.99, 2.95],
}
"""By optimizer, init and depth; the width changes together with the optimizer."""


def factorial(folder: Path, **changes: Any) -> Path:
    """A sweep over two axes, of which one is two keys that change together."""
    settings = {
        variant_name({"optimizer": o, "width": {"adamw": "64", "amos": "96"}[o], "init": i}): {
            "optimizer": o,
            "width": {"adamw": "64", "amos": "96"}[o],
            "init": i,
        }
        for o, i, _ in LOSSES
    }
    sweep = write_sweep(folder, dict(zip(settings, LOSSES.values(), strict=True)))
    manifest = read_manifest(sweep)
    variants = tuple(v.model_copy(update={"settings": settings[v.name]}) for v in manifest.variants)
    write_manifest(sweep, manifest.model_copy(update={"variants": variants, **changes}))
    return sweep


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pictures on paper are tested elsewhere, and take most of the time."""
    monkeypatch.setattr("zoo.report.page.draw_png", lambda plot, styles: b"\x89PNG")


def test_variants_are_named_by_what_differs_from_the_baseline(tmp_path: Path) -> None:
    sweep = factorial(tmp_path / "sweep")
    base = "optimizer=adamw,width=64,init=he"
    both = "optimizer=amos,width=96,init=small"
    assert read_results([sweep]).variants == [base, "init=small", "optimizer=amos,width=96", both]
    other = read_results([sweep], baseline="init=small")  # the short name serves as well as the full one
    assert other.baseline == "optimizer=adamw,width=64,init=small"
    assert other.variants == [
        "init=he",
        other.baseline,
        "optimizer=amos,width=96,init=he",
        "optimizer=amos,width=96",
    ]
    assert [run.variant for run in other.runs("init=he")] == ["init=he"] * 3
    with pytest.raises(ZooError, match="no variant is named 'init=smal'; did you mean 'init=small'"):
        read_results([sweep], baseline="init=smal")


def test_main_effects_by_hand(tmp_path: Path) -> None:
    optimizer, init = main_effects(read_results([factorial(tmp_path / "sweep")]))
    assert (optimizer.axis, optimizer.value, optimizer.against) == (
        "optimizer, width",
        "amos, 96",
        "adamw, 64",
    )
    # Per seed, the mean of amos - adamw over both inits; then over seeds.
    by_seed = [(-0.10 - 0.16) / 2, (-0.12 - 0.18) / 2, (-0.09 - 0.11) / 2]
    assert optimizer.difference.mean == pytest.approx(sum(by_seed) / 3)
    interval = ttest_1samp(by_seed, 0).confidence_interval(0.95)
    assert (optimizer.difference.low, optimizer.difference.high) == pytest.approx(
        (interval.low, interval.high)
    )
    assert (optimizer.least, optimizer.most) == pytest.approx((-0.15, -0.31 / 3))
    assert (init.pairs, init.difference.n) == (2, 3)
    assert init.difference.mean == pytest.approx((0.07 + 0.09 + 0.07) / 3)
    assert main_effects(read_results([write_sweep(tmp_path / "one", {"a": [3.0], "b": [2.9]})])) == []


def test_several_sweeps_on_one_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = factorial(tmp_path / "Init!", description="Does the init matter <b>here</b>?")
    second = write_sweep(tmp_path / "depth", {"two": [3.0, 3.01], "four": [2.9, 2.92]})
    found, page = report_sweeps([first, second], tmp_path / "out")
    assert len(found) == 2
    text = page.read_text(encoding="utf-8")
    for words in (
        "<h1>Init! and depth</h1>",
        "2 sweeps, each judged by itself: any false claim has probability 0.05 in each, and up to 0.1",
        "Init!: Does the init matter &lt;b&gt;here&lt;/b&gt;?",
        "depth: four: better than two.",
        "Init!: Main effects",
    ):
        assert words in text
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(set(ids)) == len(ids)
    files = {path.name for path in page.parent.iterdir()}
    assert {"init-curves.csv", "depth-curves.csv", "init-loss.png", "depth-loss.png"} <= files
    links = re.findall(r'href="#([^"]+)"', text)
    assert links
    assert set(links) <= set(ids)
    with pytest.raises(SystemExit) as ended:
        main(["report", str(first), str(second), "-o", str(tmp_path / "again")])
    assert ended.value.code == 0
    assert capsys.readouterr().out.count("Verdict") == 2
    with pytest.raises(
        ZooError, match="is a sweep; expected it alone, with other sweeps, or run folders only"
    ):
        report([first, second], tmp_path / "no")


def test_the_name_of_a_sweep_is_no_markup(tmp_path: Path) -> None:
    """It begins the headings of the sections of a page about several sweeps, in Markdown too."""
    first, second = (
        write_sweep(tmp_path / name, {"two": [3.0, 3.01], "four": [2.9, 2.92]}) for name in ("a", "b")
    )
    write_manifest(first, read_manifest(first).model_copy(update={"name": "<b>a"}))
    page = report_sweeps([first, second], tmp_path / "out")[1].with_name("report.md").read_text("utf-8")
    assert "## &lt;b>a: Verdict" in page
    assert "<b>" not in page


def test_descriptions_of_runs_are_printed(tmp_path: Path) -> None:
    texts = {"plain": "As in the paper", "wide": "Twice the width"}
    runs = [
        write_run(
            tmp_path / f"{name}-{seed}",
            curve(3.0 + seed / 100),
            seed=seed,
            overrides=[f"description={text}", f"model.d_mlp={64 if name == 'wide' else 32}"],
        )
        for name, text in texts.items()
        for seed in (0, 1)
    ]
    results = read_results(runs)
    assert results.variants == ["plain", "wide"]
    text = report(runs, tmp_path / "out")[1].read_text(encoding="utf-8")
    assert "<p>plain: As in the paper</p>" in text
    alone = report(runs[:2], tmp_path / "alone")[1].read_text(encoding="utf-8")
    assert "<p>As in the paper</p>" in alone


def test_the_policy_allows_the_scripts_of_the_page_and_nothing_else(tmp_path: Path) -> None:
    page = report([write_sweep(tmp_path / "sweep", {"a": [3.0, 3.1], "b": [2.9, 2.8]})], tmp_path / "out")[1]
    text = page.read_text(encoding="utf-8")
    match = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    assert match is not None
    policy = html.unescape(match[1])
    assert "default-src 'none'" in policy
    assert "http" not in policy.replace("http-equiv", "")
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert len(scripts) == 2
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
        assert f"'sha256-{digest}'" in policy
    assert "unsafe-inline" not in policy.split("style-src")[0]


def test_amounts_start_at_zero(tmp_path: Path) -> None:
    results = read_results([write_sweep(tmp_path / "sweep", {"a": [3.0, 3.1], "b": [2.9, 2.8]})])
    for plot in cost_plots(results):
        figure = plotly_figure(plot, line_styles(results.variants))
        assert [view["layout"]["xaxis"]["rangemode"] for view in figure["views"]] == ["tozero"]


def test_seconds_count_where_the_timing_was_quiet(tmp_path: Path) -> None:
    finals = {"a": [3.0, 3.1], "b": [2.9, 2.8]}
    quiet = write_sweep(tmp_path / "quiet", finals)
    assert disturbance(read_results([quiet])) is None
    assert "seconds" in [column.title for column in speedup_table(read_results([quiet])).columns]
    between = shutil.copytree(quiet, tmp_path / "between")
    shutil.rmtree(between / "runs/b-1")
    write_run(between / "runs/b-1", curve(2.8), seed=1, step_seconds=0.6)
    within = shutil.copytree(quiet, tmp_path / "within")
    file = within / "runs/b-1/metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for number, line in enumerate(line for line in lines if line["kind"] == "train"):
        line["timing"]["tokens_per_second"] *= 1 + 0.5 * (number % 2)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for folder, reason in (
        (between, "seeds of one variant differ by 20%"),
        (within, "within a run varied by 33%"),
    ):
        table = speedup_table(read_results([folder]))
        assert [column.title for column in table.columns].count("factor") == 3
        assert "seconds" not in [column.title for column in table.columns]
        assert "Seconds do not count here: " in table.note
        assert reason in table.note
