"""sweep.json, with the variants, the runs and their status; `zoo sweep` writes it, and reports read it."""

from __future__ import annotations

from os.path import normpath
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, field_validator

from zoo.config.registry import Config
from zoo.utils.atomic import write_text
from zoo.utils.errors import ZooError
from zoo.utils.files import JSON_BYTES, read_text
from zoo.utils.measures import CROSS_ENTROPY
from zoo.utils.untyped import JsonObject

FILE = "sweep.json"

Phase = Literal["tune", "final"]
Status = Literal["waiting", "running", "finished", "failed", "interrupted", "stopped"]


class Variant(Config):
    """A variant of a sweep, as sweep.json records it.

    Attributes:
        name: ``axis=value,axis=value``.
        settings: the short name of the variant's value on every axis.
        tuned: the chosen values of the tuned keys; None before they are chosen, empty without tuning.
        tuned_on_border: the tuned keys whose chosen value is the lowest or highest of the grid.
    """

    name: str
    settings: dict[str, str]
    tuned: JsonObject | None = None
    tuned_on_border: tuple[str, ...] = ()


class Tuning(Config):
    """The keys that were tuned per variant before the comparison, and in words the rule of the choice.

    Attributes:
        keys: the keys.
        rule: the rule.
        random: whether the points were drawn at random.
        drawn: the lowest and the highest value of the first key that could be drawn log-uniformly; None: the
            points are those of a grid, or were drawn otherwise.
        vertex: whether the comparison is at the vertex of a parabola, instead of at the best point; None: a
            version of zoo that did not record it.
    """

    keys: tuple[str, ...]
    rule: str
    random: bool = False
    drawn: tuple[float, float] | None = None
    vertex: bool | None = None


class LadderRecord(Config):
    """The declarations that a verdict across scale needs.

    Attributes:
        sizes: parameters of the baseline's models.
        margin: the factor within which two sides count as equal.
        until_decided: whether sizes are added one after the other.
    """

    sizes: tuple[int, ...]
    margin: float | None = None
    until_decided: bool = False


class Run(Config):
    """A run of a sweep, as sweep.json records it.

    Attributes:
        id: the id, which follows from the configuration.
        variant: the name of the variant.
        seed: the seed of the run.
        phases: the phases that use the run: choosing the tuned values, the comparison, or both.
        tuned: the run's values of the tuned keys.
        params: number of parameters of the baseline's model of the same size. Only runs of a ladder have it.
        tokens: number of tokens of the run's budget. Only runs of a ladder have it.
        trunk: the id of the run whose first steps this one shares, or the run's own id if others share its
            steps; None: no steps are shared.
        folder: the run folder, relative to that of sweep.json.
        status: ``stopped`` means stopped early by successive halving.
        error: the error of a failed run, in one line.
        crashed: whether a failed run failed for another reason than divergence.
    """

    id: str
    variant: str
    seed: int
    phases: tuple[Phase, ...]
    tuned: JsonObject = Field(default_factory=dict)
    params: int | None = None
    tokens: int | None = None
    trunk: str | None = None
    folder: str
    status: Status = "waiting"
    error: str | None = None
    crashed: bool = False


class Manifest(Config):
    """The content of sweep.json.

    Attributes:
        name: the name of the sweep.
        description: the purpose of the sweep, as described in the sweep file.
        metric: name of the measure whose last value is the result of a run, see `zoo.utils.measures`.
        baseline: the name of the variant that the others are compared with.
        config_hash: a digest of the sweep file.
        variants: the variants in the order of the sweep file.
        tune: the tuning; None if nothing is tuned.
        ladder: the declarations of the ladder; None without sizes.
        max_seeds: the declared maximum, if seeds are added until every word is decided.
        lines: the CSV with the lines of the runs that have ended, relative to the folder of sweep.json.
        runs: the runs that are known so far; those of the comparison follow from the tuning.
    """

    name: str
    description: str | None = None
    metric: str = CROSS_ENTROPY.name
    baseline: str
    config_hash: str
    variants: tuple[Variant, ...]
    tune: Tuning | None = None
    ladder: LadderRecord | None = None
    max_seeds: int | None = None
    lines: str | None = None
    runs: tuple[Run, ...]

    @property
    def variant_names(self) -> list[str]:
        """The names of the variants, in the order of the sweep file."""
        return [variant.name for variant in self.variants]

    @field_validator("metric")
    @classmethod
    def _measure(cls, value: str) -> str:
        """Convert `validation`, by which zoo 0.3 and older mean the loss."""
        return CROSS_ENTROPY.name if value == "validation" else value


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write sweep.json into a sweep's folder atomically."""
    write_text(folder / FILE, manifest.model_dump_json(indent=1) + "\n")


def read_manifest(folder: Path) -> Manifest:
    """Read the sweep.json of a sweep's folder.

    Raises:
        ZooError: The file is missing, or `zoo sweep` did not write it.
    """
    path = folder / FILE
    if not path.exists():
        raise ZooError(f"{path}: no such file; expected a folder made by `zoo sweep`")
    try:
        return Manifest.model_validate_json(read_text(path, JSON_BYTES, ZooError))
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"]))
        mistake = f"{key}: {problem['msg']}" if key else problem["msg"]
        raise ZooError(f"{path}: not a manifest that `zoo sweep` wrote: {mistake}") from error


def run_folder(folder: Path, run: Run) -> Path:
    """The folder of a run, given that of sweep.json."""
    return Path(normpath(folder / run.folder))
