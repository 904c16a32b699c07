"""The exceptions that zoo raises for wrong input.

A `ZooError` names the place, the value and the expected values. The command line prints it without
a traceback and exits with status 2; any other exception is a bug in zoo.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Self


class ZooError(ValueError):
    """An error in the user's input: config, data, tokenizer, checkpoint, shapes or device.

    Attributes:
        missing: the path that does not exist, as the user gave it; None: the error has another reason.
    """

    missing: Path | None = None

    def because_missing(self, path: str | Path) -> Self:
        """Record that a path does not exist, so that callers can add the folders that were searched."""
        self.missing = Path(path)
        return self


class ConfigError(ZooError):
    """A configuration that cannot be used."""


class PluginError(ConfigError):
    """A module of the user that cannot be imported, or that has changed since a run was started."""


class DataError(ZooError):
    """Text, tokens or a tokenizer that cannot be used."""


class CheckpointError(ZooError):
    """A checkpoint that cannot be read, or does not belong to this model."""


class DivergenceError(RuntimeError):
    """Training produced a loss that is not finite; the last good checkpoint is kept."""


class RankError(RuntimeError):
    """Another process of the run has ended or does not answer; the last checkpoint is kept."""


class EndedRankError(RankError):
    """Another process of the run has ended; if it has failed, its own error has the reason."""


def joined_message(*parts: str) -> str:
    """Join the parts of a message by colons: the place, the key, the problem; empty parts are left out."""
    return ": ".join(part for part in parts if part)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"``, or the list of known words if none is similar.

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
