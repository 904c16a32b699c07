"""Keys of a run that its sweep sets, so that a value from elsewhere has no effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from zoo.config.yaml import Located
from zoo.run.config import RunConfig

RESERVED = {
    "seed": "`seeds` in the sweep file, or `scale.seeds` of a ladder",
    "name": "`name` in the sweep file, which names its folder; runs are named by their ids",
    "train.runs_dir": "`out` in the sweep file, or --out",
}
"""The keys, each with what is expected instead."""
RESERVED_IN_LADDERS = {**RESERVED, "train.steps": "`scale.budgets`"}
"""The same in a ladder, whose `base` may be a configuration with a number of steps of its own."""


def reserved(change: Located, where: str = "", keys: Mapping[str, str] = RESERVED) -> Iterator[str]:
    """Yield a problem for every reserved key of a change of the configuration.

    Args:
        change: keys and values as the user wrote them, without those of files that it extends: a
            configuration that `zoo train` reads as well may have a seed, a name and a folder.
        where: the key of the sweep file that holds the change, with a dot at its end.
        keys: the reserved keys, each with what is expected instead.
    """
    for key, instead in keys.items():
        value, is_given = change.find(tuple(key.split(".")))
        if is_given:
            yield f"{value.place}: {where}{key}: has no effect: the sweep sets it; expected {instead}"


def of_sweep_file(change: Located, keys: frozenset[str]) -> Iterator[str]:
    """Yield a problem for every key of a sweep file that an override names, as if it were one of `base`.

    Args:
        change: an override.
        keys: the keys of a sweep file.
    """
    for key, value in change.value.items():
        if key in keys and key not in RunConfig.model_fields:
            yield f"{value.place}: {key}: is a key of the sweep file; expected a key of `base`"
