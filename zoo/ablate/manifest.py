"""sweep.json: what a sweep consists of and how far it is. The sweep writes it, reports read it."""

from __future__ import annotations

from os.path import normpath
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from zoo.config.registry import Config
from zoo.utils.atomic import write_text
from zoo.utils.errors import ZooError

FILE = "sweep.json"

Phase = Literal["tune", "final"]
Status = Literal["waiting", "running", "finished", "failed", "interrupted", "stopped"]


class Variant(Config):
    """One of the things that are compared.

    Attributes:
        name: ``axis=value,axis=value``.
        settings: the short name of its value on every axis.
        tuned: the tuned keys with the values that were chosen; None before that, empty without tuning.
        tuned_on_border: of these, the keys whose best value was the lowest or highest of the grid.
    """

    name: str
    settings: dict[str, str]
    tuned: dict[str, Any] | None = None
    tuned_on_border: tuple[str, ...] = ()


class Tuning(Config):
    """What was tuned per variant before the comparison, and by which rule, in words."""

    keys: tuple[str, ...]
    rule: str


class Run(Config):
    """One run.

    Attributes:
        id: follows from its configuration.
        variant: a variant's name.
        seed: of the run.
        phases: what it counts for: choosing the tuned values, the comparison, or both.
        tuned: its values of the tuned keys.
        folder: the run folder, relative to that of sweep.json.
        status: ``stopped``: given up on while tuning (successive halving).
        error: of a failed run, one line.
    """

    id: str
    variant: str
    seed: int
    phases: tuple[Phase, ...]
    tuned: dict[str, Any] = Field(default_factory=dict)
    folder: str
    status: Status = "waiting"
    error: str | None = None


class Manifest(Config):
    """A sweep.

    Attributes:
        name: of the sweep.
        metric: kind of the lines of metrics.jsonl whose last `cross_entropy` is a run's result.
        baseline: the variant that the others are compared with.
        config_hash: changes with anything that the sweep file says.
        variants: in the order of the sweep file.
        tune: None where nothing is tuned.
        runs: those that are known so far; what the comparison needs follows from the tuning.
    """

    name: str
    metric: str = "validation"
    baseline: str
    config_hash: str
    variants: tuple[Variant, ...]
    tune: Tuning | None = None
    runs: tuple[Run, ...]


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write sweep.json into a sweep's folder, whole or not at all."""
    text = manifest.model_dump_json(indent=1) + "\n"
    write_text(folder / FILE, text)


def read_manifest(folder: Path) -> Manifest:
    """Read the sweep.json of a sweep's folder.

    Raises:
        ZooError: there is none, or it is not one that `zoo sweep` wrote.
    """
    path = folder / FILE
    if not path.is_file():
        raise ZooError(f"{path}: no such file; expected a folder made by `zoo sweep`")
    try:
        return Manifest.model_validate_json(path.read_text(encoding="utf-8"))
    except (ValidationError, UnicodeDecodeError) as error:
        told = _first(error) if isinstance(error, ValidationError) else error
        raise ZooError(f"{path}: not a manifest that `zoo sweep` wrote: {told}") from error


def _first(error: ValidationError) -> str:
    """The first problem, in one line."""
    problem = error.errors()[0]
    return ".".join(map(str, problem["loc"])) + ": " * bool(problem["loc"]) + problem["msg"]


def run_folder(folder: Path, run: Run) -> Path:
    """Where a run of the sweep in `folder` lies."""
    return Path(normpath(folder / run.folder))
