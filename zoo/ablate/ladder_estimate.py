"""The cost and the statistical power of a ladder, estimated before it is trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from rich.console import Group

from zoo.ablate.added_seeds import stages
from zoo.ablate.alpha import ALPHA
from zoo.ablate.amount import most_added, of_size
from zoo.ablate.earlier import replaced_runs
from zoo.ablate.estimate import PROBE_STEPS, SpeedProbe
from zoo.ablate.ladder import LadderSize
from zoo.ablate.ladder_noise import noise_of
from zoo.ablate.outcome import Outcome
from zoo.ablate.plan import NOT_STARTED, PlannedRun
from zoo.ablate.run_metrics import read_run_metrics
from zoo.ablate.scale.line import FEWEST_SIZES, Estimate, Line
from zoo.ablate.scale.looks import Looks
from zoo.ablate.scale.runs import AGAIN, format_count, format_counts
from zoo.ablate.scale.simulate import Design, Faults, measured, simulate
from zoo.ablate.scale.size_looks import values_of_looks
from zoo.ablate.scale.speedup import OVERLAP, SizeSpeedup
from zoo.ablate.scale.tuning import GAPS
from zoo.ablate.student_t import critical_value
from zoo.ablate.sweep import Sweep
from zoo.ablate.trained import known_runs, trained_tokens
from zoo.utils.fitting import FittingTable

STUDIES = 300
"""Number of simulated studies for each factor."""
FACTORS = (1.1, 1.2, 1.5)
TRUNK = 0.8
"""Assumed correlation of the budgets of one seed if they are branches of one trunk."""


def estimate_ladder(sweep: Sweep, probe: SpeedProbe) -> Group:
    """The cost of every size, and the power of the design.

    The time is estimated from finished runs of the same size, from their lines, or from a few steps of the
    baseline in a temporary folder. Points that tuning adds beyond a border are not counted.

    Args:
        sweep: a ladder, from `load_sweep`.
        probe: measures the speed of a size without runs; its workers are the runs at a time.

    Raises:
        ZooError: A run folder was edited, or the steps cannot be trained.
    """
    columns = ("size", "runs", "tuning", "tokens", "per parameter", "tokens/s", "core-hours", "left")
    rows: list[list[str]] = []
    outcomes: dict[str, Outcome] = {}
    for stage, of_stage in _stages(sweep).items():
        costs = ladder_costs(of_stage, probe, outcomes)
        for size, cost in zip(of_stage.ladder, costs, strict=True):
            ratios = [f"{budget / size.params:.3g}" for budget in (size.budgets[0], size.budgets[-1])]
            name = format_count(size.params) + (f": {stage}" if stage else "")
            speed = f"{cost.speed:,.0f} ({cost.measured_in})"
            rows.append([name, *cost.cells[:3], "-".join(dict.fromkeys(ratios)), speed, *cost.cells[3:]])
    totals = 0 if sweep.max_seeds is not None else 1
    if totals:
        total = total_cost(costs)
        rows.append(["all", *total.cells[:3], "", "", *total.cells[3:]])
    title, drop = f"{sweep.name}: what it costs", ("per parameter", "tokens/s", "tokens")
    table = FittingTable(title, columns, rows, drop, columns, lines=False, totals=totals)
    added = most_added(sweep.ladder, sweep.tune)
    note = (
        f"Core-hours: hours of one of {probe.workers} workers, at the speed of finished runs of that size or "
        f"of {PROBE_STEPS} steps of the baseline."
        + f" Points that tuning adds beyond a border are not counted, at most {added} runs." * bool(added)
        + " Of a tuning with halving this is the most it can cost." * bool(sweep.tune and sweep.tune.halving)
    )
    replaced = replaced_runs(sweep, known_runs(sweep, outcomes), outcomes)
    return Group(table, _shapes(sweep), note, *sweep.notes, *replaced, *_power(sweep, outcomes))


def _stages(sweep: Sweep) -> dict[str, Sweep]:
    """The sweep with fixed numbers of seeds: those at its first look, and its declared maximum."""
    if sweep.max_seeds is None:
        return {"": sweep}
    (size,) = sweep.ladder
    return {
        stage: replace(sweep, ladder=(replace(size, seeds=seeds),), max_seeds=None)
        for stage, seeds in stages(sweep).items()
    }


def _shapes(sweep: Sweep) -> FittingTable:
    """The shapes of the baseline's models, with the sizes that were asked for."""
    shapes = [size.shape for size in sweep.ladder]
    keys = dict.fromkeys(key for shape in shapes for key in shape)
    columns, rows = ("size", "parameters", "asked", *keys), []
    for size, shape in zip(sweep.ladder, shapes, strict=True):
        asked = "–" if size.asked is None else format_count(size.asked)
        values = [str(shape.get(key, "–")) for key in keys]
        rows.append([format_count(size.params), f"{size.params:,}", asked, *values])
    return FittingTable("Its sizes", columns, rows, ("asked",), columns, lines=False)


@dataclass(frozen=True)
class LadderCost:
    """The cost of one or several sizes of a ladder.

    Attributes:
        runs: number of runs in the comparison.
        tuning: number of runs that choose the rates, without those that borders add.
        tokens: number of tokens of both.
        hours: hours of one worker.
        left: hours that are still to be trained.
        measured_in: the runs in which the speed was measured, in words.
    """

    runs: int
    tuning: int
    tokens: float
    hours: float
    left: float
    measured_in: str

    @property
    def speed(self) -> float:
        """The tokens per second of a worker."""
        return self.tokens / self.hours / 3600

    @property
    def cells(self) -> list[str]:
        """The cells of the table: runs, tuning, tokens, hours, hours left."""
        return [
            f"{self.runs}",
            f"{self.tuning}",
            format_count(self.tokens),
            f"{self.hours:.3g}",
            f"{self.left:.3g}",
        ]


def total_cost(costs: Sequence[LadderCost]) -> LadderCost:
    """The cost of all sizes."""
    return LadderCost(
        sum(cost.runs for cost in costs),
        sum(cost.tuning for cost in costs),
        sum(cost.tokens for cost in costs),
        sum(cost.hours for cost in costs),
        sum(cost.left for cost in costs),
        ", ".join(dict.fromkeys(cost.measured_in for cost in costs)),
    )


def ladder_costs(
    sweep: Sweep, probe: SpeedProbe, outcomes: dict[str, Outcome] | None = None
) -> list[LadderCost]:
    """The cost of every size; see `estimate_ladder`.

    Args:
        sweep: a ladder.
        probe: measures the speed of a size without runs; its workers are the runs at a time.
        outcomes: outcomes by id that are known already, to which those that are read are added.
    """
    outcomes = {} if outcomes is None else outcomes
    planned = known_runs(sweep, outcomes)
    costs = []
    for index, size in enumerate(sweep.ladder):
        runs, tuning, tokens = of_size(size, index, sweep.tune)
        here = [run for run in planned if run.params == size.params]
        speed, measured_in = _speed(sweep, size, here, outcomes, probe)
        left = max(0.0, tokens - trained_tokens(sweep, index, planned, outcomes))
        costs.append(
            LadderCost(runs, tuning, tokens, tokens / speed / 3600, left / speed / 3600, measured_in)
        )
    return costs


def _speed(
    sweep: Sweep,
    size: LadderSize,
    planned: list[PlannedRun],
    outcomes: Mapping[str, Outcome],
    probe: SpeedProbe,
) -> tuple[float, str]:
    """The tokens per second of a worker, and the runs in which they were measured."""
    ended = [run for run in planned if outcomes.get(run.id, NOT_STARTED).losses.get(run.steps) is not None]
    folders = [sweep.runs / run.id for run in ended]
    speeds = [read_run_metrics(folder).tokens_per_second for folder in folders if folder.is_dir()]
    if known := [speed for speed in speeds if speed is not None]:
        return float(np.median(known)), "runs"
    # The speed of a GPU says nothing of that of a core.
    here = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    of_its_size = [line for line in sweep.lines or () if line.run.size == size.params]
    lines = [line for line in of_its_size if line.run.making.accelerator == here]
    if known := [line.run.tokens / line.seconds for line in lines if line.seconds]:
        return float(np.median(known)), "lines"
    side = size.side_of(sweep.baseline)
    of_size = replace(sweep, variants=tuple(v for v in size.variants if v.name == sweep.baseline))
    return side.per_step / probe.seconds(of_size, f"{side.variant}, {format_count(size.params)}"), "steps"


@dataclass(frozen=True)
class Decision:
    """The moment at which a study claims something, and the error that a claim may have.

    Attributes:
        share: the level of a variant's first claim.
        looks: the number of sizes of every look, and the critical value of |t|; None: there is one look.
        seeds: the number of seeds of every look at one size, and the value that |t| must exceed.
    """

    share: float
    looks: tuple[tuple[int, float | None], ...]
    seeds: tuple[tuple[int, float], ...] = ()

    def claims(self, value: Estimate) -> bool:
        """Whether a variant is called faster by this estimate."""
        return value.estimate > 0 and value.p_over_looks(ALPHA) <= self.share

    def line(self, sizes: Sequence[SizeSpeedup]) -> Line:
        """The line at the first look with a claim in the middle of the sizes, or at the last look."""
        for count, critical in self.looks:
            line = Line(sizes[:count])
            line = line if critical is None else line.looked_at(critical)
            if self.claims(line.middle):
                break
        return line


def decision_of(sweep: Sweep) -> Decision:
    """When a ladder decides: its variants share the error, to which a copy of the baseline adds nothing."""
    ladder = sweep.ladder
    others = {side.variant for side in ladder[0].sides} - {sweep.baseline, sweep.baseline + AGAIN}
    share = ALPHA / max(1, len(others))
    if sweep.max_seeds is not None:
        return Decision(share, ((1, None),), _looks_at_seeds(sweep, share))
    if sweep.scale is None or not sweep.scale.until_decided:
        return Decision(share, ((len(ladder), None),))
    values = values_of_looks([size.params for size in ladder], ALPHA)
    return Decision(share, tuple(enumerate(values, FEWEST_SIZES)))


def _looks_at_seeds(sweep: Sweep, share: float) -> tuple[tuple[int, float], ...]:
    """The numbers of seeds at the looks, and the values that |t| must exceed for a variant's first claim."""
    looks, (first, at_most) = Looks(max_seeds=sweep.max_seeds), map(len, stages(sweep).values())
    levels = {n: looks.error_of_look(n, ALPHA) * share / ALPHA for n in range(first, at_most + 1)}
    return tuple((n, critical_value(level, n - 1)) for n, level in levels.items())


def _comparable(size: LadderSize) -> float:
    """The largest |ln c| at which both sides' losses overlap; below 0 the budgets are too close for any."""
    return math.log(size.budgets[-1] / size.budgets[0]) - OVERLAP


def _power(sweep: Sweep, outcomes: dict[str, Outcome]) -> list[FittingTable | str]:
    """The shares of simulated studies of this design that detect given factors.

    There are none for budgets, or for factors, with which the losses of the two sides would not overlap.
    """
    *_, at_most = _stages(sweep).values()
    ladder = at_most.ladder
    judged = ladder if len(ladder) >= FEWEST_SIZES else ladder[-1:]
    if reason := _why_no_power(ladder, judged):
        return [f"Power: {reason}"]
    design = Design(
        tuple(float(size.params) for size in ladder),
        tuple(float(size.budgets[-1]) for size in ladder),
        tuple(len(size.seeds) for size in ladder),
        budgets_by_size=tuple(tuple(budget / size.budgets[-1] for budget in size.budgets) for size in ladder),
    )
    branches = any(size.branches for size in ladder)
    noise = noise_of(sweep, outcomes)
    tau, gap = noise.of_run, noise.of_tuning(sweep)
    faults = Faults(tuning=gap, trunk=TRUNK if branches else 0.0, noise=(tau, tau))
    decision = decision_of(sweep)
    columns = ["true factor", "faster in the middle", "faster at the largest size", "it shrinks"]
    columns += ["seeds"] * bool(decision.seeds)
    rows: list[list[str]] = []
    beyond = []
    for name, ln_c in _worlds(design).items():
        if all(abs(ln_c(size.params)) <= _comparable(size) for size in judged):
            rows.append([name, *detected_shares(design, faults, decision, ln_c)])
        else:
            beyond.append(name)
            rows.append([name, *["–"] * (len(columns) - 1)])
    tuned = f"rates tuned with an error of {gap:.2g} in ln c" if gap else "rates tuned without error"
    shares = f"{_simulated_in_words(len(ladder), decision)}; {tuned}. {noise.text}"
    if branches:
        shares += f" Branches of a trunk are taken to correlate by {TRUNK:g}."
    limit = math.exp(min(map(_comparable, judged)))
    return [
        FittingTable("What it would find", columns, rows, right=columns, lines=False),
        shares,
        *[
            f"No power at {', '.join(beyond)}: these budgets tell factors up to {limit:.3g} x; beyond it, "
            "and by noise just below, losses hardly overlap. Budgets further apart tell more."
        ]
        * bool(beyond),
    ]


def _why_no_power(ladder: Sequence[LadderSize], judged: Sequence[LadderSize]) -> str:
    """Why the power of a design is zero or cannot be known; empty if it can be simulated.

    Args:
        ladder: all sizes.
        judged: the sizes that the verdict is based on.
    """
    if all(len(size.budgets) < 2 for size in ladder):
        return "unknown; with one budget per size there is no token speed-up."
    if len(ladder) < FEWEST_SIZES and len(ladder[-1].seeds) < 2:
        return "unknown; one seed at the largest size gives it no interval."
    close = [size for size in judged if _comparable(size) < 0]
    if not close:
        return ""
    sizes = format_counts(size.params for size in close)
    ratio = min(size.budgets[-1] / size.budgets[0] for size in close)
    return (
        f"none; at {sizes} the longest budget is {ratio:.3g} x the shortest, so that losses "
        f"hardly overlap and no factor can be told; expected {math.exp(OVERLAP):.3g} x or more: "
        "1 : 2 : 4 tells factors up to 2."
    )


def _worlds(design: Design) -> dict[str, Callable[[float], float]]:
    """The true ln c as a function of the parameters that studies are simulated with, each with its name."""
    worlds = {f"{c:g}": _straight(math.log(c), 0.0, design) for c in FACTORS}
    spread = math.log(design.params[-1] / design.params[0])
    for c in FACTORS if len(design.params) > 1 else ():
        worlds[f"{c:g} falling to 1"] = _straight(0.0, -math.log(c) / spread, design)
    return worlds


def _simulated_in_words(n_sizes: int, decision: Decision) -> str:
    """A clause on the simulated studies: where they are judged, at which level, and when they stop."""
    where = "on the line" if n_sizes >= FEWEST_SIZES else "at the largest size alone"
    others = round(ALPHA / decision.share)
    shared = f", the share of each of {others} variants in {ALPHA:g}" if others > 1 else ""
    stops = ", at the size at which the middle is decided" if len(decision.looks) > 1 else ""
    if decision.seeds:
        stops = (
            f", after {decision.seeds[0][0]} to {decision.seeds[-1][0]} seeds (column seeds: the mean of one "
            "variant; several go on until the last is decided), and beyond three standard deviations of the "
            "error of tuning"
        )
    level = f"at the level {decision.share:.3g}{shared}"
    return f"Shares of {STUDIES} simulated studies, {where}, {level}{stops}"


def _straight(at_largest: float, slope: float, design: Design) -> Callable[[float], float]:
    """ln c as a function of the parameters, straight over ln N."""
    return lambda params: at_largest + slope * math.log(params / design.params[-1])


def detected_shares(
    design: Design, faults: Faults, decision: Decision, ln_c: Callable[[float], float]
) -> list[str]:
    """The shares of simulated studies that detect a true factor, as cells of the table.

    A size whose losses do not overlap is left out, as in the verdict; below four sizes there is no line.

    Args:
        design: the runs of each side.
        faults: the faults of the studies.
        decision: the moment at which a study claims something.
        ln_c: the true ln c of a size, from its parameters.

    Returns:
        The shares that find it in the middle of the sizes, at the largest as well, and shrinking; if seeds
        are added, also their mean number.
    """
    if decision.seeds:
        return _detected_by_seeds(design, faults, decision, ln_c)
    studies = measured(design, simulate(design, ln_c, np.random.default_rng(0), STUDIES, faults))
    if len(design.params) < FEWEST_SIZES:
        hits = [
            size.comparable
            and size.ln_c > max(size.half_width(1 - decision.share) or math.inf, GAPS * faults.tuning)
            for size in (sizes[-1] for sizes in studies)
        ]
        return ["–", f"{np.mean(hits):.2f}", "–"]
    usable = [[size for size in sizes if size.comparable] for sizes in studies]
    lines = [decision.line(sizes) for sizes in usable if len(sizes) >= FEWEST_SIZES]
    in_the_middle = [decision.claims(line.middle) for line in lines]
    at_both = [
        above and decision.claims(line.largest) for above, line in zip(in_the_middle, lines, strict=True)
    ]
    shrinks = [-line.slope.estimate > line.slope.half95 for line in lines]
    return [f"{sum(values) / STUDIES:.2f}" for values in (in_the_middle, at_both, shrinks)]


def _detected_by_seeds(
    design: Design, faults: Faults, decision: Decision, ln_c: Callable[[float], float]
) -> list[str]:
    """The cells of `detected_shares` for one size, each study looked at until it claims something."""
    (losses,) = simulate(design, ln_c, np.random.default_rng(0), STUDIES, faults)
    hits, seeds = np.zeros(STUDIES, dtype=bool), np.full(STUDIES, design.seeds[0])
    undecided = np.ones(STUDIES, dtype=bool)
    for count, critical in decision.seeds:
        fitted = measured(replace(design, seeds=(count,)), [losses[..., :count]])
        claims = np.array(
            [
                size.comparable
                and abs(size.ln_c) > max(critical * (size.se or math.inf), GAPS * faults.tuning)
                for (size,) in fitted
            ]
        )
        above = np.array([size.ln_c > 0 for (size,) in fitted])
        new = undecided & claims
        hits |= new & above
        seeds[new] = count
        undecided &= ~claims
    return ["–", f"{hits.mean():.2f}", "–", f"{seeds.mean():.1f}"]
