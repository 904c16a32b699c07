"""The run folder: whether a run may start or go on there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.checkpoint.model import RUN_CONFIG, find_checkpoint, pointer_file
from zoo.run.config import dump_config, load_config, plain
from zoo.run.job import Job
from zoo.run.train_config import SpikeConfig
from zoo.utils.atomic import write_file
from zoo.utils.errors import ConfigError

STATE = "state.json"
MAY_CHANGE = frozenset(
    f"train.{key}"
    for key in (
        "steps",
        "log_every",
        "eval_every",
        "monitor_every",
        "diagnose_every",
        "checkpoint_every",
        "keep_last",
        "runs_dir",
        "loggers",
        "spikes",
        *(f"spikes.{key}" for key in SpikeConfig.model_fields),
    )
)
"""Settings that a resumed run may have different: none of them moves a weight before they are reached."""


@dataclass(frozen=True)
class Start:
    """Where a run begins.

    Attributes:
        step: steps done already.
        checkpoint: the folder that holds their result, or None.
    """

    step: int = 0
    checkpoint: Path | None = None


def choose_start(job: Job, resume: bool) -> Start:
    """Where to begin in a run folder, which is only read.

    Args:
        job: what to train.
        resume: whether the user wants to go on.

    Returns:
        The start; at the last step or after it there is nothing left to do.

    Raises:
        ConfigError: a folder that exists without `resume`, one that does not with it, or a
            configuration that differs from the one the run was started with.
    """
    folder = job.folder
    if not folder.exists() or not any(folder.iterdir()):
        if resume:
            raise ConfigError(f"{folder}: there is no run to resume; leave out --resume to start it")
        return Start()
    path = folder / RUN_CONFIG
    if not path.is_file():
        raise ConfigError(
            f"{folder}: exists and is not a run (no {RUN_CONFIG}); choose another name, e.g. name=..."
        )
    start = last_checkpoint(folder)
    changed = list(differences(plain(load_config(path)), plain(job.config)))
    if not resume and (changed or start.step < job.train.steps):
        raise ConfigError(
            f"{folder}: a run is there already, at step {start.step}; add --resume to go on with it, "
            "give another name (name=...), or delete the folder"
        )
    refused = [f"{key} was {old!r}, is {new!r}" for key, old, new in changed if key not in MAY_CHANGE]
    if refused:
        raise ConfigError(
            f"{folder}: cannot resume with another configuration: {'; '.join(refused)}. "
            "Undo the change, or give another name (name=...); what may change: "
            f"{', '.join(sorted(MAY_CHANGE))}"
        )
    return start


def write_config(job: Job) -> None:
    """Write the resolved configuration, which alone starts the same run again."""
    text = dump_config(job.config)
    write_file(job.folder / RUN_CONFIG, lambda partial: partial.write_text(text, encoding="utf-8"))


def differences(
    old: Mapping[str, Any], new: Mapping[str, Any], above: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted key, old value, new value) wherever two nested mappings differ."""
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from differences(before, after, f"{above}{key}.")
        elif before != after:
            yield f"{above}{key}", before, after


def last_checkpoint(folder: Path) -> Start:
    """The last checkpoint; a run that was killed before its first one starts again."""
    if not pointer_file(folder, "last").exists():
        return Start()
    checkpoint = find_checkpoint(folder)
    state = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    return Start(int(state["step"]), checkpoint)
