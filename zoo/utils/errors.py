"""The exceptions that zoo raises for wrong input.

A `ZooError` names the place, the value and what was expected. The command line prints it without
a traceback and exits with status 2; any other exception is a bug in zoo.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Self


class ZooError(ValueError):
    """A mistake in what the user gave: config, data, tokenizer, checkpoint, shapes or device.

    Attributes:
        missing: the path at which there is nothing, as it was given; None: that is not the mistake.
    """

    missing: Path | None = None

    def because_missing(self, path: str | Path) -> Self:
        """Note that there is nothing at a path, for those who know where it was looked for."""
        self.missing = Path(path)
        return self


class ConfigError(ZooError):
    """A configuration that cannot be used."""


class PluginError(ConfigError):
    """A module of the user's own that cannot be imported, or is not the one that a run was started with."""


class DataError(ZooError):
    """Text, tokens or a tokenizer that cannot be used."""


class CheckpointError(ZooError):
    """A checkpoint that cannot be read, or does not belong to this model."""


class DivergenceError(RuntimeError):
    """Training produced a loss that is not finite; the last good checkpoint is kept."""


class RankError(RuntimeError):
    """Another process of the run has ended or does not answer; the last checkpoint is kept."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"``, or the list of what exists when nothing is close.

    Args:
        word: the unknown word.
        known: the words that exist.

    Returns:
        A clause to append to an error message.
    """
    names = sorted(set(known))
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; known: {', '.join(names)}" if names else ""
