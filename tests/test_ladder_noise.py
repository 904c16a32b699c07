"""The noise of runs: on the page of a verdict, and in the power of a ladder that has runs already."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from simulated_ladders import load, table, trained, true_loss
from test_ladder import power
from test_scale_verdict import tuned_runs, worked_runs

from zoo.ablate import ladder_estimate
from zoo.ablate.ladder_noise import Noise, noise_of
from zoo.ablate.outcome import Outcome
from zoo.ablate.plan import PlannedRun
from zoo.ablate.scale.presentation import tables
from zoo.ablate.scale.runs import RunTable, read_runs
from zoo.ablate.scale.simulate import KAPPA, TAU
from zoo.ablate.scale.tuning import Parabola, tuning_gap
from zoo.ablate.scale.verdict import judge
from zoo.ablate.sweep import Sweep
from zoo.report.ladder import write_ladder

ROOT = Path(__file__).parents[1]
ASSUMED = "Noise: tau 0.05 and kappa 0.24, assumed, as measured in one study of .23M parameters."


def test_the_page_has_tau_and_kappa_with_their_meaning(tmp_path: Path) -> None:
    judged = judge(RunTable(tuple(tuned_runs(1.5))), "a")
    (noise,) = [found for found in tables(judged, "a") if found.key == "noise"]
    tau, kappa = judged["b"].measured.tau, judged["b"].measured.kappa
    assert tau is not None and kappa is not None
    assert noise.rows == [["b", tau, kappa, "no"]]
    assert (
        "as much as 5 % more or fewer tokens would" in noise.note and "beyond 2 x these values" in noise.note
    )
    write_ladder(judged, "a", tmp_path, margin=None, alpha=0.05, title="noise")
    for page in ("report.html", "report.md"):
        assert f"{tau:.3f}" in (text := (tmp_path / page).read_text()) and "Noise of these runs" in text
    assert f"noise,1,b,tau,{tau!r}" in (tmp_path / "report.csv").read_text()


def test_the_page_says_which_value_is_more_than_twice_the_simulated() -> None:
    loud = [
        replace(run, loss=run.loss * math.exp(0.08 * math.sin(7.7 * run.seed + run.loss * 99)))
        for run in worked_runs()
    ]
    judged = judge(RunTable(tuple(loud)), "adamw")
    (noise,) = [found for found in tables(judged, "adamw") if found.key == "noise"]
    assert noise.rows[0][2:] == [None, "noise of a run"]
    assert any("noise of a run" in warning for warning in judged["muon"].warnings)


@pytest.fixture(autouse=True)
def fewer_studies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder_estimate, "STUDIES", 60)


def known(monkeypatch: pytest.MonkeyPatch, outcomes: dict[str, Outcome]) -> None:
    """These runs have ended, as far as a dry run can see."""
    monkeypatch.setattr(Sweep, "outcome", lambda self, run: outcomes.get(run, Outcome()))


def test_a_dry_run_without_runs_assumes_its_noise(tmp_path: Path) -> None:
    sweep = load(tmp_path, lines=None)
    noise = noise_of(sweep)
    assert (noise.tau, noise.kappa, noise.runs) == (None, None, 0)
    told = power(sweep)
    assert ASSUMED in told
    rates = (1e-3, 2e-3, 4e-3, 8e-3, 16e-3)
    parabola = Parabola(math.log(4e-3), 0.0, 0.24)
    gap = tuning_gap(parabola, rates, sd=0.05, seeds=1, per_token=1.0, interpolated=True)
    assert noise.of_tuning(sweep) == gap
    assert f"rates tuned with an error of {gap:.2g} in ln c" in told
    assert noise.of_tuning(replace(sweep, tune=None)) == 0.0


def test_a_dry_run_has_the_noise_of_the_runs_that_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tau and kappa are those of the verdict on the same runs; louder runs find less."""
    sweep = load(tmp_path, lines=None)
    order, outcomes = trained(sweep)
    runs = table(order, outcomes)
    measured = [verdict.measured for verdict in judge(runs, sweep.baseline).values()]
    known(monkeypatch, outcomes)
    noise = noise_of(sweep)
    assert noise.tau == pytest.approx(math.sqrt(np.mean([m.tau**2 for m in measured if m.tau])))
    assert noise.kappa == pytest.approx(np.mean([m.kappa for m in measured if m.kappa]))
    assert noise.tau == pytest.approx(0.02, rel=0.3)  # that of `true_loss`
    text = (
        f"Noise: tau {noise.tau:.3g} and kappa {noise.kappa:.3g}, measured in the {len(order)} runs of this"
    )
    quiet = power(sweep)
    assert text in quiet
    assert found_at(quiet) == "1.00"
    final = [run for run in order if run.phases == ("final",)]  # with the rates that were chosen
    loud = {run.id: Outcome(run.steps, {run.steps: louder(sweep, run)}, ended=True) for run in final}
    known(monkeypatch, outcomes | loud)
    assert float(found_at(power(sweep))) < 0.7


def test_lines_count_as_runs(tmp_path: Path) -> None:
    """The shipped check has lines, with more than twice the assumed noise."""
    sweep = load(tmp_path)
    noise = noise_of(sweep)
    assert noise.runs == len(read_runs(ROOT / "docs/results/ladder-check.csv").runs)
    assert noise.tau is not None and noise.tau > 2 * TAU
    assert noise.kappa is not None and noise.kappa > 2 * KAPPA
    assert f"measured in the {noise.runs} runs of this ladder" in noise.text


def louder(sweep: Sweep, run: PlannedRun) -> float:
    """A loss of a run that moves by a fifth of its tokens."""
    noise = np.random.default_rng(list(run.id.encode())[::-1]).standard_normal()
    return true_loss(sweep, run) * math.exp(0.05 * float(noise))


def found_at(told: str) -> str:
    """How often the power table of a dry run finds 1.1 x in the middle."""
    return next(line.split()[1] for line in told.splitlines() if line.split()[:1] == ["1.1"])


def test_the_first_runs_of_the_baseline_are_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With several seeds of one side and no other variant tau is known; kappa is as soon as it was tuned."""
    sweep = load(tmp_path, lines=None)
    order, outcomes = trained(sweep)
    first = [run for run in order if run.variant == sweep.baseline and run.params == sweep.ladder[0].params]
    known(monkeypatch, {run.id: outcomes[run.id] for run in first})
    noise = noise_of(sweep)
    assert noise.runs == len(first) and noise.tau is not None and noise.kappa is not None
    tuning = [run for run in first if "tune" in run.phases]
    known(monkeypatch, {run.id: outcomes[run.id] for run in tuning})
    assert (noise_of(sweep).tau, noise_of(sweep).kappa) == (None, None)
    assert Noise(0.04, None, 9).text == (
        "Noise: tau 0.04, measured in the 9 runs of this ladder that have ended; kappa 0.24, assumed, as "
        "measured in one study of .23M parameters."
    )
