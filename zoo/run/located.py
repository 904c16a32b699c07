"""Errors of a configuration that only building shows: they get the place where their key was written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from zoo.config.messages import named_key
from zoo.run.config import RunConfig
from zoo.utils.errors import ConfigError, ZooError


@contextmanager
def located(config: RunConfig, section: str | None = None) -> Iterator[None]:
    """Put the place of its key in front of the message of a ZooError that is raised within.

    Of a file that is missing the message also says where it was looked for.

    Args:
        config: the configuration that is being used.
        section: the key that is to blame for a ConfigError whose message names none; None: the file.
    """
    try:
        yield
    except ZooError as error:
        lines = str(error).splitlines()
        found = [_placed(config, line, section if isinstance(error, ConfigError) else None) for line in lines]
        tried = "" if error.missing is None else config.looked_in(error.missing)
        error.args, error.missing = ("\n".join(found) + tried,), None
        raise


def _placed(config: RunConfig, line: str, section: str | None) -> str:
    """A message with its place in front, unless it has one."""
    keys = named_key(line, RunConfig)
    if not keys and section is not None:
        keys, line = tuple(section.split(".")), f"{section}: {line}"
    place = config.place(keys) if keys else ""
    return f"{place}: {line}" if place else line
