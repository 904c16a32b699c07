"""What two methods gain together over what each of them gains alone: do the gains add up?"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import fmean

from benchmarks.scale.chapters import Chapter, judged
from benchmarks.scale.questions import Question
from zoo.ablate.progress import LadderProgress
from zoo.ablate.scale.runs import format_count
from zoo.ablate.statistics import Summary, summarise
from zoo.ablate.table import Column, Table
from zoo.report.section import Section

Cell = tuple[float, float, int]
"""Size, tokens and seed of a run."""
Losses = Mapping[Cell, float]


@dataclass(frozen=True)
class Together:
    """The gains of two methods over the baseline at a budget, in nats per token, positive: a lower loss.

    Every summary is over sizes, of the means over seeds.

    Attributes:
        variant: the name of the variant that has both methods.
        tokens: the budget.
        alone: the gains of the methods alone, in the order of the axes.
        both: the gain of both methods together.
        excess: the gain of both less the sum of the gains alone.
    """

    variant: str
    tokens: float
    alone: tuple[Summary, Summary]
    both: Summary
    excess: Summary


def added_up(question: Question, state: LadderProgress, alone: LadderProgress) -> Chapter:
    """The chapter of a ladder with two axes: its words, and a table of gains alone and together.

    Args:
        question: the question.
        state: the runs of both methods together, and those of one alone.
        alone: a ladder over the first or the second axis, with the runs that the other one leaves out.
    """
    chapter = judged(question, state)
    found = list(together(state, alone))
    if not found:
        return chapter
    return replace(chapter, sections=[*chapter.sections, Section("Alone and together", [_table(found)])])


def together(state: LadderProgress, alone: LadderProgress) -> Iterator[Together]:
    """The gains at every budget at which all four runs of some cell have ended with a finite loss."""
    ours, others = _losses(state), _losses(alone)
    levels = {variant.name: variant.settings for variant in state.sweep.variants}
    # A ladder over one axis has runs of that axis alone, at the baseline's level of the other one.
    singles = {frozenset(v.settings.items()): others[v.name] for v in alone.sweep.variants}
    of_levels = {frozenset(settings.items()): ours[name] for name, settings in levels.items()}
    base = dict(levels[state.sweep.baseline])
    for name, settings in levels.items():
        if any(settings[axis] == base[axis] for axis in base):
            continue
        first, second = (
            of_levels.get(frozenset((base | {axis: level}).items()))
            or singles.get(frozenset({(axis, level)}), {})
            for axis, level in settings.items()
        )
        yield from _gains(name, ours[state.sweep.baseline], first, second, ours[name])


def _losses(state: LadderProgress) -> Mapping[str, Losses]:
    """The losses of the runs that are compared, of every variant."""
    tuned = state.sweep.tune.seeds if state.sweep.tune else ()
    found: dict[str, dict[Cell, float]] = {variant.name: {} for variant in state.sweep.variants}
    for line in state.lines:
        if (run := line.run).seed not in tuned:
            found.setdefault(run.variant, {})[run.size, run.tokens, run.seed] = run.loss
    return found


def _gains(name: str, base: Losses, first: Losses, second: Losses, both: Losses) -> Iterator[Together]:
    by_budget: dict[float, dict[float, list[tuple[float, float, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for cell in sorted(base.keys() & first.keys() & second.keys() & both.keys()):
        gains = base[cell] - first[cell], base[cell] - second[cell], base[cell] - both[cell]
        if all(map(math.isfinite, gains)):
            size, tokens, _ = cell
            by_budget[tokens][size].append(gains)
    for tokens, sizes in sorted(by_budget.items()):
        means = [tuple(map(fmean, zip(*of_size, strict=True))) for of_size in sizes.values()]
        one, other, joint = zip(*means, strict=True)
        excess = [b - a - c for a, c, b in means]
        yield Together(name, tokens, (summarise(one), summarise(other)), summarise(joint), summarise(excess))


def _table(found: list[Together]) -> Table:
    columns = [
        Column("variant", align_right=False),
        Column("tokens", format_count),
        Column("sizes"),
        Column("the first alone", _interval),
        Column("the second alone", _interval),
        Column("both", _interval),
        Column("both less the sum", _interval),
    ]
    rows: list[list[object]] = [
        [row.variant, row.tokens, row.both.n, *row.alone, row.both, row.excess] for row in found
    ]
    note = (
        "Gain over the baseline in nats per token, mean over sizes of the means over seeds, with a 95 % "
        "interval over sizes; positive: a lower loss. The last column is below 0 where the methods gain less "
        "together than the sum of what each gains alone. These are descriptions: the words are about single "
        "variants against the baseline."
    )
    return Table("alone-and-together", "Alone and together", columns, rows, note)


def _interval(gain: Summary) -> str:
    if gain.low is None or gain.high is None:
        return f"{gain.mean:+.4f}"
    return f"{gain.mean:+.4f} ({gain.low:+.4f} to {gain.high:+.4f})"
