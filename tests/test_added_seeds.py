"""Sweeps that add seeds until every word is decided: what they train, when they stop, and what they say."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from command_line import zoo
from rich.console import Console
from scipy import stats
from synthetic_runs import curve, write_run, write_sweep
from tiny_sweeps import sweep_file

from zoo.ablate import ladder_verdict
from zoo.ablate.added_seeds import SeedPlanner, stages
from zoo.ablate.alpha import ALPHA
from zoo.ablate.caveats import caveats
from zoo.ablate.estimate import estimate
from zoo.ablate.execute import planner_of
from zoo.ablate.ladder_estimate import decision_of, detected_shares, estimate_ladder
from zoo.ablate.ladder_plan import table_of
from zoo.ablate.ladder_verdict import declared
from zoo.ablate.manifest import read_manifest, write_manifest
from zoo.ablate.outcome import Outcome
from zoo.ablate.plan import PlannedRun
from zoo.ablate.record import manifest_of
from zoo.ablate.results import read_results
from zoo.ablate.scale import sources
from zoo.ablate.scale.looks import Looks, critical_values
from zoo.ablate.scale.runs import FinishedRun, RunTable
from zoo.ablate.scale.simulate import Design, Faults
from zoo.ablate.scale.verdict import judge as judge_table
from zoo.ablate.seed_looks import compare_pairs
from zoo.ablate.statistics import paired_t_test, power
from zoo.ablate.sweep import Sweep, load_sweep
from zoo.ablate.tables import verdict_table
from zoo.ablate.verdict import ONE_SEED, judge
from zoo.commands.cli import main
from zoo.config.yaml import dump_yaml
from zoo.run.job import Job
from zoo.utils.errors import DataError

ROOT = Path(__file__).parents[1]
ONE_SIZE = {"sizes": {"params": ["0.1M"], "shape": "aspect"}, "seeds": 2, "max_seeds": 8}


def load(folder: Path, axes: dict[str, Any] | None = None, **scale: Any) -> Sweep:
    """The shipped check of a ladder at one size, without its lines."""
    file = folder / "one.yaml"
    check = str(ROOT / "configs/sweeps/ladder-check.yaml")
    file.write_text(
        dump_yaml({"extends": check, "lines": None, "axes": axes or {}, "scale": {**ONE_SIZE, **scale}})
    )
    return load_sweep(file, out=folder / "sweeps")


def loss(run: PlannedRun, noise: float, shared: float = 0.0) -> float:
    """A law with the best rate 4.4e-3, with a noise that follows from the run's id and one of all sides."""
    tokens = (
        run.steps * 2048 / 1e6 * math.exp(-0.24 * math.log(Job.of(run.config).optimizer.lr / 4.4e-3) ** 2)
    )
    random = np.random.default_rng(list(run.id.encode()))
    return float(
        0.7
        + 0.8
        * (
            tokens
            * math.exp(noise * random.standard_normal() + shared * math.sin(3 * (run.config.seed % 1000)))
        )
        ** -0.3
    )


def trained(
    sweep: Sweep, loss_of: Callable[[PlannedRun], float | None]
) -> tuple[list[PlannedRun], dict[str, Outcome]]:
    """All runs in the order in which they are due, and their outcomes; a loss of None is a crash."""
    planner, outcomes, order = planner_of(sweep), dict[str, Outcome](), list[PlannedRun]()
    while due := [run for run in planner.plan(outcomes).runs if run.id not in outcomes]:
        value = loss_of(due[0])
        ended = Outcome(due[0].steps, {due[0].steps: value or 0.0}, ended=True)
        outcomes[due[0].id] = ended if value else Outcome(error="killed", crashed=True)
        order.append(due[0])
    return order, outcomes


def seeds(order: list[PlannedRun]) -> dict[str, list[int]]:
    """The seeds of every variant in the order in which they were compared, less what a copy adds."""
    found: dict[str, list[int]] = {}
    for run in order:
        seed = run.config.seed % 1000
        if "final" in run.phases and seed not in found.setdefault(run.variant, []):
            found[run.variant].append(seed)
    return found


def test_a_seed_is_added_to_all_sides_until_every_word_is_decided(tmp_path: Path) -> None:
    """The copy of the baseline, which stays undecided, asks for none; small budgets come first."""
    sweep = load(tmp_path, margin=None)
    order, outcomes = trained(sweep, lambda run: loss(run, 0.02))
    found = seeds(order)
    assert set(found) == {"base", "base again", "base planted"}
    (count,) = {len(of_side) for of_side in found.values()}
    assert 3 <= count < 8
    assert all(of_side == list(range(count)) for of_side in found.values())
    added = [run for run in order if run.config.seed % 1000 == count - 1]
    for variant in found:
        steps = [run.steps for run in added if run.variant == variant]
        assert steps == sorted(steps) and len(set(steps)) == 3

    def words(most: int) -> dict[str, str]:
        kept = [run for run in order if run.config.seed % 1000 < most or "tune" in run.phases]
        looked = judge_table(table_of(sweep, kept, outcomes), "base", looks=Looks(max_seeds=8))
        return {name: verdict.word for name, verdict in looked.items()}

    assert words(count) == {"base again": "undecided", "base planted": "faster"}
    assert words(count - 1)["base planted"] == "undecided"


def test_seeds_end_at_the_maximum(tmp_path: Path) -> None:
    """With noise of which five seeds are too few; a seed of the tuning is left out."""
    sweep = replace(load(tmp_path, margin=None, planted=1.1), max_seeds=5)
    assert sweep.tune is not None
    sweep = replace(sweep, tune=sweep.tune.model_copy(update={"seeds": (3,)}))
    assert sweep.added_seeds == (2, 4, 5)

    def noisy(run: PlannedRun) -> float:
        return loss(run, 0.0 if "tune" in run.phases else 0.1)

    assert set(map(tuple, seeds(trained(sweep, noisy)[0]).values())) == {(0, 1, 2, 4, 5)}
    assert list(stages(sweep).values()) == [(0, 1, 2), (0, 1, 2, 4, 5)]
    assert stages(replace(sweep, max_seeds=None)) == {"": (0, 1)}


def test_seeds_end_where_they_only_sharpen_the_error_of_tuning(tmp_path: Path) -> None:
    """Two methods without a difference: what a seed does, it does to both, but not to their tuning."""
    sweep = load(tmp_path, {"schedule.warmup": [20, 30]}, margin=None, planted=None, again=False)
    order, outcomes = trained(sweep, lambda run: loss(run, 0.001, shared=0.1))
    name = "schedule.warmup=30"
    assert seeds(order)[name] == [0, 1, 2]
    found = judge_table(table_of(sweep, order, outcomes), sweep.baseline, looks=Looks(max_seeds=8))[name]
    assert found.word == "undecided" and found.futile
    assert "a stop for futility" in found.warnings[0]


def test_a_crash_adds_no_seed(tmp_path: Path) -> None:
    """The sweep tries the run again when it is started the next time."""
    sweep = load(tmp_path)

    def crashes(run: PlannedRun) -> float | None:
        return None if run.config.seed == 1 else loss(run, 2.0)

    assert set(map(tuple, seeds(trained(sweep, crashes)[0]).values())) == {(0, 1, 2)}
    border = trained(sweep, lambda run: Job.of(run.config).optimizer.lr)  # no rate is the best one
    assert not any("final" in run.phases for run in border[0])


def test_a_side_at_the_border_keeps_its_share_of_the_error(tmp_path: Path) -> None:
    """It gets no seeds, but the others must be decided at the level of the report, where it still counts."""
    decays = {"optimizer.weight_decay": [0.1, 0.2, 0.3]}
    sweep = load(tmp_path, decays, seeds=3, max_seeds=5, again=False, planted=None)
    better, border = (variant.name for variant in sweep.variants if variant.name != sweep.baseline)

    def loss_of(run: PlannedRun) -> float:
        off = math.log(Job.of(run.config).optimizer.lr / 4.4e-3)
        noise = np.random.default_rng(list(f"{run.variant} {run.config.seed} {run.tokens}".encode()))
        gain = 0.225 if run.variant == better else 0.0
        gain += 0.3 * off if run.variant == border else -0.24 * off**2
        tokens = run.steps * 2048 / 1e6 * math.exp(gain + 0.03 * noise.standard_normal())
        return float(0.7 + 0.8 * tokens**-0.3)

    order, outcomes = trained(sweep, loss_of)
    found = seeds(order)
    assert border not in found and found[better] == [0, 1, 2, 3]
    looks = Looks(max_seeds=5)
    for most, word in ((3, "undecided"), (4, "faster")):
        kept = [run for run in order if run.config.seed < most or "tune" in run.phases]
        verdicts = judge_table(table_of(sweep, kept, outcomes), sweep.baseline, margin=1.1, looks=looks)
        assert verdicts[better].word == word


def test_a_variant_without_any_run_keeps_its_share_of_the_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a ladder with several looks is trained, its report judges the others at the level of the end."""
    sweep = load(
        tmp_path, {"optimizer.weight_decay": [0.1, 0.2, 0.3]}, max_seeds=5, again=False, planted=None
    )
    names = [variant.name for variant in sweep.variants]
    noise = np.random.default_rng(0)
    table = RunTable(
        tuple(
            FinishedRun(
                name, 1e5, t, seed, 0.7 + (t / 1e6) ** -0.3 * math.exp(0.01 * noise.standard_normal())
            )
            for name in names[:2]
            for t in (1e6, 2e6, 4e6)
            for seed in range(3)
        )
    )
    shares = "2 variants share the error of 0.05: the first claim on each is made at the level 0.025"
    for looks, shared in ((Looks(max_seeds=5), True), (None, False)):
        found = judge_table(table, names[0], looks=looks, waiting=names)[names[1]]
        assert any(shares in warning for warning in found.warnings) == shared
    sweep.folder.mkdir(parents=True)
    write_manifest(sweep.folder, manifest_of(sweep, planner_of(sweep).plan({}), {}))
    for module in (ladder_verdict, sources):
        monkeypatch.setattr(module, "read_table", lambda *_, **__: table)
    assert any(shares in note for note in ladder_verdict.judge_ladder(sweep.folder).notes)
    zoo("verdict", sweep.folder, "--baseline", names[0])
    assert shares in capsys.readouterr().out


def plain(folder: Path, **fields: Any) -> Sweep:
    return load_sweep(sweep_file(folder, **{"seeds": [0, 1], "max_seeds": 6, **fields}))


def test_a_sweep_without_sizes_judges_as_its_report(tmp_path: Path) -> None:
    """Planned until the report's own word is decided, from run folders with given losses."""
    sweep = plain(tmp_path, axes={"init": ["he", "small", "bert"]})
    assert isinstance(planner_of(sweep), SeedPlanner)
    random = np.random.default_rng(2)
    effects = dict(zip((variant.name for variant in sweep.variants), (0.0, -0.05, -0.5), strict=True))

    def losses(run: PlannedRun) -> float:
        value = 3.0 + effects[run.variant] + 0.01 * random.standard_normal()
        overrides = [f"train.steps={run.steps}"]
        write_run(sweep.runs / run.id, curve(value), seed=run.config.seed, overrides=overrides)
        return value

    order, outcomes = trained(sweep, losses)
    (count,) = {len(of_side) for of_side in seeds(order).values()}
    assert 3 < count <= 6
    write_manifest(sweep.folder, manifest_of(sweep, planner_of(sweep).plan(outcomes), outcomes))
    found = judge(read_results([sweep.folder]))
    assert [verdict.word for verdict in found.verdicts] == ["baseline", "better", "better"]
    assert not any(verdict.is_open for verdict in found.verdicts)


def looked(folder: Path, most: int | None, finals: dict[str, list[float]], **fields: Any) -> Any:
    """The results of a sweep whose manifest declares a maximum."""
    write_sweep(folder, finals, **fields)
    write_manifest(folder, read_manifest(folder).model_copy(update={"max_seeds": most}))
    return read_results([folder])


def test_the_test_of_pairs_at_a_look(tmp_path: Path) -> None:
    """p and interval by the critical value of the maximum, before the correction for several variants."""
    base = [3.0, 3.02, 2.99, 3.01]
    finals = {
        "a": base,
        "b": [x - d for x, d in zip(base, (0.01, 0.012, 0.009, 0.013), strict=True)],
        "c": base[::-1],
    }
    found = judge(looked(tmp_path / "s", 6, finals))
    b, c = found.verdicts[1:]
    critical = critical_values(6)[1]
    differences = np.array([0.01, 0.012, 0.009, 0.013])
    error = differences.std(ddof=1) / 2
    assert b.comparison is not None and c.comparison is not None and b.p is not None
    assert b.comparison.low == pytest.approx(-differences.mean() - critical * error)
    of_look = 2 * stats.t.sf(critical, 3)
    p = stats.ttest_1samp(differences, 0).pvalue
    assert b.comparison.p == pytest.approx(p * 0.05 / of_look)
    assert b.p == pytest.approx(2 * b.comparison.p)  # Holm: the smaller one of two
    assert power(b.comparison.detectable / error, 3, of_look / 2) == pytest.approx(0.8, abs=1e-6)
    assert (b.word, c.word) == ("better", "undecided")
    assert c.comparison.most_seeds == 6 and "more than 6 seeds" in c.why
    assert "(Holm, over looks)" in found.sentences[0]
    table = verdict_table(found)
    assert "exact critical values of that maximum" in table.note and "> 6" in table.texts[2]
    once = judge(looked(tmp_path / "once", None, finals))
    assert once.verdicts[1].comparison == paired_t_test(finals["b"], finals["a"], 0.025)
    wide = judge(looked(tmp_path / "wide", 6, finals), alpha=0.2)
    assert wide.level_text == "80%" and "80% interval" in wide.sentences[0]
    assert "difference (80%)" in [column.title for column in verdict_table(wide).columns]


def test_a_variant_without_a_look_yet_keeps_its_share_of_the_error(tmp_path: Path) -> None:
    """Its seeds come later. A variant that changes nothing will claim nothing; a fixed sweep has one look."""
    base = [3.0, 3.02, 2.99, 3.01]
    better = [x - d for x, d in zip(base, (0.01, 0.012, 0.009, 0.013), strict=True)]
    late, same = {"a": base, "b": better, "c": [2.9]}, {"a": base, "b": better, "c": base}
    for name, finals, most, variants in (
        ("late", late, 6, 2),
        ("same", same, 6, 1),
        ("once", late, None, 1),
    ):
        verdict = judge(looked(tmp_path / name, most, finals)).verdicts[1]
        assert verdict.comparison is not None
        assert verdict.p == pytest.approx(variants * verdict.comparison.p)


def test_before_the_first_look_there_is_no_word(tmp_path: Path) -> None:
    two = judge(looked(tmp_path / "two", 6, {"a": [3.0, 3.01], "b": [2.0, 2.02]})).verdicts[1]
    assert two.word == "undecided" and two.comparison is None and two.is_open
    assert two.why == "2 common seeds: the first look is after 3: no word before"
    one = judge(looked(tmp_path / "one", 6, {"a": [3.0], "b": [2.0]})).verdicts[1]
    assert one.word == ONE_SEED and one.is_open
    failing = {("b", 1): "failed"}
    results = looked(
        tmp_path / "failed", 6, {"a": [3.0, 3.01, 3.02, 3.0], "b": [2.0, 9.0, 2.01, 2.02]}, status=failing
    )
    failed = judge(results).verdicts[1]
    assert "1 of 4 runs of b failed" in failed.why and not failed.is_open


def test_looks_of_a_sweep_without_sizes_keep_their_error() -> None:
    """400 studies without a difference, looked at after 3, ..., 6 seeds; uncorrected it would be .12."""
    random, alarms, naive = np.random.default_rng(0), 0, 0
    for _ in range(400):
        ours, theirs = random.standard_normal((2, 6)).tolist()
        looks = [compare_pairs(ours[:n], theirs[:n], 6, 0.05, 0.05) for n in range(3, 7)]
        assert all((look.p <= 0.05) == (look.low > 0 or look.high < 0) for look in looks)
        alarms += any(look.p <= 0.05 for look in looks)
        naive += any(paired_t_test(ours[:n], theirs[:n], 0.05).p <= 0.05 for n in range(3, 7))
    assert alarms / 400 <= 0.05 + 3.3 * math.sqrt(0.05 * 0.95 / 400) < naive / 400


def test_a_sweep_says_where_seeds_only_sharpen_the_error_of_tuning(tmp_path: Path) -> None:
    """With a declared maximum a variant within three standard deviations of tuning asks for no more seeds."""
    rates = {0.001: 3.2, 0.002: 3.05, 0.004: 3.0, 0.008: 3.05, 0.016: 3.2}
    finals = {"a": [3.0, 3.02, 2.99, 3.01], "b": [2.999, 3.0192, 2.9892, 3.0088]}
    tune = {"a": rates, "b": rates}
    found = judge(looked(tmp_path / "s", 8, finals, tune=tune))
    told = "further seeds only sharpen the error of tuning"
    assert found.verdicts[1].word == "undecided" and not found.verdicts[1].is_open
    assert "no seed is added for its sake, a stop for futility" in found.verdicts[1].why
    assert any(told in caveat for caveat in caveats(found))
    fixed = judge(looked(tmp_path / "fixed", None, finals, tune=tune))
    assert any(told in caveat for caveat in caveats(fixed)) and "futility" not in fixed.verdicts[1].why
    noisy = {"a": finals["a"], "b": [3.9, 2.2, 3.7, 2.1]}
    assert judge(looked(tmp_path / "noisy", 8, noisy, tune=tune)).verdicts[1].is_open


def shown(group: Any) -> str:
    console = Console(width=200, file=StringIO(), record=True)
    console.print(group)
    return console.export_text()


PROBE: Any = SimpleNamespace(workers=1, seconds=lambda sweep, what: 1.0)


def test_a_dry_run_shows_the_first_look_and_the_maximum(tmp_path: Path) -> None:
    rows = [row.split() for row in shown(estimate_ladder(load(tmp_path), PROBE)).splitlines()]
    counts = {
        row[1]: row[row.index("first") + 2 if "first" in row else 5] for row in rows if row[2:3] == ["seeds,"]
    }
    assert counts == {"3": str(3 * 3 * 3), "8": str(8 * 3 * 3)}
    text = shown(estimate(plain(tmp_path), PROBE))
    totals = re.findall(r"^all: (\d) seeds, (?:the first look|at most) +(\d+)", text, re.MULTILINE)
    assert totals == [("3", "6"), ("6", "12")]  # two variants


def test_the_power_of_looks_at_seeds(tmp_path: Path) -> None:
    """Section 5 of the design, d = 1 sd of a pair, a maximum of 10: .72, and 8.2 seeds."""
    sweep = load(tmp_path, seeds=3, max_seeds=10, again=False)
    decision = decision_of(sweep)
    assert decision.share == ALPHA
    assert [value for _, value in decision.seeds] == pytest.approx(critical_values(10))
    assert [count for count, _ in decision.seeds] == list(range(3, 11))
    design = Design((1e5,), (2e7,), (10,))
    # Of three budgets the pair's ln c has sd .05 sqrt(2 (1 - .2) / 3).
    effect = 0.05 * math.sqrt(1.6 / 3)
    _, found, _, mean = detected_shares(design, Faults(), decision, lambda _: effect)
    assert float(found) == pytest.approx(0.72, abs=0.09)
    assert float(mean) == pytest.approx(8.2, abs=0.5)
    assert detected_shares(design, Faults(), decision, lambda _: 0.0)[1] <= "0.06"


def test_the_declaration_travels_with_the_sweep(tmp_path: Path) -> None:
    write_sweep(tmp_path / "s", {"a": [3.0], "b": [3.0]})
    manifest = read_manifest(tmp_path / "s").model_copy(update={"max_seeds": 6})
    write_manifest(tmp_path / "s", manifest)
    assert declared(tmp_path / "s")[1] == Looks(max_seeds=6)
    assert declared(tmp_path / "s", None, Looks(max_seeds=6))[1] == Looks(max_seeds=6)
    for other in (Looks(max_seeds=8), Looks(anytime=True), Looks(sizes=(1e6,))):
        with pytest.raises(DataError, match=r"the sweep has declared at most 6 seeds \(max_seeds\)"):
            declared(tmp_path / "s", None, other)


def test_a_sweep_that_adds_seeds_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = sweep_file(tmp_path, seeds=[0, 1], max_seeds=4)
    with pytest.raises(SystemExit) as done:
        main(["sweep", str(file), "--workers", "1"])
    assert done.value.code == 0
    assert "Holm, over looks" in " ".join(capsys.readouterr().out.split())
    manifest = read_manifest(tmp_path / "sweeps/tiny")
    of_side = [sorted(run.seed for run in manifest.runs if run.variant == v.name) for v in manifest.variants]
    assert of_side[0] == of_side[1] and of_side[0] in ([0, 1, 2], [0, 1, 2, 3])
    found = judge(read_results([tmp_path / "sweeps/tiny"]))
    assert found.verdicts[1].word in ("better", "worse") or len(of_side[0]) == 4
    assert json.loads((tmp_path / "sweeps/tiny/sweep.json").read_text())["max_seeds"] == 4
