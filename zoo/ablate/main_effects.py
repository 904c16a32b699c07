"""Main effects: the effect of a value of an axis, averaged over the values of all other axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from zoo.ablate.results import Results
from zoo.ablate.statistics import Summary, summarise

Settings = Mapping[str, str]


@dataclass(frozen=True)
class MainEffect:
    """A value of an axis against the baseline's value of it.

    Attributes:
        axis: the name of the axis; axes that change together count as one, with both names.
        value: the value.
        against: the baseline's value.
        difference: the summary over seeds; the value of a seed is the mean over the pairs of variants that
            differ in this axis alone.
        pairs: the number of these pairs.
        least: the lowest difference of a pair, mean over seeds.
        most: the highest difference; if it is far from `least`, the effect depends on the other axes.
    """

    axis: str
    value: str
    against: str
    difference: Summary
    pairs: int
    least: float
    most: float


def main_effects(results: Results) -> list[MainEffect]:
    """The effects of every value of every axis; empty with fewer than two axes.

    Only seeds that all variants of an effect have finished count, so that each seed is a complete experiment
    and the differences of seeds are independent.
    """
    variants = {v.name: _joined(v.settings, _together(results)) for v in results.manifest.variants}
    base = variants.get(results.baseline, {})
    if len(base) < 2 or any(settings.keys() != base.keys() for settings in variants.values()):
        return []
    by_settings = {tuple(settings.items()): name for name, settings in variants.items()}
    effects = []
    for axis, against in base.items():
        for value in dict.fromkeys(settings[axis] for settings in variants.values()):
            if value == against:
                continue
            pairs = []
            for settings in variants.values():
                other = by_settings.get(tuple({**settings, axis: against}.items()))
                if settings[axis] == value and other is not None:
                    pairs.append((by_settings[tuple(settings.items())], other))
            effect = _effect(results, axis, value, against, pairs)
            effects += [] if effect is None else [effect]
    return effects


def _effect(
    results: Results, axis: str, value: str, against: str, pairs: list[tuple[str, str]]
) -> MainEffect | None:
    """The mean over pairs of variants for each seed, then over seeds; None without a shared seed."""
    finals = [(results.finals(ours), results.finals(theirs)) for ours, theirs in pairs]
    seeds = set.intersection(*(a.keys() & b.keys() for a, b in finals)) if finals else set()
    if not seeds:
        return None
    by_seed = [fmean(a[seed] - b[seed] for a, b in finals) for seed in sorted(seeds)]
    by_pair = [fmean(a[seed] - b[seed] for seed in seeds) for a, b in finals]
    return MainEffect(axis, value, against, summarise(by_seed), len(pairs), min(by_pair), max(by_pair))


def _together(results: Results) -> list[tuple[str, ...]]:
    """The groups of axes that change together."""
    every = [variant.settings for variant in results.manifest.variants]
    groups: list[list[str]] = []
    for axis in every[0] if every else ():
        for group in groups:
            seen = {(settings.get(group[0]), settings.get(axis)) for settings in every}
            if len(seen) == len({one for one, _ in seen}) == len({other for _, other in seen}):
                group.append(axis)
                break
        else:
            groups.append([axis])
    return [tuple(group) for group in groups]


def _joined(settings: Settings, groups: list[tuple[str, ...]]) -> dict[str, str]:
    """The settings with one entry per group of axes."""
    return {", ".join(group): ", ".join(settings.get(axis, "") for axis in group) for group in groups}
