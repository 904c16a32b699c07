"""Verdicts on sweeps whose truth is known: right as often as they claim, and undecided when they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from scipy.stats import binomtest, t
from synthetic_runs import STEPS, TOKENS, curve, write_run, write_sweep

from zoo.ablate.caveats import caveats
from zoo.ablate.curve import Curve
from zoo.ablate.manifest import Manifest, Run, Variant
from zoo.ablate.results import Results, read_results
from zoo.ablate.run_metrics import RunMetrics, read_run_metrics
from zoo.ablate.speedup import speedups, target_loss
from zoo.ablate.tables import cost_table, speedup_table, verdict_table
from zoo.ablate.tuning_error import gap
from zoo.ablate.verdict import ONE_SEED, Judgement, Word, judge
from zoo.train.spikes import Spike
from zoo.utils.arrays import Array

SWEEPS = 200
ALPHA = 0.05


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> RunMetrics:
    """A run from which others are made by giving them other losses."""
    return read_run_metrics(write_run(tmp_path_factory.mktemp("pattern") / "run", curve(3.0)))


def sweep(pattern: RunMetrics, finals: Mapping[str, Sequence[float] | Array]) -> Results:
    """A finished sweep; its baseline is the first variant."""
    ends = np.array([0.0, STEPS], dtype=np.float64)
    runs = [
        Run(id=f"{v}-{s}", variant=v, seed=s, phases=("final",), folder="", status="finished")
        for v, losses in finals.items()
        for s in range(len(losses))
    ]
    measured = {
        run.id: replace(
            pattern,
            validation=Curve(
                ends, TOKENS * ends, ends, ends, np.array([6.0, float(finals[run.variant][run.seed])])
            ),
        )
        for run in runs
    }
    variants = tuple(Variant(name=name, settings={}) for name in finals)
    name = next(iter(finals))
    return Results(
        Manifest(name="s", baseline=name, config_hash="", variants=variants, runs=tuple(runs)), measured
    )


def simulate(
    pattern: RunMetrics, random: np.random.Generator, effects: Sequence[float], seeds: int, noise: float
) -> Judgement:
    """A sweep in which every loss is 3 + what the seed does to all + the effect + noise of its own."""
    shared = random.normal(0, 0.05, seeds)
    losses = {
        f"v{i}": 3 + shared + effect + random.normal(0, noise, seeds)
        for i, effect in enumerate([0, *effects])
    }
    return judge(sweep(pattern, losses), ALPHA)


def words(judgement: Judgement) -> list[str]:
    return [verdict.word for verdict in judgement.verdicts[1:]]


def consistent(count: int, rate: float) -> bool:
    """Whether so many of all sweeps can come from a true rate; refused by chance once in a thousand."""
    return bool(binomtest(count, SWEEPS, rate).pvalue > 1e-3)


@pytest.mark.parametrize("seeds", [3, 5])
def test_false_alarms_are_as_rare_as_they_claim(pattern: RunMetrics, seeds: int) -> None:
    """One comparison per sweep, no true difference: wrong at the nominal rate, neither more nor less."""
    random = np.random.default_rng(seeds)
    wrong = sum(words(simulate(pattern, random, [0.0], seeds, 0.01)) != ["undecided"] for _ in range(SWEEPS))
    assert consistent(wrong, ALPHA), f"{wrong} of {SWEEPS}"


def test_false_alarms_of_a_family(pattern: RunMetrics) -> None:
    """Five comparisons, no true difference: any false alarm in at most 5 % of the sweeps."""
    random = np.random.default_rng(7)
    found = [words(simulate(pattern, random, [0.0] * 5, 5, 0.01)) for _ in range(SWEEPS)]
    wrong = sum(set(each) != {"undecided"} for each in found)
    assert binomtest(wrong, SWEEPS, ALPHA, alternative="greater").pvalue > 1e-3, f"{wrong} of {SWEEPS}"
    assert wrong >= 1  # the correction does not silence everything


def test_power_is_as_stated(pattern: RunMetrics) -> None:
    """Cohen's table: 10 pairs find a difference of one standard deviation 8 times in 10."""
    random, noise = np.random.default_rng(11), 0.01
    spread = noise * 2**0.5  # of a difference of two runs
    found = [words(simulate(pattern, random, [-spread], 10, noise))[0] for _ in range(SWEEPS)]
    assert consistent(found.count("better"), 0.803)
    assert "worse" not in found
    assert found.count("better") + found.count("undecided") == SWEEPS


@pytest.mark.parametrize(("effect", "word"), [(-0.1, "better"), (0.1, "worse")])
def test_a_large_difference_is_seen(pattern: RunMetrics, effect: float, word: str) -> None:
    """Ten times the noise: seen in every sweep, and the untouched variant is left undecided."""
    random = np.random.default_rng(3)
    found = [words(simulate(pattern, random, [effect, 0.0], 5, 0.01)) for _ in range(SWEEPS)]
    assert sum(first == word for first, _ in found) >= SWEEPS - 2
    assert sum(second != "undecided" for _, second in found) <= 20


def test_pairing_by_seed_takes_the_seeds_noise_away(pattern: RunMetrics) -> None:
    """A difference far below the scatter over seeds, but the same in each: only pairs can see it."""
    shared = np.random.default_rng(5).normal(0, 0.5, 5)
    own = np.array([0.001, -0.001, 0.002, 0.0, -0.002])
    judgement = judge(sweep(pattern, {"base": 3 + shared, "new": 2.95 + shared + own}))
    comparison = judgement.verdicts[1].comparison
    assert comparison is not None
    assert (judgement.verdicts[1].word, comparison.test) == ("better", "paired t")


def test_the_page_on_verdicts_explains_every_word() -> None:
    page = (Path(__file__).parent.parent / "docs" / "verdict.md").read_text(encoding="utf-8")
    assert [word for word in get_args(Word) if word not in page] == []


def test_what_undecided_tells(pattern: RunMetrics) -> None:
    judgement = judge(sweep(pattern, {"base": [3.0, 3.01, 2.99], "new": [3.0, 2.99, 3.03]}))
    verdict = judgement.verdicts[1]
    assert verdict.word == "undecided"
    assert (
        "smallest difference that these runs could show is 0.1; to show one of the observed size"
        in verdict.why
    )
    assert verdict.why in judgement.sentences[0]


def test_words_that_need_no_test(pattern: RunMetrics) -> None:
    judgement = judge(
        sweep(pattern, {"base": [3.0, 3.01], "same": [3.0, 3.01], "alone": [2.0], "stuck": [2.5, 2.5]})
    )
    assert words(judgement) == ["equal", ONE_SEED, "undecided"]
    assert all(verdict.comparison is None for verdict in judgement.verdicts)
    assert [c for c in caveats(judgement) if c.startswith("stuck: all 2 seeds end at the same loss")]


@pytest.mark.parametrize(
    ("finals", "same"),
    [
        ({"base": [3.0, 3.01], "new": [2.5, 2.5]}, "all seeds of new"),
        ({"base": [3.0, 3.0], "new": [2.5, 2.6]}, "all seeds of base"),
        ({"base": [3.0, 3.0], "new": [2.5, 2.5]}, "all seeds of new and all of base"),
    ],
)
def test_seeds_that_end_at_one_value_are_not_one_seed(
    pattern: RunMetrics, finals: Mapping[str, Sequence[float]], same: str
) -> None:
    """There are several seeds; what is missing is their noise."""
    judgement = judge(sweep(pattern, finals))
    (told,) = judgement.sentences
    assert words(judgement) == ["undecided"]
    assert f"new: undecided ({same} end at the same loss, so that its noise is not known)" in told
    assert "one seed" not in told


def test_other_seeds_than_the_baselines_are_not_pairs(pattern: RunMetrics) -> None:
    results = sweep(pattern, {"base": [3.0, 3.01, 2.99], "new": [2.0, 2.02, 2.01]})
    runs = tuple(
        r.model_copy(update={"seed": r.seed + 10 * (r.variant == "new")}) for r in results.manifest.runs
    )
    judgement = judge(replace(results, manifest=results.manifest.model_copy(update={"runs": runs})))
    comparison = judgement.verdicts[1].comparison
    assert comparison is not None
    assert (comparison.test, judgement.verdicts[1].word) == ("Welch's t", "better")


FINALS = {"base": [3.0, 3.01, 2.99], "new": [2.9, 2.92, 2.89]}


def judged(folder: Path, **options: Any) -> Judgement:
    return judge(read_results([write_sweep(folder / "sweep", FINALS, **options)]))


def test_a_clean_sweep_has_no_caveats(tmp_path: Path) -> None:
    judgement = judged(tmp_path)
    assert words(judgement) == ["better"]
    assert caveats(judgement) == []


def test_failed_runs_take_a_better_back(tmp_path: Path) -> None:
    judgement = judged(tmp_path, status={("new", 2): "failed"})
    verdict = judgement.verdicts[1]
    assert (verdict.word, verdict.planned) == ("undecided", 3)
    assert verdict.why == "better in the runs that finished, but 1 of 3 runs of new failed"
    (caveat,) = caveats(judgement)
    assert caveat == "new: 1 of 3 runs failed and count in no mean (seed 2: step 7: the loss is nan)"


def test_failed_runs_of_the_baseline_take_a_better_not_back(tmp_path: Path) -> None:
    assert words(judged(tmp_path, status={("base", 2): "failed"})) == ["better"]


def test_a_sweep_that_is_not_finished(tmp_path: Path) -> None:
    judgement = judged(tmp_path, status={("new", 1): "waiting", ("new", 2): "running"})
    assert words(judgement) == [ONE_SEED]
    assert caveats(judgement)[0].startswith("2 of 6 runs of the comparison are not finished. If verdicts")
    manifest = judgement.results.manifest
    tuning = manifest.model_copy(update={"variants": (*manifest.variants, Variant(name="x", settings={}))})
    (caveat, *_) = caveats(judge(replace(judgement.results, manifest=tuning)))
    assert "are not finished, and 1 of 3 variants have no run of the comparison yet. If verdicts" in caveat


def test_a_sweep_of_which_a_variant_is_only_tuned(tmp_path: Path) -> None:
    results = judged(tmp_path).results
    manifest = results.manifest
    tuning = manifest.model_copy(update={"variants": (*manifest.variants, Variant(name="x", settings={}))})
    (caveat, *_) = caveats(judge(replace(results, manifest=tuning)))
    assert caveat.startswith("1 of 3 variants have no run of the comparison yet. If verdicts")
    ended = Variant(name="x", settings={}, tuned_on_border=("optimizer.lr",))
    left_out = manifest.model_copy(update={"variants": (*manifest.variants, ended)})
    (caveat, *others) = caveats(judge(replace(results, manifest=left_out)))
    assert caveat == "x: the best optimizer.lr is at the border of all that was tried: no verdict"
    assert not [other for other in others if "yet" in other]


def test_tuning_on_unequal_terms(tmp_path: Path) -> None:
    rates = {"base": {1e-3: 3.1, 1e-2: 3.2}, "new": {1e-3: 3.1, 3e-3: 3.0, 1e-2: 3.2}}
    border, trials, one_seed, best, unknown, one_size = caveats(judged(tmp_path, tune=rates, border=["base"]))
    assert border.startswith("base: the best optimizer.lr tried, 0.001, lies at the edge of its range")
    assert trials.startswith("the variants were tuned with different numbers of runs (base: 2, new: 3)")
    assert one_seed.startswith("tuned with one seed")
    assert best.startswith("the best point of a x10 grid was taken, not the vertex of a parabola")
    assert unknown.startswith("how large a difference tuning alone makes is not known")
    assert one_size.startswith("one size and one budget")


def test_a_vertex_that_is_the_best_point_is_no_best_point(tmp_path: Path) -> None:
    """A sweep records its rule; one of an older zoo is recognised by a rate that was not tried."""
    rates = {name: {1e-3: 3.03, 3e-3: 3.0, 9e-3: 3.03} for name in ("base", "new")}
    results = judged(tmp_path, tune=rates).results
    for vertex, told in ((None, True), (False, True), (True, False)):
        assert results.manifest.tune is not None
        tune = results.manifest.tune.model_copy(update={"vertex": vertex})
        changed = replace(results, manifest=results.manifest.model_copy(update={"tune": tune}))
        assert any("not the vertex of a parabola" in caveat for caveat in caveats(judge(changed))) is told


def test_what_tuning_alone_makes(tmp_path: Path) -> None:
    rates = {name: {1e-3: 3.03, 3e-3: 3.0, 9e-3: 3.03} for name in ("base", "new")}
    steep_rates = {name: {rate: 3 + (loss - 3) * 30 for rate, loss in rates[name].items()} for name in rates}
    flat = judged(tmp_path / "flat", tune=rates)
    steep = judged(tmp_path / "steep", tune=steep_rates)
    gaps = [gap(judgement.results, "new") for judgement in (flat, steep)]
    assert gaps[0] is not None
    assert gaps[1] is not None
    assert gaps[1] > 10 * gaps[0]
    words = [judgement.verdicts[1].word for judgement in (flat, steep)]
    assert words[1] == "undecided" != words[0]
    assert "of what tuning alone makes" in steep.verdicts[1].why
    # What the sweep would have shown lies beyond that, and no number of seeds shows less.
    comparison = steep.verdicts[1].comparison
    assert comparison is not None
    beyond = 3 * gaps[1] + t.ppf(0.8, comparison.n - 1) * comparison.error
    assert comparison.detectable == pytest.approx(beyond)
    assert comparison.seeds is None
    assert verdict_table(steep).rows[1][-2] == "no number"


def test_tuning_seeds_in_the_comparison(tmp_path: Path) -> None:
    """They flatter; what is left without them is told."""
    results = read_results([write_sweep(tmp_path / "sweep", FINALS)])
    runs = [
        r if r.seed else r.model_copy(update={"phases": ("tune", "final")}) for r in results.manifest.runs
    ]
    manifest = results.manifest.model_copy(update={"runs": tuple(runs)})
    (caveat,) = caveats(judge(replace(results, manifest=manifest)))
    assert caveat.startswith("seed 0 was used to choose the tuned values as well as in the comparison")
    # Seeds 1 and 2: differences of 0.09 and 0.10, which one degree of freedom takes for p = 0.03.
    assert caveat.endswith("Without it every verdict is the same")


@pytest.mark.parametrize(("unfinished", "word"), [("new", "undecided"), ("base", "better")])
def test_run_folders_that_ended_early(tmp_path: Path, unfinished: str, word: str) -> None:
    """They could be the bad ones of the side that seems better; those of the other side could not."""
    for name, rate, losses in (("base", "1e-3", (3.0, 3.01, 2.99)), ("new", "2e-3", (2.9, 2.91, 2.89))):
        for seed, final in enumerate(losses):
            write_run(
                tmp_path / f"{name}-{seed}", curve(final), seed=seed, overrides=[f"optimizer.lr={rate}"]
            )
        if name == unfinished:
            early, overrides = curve(losses[0])[:3], [f"optimizer.lr={rate}"]
            write_run(tmp_path / f"{name}-3", early, seed=3, overrides=overrides)
    verdict = judge(read_results(sorted(tmp_path.iterdir()))).verdicts[1]
    assert verdict.word == word
    assert ("1 of 4 runs of new ended early, or have not ended" in verdict.why) == (word == "undecided")


def test_tuning_seeds_stay_in_the_tuning(tmp_path: Path) -> None:
    """Without them in the comparison, what tuning alone makes still decides."""
    steep = {name: {1e-3: 3.9, 3e-3: 3.0, 9e-3: 3.9} for name in ("base", "new")}
    results = judged(tmp_path, tune=steep).results
    chosen = {
        run.variant: run.tuned for run in results.manifest.runs if run.tuned.get("optimizer.lr") == 3e-3
    }
    runs = [
        run.model_copy(update={"phases": ("tune", "final"), "tuned": chosen[run.variant]})
        if run.seed == 0 and run.phases == ("final",)
        else run
        for run in results.manifest.runs
        if not (run.phases == ("tune",) and run.tuned.get("optimizer.lr") == 3e-3)
    ]
    manifest = results.manifest.model_copy(update={"runs": tuple(runs)})
    judgement = judge(replace(results, manifest=manifest))
    assert "of what tuning alone makes" in judgement.verdicts[1].why
    (caveat,) = (text for text in caveats(judgement) if text.startswith("seed 0 was used to choose"))
    assert caveat.endswith("Without it every verdict is the same")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"overrides": ["train.precision=bf16"]}, "the runs differ in precision"),
        ({"overrides": ["train.eval_batches=3"]}, "the runs differ in validation batches"),
        ({"overrides": ["data.context=32"]}, "the runs differ in length of the examples"),
        ({"overrides": ["model.type=bert", "data.objective=mlm"]}, "the runs differ in objective"),
        ({"environment": {"device": "cuda"}}, "the runs differ in machine"),
        ({"environment": {"git_commit": "abc"}}, "the runs differ in commit of zoo"),
        ({"environment": {"packages": {"torch": "0"}}}, "the runs differ in package versions"),
        ({"environment": {"threads": 3}}, "the runs differ in number of threads or ranks"),
        ({"size": {"parameters": 1020}}, "new: 1,020 parameters, +2.0% against the baseline's 1,000"),
    ],
)
def test_unequal_surroundings(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    folder = write_sweep(tmp_path / "sweep", FINALS)
    path = folder / "runs" / "new-1"
    if "size" in options:
        path = folder / "runs" / "new-0"
    path.rename(tmp_path / "old")
    seed = int(path.name[-1])
    write_run(path, curve(FINALS["new"][seed]), seed=seed, **options)
    (caveat,) = caveats(judge(read_results([folder])))
    assert caveat.startswith(message)


def test_a_finished_run_without_a_loss_is_named(tmp_path: Path) -> None:
    """Nothing was held out: there was no word on it, only a verdict of "no result"."""
    runs = [write_run(tmp_path / f"new-{i}", curve(3.0), seed=i) for i in range(2)]
    for run in runs:
        metrics = run / "metrics.jsonl"
        kept = [line for line in metrics.read_text().splitlines() if '"validation"' not in line]
        metrics.write_text("\n".join(kept) + "\n")
    told = caveats(judge(read_results(runs)))
    assert told == ["new: seed 0, 1 recorded no finite loss after the last step and counts in no mean"]


def test_unequal_budgets(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "sweep", FINALS)
    (folder / "runs" / "new-1").rename(tmp_path / "old")
    write_run(folder / "runs" / "new-1", curve(2.9)[:-1], seed=1)
    found = caveats(judge(read_results([folder])))
    assert found == [
        "the runs have read 5,760 to 6,400 tokens (of other data: texts, examples or images): final losses "
        "are not at the same budget"
    ]


def test_speedup_factors_by_hand(tmp_path: Path) -> None:
    """Losses fall from 6 along a line to the final one: 3.0 is there at 3 / (6 - final) of the steps."""
    results = read_results([write_sweep(tmp_path / "sweep", {**FINALS, "slow": [3.5, 2.9, 3.2]})])
    assert target_loss(results) == pytest.approx(3.0)
    found = {(s.variant, s.cost): s for s in speedups(results)}
    assert len(found) == 8
    new = found["new", "steps"]
    expected = [STEPS * 3 / (6 - final) for final in FINALS["new"]]
    assert list(new.needed.values()) == pytest.approx(expected)
    assert new.factor == pytest.approx(STEPS / np.mean(expected))
    assert new.range == pytest.approx((STEPS / max(expected), STEPS / min(expected)))
    assert found["new", "seconds"].baseline == pytest.approx(STEPS * 0.5)
    assert found["new", "tokens"].factor == pytest.approx(new.factor)
    slow = found["slow", "steps"]
    assert (slow.needed[0], slow.needed[2], slow.factor) == (None, None, None)
    assert slow.range is not None


def test_no_speedup_to_a_loss_that_has_risen(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "sweep", {"base": [7.0, 3.0], "new": [3.0, 3.1]})
    judgement = judge(read_results([folder]))
    assert target_loss(judgement.results) is None
    assert not speedups(judgement.results)
    assert not speedup_table(judgement.results).rows
    assert "base: seed 0 ended no lower than it began; no speed-up to that" in caveats(judgement)


def test_time_of_a_resumed_run(tmp_path: Path) -> None:
    """The clock starts anew at step 60; the seconds go on, and validation takes none of them."""
    folder = write_run(tmp_path / "run", curve(3.0), step_seconds=0.5)
    text = (folder / "metrics.jsonl").read_text()
    for step in range(60, STEPS + 1, 10):
        text = text.replace(f'"seconds": {step * 0.5}', f'"seconds": {(step - 50) * 0.5}')
    (folder / "metrics.jsonl").write_text(text)
    assert read_run_metrics(folder).validation.seconds == pytest.approx(np.arange(0, STEPS + 1, 10) * 0.5)


def test_spikes_are_counted(tmp_path: Path) -> None:
    """Steps that follow each other are one spike; a loss that is no number rises without end."""
    spikes = [
        {"kind": "spike", "step": 20 + i, **asdict(Spike(20 + i, "loss", 9.0, 3.0, 8.0, depth, n, 1, "log"))}
        for i, (n, depth) in enumerate([(1, 6.0), (1, 6.5), (2, 0.5)])
    ]
    found = read_run_metrics(write_run(tmp_path / "run", curve(3.0), more=spikes))
    assert (found.spikes, found.spike_depth) == (2, 6.5)
    spikes[2]["depth"] = None
    assert read_run_metrics(write_run(tmp_path / "nan", curve(3.0), more=spikes)).spike_depth == np.inf
    assert found.peak_memory == 2**30
    assert found.step_seconds == pytest.approx(0.5)


def test_time_and_speed_agree(tmp_path: Path) -> None:
    """Targets per second are those of the mean time per step, not the mean of the speeds."""
    times = {0: 0.1, 1: 1.9}
    runs = [
        write_run(tmp_path / f"run-{s}", curve(3.0), seed=s, step_seconds=t, overrides=["train.steps=100"])
        for s, t in times.items()
    ]
    ((_, seconds, speed, *_),) = cost_table(read_results(runs)).rows
    assert (seconds, speed) == pytest.approx((1.0, TOKENS))


def test_many_variants_share_sentences(pattern: RunMetrics) -> None:
    finals = {f"v{i}": [3.0, 3.01 + i / 1000, 2.99] for i in range(7)} | {"good": [2.0, 2.02, 2.01]}
    told = judge(sweep(pattern, finals)).sentences
    assert told == ["undecided, against v0: v1; v2; v3; v4; v5; v6.", "better, against v0: good."]
