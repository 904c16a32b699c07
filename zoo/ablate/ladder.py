"""The sizes and budgets of a sweep, with the configuration of every variant at every size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from zoo.ablate.axes import Combination
from zoo.ablate.config import Halving, RandomSearch, SweepConfig, Tune
from zoo.ablate.ladder_sizes import FAR, SHAPE, other_changes, parameters, size_changes
from zoo.ablate.scale.runs import AGAIN, SAME_SIZE, format_count
from zoo.ablate.scale_config import COPY_SEED, Scale, SizeRule
from zoo.ablate.tuning import Point, random_points, rung_steps
from zoo.ablate.variants import SweepVariant, build_variants
from zoo.config.yaml import Located
from zoo.init.transfer import STEPS
from zoo.run.config import RunConfig
from zoo.run.declared_once import declared_once
from zoo.run.job import Job
from zoo.utils.untyped import Kwargs

SAME_TOKENS = 5e-3
"""Largest relative difference between the tokens of a variant and the baseline at the same budget."""
PLANTED = " planted"
"""Suffix of the name of the baseline's copy that reports fewer tokens than it reads."""


@dataclass(frozen=True)
class Side:
    """A variant at one size of a ladder, with all that its runs have in common.

    Attributes:
        variant: name of the variant.
        config: the configuration, complete except for seed, name, steps and the tuned values.
        points: the points of the grid or of the random search; one empty point if nothing is tuned.
        per_step: number of tokens of a step, or of other units of the data.
        params: number of parameters of the model, counted according to `Scale.parameters`.
        first_seed: a number that is added to every seed.
        planted: number of tokens of training for each token that the runs report.
    """

    variant: str
    config: RunConfig
    points: tuple[Point, ...]
    per_step: int
    params: int
    first_seed: int = 0
    planted: float = 1.0

    def grids(self, keys: Sequence[str]) -> dict[str, tuple[float, ...]]:
        """The values of every tuned key, ascending."""
        return {key: tuple(sorted({float(point[key]) for point in self.points})) for key in keys}

    def steps(self, tokens: float) -> int:
        """The number of steps of a run that reports `tokens` tokens."""
        return max(1, round(tokens * self.planted / self.per_step))

    def rungs(self, tokens: float, halving: Halving | None) -> tuple[int, ...]:
        """The steps at which the rates of a tuning are compared, the last step included; see `rung_steps`."""
        return rung_steps(halving, self.steps(tokens), Job.of(self.config).train.eval_every)


@dataclass(frozen=True)
class LadderSize:
    """One size of a ladder, with the budgets, seeds and variants that are trained there.

    Attributes:
        params: number of parameters of the baseline's model, counted according to `Scale.parameters`.
        per_step: number of tokens, or of other units, of a step of the baseline; budgets are its multiples.
        budgets: training tokens of the runs, ascending.
        seeds: the seeds of the comparison.
        sides: the variants, in the order of the sweep, then the copies of the baseline.
        variants: the same variants in the form of a sweep without sizes.
        baseline: the name of the variant that the others are compared with.
        branches: whether shorter runs of a seed branch off the longest one.
        asked: the number of parameters that a shape rule was to reach; None: the keys were given.
    """

    params: int
    per_step: int
    budgets: tuple[int, ...]
    seeds: tuple[int, ...]
    sides: tuple[Side, ...]
    variants: tuple[SweepVariant, ...]
    baseline: str
    branches: bool = False
    asked: float | None = None

    def side_of(self, variant: str) -> Side:
        """The variant of this name at this size."""
        return next(side for side in self.sides if side.variant == variant)

    def shared_steps(self, side: Side, tokens: int) -> int:
        """The number of steps that the run of a budget shares with the longest one; 0 for the longest."""
        if not self.branches or tokens == self.budgets[-1]:
            return 0
        return shared_steps(side.config, side.steps(tokens), side.steps(self.budgets[-1]))

    def shared(self, side: Side, tokens: int) -> float:
        """The number of tokens, as reported, that the run of a budget shares with the longest one."""
        return self.shared_steps(side, tokens) * side.per_step / side.planted

    @property
    def shape(self) -> dict[str, int]:
        """The width, the depth and the heads of the baseline's model, as far as it has them."""
        model = self.side_of(self.baseline).config.model
        return {key: getattr(model, key) for key in SHAPE if hasattr(model, key)}

    @property
    def note(self) -> str:
        """A sentence on a size that is far from what was asked for; empty if it is not."""
        if self.asked is None or abs(self.params / self.asked - 1) <= FAR:
            return ""
        shape = ", ".join(f"{key} {value}" for key, value in self.shape.items())
        return (
            f"scale.sizes: instead of {format_count(self.asked)} parameters, {format_count(self.params)} "
            f"({self.params / self.asked - 1:+.0%}) with {shape}: the shape rule has no nearer size; if it "
            "matters, give the keys of every size."
        )

    @property
    def tuning_tokens(self) -> int:
        """The budget at which rates are tuned: half of the longest one, or a single budget itself.

        Budgets are whole steps, so that one of half the longest may be half a step beside it; it is taken.
        """
        half = self.budgets[-1] // 2 if len(self.budgets) > 1 else self.budgets[-1]
        nearest = min(self.budgets, key=lambda budget: abs(budget - half))
        return nearest if 2 * abs(nearest - half) <= self.per_step else half


def build_ladder(
    base: Located,
    overrides: Sequence[Located],
    combinations: Sequence[Combination],
    candidates: Sequence[Sequence[Mapping[str, Located]]],
    content: Located,
    config: SweepConfig,
    baseline: str,
    problems: list[str],
) -> tuple[LadderSize, ...]:
    """Compose and check the configurations of every size.

    Args:
        base: the common part of all runs, including `overrides`.
        overrides: the changes of the base; each must have an effect in some run.
        combinations: the levels of every variant.
        candidates: the points of the grid of every variant. The points of a random search are drawn anew for
            every size, so that the sizes do not share the error of one draw.
        content: the sweep file as it is written.
        config: the sweep file.
        baseline: the name of the variant to compare with.
        problems: a list to which one line is added for each problem.

    Returns:
        The sizes without problems, ascending.
    """
    scale = config.scale
    assert scale is not None  # callers call this for ladders only
    place = content.value["scale"].place
    sizes = []
    others = other_changes(content.value["scale"], combinations, problems)
    for index, change in enumerate(size_changes(base, content.value["scale"], scale, problems)):
        if config.tune is not None and config.tune.random is not None:
            drawn = located_points(config.tune.random, content.value["tune"].value["random"].place, index)
            candidates = [drawn for _ in combinations]
        changes = [others[c][index] if c in others else change for c in combinations]
        variants = build_variants(
            base, overrides, combinations, candidates, content, config, problems, changes
        )
        if problems:
            break
        sizes.append(_size(variants, baseline, scale, index, place, problems))
    if config.tune is not None:
        for size in sizes:
            _check_rungs(size, config.tune, place, problems)
    sizes.sort(key=lambda size: size.params)
    for small, large in pairwise(sizes):
        if large.params / small.params - 1 < SAME_SIZE:
            problems.append(
                f"{place}: scale.sizes: two sizes have {small.params:,} and {large.params:,} parameters, "
                "the same to a thousandth; expected sizes that differ"
            )
    return tuple(sizes)


def located_points(search: RandomSearch, place: str, size: int = 0) -> tuple[dict[str, Located], ...]:
    """The points of a random search for a size of a ladder, see `random_points`, with the search's place."""
    points = random_points(search, size)
    return tuple({key: Located(value, place) for key, value in point.items()} for point in points)


def _check_rungs(size: LadderSize, tune: Tune, place: str, problems: list[str]) -> None:
    """Check that every size has validations at which its rates can be compared."""
    for side in size.sides:
        try:
            side.rungs(size.tuning_tokens, tune.halving)
        except ValueError as error:
            problems.append(f"{place}: at {format_count(size.params)} parameters: tune.{error}")
            return


def single_size(
    variants: Sequence[SweepVariant], seeds: tuple[int, ...], baseline: str
) -> tuple[LadderSize, ...]:
    """Represent a sweep without a ladder as a ladder with a single size and budget."""
    sides = tuple(_side(variant, "all") for variant in variants)
    ours = next(side for side in sides if side.variant == baseline)
    steps = Job.of(ours.config).train.steps
    budgets = (steps * ours.per_step,)
    return (LadderSize(ours.params, ours.per_step, budgets, seeds, sides, tuple(variants), baseline),)


def copies(scale: Scale, baseline: str) -> dict[str, Kwargs]:
    """The baseline's copies that a ladder adds: fields of `Side` by name."""
    wanted: dict[str, Kwargs] = {}
    if scale.again:
        wanted[baseline + AGAIN] = {"first_seed": COPY_SEED}
    if scale.planted:
        wanted[baseline + PLANTED] = {"first_seed": 2 * COPY_SEED, "planted": scale.planted}
    return wanted


def _size(
    variants: Sequence[SweepVariant],
    baseline: str,
    scale: Scale,
    index: int,
    place: str,
    problems: list[str],
) -> LadderSize:
    sides = [_side(variant, scale.parameters) for variant in variants]
    ours = next(side for side in sides if side.variant == baseline)
    sides += [replace(ours, variant=name, **fields) for name, fields in copies(scale, baseline).items()]
    params, per_step = ours.params, float(ours.per_step)
    unit = {"tokens": 1.0, "steps": per_step, "per_parameter": float(params)}[scale.budgets.unit]
    wanted = [budget * unit for budget in scale.budgets.of_size(index)]
    tokens = [ours.steps(budget) * ours.per_step for budget in wanted]
    if len(set(tokens)) < len(tokens) or min(wanted) < ours.per_step:
        problems.append(
            f"{place}: scale.budgets: {', '.join(map(format_count, wanted))} tokens at "
            f"{format_count(params)} parameters are {', '.join(str(ours.steps(b)) for b in wanted)} steps "
            f"of {ours.per_step:,} tokens; expected budgets of one step or more, and of different numbers of "
            "steps"
        )
    for side in sides:
        problems += _other_tokens(side, ours, tokens, place)
        shortest = side.steps(tokens[0])
        if getattr(side.config.schedule, "warmup", 0) >= shortest:
            problems.append(
                f"{place}: scale.budgets: the shortest run of {side.variant} at {format_count(params)} has "
                f"{shortest} steps, no more than the warm-up; expected a longer one"
            )
    original = next(variant for variant in variants if variant.name == baseline)
    every = (*variants, *(replace(original, name=name) for name in copies(scale, baseline)))
    size = LadderSize(
        params,
        ours.per_step,
        tuple(tokens),
        scale.seeds_of(index),
        tuple(sides),
        every,
        baseline,
        scale.budgets.trunk,
        scale.sizes.params[index] if isinstance(scale.sizes, SizeRule) else None,
    )
    if size.branches:
        problems += [f"{place}: scale.budgets.trunk: {problem}" for problem in _not_of_a_trunk(size)]
    return size


def _other_tokens(side: Side, baseline: Side, budgets: Sequence[int], place: str) -> Iterator[str]:
    """Yield a problem if the steps of a variant have another size and do not make the baseline's tokens."""
    for tokens in budgets if side.per_step != baseline.per_step else ():
        steps = side.steps(tokens)
        if abs(steps * side.per_step / tokens - 1) > SAME_TOKENS:
            yield (
                f"{place}: scale.budgets: {tokens:,} tokens are {steps} steps of {side.per_step:,} tokens of "
                f"{side.variant}, which are {steps * side.per_step:,}; expected the same to "
                f"{SAME_TOKENS:.1%}: longer budgets, or multiples of the tokens of a step of every variant"
            )
            return


def shared_steps(config: RunConfig, short: int, long: int) -> int:
    """The number of steps that two runs of different lengths share.

    Args:
        config: the configuration of either run.
        short: number of steps of the branch, which takes the last one in any case by itself.
        long: number of steps of the trunk.
    """
    schedule = Job.of(config).schedule
    equal = (schedule.factor(t, short) == schedule.factor(t, long) for t in range(short - 1))
    return next((t for t, same in enumerate(equal) if not same), short - 1)


def _not_of_a_trunk(size: LadderSize) -> Iterator[str]:
    """Yield the reasons why runs of different lengths do not share their first steps."""
    for side in size.sides:
        schedule = Job.of(side.config).schedule
        if STEPS in side.config.transfer.base:
            yield f"{side.variant}: transfer.base.{STEPS} makes rates depend on the length of a run"
        elif size.shared_steps(side, size.budgets[0]) <= schedule.warmup:
            yield (
                f"{side.variant}: with schedule {getattr(schedule, 'type', '')} the runs share no steps "
                "after the warm-up; expected one that is the same until a run cools down, such as wsd"
            )


def _side(variant: SweepVariant, count: Literal["all", "non_embedding"]) -> Side:
    job = Job.of(variant.configs[0])
    per_step = job.train.batch_size * job.data.units.number
    count_of = parameters(declared_once(job.config), count)
    return Side(variant.name, job.config, variant.points, per_step, count_of)
