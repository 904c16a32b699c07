"""Looks at a line while sizes are added, with exact critical values for the declared sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from zoo.ablate.scale.line import FEWEST_SIZES
from zoo.ablate.scale.looks import critical_values_of_sizes
from zoo.ablate.scale.measure import VariantMeasurement
from zoo.ablate.scale.runs import SAME_SIZE
from zoo.utils.errors import DataError


def critical_value(measurement: VariantMeasurement, alpha: float, declared: Sequence[float]) -> float:
    """The critical value of |t| at this look, with the sizes that have been trained so far.

    Args:
        measurement: the variant, which has a line.
        alpha: the probability of a false alarm over all looks.
        declared: parameters of all sizes that may be trained, in the order in which they are added.

    Raises:
        DataError: The sizes are not the first ones that were declared.
    """
    here = [size.params for size in measurement.usable]
    usable = usable_of(measurement, declared)
    first = usable[: len(here)]
    if len(here) > len(first) or not all(map(_same_size, here, first)):
        raise DataError(
            f"{measurement.name}: sizes {', '.join(f'{size:g}' for size in here)} are not the first of those "
            f"declared, {', '.join(f'{size:g}' for size in declared)}; expected no look beyond the "
            "declaration"
        )
    return values_of_looks(usable, alpha)[len(here) - FEWEST_SIZES]


def values_of_looks(sizes: Sequence[float], alpha: float) -> tuple[float, ...]:
    """The critical values of |t| for looks at a line, after the fourth size and each further one.

    Args:
        sizes: parameters of all declared sizes, in the order in which they are added.
        alpha: the probability of a false alarm over all looks.
    """
    # t does not depend on the unit of ln N, so that sizes are compared with a tolerance of a thousandth.
    ln_params = tuple(round(math.log(size / sizes[0]), 3) for size in sizes)
    return critical_values_of_sizes(ln_params, FEWEST_SIZES, alpha)


def usable_of(measurement: VariantMeasurement, sizes: Sequence[float]) -> list[float]:
    """The declared sizes without the smaller ones that had to be left out, which were no looks."""
    largest = measurement.usable[-1].params
    passed = [left.params for left in measurement.left_out if left.params < largest]
    return [size for size in sizes if not any(_same_size(size, left) for left in passed)]


def _same_size(one: float, other: float) -> bool:
    return abs(one / other - 1) <= SAME_SIZE
