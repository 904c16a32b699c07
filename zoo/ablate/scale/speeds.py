"""Training speeds that were measured side by side, and their file in the folder of a ladder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from zoo.config.registry import Config
from zoo.utils.errors import ZooError
from zoo.utils.files import JSON_BYTES, read_text

FILE = "timing.json"


@dataclass(frozen=True)
class Speeds:
    """Training speeds that were measured side by side.

    Attributes:
        size: number of parameters of the baseline's model.
        rounds: tokens per second of each variant, in each of the interleaved rounds.
    """

    size: float
    rounds: Mapping[str, tuple[float, ...]]


Speed = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Timing(Config):
    """The content of timing.json, in the folder of a ladder.

    Attributes:
        params: number of parameters of the baseline's model at this size.
        threads: number of threads of torch.
        rounds: tokens per second by variant, in each round.
    """

    params: int
    threads: int
    rounds: tuple[dict[str, Speed], ...]


def read_speeds(folder: Path) -> Speeds | None:
    """The speeds that `zoo verdict --time` measured for a ladder; None if it was not called.

    Raises:
        ZooError: The file was not written by zoo.
    """
    file = folder / FILE
    if not file.exists():
        return None
    try:
        timing = Timing.model_validate_json(read_text(file, JSON_BYTES, ZooError))
        names = timing.rounds[0]
        return Speeds(float(timing.params), {name: tuple(r[name] for r in timing.rounds) for name in names})
    except (ValidationError, LookupError) as error:
        raise ZooError(f"{file}: not a file that `zoo verdict --time` wrote; delete it") from error
