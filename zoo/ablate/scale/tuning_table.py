"""The table of a verdict's learning rates, with every side and size."""

from __future__ import annotations

import math
from collections.abc import Mapping

from zoo.ablate.scale.measure import VariantMeasurement, loss_unit
from zoo.ablate.scale.runs import format_count
from zoo.ablate.scale.tuned import TunedSize
from zoo.ablate.table import Column, Table

NEAR = 0.02
"""Distance in ln tokens from the best tried point within which points count as near it."""
NEAR_BEST = "within 2 % tokens of the best"


def tuning_table(measured: Mapping[str, VariantMeasurement], baseline: str) -> Table:
    """A table of the rates of every side and size, with the values of a second key if there is one."""
    pairs = [pair for measurement in measured.values() for pair in measurement.pairs.values()]
    two_keys = any(side.second_key is not None for pair in pairs for side in pair.sides)
    columns = [
        Column("variant", align_right=False),
        Column("size", format_count),
        Column("rate", lambda v: f"{v:.4g}"),
        Column("tried", align_right=False),
        *([Column("second key", lambda v: f"{v:.4g}")] if two_keys else []),
        *([Column("second key tried", align_right=False)] if two_keys else []),
        Column("tuning runs"),
        Column(NEAR_BEST, lambda v: f"{v:.0%}"),
        Column("vertex", lambda v: f"{v:.4g}"),
        Column("curvature", lambda v: f"{v:.3g}"),
        Column("problem", align_right=False),
    ]
    rows: list[list[object]] = []
    for name, of_size in _sides(measured, baseline).items():
        for params, (measurement, side) in sorted(of_size.items()):
            if side.rate is None:
                continue
            parabola = side.parabola
            rows.append(
                [
                    name,
                    params,
                    side.rate,
                    _values(side.tried),
                    *([side.second_key, _values(side.second_tried)] if two_keys else []),
                    side.tuning_runs,
                    _share_near_best(measurement, params, side),
                    parabola and math.exp(parabola.ln_rate),
                    parabola and parabola.curvature,
                    side.problem,
                ]
            )
    unit = loss_unit(measured.values())
    note = (
        "Rate: that of the comparison. Vertex: of the parabola through the best rate and its neighbours; "
        f"curvature: in {unit} per (ln rate) squared. "
        f"{NEAR_BEST.capitalize()}: the share of all points tried whose loss is at most {NEAR:g} ln tokens "
        f"above the lowest one, converted to {unit} by the curve that both sides share at this size."
        + " The second key is tuned at a rate of its own, then the rate at the second key's value."
        * two_keys
    )
    return Table("tuning", "Learning rates", columns, rows, note)


def _sides(
    measured: Mapping[str, VariantMeasurement], baseline: str
) -> dict[str, dict[float, tuple[VariantMeasurement, TunedSize]]]:
    """Every side by its name and size, with the first measurement that it is a part of."""
    sides: dict[str, dict[float, tuple[VariantMeasurement, TunedSize]]] = {}
    for variant, measurement in measured.items():
        for params, pair in measurement.pairs.items():
            for name, side in zip((baseline, variant), pair.sides, strict=True):
                sides.setdefault(name, {}).setdefault(params, (measurement, side))
    return sides


def _values(tried: Mapping[float, float]) -> str:
    return ", ".join(f"{value:.3g}" for value in tried)


def _share_near_best(measurement: VariantMeasurement, params: float, side: TunedSize) -> float | None:
    """The share of the tried points within `NEAR` ln tokens of the best; None if it is not known."""
    per_token = measurement.per_token(params, min(side.losses))
    return None if per_token is None else side.share_within(NEAR * per_token)
