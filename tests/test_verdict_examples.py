"""`zoo verdict --json` on random tables, against the statistics of its design written down once more."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import zoo
from numpy.typing import NDArray
from scipy import optimize, stats

Array = NDArray[np.float64]
Runs = dict[tuple[int, float, int], float]
"""The losses of one size: (0 for the baseline or 1 for the variant, tokens, seed) -> loss."""
FEWEST_DRIFT = 3
"""The number of budgets from which the factor may depend on the budget."""


@dataclass(frozen=True)
class Example:
    """A table of two variants.

    Attributes:
        factor: the true factor c as a function of millions of parameters.
        seeds: number of seeds of every size.
        budgets: budgets of the baseline, relative to the smallest one.
        theirs: budgets of the variant; None: those of the baseline.
        fewer: number of seeds that the variant lacks.
        other: whether the variant has other seeds than the baseline.
        tau: noise of a run in ln tokens.
        ratio: factor between neighbouring sizes.
    """

    factor: Callable[[float], float]
    seeds: Sequence[int]
    budgets: Sequence[float] = (1, 2, 4)
    theirs: Sequence[float] | None = None
    fewer: int = 0
    other: bool = False
    tau: float = 0.03
    ratio: float = 2.0

    def draw(self, random: np.random.Generator) -> dict[float, Runs]:
        """The runs by number of parameters."""
        sizes: dict[float, Runs] = {}
        for i, seeds in enumerate(self.seeds):
            size = 0.25 * self.ratio**i
            runs: Runs = {}
            for side, budgets in enumerate((self.budgets, self.theirs or self.budgets)):
                c = self.factor(size) if side else 1.0
                for seed in range(seeds - side * self.fewer):
                    for budget in budgets:
                        tokens = round(2e6 * budget * (size / 0.25) ** 0.3)
                        seen = c * tokens / 1e6 * np.exp(self.tau * random.standard_normal())
                        loss = 0.45 + 0.25 * size**-0.3 + 0.8 * seen**-0.3
                        runs[side, tokens, seed + 100 * side * self.other] = float(loss)
            sizes[round(size * 1e6)] = runs
        return sizes


EXAMPLES = {
    "constant": Example(lambda n: 1.3, (3, 3, 3, 3, 3)),
    "shrinks": Example(lambda n: 1.6 * (n / 0.25) ** -0.1, (4, 3, 3, 3, 2, 2), tau=0.01),
    "grows": Example(lambda n: (n / 0.25) ** 0.12, (2, 3, 4, 5, 6, 2, 2), tau=0.01),
    "slower": Example(lambda n: 0.8, (4, 4, 4, 4), ratio=4.0),
    "no difference": Example(lambda n: 1.0, (3, 3, 3, 3, 3, 3), tau=0.1),
    "two budgets": Example(lambda n: 1.1, (3, 3, 2, 2, 2), budgets=(1, 2)),
    "five budgets": Example(lambda n: 2.5, (2, 2, 2, 2), budgets=(1, 2, 4, 8, 16)),
    "hardly any noise": Example(lambda n: 1.1, (2, 2, 2, 2, 2), tau=1e-4),
    "other seeds": Example(lambda n: 1.1, (3, 3, 2, 2, 2), other=True),
    "fewer seeds": Example(lambda n: 1.2, (5, 4, 4, 3, 3), fewer=1, tau=0.01),
    "a longer run of the baseline": Example(
        lambda n: 1.2, (3, 3, 3, 3, 3), budgets=(1, 2, 4, 8), theirs=(1, 2, 4)
    ),
}


def shift(runs: Runs) -> tuple[float, float]:
    """ln c and drift: ln L = g(u) and g(u + theta + phi u), g a quadratic or with two budgets a line."""
    cells = sorted({(side, tokens) for side, tokens, _ in runs})
    y = [np.mean([np.log(v) for k, v in runs.items() if k[:2] == cell]) for cell in cells]
    side = np.array([float(side) for side, _ in cells])
    x = np.log([tokens for _, tokens in cells])
    u = x - x[side == 1].mean()  # theta is the mean over the tokens that the variant was trained on
    budgets = int(min(side.sum(), (1 - side).sum()))

    def residuals(p: Array) -> Any:
        powers = np.vander(u + side * (p[0] + (p[1] * u if len(p) > 1 else 0)), min(3, budgets))
        return powers @ np.linalg.lstsq(powers, np.array(y), rcond=None)[0] - y

    start = np.zeros(2 if budgets >= FEWEST_DRIFT else 1)
    found = optimize.least_squares(residuals, start, x_scale=0.1, xtol=1e-14, ftol=1e-14, gtol=1e-14).x
    return float(found[0]), float(found[1]) if len(found) > 1 else 0.0


def standard_error(runs: Runs) -> float:
    """By deleting one seed of both sides; of sides without a common seed the variances are added."""
    sides = [{seed for side, _, seed in runs if side == k} for k in (0, 1)]
    units = (
        [sorted(seeds) for seeds in sides] if sides[0].isdisjoint(sides[1]) else [sorted(set.union(*sides))]
    )
    deleted = [[shift({k: v for k, v in runs.items() if k[2] != seed})[0] for seed in unit] for unit in units]
    return float(np.sqrt(sum((len(thetas) - 1) * np.var(thetas) for thetas in deleted)))


class Line:
    """The unweighted line over ln N and the wider of two intervals."""

    def __init__(self, sizes: Array, theta: Array, se: Array, seeds: Array) -> None:
        self.x, self.theta = np.log(sizes), theta
        self.inverse = np.linalg.pinv(np.vander(self.x, 2))  # slope, intercept
        rest = theta - np.vander(self.x, 2) @ self.inverse @ theta
        self.scatter, self.df = rest @ rest / (len(theta) - 2), len(theta) - 2
        free, of_one = seeds - 1, seeds * se**2
        others = [np.average(np.delete(of_one, i), weights=np.delete(free, i)) for i in range(len(theta))]
        self.of_seeds = (free * of_one + 3 * np.array(others)) / (free + 3) / seeds
        self.free = free + 3

    def read(
        self, slope: float, intercept: float, level: float = 0.95, further: int = 0
    ) -> tuple[float, float]:
        """A value on the line and half its interval; with `further`=1 that of one further size there."""
        weights = np.array([slope, intercept]) @ self.inverse
        parts = weights**2 * self.of_seeds
        freedom = parts.sum() ** 2 / (parts**2 / self.free).sum()
        halves = (
            stats.t.ppf((1 + level) / 2, self.df) * np.sqrt(self.scatter * (weights @ weights + further)),
            stats.t.ppf((1 + level) / 2, freedom) * np.sqrt(parts.sum() + further * self.of_seeds.mean()),
        )
        return float(weights @ self.theta), float(max(halves))


Judge = Callable[[dict[float, Runs]], Any]


@pytest.fixture
def judge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Judge:
    """Writes the runs by number of parameters to a table and reads the verdict on the variant as JSON."""

    def judged(ladder: dict[float, Runs]) -> Any:
        rows = [
            f"{'ab'[side]},{size},{tokens},{seed},{loss!r}"
            for size, runs in ladder.items()
            for (side, tokens, seed), loss in runs.items()
        ]
        file = tmp_path / "runs.csv"
        file.write_text("\n".join(["variant,size,tokens,seed,loss", *rows]))
        zoo("verdict", file, "--baseline", "a", "--margin", "1.1", "--json")
        return json.loads(capsys.readouterr().out)["variants"]["b"]

    return judged


@pytest.mark.parametrize("name", EXAMPLES)
def test_random_examples(name: str, judge: Judge) -> None:
    ladder = EXAMPLES[name].draw(np.random.default_rng(list(EXAMPLES).index(name)))
    found = judge(ladder)
    sizes = np.array(list(ladder), dtype=np.float64)
    theta, drift = np.array([shift(runs) for runs in ladder.values()]).T
    se = np.array([standard_error(runs) for runs in ladder.values()])
    seeds = np.array(EXAMPLES[name].seeds, dtype=np.float64) - EXAMPLES[name].fewer
    for key, expected in (("params", sizes), ("ln_c", theta), ("se", se), ("seeds", seeds)):
        assert [size[key] for size in found["sizes"]] == pytest.approx(expected, abs=1e-6), key
    drifts = [size["drift"] for size in found["sizes"]]
    assert drifts == ([None] * len(drifts) if name == "two budgets" else pytest.approx(drift, abs=1e-6))

    line, x = Line(sizes, theta, se, seeds), np.log(sizes)
    places = {"middle": (x.mean(), 1.0), "largest": (x[-1], 1.0), "slope": (1.0, 0.0)}
    values = {key: (*line.read(*place), line.read(*place, 0.9)[1]) for key, place in places.items()}
    for key, expected in values.items():
        assert tuple(found["line"][key].values()) == pytest.approx(expected, abs=1e-6), key
    before = Line(sizes[:-1], theta[:-1], se[:-1], seeds[:-1]).read(x[-1], 1.0, further=1)
    assert [found["back_test"][key] for key in ("predicted", "half95", "found")] == pytest.approx(
        [*before, theta[-1]], abs=1e-6
    )
    beyond = line.read(x[-1] + np.log(2), 1.0, further=1)
    assert tuple(found["line"]["prediction_2x"].values()) == pytest.approx(beyond, abs=1e-6)

    (middle, half, _), margin = values["middle"], np.log(1.1)
    equal = all(abs(values[key][0]) + values[key][2] <= margin for key in ("middle", "largest"))
    word = "equal" if equal else "undecided"
    assert found["word"] == (word if abs(middle) <= half else "faster" if middle > 0 else "slower")
    assert found["within_margin"] is equal


def test_the_trend_of_a_factor_that_passes_one(judge: Judge) -> None:
    """It grows, whatever the sign of ln c in the middle, where the variant is neither faster nor slower."""
    example = Example(lambda n: n**0.15, (3, 3, 3, 3, 3), tau=0.05)
    found = [judge(example.draw(np.random.default_rng(study))) for study in range(4)]
    assert {verdict["line"]["middle"]["estimate"] > 0 for verdict in found} == {False, True}
    assert {(verdict["word"], verdict["trend"]) for verdict in found} == {("undecided", "grows")}


def test_the_trend_of_a_slower_variant_is_that_of_its_disadvantage(judge: Judge) -> None:
    example = Example(lambda n: 0.6 * (n / 0.25) ** 0.12, (3, 3, 3, 3, 3), tau=0.01)
    found = judge(example.draw(np.random.default_rng(0)))
    assert (found["word"], found["trend"]) == ("slower", "shrinks")
    assert "The disadvantage shrinks" in found["sentence"]
