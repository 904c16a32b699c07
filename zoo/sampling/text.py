"""Streaming the text of generated tokens: complete characters only, up to a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zoo.utils.errors import ZooError

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""The character to which tokenizers decode bytes that do not, or do not yet, form a character."""


def require_stops(stop: Sequence[str]) -> None:
    """Refuse a stop string without a character.

    Raises:
        ZooError: A stop string is empty.
    """
    if "" in stop:
        raise ZooError("generate: stop is ''; expected at least one character")


class TextStreamer:
    """Decodes tokens that arrive one by one.

    Every call decodes all tokens again, because the text of a token depends on its neighbours: several
    tokens may be the bytes of one character, and tokenizers remove the space in front of the first word.

    Attributes:
        stopped: whether a stop string was generated; the text ends before it.
    """

    def __init__(
        self, decode: Callable[[list[int]], str], prompt: Sequence[int] = (), stop: Sequence[str] = ()
    ) -> None:
        """Start with a prompt.

        Args:
            decode: a function from tokens to their text.
            prompt: tokens that the text begins with.
            stop: strings before which the text ends; they are not searched in the prompt.

        Raises:
            ZooError: A stop string is empty.
        """
        require_stops(stop)
        self.stopped = False
        self._decode, self._stop = decode, tuple(stop)
        self._ids = list(prompt)
        self._first = len(decode(self._ids)) if prompt else 0
        self._shown = 0

    def add(self, token: int) -> str:
        """Add a token, and return the part of the text that is new and final.

        The bytes of an incomplete character are held back, and so is the beginning of a possible stop string.
        """
        self._ids.append(token)
        text = self._decode(self._ids).rstrip(UNFINISHED)
        return self._show(self._before_stop(text), held=0 if self.stopped else self._possible_stop(text))

    def end(self) -> str:
        """Return the text that was held back; no more tokens follow."""
        return "" if self.stopped else self._show(self._before_stop(self._decode(self._ids)), held=0)

    def _before_stop(self, text: str) -> str:
        """The text up to the first stop string."""
        positions = [at for at in (text.find(stop, self._first) for stop in self._stop) if at >= 0]
        self.stopped = bool(positions)
        return text[: min(positions)] if positions else text

    def _possible_stop(self, text: str) -> int:
        """Number of characters at the end of the text that may be the beginning of a stop string."""
        generated = text[self._first :]
        return max(
            (n for stop in self._stop for n in range(1, len(stop)) if generated.endswith(stop[:n])),
            default=0,
        )

    def _show(self, text: str, held: int) -> str:
        start, self._shown = self._shown, max(self._shown, len(text) - held)
        return text[start : self._shown]
