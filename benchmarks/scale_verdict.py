"""The simulated properties of the verdict across scale, beside what its design states.

    python -m benchmarks.scale_verdict --share 1 --out docs/results/scale-verdict.md

With `--share 0.1` a tenth of the studies; the tolerances widen accordingly. Every row fixes its generator.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from zoo.ablate.scale.chain import claims
from zoo.ablate.scale.items import compare_items
from zoo.ablate.scale.law import fit_law
from zoo.ablate.scale.line import Line, back_test
from zoo.ablate.scale.looks import anytime_value, critical_values
from zoo.ablate.scale.simulate import DESIGN_C, Design, Faults, measured, study

Array = NDArray[np.float64]
LARGEST = 6.4e6


@dataclass(frozen=True)
class Row:
    """One property: what came out, and what the design says."""

    name: str
    studies: int
    found: float
    wanted: float
    tolerance: float

    @property
    def holds(self) -> bool:
        return abs(self.found - self.wanted) <= self.tolerance

    def __str__(self) -> str:
        mark = "yes" if self.holds else "**no**"
        stated = f"{self.wanted:g} ± {self.tolerance:.2g}"
        return f"| {self.name} | {self.studies:,} | {self.found:.4g} | {stated} | {mark} |"


def constant(c: float) -> Callable[[float], float]:
    return lambda n: math.log(c)


def falling(c: float) -> Callable[[float], float]:
    """From c at the smallest size to 1 at the largest, straight in ln N."""
    return lambda n: math.log(c) * math.log(LARGEST / n) / math.log(LARGEST / DESIGN_C.params[0])


def of_lines(
    name: str, studies: int, ln_c: Callable[[float], float], seed: int, faults: Faults | None = None
) -> dict[str, Array]:
    """Studies of design C: estimates, half widths and what the smaller sizes say."""
    random = np.random.default_rng(seed)
    keys = ("middle", "largest", "slope")
    out: dict[str, list[float]] = {}
    truth = {
        "middle": ln_c(math.exp(float(np.mean(np.log(DESIGN_C.params))))),
        "largest": ln_c(LARGEST),
        "slope": (ln_c(LARGEST) - ln_c(DESIGN_C.params[0])) / math.log(LARGEST / DESIGN_C.params[0]),
    }
    for _ in range(studies):
        sizes = measured(DESIGN_C, study(DESIGN_C, ln_c, random, faults))
        line = Line(sizes)
        for key in keys:
            value = getattr(line, key)
            out.setdefault(f"{key} covered", []).append(abs(value.estimate - truth[key]) <= value.half95)
            scatter = float(stats.t.ppf(0.975, value.df_scatter)) * value.scatter
            out.setdefault(f"{key} covered by scatter", []).append(
                abs(value.estimate - truth[key]) <= scatter
            )
            out.setdefault(f"{key} above", []).append(value.estimate - value.half95 > 0)
            out.setdefault(f"{key} below", []).append(value.estimate + value.half95 < 0)
            out.setdefault(f"{key} half", []).append(value.half95)
            within = abs(value.estimate) + value.half_width(0.9) <= math.log(1.1)
            out.setdefault(f"{key} within 1.1", []).append(within)
        test = back_test(sizes)
        out.setdefault("back-test hits", []).append(test.holds(sizes[-1].ln_c))
        beyond = line.predict(math.log(2 * LARGEST))
        out.setdefault("2 x covered", []).append(beyond.holds(ln_c(2 * LARGEST)))
        half = [size.half_width() or math.inf for size in sizes]
        own = [abs(s.ln_c - ln_c(s.params)) <= h for s, h in zip(sizes, half, strict=True)]
        out.setdefault("sizes covered", []).append(float(np.mean(own)))
    return {key: np.asarray(values, dtype=np.float64) for key, values in out.items()}


def one_size(studies: int) -> Iterator[Row]:
    for seeds in (3, 5):
        design = Design((1e6,), (20e6,), (seeds,))
        for c in (1.0, 1.2, 1.5):
            random = np.random.default_rng([1, seeds, round(10 * c)])
            hits = []
            for _ in range(studies):
                size = measured(design, study(design, constant(c), random))[0]
                hits.append(abs(size.ln_c - math.log(c)) <= (size.half_width() or math.inf))
            yield Row(
                f"coverage, one size, {seeds} seeds, c = {c}", studies, float(np.mean(hits)), 0.95, 0.016
            )


def lines_right(studies: int) -> Iterator[Row]:
    for i, (what, ln_c) in enumerate(
        {"1": constant(1.0), "1.5": constant(1.5), "1.2 falling to 1": falling(1.2)}.items()
    ):
        out = of_lines(what, studies, ln_c, 10 + i)
        for key, scatter in (("middle", 0.95), ("largest", 0.93), ("slope", 0.95)):
            yield Row(
                f"coverage, line, {key}, c = {what}", studies, out[f"{key} covered"].mean(), 0.98, 0.015
            )
            found = out[f"{key} covered by scatter"].mean()
            yield Row(f"the same by scatter alone, {key}, c = {what}", studies, found, scatter, 0.03)
        if what == "1":
            yield Row(
                "half width at the largest size, c = 1", studies, out["largest half"].mean(), 0.05, 0.004
            )
            yield Row("back-test hits, straight", studies, out["back-test hits"].mean(), 0.97, 0.02)
            yield Row("prediction 2 x, straight", studies, out["2 x covered"].mean(), 1.0, 0.015)
            equal = out["middle within 1.1"] * out["largest within 1.1"]
            yield Row("equivalence, margin 1.1, truly 1", studies, equal.mean(), 1.0, 0.02)


def lines_wrong(studies: int) -> Iterator[Row]:
    out = of_lines("gap", studies, constant(1.2), 20, Faults(tuning=0.03))
    yield Row("coverage, tuning gap .03, middle", studies, out["middle covered"].mean(), 0.95, 0.025)
    yield Row("coverage, tuning gap .03, largest", studies, out["largest covered"].mean(), 0.96, 0.025)
    yield Row("size by itself, tuning gap .03", studies, out["sizes covered"].mean(), 0.87, 0.07)
    everything = Faults(0.03, 0.02, 0.05, 0.3, 0.8, (0.03, 0.1))
    out = of_lines("everything", studies, constant(1.2), 21, everything)
    for key in ("middle", "largest"):
        yield Row(f"coverage, everything wrong, {key}", studies, out[f"{key} covered"].mean(), 0.96, 0.045)


def power(studies: int) -> Iterator[Row]:
    out = of_lines("1.1", studies, constant(1.1), 30)
    yield Row("power, largest size, c = 1.1", studies, out["largest above"].mean(), 0.96, 0.03)
    equal = (out["middle within 1.1"] * out["largest within 1.1"]).mean()
    yield Row("equivalence, margin 1.1, truly 1.1", studies, equal, 0.03, 0.03)
    out = of_lines("1.2 falling", studies, falling(1.2), 31)
    yield Row("power, trend, 1.2 falling to 1", studies, out["slope below"].mean(), 0.98, 0.03)


def bends(studies: int) -> Iterator[Row]:
    out = of_lines("break", studies, lambda n: 0.0 if n >= LARGEST else math.log(1.3), 40)
    yield Row("back-test hits, break at the largest size", studies, out["back-test hits"].mean(), 0.02, 0.02)
    out = of_lines("power", studies, lambda n: math.log(1.5) * (n / 0.2e6) ** -0.3, 41)
    yield Row("prediction 2 x, ln c ~ N^-.3", studies, out["2 x covered"].mean(), 0.98, 0.015)


def laws(studies: int) -> Iterator[Row]:
    kinds = {"right": None, "sizes off by .02": Faults(off_law=0.02), "tuning gap .03": Faults(tuning=0.03)}
    for i, ((what, faults), wanted) in enumerate(zip(kinds.items(), (0.95, 0.97, 0.96), strict=True)):
        random, hits = np.random.default_rng(50 + i), []
        for _ in range(studies):
            sizes = study(DESIGN_C, constant(1.2), random, faults)
            sides = [{n: pair[k] for n, pair in zip(DESIGN_C.params, sizes, strict=True)} for k in (0, 1)]
            law = fit_law(sides[0], sides[1])
            hits.append(abs(law.ln_c - math.log(1.2)) <= (law.half95 or math.inf))
        yield Row(f"law, delete one size, {what}", studies, float(np.mean(hits)), wanted, 0.03)


def sequential(studies: int) -> Iterator[Row]:
    random = np.random.default_rng(60)
    for d in (0.0, 1.0):
        draws = random.standard_normal((studies, 10)) + d
        n = np.arange(3, 11)
        t = np.stack([draws[:, :k].mean(1) / draws[:, :k].std(1, ddof=1) * math.sqrt(k) for k in n], 1)
        beyond = np.abs(t) >= np.array(critical_values(10))
        if d:
            stopped = np.where(beyond.any(1), n[beyond.argmax(1)], 10)
            yield Row("spending, d = 1, power", studies, beyond.any(1).mean(), 0.72, 0.01)
            yield Row("spending, d = 1, mean seeds", studies, float(stopped.mean()), 8.2, 0.1)
            continue
        naive = np.abs(t) >= stats.t.ppf(0.975, n - 1)
        anytime = np.abs(t) >= np.array([anytime_value(int(k)) for k in n])
        for what, hit, wanted in (
            ("uncorrected", naive, 0.167),
            ("spending", beyond, 0.05),
            ("anytime", anytime, 0.018),
        ):
            yield Row(f"false alarms of looks, {what}", studies, hit.any(1).mean(), wanted, 0.006)


def graph(studies: int) -> Iterator[Row]:
    for gains in (0, 2, 3, 4):
        random, wrong = np.random.default_rng([70, gains]), 0
        for _ in range(studies):
            # The first two claims (middle, largest) are true for variants with a gain, the others never.
            z = random.standard_normal((4, 4))
            z[:gains, :2] += 4.0
            p = 2 * stats.norm.sf(np.abs(z))
            held = claims({str(i): tuple(row) for i, row in enumerate(p)})
            wrong += any(held[str(i)] > (2 if i < gains else 0) for i in range(4))
        yield Row(f"any false claim, {gains} of 4 variants gain", studies, wrong / studies, 0.0285, 0.0285)


def questions(studies: int) -> Iterator[Row]:
    random = np.random.default_rng(80)
    alarms = np.zeros(3)
    for _ in range(studies):
        level = random.normal(0, 1, 2000)
        sides = []
        for _side in (0, 1):
            logit = level + random.normal(0, 0.08, (5, 1))
            sides.append((random.random((5, 2000)) < 1 / (1 + np.exp(-logit))).astype(np.float64))
        lost, won = ((sides[1][0] > sides[0][0]).sum(), (sides[1][0] < sides[0][0]).sum())
        alarms[0] += stats.binomtest(int(won), int(lost + won)).pvalue < 0.05
        alarms[1] += stats.ttest_ind(sides[1].mean(1), sides[0].mean(1), equal_var=False).pvalue < 0.05
        alarms[2] += compare_items(sides[0], sides[1]).p_value < 0.05
    names = ("McNemar, one seed", "Welch", "two-way")
    for what, count, wanted in zip(names, alarms, (0.24, 0.05, 0.045), strict=True):
        yield Row(f"items, false alarms, {what}", studies, float(count) / studies, wanted, 0.03)


PARTS: dict[str, tuple[Callable[[int], Iterator[Row]], int]] = {
    "one size": (one_size, 2000),
    "lines": (lines_right, 1000),
    "lines, wrong": (lines_wrong, 1000),
    "power": (power, 500),
    "bends": (bends, 1000),
    "law": (laws, 500),
    "looks": (sequential, 50_000),
    "graph": (graph, 10_000),
    "items": (questions, 2000),
}


def run(part: str, share: float) -> list[Row]:
    make, studies = PARTS[part]
    count = max(10, round(studies * share))
    widen = math.sqrt(studies / count)
    return [Row(r.name, r.studies, r.found, r.wanted, r.tolerance * widen) for r in make(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=0.05, help="share of the stated numbers of studies")
    parser.add_argument("--out", type=Path, help="write the table there as well")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    arguments = parser.parse_args()
    with ProcessPoolExecutor(2) as pool:
        results = list(pool.map(run, arguments.parts, [arguments.share] * len(arguments.parts)))
    rows = ["| property | studies | found | stated | holds |", "|---|---|---|---|---|"]
    rows += [str(row) for part in results for row in part]
    text = "\n".join(rows) + "\n"
    print(text)
    if arguments.out is not None:
        title = "# Simulated properties of the verdict across scale"
        command = f"`python -m benchmarks.scale_verdict --share {arguments.share:g}`"
        arguments.out.write_text(f"{title}\n\n{command}\n\n{text}", encoding="utf-8")


if __name__ == "__main__":
    main()
