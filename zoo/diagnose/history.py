"""What a run wrote down of its variables while it trained."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zoo.checkpoint.recipe import declare
from zoo.diagnose.places import Place, places
from zoo.run.config import load_config
from zoo.run.factory import recipe_of
from zoo.utils.run_folder import RunFolder

SOURCES = {
    "update_ratio": "monitor",
    "norm": "monitor",
    "gradient_norm": "monitor",
    "m2_over_eta": "diagnose",
    "ratio": "diagnose",
}
"""The quantities, and the lines of metrics.jsonl that hold them."""

ENOUGH = 100
"""Entries of a variable whose ratio can be trusted: the average of a single number may vanish by chance."""

Curve = tuple[Sequence[float], Sequence[float | None]]
"""Where the values were measured (steps or layers), and the values; None: not measured."""

VARIABLES = {"monitor": "matrices", "diagnose": "variables"}
"""Where in a line the variables are."""


@dataclass(frozen=True)
class History:
    """A run's measurements by variable.

    Attributes:
        name: of the run.
        places: its variables by name.
        curves: for each of `SOURCES`, the steps and the values of every variable by name.
        floor: of each measured `ratio`, the ratio of pure noise: steps and values.
    """

    name: str
    places: dict[str, Place]
    curves: dict[str, dict[str, Curve]]
    floor: Curve

    @property
    def layers(self) -> list[int]:
        """The numbers of the layers that hold variables, 0 for what is outside."""
        return sorted({place.layer for place in self.places.values()})

    def of_layer(self, quantity: str, layer: int) -> dict[str, Curve]:
        """The curves of one layer's variables, by label."""
        return {
            self.places[name].label: curve
            for name, curve in self.curves[quantity].items()
            if name in self.places and self.places[name].layer == layer
        }

    @property
    def ratios(self) -> dict[str, Curve]:
        """The ratio of Assumption 1 of the variables with `ENOUGH` entries, by name."""
        found = self.curves["ratio"].items()
        return {n: c for n, c in found if n in self.places and self.places[n].spec.numel >= ENOUGH}


def read_history(run: Path) -> History:
    """Read a run folder; unfinished runs are read as far as they are.

    Raises:
        ZooError: not a run folder.
    """
    folder = RunFolder(run)
    records = folder.read_metrics()
    config = load_config(folder.required().config)
    curves: dict[str, dict[str, tuple[list[float], list[float | None]]]] = {}
    for quantity, kind in SOURCES.items():
        curves[quantity] = defaultdict(lambda: ([], []))
        for record in records:
            if record["kind"] == kind:
                for name, row in record[VARIABLES[kind]].items():
                    steps, values = curves[quantity][name]
                    steps.append(record["step"])
                    values.append(row.get(quantity))
    diagnoses = [r for r in records if r["kind"] == "diagnose"]
    return History(
        folder.name,
        {place.name: place for place in places(declare(recipe_of(config)))},
        {quantity: dict(of_variables) for quantity, of_variables in curves.items()},
        ([r["step"] for r in diagnoses], [r["floor"] for r in diagnoses]),
    )
