"""What a run folder tells about a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from zoo.checkpoint import RUN_CONFIG
from zoo.errors import ZooError
from zoo.train.metrics import read_metrics

SAMPLE = "sample.txt"
"""Text that `zoo generate` leaves in a run folder."""

Curve = tuple[list[float], list[float]]


@dataclass(frozen=True)
class Run:
    """A run as the report shows it; None is what was not measured.

    Attributes:
        name: of the run.
        model: architecture, initialisation and reparameterisation.
        optimizer: its name, and its learning rate.
        step: optimizer steps done.
        last: the last validation loss in nats per token.
        best: the lowest one.
        tokens_per_second: the median over log lines.
        parameters: how many there are.
        optimizer_bytes: of the optimizer's state.
        train: training tokens and training cross entropy.
        validation: training tokens and validation cross entropy.
        sample: text it generated.
    """

    name: str
    model: str
    optimizer: str
    step: int
    last: float | None
    best: float | None
    tokens_per_second: float | None
    parameters: int | None
    optimizer_bytes: int | None
    train: Curve
    validation: Curve
    sample: str | None


def read_run(folder: Path) -> Run:
    """Read a run folder.

    Raises:
        ZooError: not a run folder.
    """
    records = read_metrics(folder)
    path = folder / RUN_CONFIG
    if not path.is_file():
        raise ZooError(f"{path}: no such file; expected a run folder made by `zoo train`")
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    kinds = {kind: [r for r in records if r["kind"] == kind] for kind in ("train", "validation", "size")}
    train, validation = (_curve(kinds[kind]) for kind in ("train", "validation"))
    size = kinds["size"][0] if kinds["size"] else {}
    sample = folder / SAMPLE
    return Run(
        name=config["name"],
        model=_model(config),
        optimizer=f"{config['optimizer']['type']}, lr {config['optimizer']['lr']:g}",
        step=max((r["step"] for r in records), default=0),
        last=validation[1][-1] if validation[1] else None,
        best=min(validation[1], default=None),
        tokens_per_second=_median([r["timing"]["tokens_per_second"] for r in kinds["train"]]),
        parameters=size.get("parameters"),
        optimizer_bytes=size.get("optimizer_bytes"),
        train=train,
        validation=validation,
        sample=sample.read_text(encoding="utf-8") if sample.is_file() else None,
    )


def _model(config: dict[str, Any]) -> str:
    """Architecture, then what is not the usual about it."""
    parts = [config["model"], config["init"], config["reparam"]]
    return " · ".join(part["type"] for part in parts if part and part["type"] != "none")


def _curve(records: list[dict[str, Any]]) -> Curve:
    return [r["tokens"] for r in records], [r["cross_entropy"] for r in records]


def _median(values: list[float]) -> float | None:
    return median(values) if values else None
