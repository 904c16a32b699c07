"""Whether run folders that would be seeds, sizes or budgets of one variant have the same settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from zoo.ablate.results import settings_of
from zoo.ablate.run_metrics import RunMetrics
from zoo.ablate.scale.runs import FinishedRun
from zoo.utils.errors import DataError

TUNED = ("optimizer.lr",)
"""The setting, besides the seed, in which runs of a variant may differ."""
OF_LENGTH = ("train.steps", "train.compile", "train.accumulation")
"""Settings, besides those of the shape and the schedule, that may differ between sizes and budgets."""
NO_SHAPE = "vocab_size"
"""A whole number of a model that is no part of its shape."""
POWERS = (-1.0, -0.5, 0.5, 1.0)
"""Powers of a number of the shape that a setting of the model follows, as nGPT's s_z follows the width."""
ROUNDING = 1e-4
"""Relative difference below which a setting follows such a power, for numbers that were written by hand."""

Settings = Mapping[str, object]


def require_same_settings(runs: Sequence[FinishedRun], metrics: Sequence[RunMetrics]) -> None:
    """Refuse runs that would count as one variant, but differ in another setting.

    Seeds of one size and budget have the same settings. Between sizes and budgets the shape of the model (its
    whole numbers), the number of steps and what follows from it may differ as well, and between sizes what
    belongs to the size: a number of the model that is proportional to a power of its shape, and a setting
    that all variants, at least two, change alike from size to size.

    Raises:
        DataError: There are such runs.
    """
    settings: dict[str, Settings] = {
        run.place: {key: value for key, value in settings_of(recorded.config).items() if key not in TUNED}
        for run, recorded in zip(runs, metrics, strict=True)
    }
    seeds: dict[tuple[str, float, float], FinishedRun] = {}
    variants: dict[str, FinishedRun] = {}
    for run in runs:
        seed = seeds.setdefault((run.variant, run.size, run.tokens), run)
        first = variants.setdefault(run.variant, run)
        for before, what in ((seed, "seeds"), (first, "sizes or budgets")):
            ours, theirs = settings[run.place], settings[before.place]
            for key in {**theirs, **ours}:
                one, other = ours.get(key), theirs.get(key)
                if one == other:
                    continue
                of_variant = [settings[r.place] for r in runs if r.variant == run.variant]
                if before is seed or not (
                    _may_grow(key, one, other)
                    or (run.size != before.size and _follows_shape(key, of_variant))
                    or _changed_alike(key, runs, settings)
                ):
                    raise DataError(
                        f"{run.place}: {key}: {one}, and {other} in {before.place}: both would be {what} of "
                        f"the variant '{run.variant}'; expected runs whose variants differ in the types of "
                        "their parts, or a CSV that names the variants"
                    )


def _may_grow(key: str, *values: object) -> bool:
    """Whether a setting may differ between sizes and budgets of a variant."""
    part, _, _ = key.rpartition(".")
    whole_numbers = all(value is None or type(value) is int for value in values)
    return key in OF_LENGTH or (whole_numbers and (_is_of_shape(key) or part == "schedule"))


def _is_of_shape(key: str) -> bool:
    part, _, name = key.rpartition(".")
    return part.startswith("model") and name != NO_SHAPE


def _follows_shape(key: str, settings: Sequence[Settings]) -> bool:
    """Whether a number of the model is proportional to a power of one of its whole numbers, in all runs."""
    values = [fields.get(key) for fields in settings]
    numbers = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if not key.startswith("model.") or len(numbers) < len(values) or min(numbers) <= 0:
        return False
    for other in filter(_is_of_shape, settings[0]):
        shape = [size for fields in settings if type(size := fields.get(other)) is int and size > 0]
        if len(shape) < len(values) or len(set(shape)) < 2:
            continue
        for power in POWERS:
            ratios = [number / size**power for number, size in zip(numbers, shape, strict=True)]
            if math.isclose(min(ratios), max(ratios), rel_tol=ROUNDING):
                return True
    return False


def _changed_alike(key: str, runs: Sequence[FinishedRun], settings: Mapping[str, Settings]) -> bool:
    """Whether a setting is the same in all runs of a size, and changes alike from size to size of variants.

    At least two variants have to have the setting. Sizes of different variants are compared in their order,
    because the same shape has other numbers of parameters in another architecture.
    """
    by_variant: dict[str, dict[float, list[object]]] = {}
    for run in runs:
        if key in settings[run.place]:
            here = by_variant.setdefault(run.variant, {}).setdefault(run.size, [])
            here.append(settings[run.place][key])
    if any(
        value != of_size[0]
        for sizes in by_variant.values()
        for of_size in sizes.values()
        for value in of_size
    ):
        return False
    changes = [[of_size[0] for _, of_size in sorted(sizes.items())] for sizes in by_variant.values()]
    return len(changes) > 1 and all(change == changes[0] for change in changes)
