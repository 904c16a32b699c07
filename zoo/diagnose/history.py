"""The measurements of a run's variables during training."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zoo.checkpoint.recipe import declare
from zoo.diagnose.locations import ParameterLocation, locate_parameters
from zoo.run.config import load_config
from zoo.run.factory import recipe_of
from zoo.utils.run_folder import RunFolder
from zoo.utils.untyped import JsonObject

MIN_ENTRIES = 100
"""Smallest number of entries of a variable with a reliable ratio: a small average may vanish by chance."""

Curve = tuple[Sequence[float], Sequence[float | None]]
"""The positions of the measurements (steps or layers), and the values; None: not measured."""

Curves = Mapping[str, Mapping[str, Curve]]
"""Curves by quantity and by the name of the variable."""


@dataclass(frozen=True)
class RunHistory:
    """The measurements of a run, by variable, over its steps.

    Attributes:
        locations: the variables by name.
        monitor: the quantities of matrices, from the lines of kind "monitor".
        diagnosis: the quantities of all variables, from the lines of kind "diagnose".
        floor: the ratio of Assumption 1 that pure noise would have.
    """

    locations: Mapping[str, ParameterLocation]
    monitor: Curves
    diagnosis: Curves
    floor: Curve

    @property
    def layers(self) -> list[int]:
        """The numbers of the layers that contain variables, 0 for variables outside of the layers."""
        return sorted({location.layer for location in self.locations.values()})

    def in_layer(self, curves: Mapping[str, Curve], layer: int) -> dict[str, Curve]:
        """The curves of one layer's variables, by label."""
        in_layer = {name: place for name, place in self.locations.items() if place.layer == layer}
        return {in_layer[name].label: curve for name, curve in curves.items() if name in in_layer}

    @property
    def ratios(self) -> dict[str, Curve]:
        """The ratio of Assumption 1 of the variables with at least `MIN_ENTRIES` entries, by name."""
        large = {name for name, place in self.locations.items() if place.spec.numel >= MIN_ENTRIES}
        return {name: curve for name, curve in self.diagnosis.get("ratio", {}).items() if name in large}


def read_history(run: Path) -> RunHistory:
    """Read the measurements in a run folder; an unfinished run has those up to now.

    Raises:
        ZooError: `run` is not a run folder.
    """
    folder = RunFolder(run)
    records = folder.read_metrics()
    model = declare(recipe_of(load_config(folder.required().config)))
    monitor = [record for record in records if record["kind"] == "monitor"]
    diagnoses = [record for record in records if record["kind"] == "diagnose"]
    return RunHistory(
        {location.name: location for location in locate_parameters(model)},
        _curves((record["step"], record["matrices"]) for record in monitor),
        _curves((record["step"], record["variables"]) for record in diagnoses),
        ([record["step"] for record in diagnoses], [record["floor"] for record in diagnoses]),
    )


def _curves(measurements: Iterable[tuple[int, Mapping[str, JsonObject]]]) -> Curves:
    """Turn (step, values by variable and quantity) into curves."""
    curves: dict[str, dict[str, tuple[list[float], list[float | None]]]] = defaultdict(
        lambda: defaultdict(lambda: ([], []))
    )
    for step, variables in measurements:
        for name, quantities in variables.items():
            for quantity, value in quantities.items():
                steps, values = curves[quantity][name]
                steps.append(step)
                values.append(value)
    return {quantity: dict(by_variable) for quantity, by_variable in curves.items()}
