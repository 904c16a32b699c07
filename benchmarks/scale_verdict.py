"""The simulated properties of the verdict across scale, beside what its design states.

    python -m benchmarks.scale_verdict --share 1 --out docs/results/scale-verdict.md

With `--share 0.1` a tenth of the studies; the tolerances widen accordingly. Every row fixes its generator.
"""

from __future__ import annotations

import argparse
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations_with_replacement, permutations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from zoo.ablate.scale.chain import claims
from zoo.ablate.scale.items import compare_items
from zoo.ablate.scale.law import fit_law
from zoo.ablate.scale.line import Estimate, Line, back_test
from zoo.ablate.scale.looks import anytime_value, critical_values, critical_values_of_sizes
from zoo.ablate.scale.simulate import KAPPA, TAU, Design, Faults, measured, simulate
from zoo.ablate.scale.speedup import Cells
from zoo.ablate.scale.tuning import chosen_rates

Array = NDArray[np.float64]
LARGEST = 6.4e6
DESIGN_C = Design(
    (0.2e6, 0.4e6, 0.8e6, 1.6e6, 3.2e6, 6.4e6), (6e6, 7e6, 8e6, 9e6, 10e6, 11e6), (4, 3, 3, 3, 2, 2)
)
"""Six sizes a factor of two apart: the recommended design."""


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
    studies: int, ln_c: Callable[[float], float], seed: int, faults: Faults | None = None
) -> dict[str, Array]:
    """Studies of design C: estimates, half widths and what the smaller sizes say."""
    out: dict[str, list[float]] = defaultdict(list)
    smallest = DESIGN_C.params[0]
    truth = {
        "middle": ln_c(math.exp(float(np.mean(np.log(DESIGN_C.params))))),
        "largest": ln_c(LARGEST),
        "slope": (ln_c(LARGEST) - ln_c(smallest)) / math.log(LARGEST / smallest),
    }
    losses = simulate(DESIGN_C, ln_c, np.random.default_rng(seed), studies, faults)
    for sizes in measured(DESIGN_C, losses):
        line = Line(sizes)
        for key, true in truth.items():
            value: Estimate = getattr(line, key)
            half = value.half95
            out[f"{key} covered"].append(abs(value.estimate - true) <= half)
            scatter = float(stats.t.ppf(0.975, value.df_scatter)) * value.scatter
            out[f"{key} covered by scatter"].append(abs(value.estimate - true) <= scatter)
            out[f"{key} above"].append(value.estimate - half > 0)
            out[f"{key} below"].append(value.estimate + half < 0)
            out[f"{key} half"].append(half)
            out[f"{key} within 1.1"].append(abs(value.estimate) + value.half_width(0.9) <= math.log(1.1))
        out["back-test hits"].append(back_test(sizes).holds(sizes[-1].ln_c))
        out["2 x covered"].append(line.predict(math.log(2 * LARGEST)).holds(ln_c(2 * LARGEST)))
        own = [abs(size.ln_c - ln_c(size.params)) <= (size.half_width() or math.inf) for size in sizes]
        out["sizes covered"].append(float(np.mean(own)))
    return {key: np.asarray(values, dtype=np.float64) for key, values in out.items()}


def bias(studies: int) -> Iterator[Row]:
    """Without noise: what the curve's quadratic does to a scaling law with an irreducible loss."""
    design = Design((1e6,), (20e6,), (1,))
    for c in (1.0, 1.2, 1.5, 2.0):
        random = np.random.default_rng([0, round(10 * c)])
        sizes = measured(design, simulate(design, constant(c), random, studies, tau=0.0))
        found = float(np.mean([size.ln_c for (size,) in sizes])) - math.log(c)
        yield Row(f"bias of theta without noise, c = {c}", studies, found, 0.0, 0.001)


def one_size(studies: int) -> Iterator[Row]:
    for seeds in (3, 5):
        design = Design((1e6,), (20e6,), (seeds,))
        for c in (1.0, 1.2, 1.5):
            random = np.random.default_rng([1, seeds, round(10 * c)])
            sizes = measured(design, simulate(design, constant(c), random, studies))
            hits = [abs(size.ln_c - math.log(c)) <= (size.half_width() or 0) for (size,) in sizes]
            name = f"coverage, one size, {seeds} seeds, c = {c}"
            yield Row(name, studies, float(np.mean(hits)), 0.95, 0.016)


def bootstrap(studies: int) -> Iterator[Row]:
    """The percentile bootstrap over three seeds, which must not be used."""
    design, random = Design((1e6,), (20e6,), (3,)), np.random.default_rng(2)
    (losses,) = simulate(design, constant(1.2), random, studies)
    thetas = []
    for draw in combinations_with_replacement(range(3), 3):
        (fitted,) = zip(*measured(design, [losses[..., draw]]), strict=True)
        # Draws in another order are the same resample; all 27 are equally likely.
        thetas += [[size.ln_c for size in fitted]] * len(set(permutations(draw)))
    low, high = np.quantile(thetas, (0.025, 0.975), axis=0)
    hits = (low <= math.log(1.2)) & (math.log(1.2) <= high)
    yield Row("coverage, bootstrap over 3 seeds (not used)", studies, hits.mean(), 0.71, 0.05)


def lines_right(studies: int) -> Iterator[Row]:
    for i, (what, ln_c) in enumerate(
        {"1": constant(1.0), "1.5": constant(1.5), "1.2 falling to 1": falling(1.2)}.items()
    ):
        out = of_lines(studies, ln_c, 10 + i)
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
    out = of_lines(studies, constant(1.2), 20, Faults(tuning=0.03))
    yield Row("coverage, tuning gap .03, middle", studies, out["middle covered"].mean(), 0.95, 0.025)
    yield Row("coverage, tuning gap .03, largest", studies, out["largest covered"].mean(), 0.96, 0.025)
    yield Row("size by itself, tuning gap .03", studies, out["sizes covered"].mean(), 0.87, 0.07)
    everything = Faults(0.03, 0.02, 0.05, 0.3, 0.8, (0.03, 0.1))
    out = of_lines(studies, constant(1.2), 21, everything)
    for key in ("middle", "largest"):
        yield Row(f"coverage, everything wrong, {key}", studies, out[f"{key} covered"].mean(), 0.96, 0.045)


def power(studies: int) -> Iterator[Row]:
    out = of_lines(studies, constant(1.1), 30)
    yield Row("power, largest size, c = 1.1", studies, out["largest above"].mean(), 0.96, 0.03)
    equal = (out["middle within 1.1"] * out["largest within 1.1"]).mean()
    yield Row("equivalence, margin 1.1, truly 1.1", studies, equal, 0.03, 0.03)
    out = of_lines(studies, falling(1.2), 31)
    yield Row("power, trend, 1.2 falling to 1", studies, out["slope below"].mean(), 0.98, 0.03)


def bends(studies: int) -> Iterator[Row]:
    out = of_lines(studies, lambda n: 0.0 if n >= LARGEST else math.log(1.3), 40)
    yield Row("back-test hits, break at the largest size", studies, out["back-test hits"].mean(), 0.02, 0.02)
    out = of_lines(studies, lambda n: math.log(1.5) * (n / 0.2e6) ** -0.3, 41)
    yield Row("prediction 2 x, ln c ~ N^-.3", studies, out["2 x covered"].mean(), 0.98, 0.015)


def as_cells(design: Design, losses: Sequence[Array], study: int) -> list[dict[float, Cells]]:
    """One study as a table: of each side, by size, the losses by tokens and seed."""
    return [
        {
            params: {
                (longest * share, seed): float(of_size[study, side, j, seed])
                for j, share in enumerate(design.budgets)
                for seed in range(of_size.shape[3])
            }
            for params, longest, of_size in zip(design.params, design.tokens, losses, strict=True)
        }
        for side in (0, 1)
    ]


def laws(studies: int) -> Iterator[Row]:
    kinds = {"right": None, "sizes off by .02": Faults(off_law=0.02), "tuning gap .03": Faults(tuning=0.03)}
    for i, ((what, faults), wanted) in enumerate(zip(kinds.items(), (0.95, 0.97, 0.96), strict=True)):
        losses = simulate(DESIGN_C, constant(1.2), np.random.default_rng(50 + i), studies, faults)
        fitted = [fit_law(*as_cells(DESIGN_C, losses, study)) for study in range(studies)]
        hits = [abs(law.ln_c - math.log(1.2)) <= (law.half95 or math.inf) for law in fitted]
        yield Row(f"law, delete one size, {what}", studies, float(np.mean(hits)), wanted, 0.03)


def tuning_rules(studies: int) -> Iterator[Row]:
    """What tuning leaves undone, over kappa u^2 exp(.4 u), with grids centred off by up to 1.5 in ln rate."""
    rules = {
        "x3 grid, best point": (3.0, False, 0.025, 0.041),
        "x2 grid, parabola": (2.0, True, 0.007, 0.015),
    }
    for i, (what, (factor, interpolated, regret, gap)) in enumerate(rules.items()):
        random = np.random.default_rng([90, i])
        x = math.log(factor) * np.arange(-2.0, 3) + random.uniform(-1.5, 1.5, (2 * studies, 1))
        left = lost(chosen_rates(x, partial(noisy, random), interpolated, 4 * interpolated))
        yield Row(f"regret, {what}", studies, left.mean(), regret, 0.1 * regret)
        sd = (left[:studies] - left[studies:]).std()
        yield Row(f"sd of the gap, {what}", studies, sd, gap, 0.1 * gap)


def lost(u: Array) -> Array:
    """Tokens lost, as a logarithm, at a rate off by u."""
    value: Array = KAPPA * u**2 * np.exp(0.4 * u)
    return value


def noisy(random: np.random.Generator, u: Array) -> Array:
    value: Array = lost(u) + TAU * random.standard_normal(u.shape)
    return value


def rates_over_sizes(studies: int) -> Iterator[Row]:
    """The best ln rate falls as N^-.25 with a scatter of .15 between sizes; regret at the largest one."""
    random = np.random.default_rng(91)
    x = np.log(DESIGN_C.params)
    best = -0.25 * (x - x[0]) + 0.15 * random.standard_normal((studies, len(x)))
    found = np.empty_like(best)
    grid = math.log(2) * np.arange(-2.0, 3)
    for i in range(len(x)):
        if i < 3:
            at = grid + random.uniform(-1.5, 1.5, (studies, 1))
        else:
            at = math.log(2) * np.arange(-1.0, 2) + line_at(x[:i], found[:, :i], x[i])[:, None] - best[:, [i]]
        here = chosen_rates(at, partial(noisy, random), True, 4)
        found[:, i] = here + best[:, i]
    rules = {
        "one rate": (found[:, 0], 0.24),
        "line from three sizes": (line_at(x[:3], found[:, :3], x[-1]), 0.10),
        "bracket about the line": (found[:, -1], 0.007),
    }
    for what, (rate, wanted) in rules.items():
        regret = lost(rate - best[:, -1]).mean()
        yield Row(f"regret at the largest size, {what}", studies, regret, wanted, 0.1 * wanted)


def line_at(x: Array, y: Array, at: float) -> Array:
    """Straight lines through the rows of y over x, read at one place."""
    slopes = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    value: Array = y.mean(1) + y @ slopes * (at - x.mean())
    return value


def sequential(studies: int) -> Iterator[Row]:
    random = np.random.default_rng(60)
    for d in (0.0, 1.0):
        draws = random.standard_normal((studies, 10)) + d
        n = np.arange(3, 11)
        t = np.stack([draws[:, :k].mean(1) / draws[:, :k].std(1, ddof=1) * math.sqrt(k) for k in n], 1)
        beyond = np.abs(t) >= np.array(critical_values(10, studies=400_000))
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


SEEDS_OF_ITEMS, DIFFICULTY = 0.08, 2.0
"""Standard deviations of the logit of a right answer: over seeds, as stated, and over items.

The design does not state the second. McNemar's test with one seed each rejects with probability
2 Phi(-1.96 / r), r^2 = 1 + .08^2 n E[p (1 - p)]. Its rates .09 at n = 500 and .24 at 2,000 both ask for
E[p (1 - p)] near .14, which is that of logits with a deviation of 2 (.15); 1 (.21) gives .13 and .31.
"""


def questions(studies: int) -> Iterator[Row]:
    few, many = (_false_alarms_of_items(studies, n) for n in (500, 2000))
    yield Row("items, false alarms, McNemar, one seed, 500 items", studies, few["McNemar"], 0.09, 0.03)
    wanted = {"McNemar": 0.24, "Welch": 0.05, "two-way": 0.045}
    for what, value in wanted.items():
        yield Row(f"items, false alarms, {what}, 2,000 items", studies, many[what], value, 0.03)


def _false_alarms_of_items(studies: int, n: int) -> dict[str, float]:
    """How often each test calls two equal recipes different, with five seeds each and n items."""
    random = np.random.default_rng([80, n])
    alarms = dict.fromkeys(("McNemar", "Welch", "two-way"), 0)
    for _ in range(studies):
        level = random.normal(0, DIFFICULTY, n)
        sides = []
        for _side in (0, 1):
            logit = level + random.normal(0, SEEDS_OF_ITEMS, (5, 1))
            sides.append((random.random((5, n)) < 1 / (1 + np.exp(-logit))).astype(np.float64))
        lost, won = ((sides[1][0] > sides[0][0]).sum(), (sides[1][0] < sides[0][0]).sum())
        alarms["McNemar"] += stats.binomtest(int(won), int(lost + won)).pvalue < 0.05
        alarms["Welch"] += stats.ttest_ind(sides[1].mean(1), sides[0].mean(1), equal_var=False).pvalue < 0.05
        alarms["two-way"] += compare_items(sides[0], sides[1]).p_value < 0.05
    return {what: count / studies for what, count in alarms.items()}


def boundaries(studies: int) -> Iterator[Row]:
    stated = {6: (8.85, 5.28, 3.79, 3.09), 10: (14.74, 7.78, 5.28, 4.18, 3.58, 3.19, 2.91, 2.69)}
    found = {f"n_max {n_max}": critical_values(n_max, studies=studies) for n_max in stated}
    by_size = critical_values_of_sizes(tuple(np.log([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4])), studies=studies)
    tables = [*zip(found, found.values(), stated.values(), strict=True)]
    tables.append(("sizes .1 to 6.4M", by_size, (7.74, 5.15, 3.81, 3.14)))
    for what, values, wanted in tables:
        for look, (value, right) in enumerate(zip(values, wanted, strict=True)):
            tolerance = (0.01 if look else 0.03) * right
            yield Row(f"critical value, {what}, look {look + 1}", studies, value, right, tolerance)


PARTS: dict[str, tuple[Callable[[int], Iterator[Row]], int]] = {
    "law": (laws, 500),
    "lines": (lines_right, 1000),
    "lines, wrong": (lines_wrong, 1000),
    "bends": (bends, 1000),
    "power": (power, 500),
    "bias": (bias, 500),
    "one size": (one_size, 2000),
    "bootstrap": (bootstrap, 1000),
    "tuning": (tuning_rules, 4000),
    "rates over sizes": (rates_over_sizes, 2000),
    "looks": (sequential, 50_000),
    "critical values": (boundaries, 2_000_000),
    "graph": (graph, 10_000),
    "items": (questions, 2000),
}
"""The longest first, so that the workers end together."""


def run(part: str, share: float) -> list[Row]:
    """The rows of a part with a share of its studies; the tolerances widen accordingly."""
    make, studies = PARTS[part]
    count = max(10, round(studies * share))
    widen = math.sqrt(studies / count)
    return [replace(row, tolerance=row.tolerance * widen) for row in make(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=0.05, help="share of the stated numbers of studies")
    parser.add_argument("--out", type=Path, help="write the table there as well")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    with ProcessPoolExecutor(arguments.workers) as pool:
        tasks = [pool.submit(run, part, arguments.share) for part in arguments.parts]
        rows = [row for task in tasks for row in task.result()]
    text = "\n".join(
        ["| property | studies | found | stated | holds |", "|---|---|---|---|---|", *map(str, rows)]
    )
    print(text)
    if arguments.out is not None:
        title = "# Simulated properties of the verdict across scale"
        command = f"`python -m benchmarks.scale_verdict --share {arguments.share:g}`"
        arguments.out.write_text(f"{title}\n\n{command}\n\n{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
