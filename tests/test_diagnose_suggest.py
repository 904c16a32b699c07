"""`zoo suggest-lr`: what a run's measurements say of Amos' learning rate."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import of_kind, tiny, tiny_fields

from zoo import load_model
from zoo.commands.cli import main
from zoo.diagnose.suggest import suggest_lr
from zoo.init import Registry
from zoo.train.run import RunResult, train
from zoo.utils.errors import ZooError

AMOS = "optimizer={type: amos, lr: 0.02}"


def config(folder: Path, **fields: Any) -> str:
    path = folder / "config.yaml"
    path.write_text(json.dumps({**tiny_fields(folder, steps=150, diagnose_every=5), **fields}))
    return str(path)


def test_of_a_run(tmp_path: Path) -> None:
    """The lowest ratio of all measurements and variables, but for gates and norm scales, which are small."""
    run = train(tiny(tmp_path, AMOS, "reparam=wesar", steps=15, diagnose_every=5)).folder
    large = {entry.name for entry in Registry(load_model(run)) if entry.spec.numel > 99}
    rows = [item for line in of_kind(run, "diagnose") for item in line["variables"].items()]
    ratios = [row["ratio"] for name, row in rows if name in large]
    assert min(row["ratio"] for _, row in rows) < min(ratios), "a gate's average happens to vanish"
    found = suggest_lr(str(run))
    assert found.lr == min(ratios)
    (reading,) = found.measurements
    assert reading.lr == 0.02
    (lowest,) = [
        line
        for line in of_kind(run, "diagnose")
        if line["variables"].get(reading.variable, {}).get("ratio") == reading.lowest
    ]
    assert reading.floor == lowest["floor"]
    file = run / "metrics.jsonl"  # the last measurement of a run may be of fewer gradients
    last = of_kind(run, "diagnose")[-1] | {"step": 99, "variables": {}, "floor": 1.0}
    file.write_text(file.read_text() + json.dumps(last) + "\n")
    assert suggest_lr(str(run)).measurements[0].floor == lowest["floor"]
    assert reading.lowest <= reading.quartile <= reading.median
    assert reading.variable in large


def test_of_a_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs, the second at what the first one found; the schedule is the whole run's; nothing is left.

    The steps of both are shown while they are taken.
    """
    monkeypatch.setattr("zoo.utils.progress.SECONDS_PER_LINE", 0.0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "of: #all"))  # no value that YAML reads as it is
    (tmp_path / "of: #all").mkdir()
    before = {path.name for path in tmp_path.iterdir()}
    source = config(tmp_path)
    with pytest.raises(SystemExit) as done:
        main(["suggest-lr", source, AMOS, "--steps", "100"])
    assert not done.value.code
    told, progress = capsys.readouterr()
    for number in (1, 2):
        assert f"suggest-lr: run {number} of 2: 50%" in progress
        assert f"suggest-lr: run {number} of 2: 100%" in progress
    assert "Go on with" not in progress
    first, second = re.findall(r"trained at xi = ([\d.e-]+): the ratio is ([\d.e-]+)", told)
    assert first[0] == "0.02"
    assert second[0] == first[1]
    suggested = float(re.findall(r"suggested: optimizer.lr=([\d.e-]+)", told)[0])
    assert suggested == pytest.approx(math.sqrt(float(second[0]) * float(second[1])), rel=0.06)
    assert {p.name for p in tmp_path.iterdir()} - before == {"config.yaml", "text.txt", "cache"}
    assert not list((tmp_path / "of: #all").iterdir())


def test_under_a_transfer_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over four times the base steps the exponent -1/2 halves all rates, so that twice the rate is the same.

    The runs are the same bit for bit, since 1/2 is a power of two; the rate of the configuration is not.
    """
    monkeypatch.setattr("zoo.diagnose.suggest.WINDOW", 5)
    source = config(tmp_path, train={**tiny_fields(tmp_path)["train"], "steps": 20})
    plain = suggest_lr(source, ["optimizer={type: amos, lr: 0.01}"], 5)
    ruled = suggest_lr(source, [AMOS, "transfer={type: horizon, horizon: -0.5, base: {steps: 5}}"], 5)
    assert ruled.measurements == plain.measurements
    assert ruled.lr == 2 * plain.lr
    between = [float(rate) for rate in re.findall(r"between (\S+) and (\S+)\)", str(ruled))[0]]
    assert between[0] < ruled.lr < between[1]
    assert "which the transfer rule multiplies by 0.5" in str(ruled)
    assert "transfer" not in str(plain)


def test_of_a_run_under_a_transfer_rule(tmp_path: Path) -> None:
    rule = "transfer={type: horizon, horizon: -0.5, base: {steps: 2}}"
    found = suggest_lr(str(train(tiny(tmp_path, AMOS, rule, steps=8, diagnose_every=4)).folder))
    (reading,) = found.measurements
    assert reading.lr == 0.01
    assert found.lr == 2 * reading.lowest


def test_what_nothing_can_be_read_off(tmp_path: Path) -> None:
    source = config(tmp_path)
    unmeasured = train(tiny(tmp_path, AMOS, steps=5, diagnose_every=None)).folder
    table: list[tuple[str, list[str], int | None, str]] = [
        (source, [], 100, "the optimizer is 'adamw'; expected 'amos'"),
        (source, [AMOS], 99, "99 steps; expected 100, one measurement, to 150"),
        (source, [AMOS], 151, "151 steps; expected 100, one measurement, to 150"),
        (source, [AMOS, "optimizer.lt=1"], 100, "optimizer.lt"),
        (str(unmeasured), [], None, "nothing was measured; expected lines of kind 'diagnose'"),
        (str(unmeasured), ["optimizer.lr=1"], None, "is a run: optimizer.lr=1 has no effect on it"),
        (str(unmeasured), [], 100, "is a run: --steps 100 has no effect on it"),
        (str(tmp_path / "no.yaml"), [], 100, "no.yaml"),
    ]
    for given, overrides, steps, message in table:
        with pytest.raises(ZooError, match=re.escape(message)):
            suggest_lr(given, overrides, steps)


@pytest.mark.parametrize(("step", "evaluated"), [(60, True), (100, False)])
def test_a_run_that_is_stopped_suggests_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, evaluated: bool
) -> None:
    configs = []

    def stopped(config: Any, until: int, task: str) -> RunResult:
        configs.append(config)
        return RunResult(tmp_path, step, 150, None, None, True, evaluated)

    monkeypatch.setattr("zoo.diagnose.suggest.train", stopped)
    source = config(tmp_path)
    with pytest.raises(ZooError, match=f"stopped at step {step} of 100; nothing is suggested"):
        suggest_lr(source, [AMOS, "train.loggers=[{type: tensorboard}]"], 100)
    assert [c.train.loggers for c in configs] == [()]
