"""The noise of a run and the curvature over the rate: what was measured beside what was simulated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from zoo.ablate.scale.measure import VariantMeasurement
from zoo.ablate.scale.simulate import KAPPA, TAU
from zoo.ablate.table import Column, Table

LARGE = 2.0
"""Factor on the noise and curvature assumed in the simulations beyond which values are reported."""


def large_values(measurement: VariantMeasurement) -> Iterator[tuple[str, float, float]]:
    """The names of the values that are more than `LARGE` times the assumed ones, with both."""
    for what, value, assumed in (
        ("noise of a run", measurement.tau, TAU),
        ("curvature over the rate", measurement.kappa, KAPPA),
    ):
        if value is not None and value > LARGE * assumed:
            yield what, value, assumed


def noise_table(measured: Mapping[str, VariantMeasurement]) -> Table:
    """A table with one row per variant for which a value is known; both sides' runs count."""
    columns = [
        Column("variant", align_right=False),
        Column("tau", lambda v: f"{v:.3f}"),
        Column("kappa", lambda v: f"{v:.2f}"),
        Column(f"more than {LARGE:g} x the simulated", align_right=False),
    ]
    rows: list[list[object]] = [
        [name, m.tau, m.kappa, ", ".join(what for what, _, _ in large_values(m)) or "no"]
        for name, m in measured.items()
        if m.tau is not None or m.kappa is not None
    ]
    note = (
        "Tau: the standard deviation of a run over seeds, in ln tokens; at 0.05 the seed alone moves a run "
        "as much as 5 % more or fewer tokens would. Kappa: the curvature over the rate; a rate that is off "
        f"by a factor f costs kappa (ln f)² ln tokens. The intervals and tests were simulated with {TAU:g} "
        f"and {KAPPA:g}: beyond {LARGE:g} x these values their error is not known, and a warning says so."
    )
    return Table("noise", "Noise of these runs", columns, rows, note)
