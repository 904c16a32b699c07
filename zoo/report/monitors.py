"""What the monitor saw of every matrix: update ratio, norm, M2 against eta."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from zoo.ablate.curve import Numbers
from zoo.ablate.results import Results
from zoo.report.losses import AXES
from zoo.report.plot import Plot, Series, View

MEASUREMENTS = {
    "update_ratio": ("Update ratio", "‖ΔW‖ / ‖W‖", "How far one step moves a matrix (WeSaR, section 3)."),
    "norm": ("Norm", "‖W‖", "Frobenius norm of what is trained."),
    "gradient_norm": ("Gradient norm", "‖∇W‖", "Before clipping (WeSaR, Figure 8)."),
    "m2_over_eta": ("Scale against eta", "M2(W) / eta", "Amos expects about 1 (section 3 of its paper)."),
}

MOST = 40
"""Matrices that get a view of their own."""


def monitors(results: Results) -> Iterator[Plot]:
    """A plot per measurement, of the first seed of every variant: all matrices, then each."""
    first = {
        v.name: runs[0][1].monitors for v in results.manifest.variants if (runs := results.begun(v.name))
    }
    for key, (title, unit, meaning) in MEASUREMENTS.items():
        found = {
            name: (steps, values[key])
            for name, (steps, values) in first.items()
            if len(steps) > 1 and values.get(key)
        }
        if found:
            matrices = list(dict.fromkeys(m for _, values in found.values() for m in values))
            logarithmic = key in ("update_ratio", "gradient_norm")
            views = [View("all matrices", AXES["steps"], unit, _all(found), log_y=logarithmic)]
            views += [
                View(matrix, AXES["steps"], unit, _one(found, matrix), log_y=logarithmic)
                for matrix in matrices[:MOST]
            ]
            yield Plot(
                key.replace("_", "-"),
                title,
                views,
                f"{meaning} First seed of every variant. All matrices: their median, and a band from the "
                "lowest to the highest.",
            )


def _all(found: Mapping[str, tuple[Numbers, Mapping[str, Numbers]]]) -> list[Series]:
    series = []
    for name, (steps, values) in found.items():
        rows = np.array(list(values.values()))
        known = np.isfinite(rows).any(axis=0)
        low, middle, high = (list(f(rows[:, known], axis=0)) for f in (np.nanmin, np.nanmedian, np.nanmax))
        series.append(Series(name, name, list(steps[known]), middle, low, high))
    return series


def _one(found: Mapping[str, tuple[Numbers, Mapping[str, Numbers]]], matrix: str) -> Sequence[Series]:
    return [
        Series(name, name, list(steps), list(values[matrix]))
        for name, (steps, values) in found.items()
        if matrix in values
    ]
