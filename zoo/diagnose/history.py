"""What a run measured of its variables while it trained."""

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
"""The ratio of a variable with fewer entries is not reliable: a small average may vanish by chance."""

Curve = tuple[Sequence[float], Sequence[float | None]]
"""Where the values were measured (steps or layers), and the values; None: not measured."""

Curves = Mapping[str, Mapping[str, Curve]]
"""By quantity and by the name of the variable."""


@dataclass(frozen=True)
class RunHistory:
    """The measurements of a run, by variable, over its steps.

    Attributes:
        locations: the variables by name.
        monitor: the quantities in the lines of kind "monitor": of matrices.
        diagnosis: the quantities in the lines of kind "diagnose": of all variables.
        floor: the ratio of Assumption 1 that pure noise would have.
    """

    locations: Mapping[str, ParameterLocation]
    monitor: Curves
    diagnosis: Curves
    floor: Curve

    @property
    def layers(self) -> list[int]:
        """The numbers of the layers that hold variables, 0 for what is outside of the layers."""
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
    """Read a run folder; of an unfinished run, what there is so far.

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
