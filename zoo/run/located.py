"""Adds the place of a key to errors of a configuration that occur only when something is built."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from zoo.config.messages import expected, named_key
from zoo.config.yaml import Path, dotted
from zoo.run.config import RunConfig
from zoo.utils.errors import ConfigError, ZooError, joined_message


@contextmanager
def located(config: RunConfig, section: str | None = None) -> Iterator[None]:
    """Put the place of the key in front of the message of a ZooError that a `with` block raises.

    The message about a missing file also names the key, the expected value, and the folders that were
    searched.

    Args:
        config: the configuration that is being used.
        section: the key that causes a ConfigError whose message names none; None: the file as a whole.
    """
    try:
        yield
    except ZooError as error:
        blamed = section if isinstance(error, ConfigError) else None
        keys: Path = () if blamed is None else tuple(blamed.split("."))
        end = ""
        if error.missing is not None:
            keys = config.key_of(error.missing) or keys
            end = "" if "expected" in str(error) else expected(config, keys)
            end += config.looked_in(error.missing)
        lines = [_placed(config, line, keys) for line in str(error).splitlines()]
        error.args, error.missing = ("\n".join(lines) + end,), None
        raise


def _placed(config: RunConfig, line: str, blamed: Path) -> str:
    """A message with its place and key in front, unless it has them already."""
    keys = named_key(line, RunConfig)
    if not keys and blamed:
        keys, line = blamed, f"{dotted(blamed)}: {line}"
    return joined_message(config.place(keys) if keys else "", line)
