"""The schema of a sweep file."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, FiniteFloat, ValidationError, field_validator, model_validator

from zoo.ablate.scale.looks import FIRST_LOOK, MOST_LOOKS
from zoo.ablate.scale.tuning import equal_steps
from zoo.ablate.scale_config import Scale
from zoo.ablate.scoring import TaskSettings
from zoo.config.compose import PLUGINS
from zoo.config.inputs import NOT_EMPTY
from zoo.config.messages import NAME, describe_all
from zoo.config.registry import Config
from zoo.config.schema import for_editors
from zoo.config.yaml import Located
from zoo.run.config import SEEDS, json_schema
from zoo.utils.measures import MEASURES, find_measure
from zoo.utils.untyped import Json, JsonObject

Scalar = str | int | float | bool | None

MOST_KEYS = 2
"""Largest number of keys that are tuned in turn, or that a random search of a ladder draws."""
RATE = "lr"
"""The last part of the key of a learning rate."""
FEWEST_RANDOM = 3
"""Smallest number of random points in a ladder: the best one has to lie between two others."""


class Halving(Config):
    """Successive halving of a tuning grid: points with high losses are stopped early."""

    at: tuple[float, ...] = Field(
        (0.25, 0.5), min_length=1, description="shares of a run after which points are stopped"
    )
    keep: float = Field(0.5, gt=0, lt=1, description="share of the points kept each time, rounded up")

    @field_validator("at")
    @classmethod
    def _rising_shares(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if any(a >= b for a, b in pairwise((0.0, *value, 1.0))):
            raise ValueError("expected shares between 0 and 1, rising, for instance [0.25, 0.5]")
        return value


class OtherGrid(Config):
    """Other values of the tuned keys for some variants, equally many as in `Tune.grid`."""

    where: JsonObject = Field(min_length=1, description="the variants: axis: value")
    grid: dict[str, tuple[Scalar, ...]] = Field(description="the values: key: list")


class Range(Config):
    """The distribution from which the values of a tuned key are drawn; exactly one of two."""

    log_uniform: tuple[FiniteFloat, FiniteFloat] | None = Field(
        None, description="[low, high]: the logarithm is uniform"
    )
    uniform: tuple[FiniteFloat, FiniteFloat] | None = Field(
        None, description="[low, high]: the value is uniform"
    )

    @property
    def bounds(self) -> tuple[float, float]:
        """The lowest and the highest value."""
        return self.log_uniform or self.uniform or (0.0, 0.0)

    def __str__(self) -> str:
        low, high = self.bounds
        return f"{'log-uniform' if self.log_uniform else 'uniform'} between {low:g} and {high:g}"

    @field_validator("log_uniform", "uniform")
    @classmethod
    def _rising(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and value[0] >= value[1]:
            raise ValueError("expected [low, high] with low < high")
        return value

    @field_validator("log_uniform")
    @classmethod
    def _positive(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and value[0] <= 0:
            raise ValueError("expected low > 0: a logarithm is taken")
        return value

    @model_validator(mode="after")
    def _one_distribution(self) -> Self:
        if (self.log_uniform is None) == (self.uniform is None):
            raise ValueError("expected either log_uniform: [low, high] or uniform: [low, high]")
        return self


class RandomSearch(Config):
    """Points that are drawn at random; they are the same for every variant and reproducible.

    The tuned keys are written beside the fields, each with its `Range`.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Range]
    extra_keys: ClassVar[type[Config] | None] = Range

    trials: int = Field(25, ge=2, description="number of points")
    seed: int = Field(0, ge=0, description="seed of the draw")

    @property
    def ranges(self) -> dict[str, Range]:
        """The tuned keys."""
        return self.__pydantic_extra__

    @model_validator(mode="after")
    def _has_keys(self) -> Self:
        if not self.ranges:
            raise ValueError(
                "nothing is drawn: expected a key, for instance optimizer.lr: {log_uniform: [1e-4, 1e-2]}"
            )
        return self


class Tune(Config):
    """The settings that are tuned for each variant separately before the comparison."""

    grid: dict[str, tuple[Scalar, ...]] | None = Field(
        None, min_length=1, description="values to try: key: list; of several keys, every combination"
    )
    random: RandomSearch | None = Field(None, description="instead of a grid: values drawn at random")
    grids: tuple[OtherGrid, ...] = Field((), description="other values for some variants")
    seeds: tuple[int, ...] = Field((0,), min_length=1, description="seeds that every point is tried with")
    halving: Halving | None = Field(None, description="stop points early; null: train all to the end")
    choose: Literal["best", "parabola"] = Field(
        "best",
        description="the best point; or the vertex of the parabola through it and its neighbours, with "
        "points added while it is at the border of the grid (in a ladder also of two keys, in turn)",
    )

    @model_validator(mode="after")
    def _grid_of_rates(self) -> Self:
        if self.choose == "best":
            return self
        grids = [self.grid or {}, *(other.grid for other in self.grids)]
        if not 1 <= len(grids[0]) <= MOST_KEYS:
            raise ValueError(
                "choose: parabola needs a grid of one key, or of two that are tuned in turn, first the rate; "
                f"value: {', '.join(grids[0]) or 'no grid'}"
            )
        for key in grids[0]:
            factors = [_factor(key, grid[key]) for grid in grids if key in grid]
            if max(factors) / min(factors) > 1.02:
                raise ValueError("grids: expected the same factor between neighbours for every variant")
        return self

    @property
    def keys(self) -> tuple[str, ...]:
        """The tuned keys."""
        return tuple(self.grid or (self.random.ranges if self.random else ()))

    @property
    def drawn(self) -> tuple[float, float] | None:
        """The range of the first key, if a random search draws it log-uniformly."""
        return None if self.random is None else self.random.ranges[self.keys[0]].log_uniform

    @model_validator(mode="after")
    def _grid_or_random(self) -> Self:
        if (self.grid is None) == (self.random is None):
            raise ValueError(
                "expected either grid: {key: [values]} or random: {key: {log_uniform: [low, high]}}"
            )
        if self.grids and self.grid is None:
            raise ValueError(
                "grids: has no effect without grid; with random, every variant has the same points"
            )
        return self

    @model_validator(mode="after")
    def _equally_many(self) -> Self:
        if self.grid is None:
            return self
        sizes = {key: len(values) for key, values in self.grid.items()}
        if min(sizes.values()) < 1 or max(sizes.values()) < 2:
            raise ValueError("grid: expected at least two values of a key, otherwise nothing is tuned")
        for other in self.grids:
            if {key: len(values) for key, values in other.grid.items()} != sizes:
                raise ValueError(
                    "grids: every variant is tuned over equally many values of the same keys; expected "
                    + ", ".join(f"{size} of {key}" for key, size in sizes.items())
                )
            if all(set(values) == set(self.grid[key]) for key, values in other.grid.items()):
                raise ValueError(f"grids: {other.where} has the values of grid, so that it has no effect")
        grids = [self.grid, *(other.grid for other in self.grids)]
        for key, values in [item for grid in grids for item in grid.items()]:
            if len(set(values)) < len(values):
                raise ValueError(f"grid: {key}: a value is written twice")
        return self


def _factor(key: str, values: tuple[Scalar, ...]) -> float:
    """The factor between neighbours of a grid whose loss has a parabola over the logarithm of the value.

    Raises:
        ValueError: The grid has another form.
    """
    numbers = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool) and v > 0]
    factor = equal_steps(tuple(numbers)) if len(numbers) == len(values) >= 3 else None
    if factor is None:
        shown = ", ".join(map(str, values))
        raise ValueError(
            f"choose: parabola: {key}: values {shown}: expected three or more numbers above 0 that rise by "
            f"equal factors, for instance {key}: [1e-3, 2e-3, 4e-3, 8e-3, 16e-3]; a setting that is 0, or no "
            "number, has no logarithm and is compared as a variant of its own (axes)"
        )
    return factor


class SweepConfig(Config):
    """The content of a sweep file: the runs to train, how they are tuned, and what they are compared by.

    Fields of type `Json` hold parts of configurations, which are checked after they were merged.
    """

    name: str = Field(pattern=NAME, description="name of the sweep's folder; default: the name of the file")
    description: str | None = Field(
        None, description="the question that the sweep asks, in your words; reports print it"
    )
    base: Json = Field(description="what all runs share: a configuration's name or path, or a mapping")
    axes: JsonObject = Field(
        {}, description="key: list of values, or a label: mapping of named fragments; every combination"
    )
    zip: tuple[dict[str, tuple[Json, ...]], ...] = Field(
        (), description="axes of several keys that change together: a list of mappings key: list"
    )
    exclude: tuple[JsonObject, ...] = Field((), description="combinations to leave out: axis: value")
    seeds: tuple[int, ...] = Field((0, 1, 2), min_length=1, description="seeds of the comparison")
    max_seeds: int | None = Field(
        None,
        ge=FIRST_LOOK,
        le=MOST_LOOKS,
        description="add one seed after the other to `seeds`, up to so many, until every word is decided; "
        "null: none is added",
    )
    metric: str | None = Field(
        None,
        description="measure on the validation examples that the variants are tuned and compared by: "
        + ", ".join(MEASURES)
        + ", or FILE/NAME of several validation files; or tasks/TASK/METRIC, the score of a task of "
        "lm-evaluation-harness; null: the `metric` of the runs, or cross_entropy",
    )
    tasks: TaskSettings | None = Field(None, description="how a metric tasks/TASK/METRIC is measured")
    baseline: JsonObject | None = Field(
        None, description="the variant to compare with, axis: value; null: the first"
    )
    tune: Tune | None = Field(None, description="what is tuned per variant before the comparison")
    scale: Scale | None = Field(None, description="a ladder of sizes and budgets instead of one")
    compile: Literal["auto"] | None = Field(
        None,
        description="auto: compile block by block the runs whose shape is trained long enough to earn it "
        "back, see docs/ablations.md; null: as `train.compile` says",
    )
    lines: Annotated[str | None, NOT_EMPTY] = Field(
        None,
        description="a CSV that gets a line for every run of a ladder that has ended, and from which the "
        "sweep goes on where run folders are gone; relative to the file that names it",
    )
    lines_of: tuple[Annotated[str, NOT_EMPTY], ...] = Field(
        (),
        description="the `lines` of other ladders, whose runs with the same settings are taken over instead "
        "of trained again; relative to the file that names them",
    )
    out: Annotated[str, NOT_EMPTY] = Field("sweeps", description="folder of the sweeps and of their runs")

    @field_validator("metric")
    @classmethod
    def _known_metric(cls, value: str | None) -> str | None:
        if value is not None:
            find_measure(value)  # refuses an unknown measure
        return value

    @field_validator("name")
    @classmethod
    def _is_not_runs(cls, value: str) -> str:
        if value == RUNS:
            raise ValueError(f"a sweep cannot be called '{RUNS}': that is the folder of the runs beside it")
        return value

    @model_validator(mode="after")
    def _has_axes_and_seeds(self) -> Self:
        copies = self.scale is not None and (self.scale.again or self.scale.planted is not None)
        if not self.axes and not self.zip and not (copies if self.scale else self.tune):
            raise ValueError("no axes: expected `axes` or `zip`, what the runs differ in, or `tune`")
        if self.scale and "seeds" in self.model_fields_set:
            raise ValueError("seeds: has no effect beside scale; expected scale.seeds")
        if self.scale and self.max_seeds is not None:
            raise ValueError("max_seeds: has no effect beside scale; expected scale.max_seeds")
        if self.max_seeds is not None and self.max_seeds <= len(self.seeds):
            raise ValueError(f"max_seeds: has no effect with {len(self.seeds)} seeds; expected more")
        scored = self.metric is not None and find_measure(self.metric).is_task
        if self.tasks is not None and not scored:
            raise ValueError("tasks: has no effect without metric: tasks/TASK/METRIC")
        if scored and self.tune is not None and self.tune.halving is not None:
            raise ValueError("tune.halving: a task is scored when a run has ended; expected no halving")
        if self.lines and not self.scale:
            raise ValueError("lines: has no effect without scale: a line is a run of a ladder")
        if self.lines_of and not self.lines:
            raise ValueError("lines_of: has no effect without lines, which the others' are copied into")
        if self.lines and self.tune and self.tune.halving:
            raise ValueError("lines: a run that halving stops has no line; expected tune without halving")
        if self.tune is not None:
            _check_tuning(self.tune, self.scale is not None)
        for what, seeds in [("seeds", self.seeds), ("tune.seeds", self.tune.seeds if self.tune else ())]:
            if not all(0 <= seed < SEEDS for seed in seeds) or len(set(seeds)) < len(seeds):
                raise ValueError(f"{what}: expected different numbers of at least 0 and below 2^63")
        return self


def _check_tuning(tune: Tune, is_ladder: bool) -> None:
    """Refuse a tuning that a ladder, or a sweep without sizes, does not have.

    Raises:
        ValueError: The tuning has another form than is expected there.
    """
    late = [key for key in tune.keys[1:] if key.split(".")[-1] == RATE]
    if is_ladder and late and tune.keys[0].split(".")[-1] != RATE:
        raise ValueError(
            f"tune: {', '.join(tune.keys)}: the first key of a ladder is the learning rate; expected "
            f"{late[0]} first"
        )
    if not is_ladder:
        if tune.choose == "parabola" and len(tune.keys) > 1:
            raise ValueError(
                f"tune.grid: {', '.join(tune.keys)}: keys are tuned in turn in a ladder (scale); without "
                "sizes expected a grid of one key, or choose: best, which tries all combinations"
            )
        return
    if tune.random is None:
        if tune.choose != "parabola":
            raise ValueError("tune.choose: expected parabola, by which every size of a ladder is tuned")
        return
    ranges = tune.random.ranges
    if len(ranges) > MOST_KEYS:
        raise ValueError(
            f"tune.random: {', '.join(ranges)}: expected one key or two of a ladder, first the rate"
        )
    if other := [key for key, values in ranges.items() if values.log_uniform is None]:
        raise ValueError(
            f"tune.random: {', '.join(other)}: uniform: a ladder draws log-uniformly; expected log_uniform: "
            "[low, high] with low > 0"
        )
    if tune.random.trials < FEWEST_RANDOM:
        raise ValueError(
            f"tune.random.trials: {tune.random.trials}: expected {FEWEST_RANDOM} or more, because the best "
            "point has to lie between two others; 20 or more have exact bands"
        )


RUNS = "runs"
"""The name of the folder in `out` that holds the runs of all sweeps."""


def validate_sweep(content: Located, problems: list[str]) -> SweepConfig | None:
    """Check a sweep file without the configurations in it, which are incomplete before they are merged.

    Args:
        content: the sweep file.
        problems: a list to which one line is added for each problem.

    Returns:
        The sweep file, or None if there are problems.
    """
    try:
        return SweepConfig.model_validate_json(json.dumps(content.plain()), strict=True)
    except ValidationError as error:
        problems += describe_all(error.errors(), SweepConfig, content)
        return None


def sweep_schema() -> JsonObject:
    """JSON schema of a sweep file with every registered choice in `base`, for editors.

    Nothing is required, because any key may come from a file that is extended.
    """
    schema: JsonObject = for_editors(SweepConfig)
    run = json_schema()
    schema["$defs"] = run.pop("$defs") | schema["$defs"]
    about = {"description": SweepConfig.model_fields["base"].description}
    inline = {"type": "object", "properties": run["properties"], "additionalProperties": False}
    names = run["properties"]["extends"]
    schema["properties"] |= {"extends": names, PLUGINS: run["properties"][PLUGINS]}
    schema["properties"]["base"] = {**about, "anyOf": [{"type": "string"}, inline]}
    return schema
