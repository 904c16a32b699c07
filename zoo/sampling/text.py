"""From tokens to text while they are being generated: whole characters only, up to a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zoo.utils.errors import ZooError

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What tokenizers write for bytes that are no character, or not yet."""


class Writer:
    """The text of tokens that come one by one.

    All tokens are decoded anew each time, since how a token reads depends on its neighbours: several
    tokens may be the bytes of one character, and the blank in front of a word goes if it is the first.

    Attributes:
        stopped: whether a stop string has come; the text ends before it.
    """

    def __init__(
        self, decode: Callable[[list[int]], str], prompt: Sequence[int] = (), stop: Sequence[str] = ()
    ) -> None:
        """Start with a prompt.

        Args:
            decode: tokens -> their text.
            prompt: tokens that the text begins with.
            stop: strings before which the text ends, if they come after the prompt.

        Raises:
            ZooError: an empty stop string.
        """
        if "" in stop:
            raise ZooError("generate: stop is ''; expected at least one character")
        self.stopped = False
        self._decode, self._stop = decode, tuple(stop)
        self._ids = list(prompt)
        self._first = len(decode(self._ids)) if prompt else 0
        self._shown = 0

    def add(self, token: int) -> str:
        """Take the next token; return what can be shown of the text that has not been returned yet.

        The bytes of a character that is not complete are held back, and so is what may become a stop
        string.
        """
        self._ids.append(token)
        text = self._decode(self._ids).rstrip(UNFINISHED)
        return self._show(self._cut(text), held=0 if self.stopped else self._begun(text))

    def end(self) -> str:
        """Return what was held back, when no more tokens come."""
        return "" if self.stopped else self._show(self._cut(self._decode(self._ids)), held=0)

    def _cut(self, text: str) -> str:
        """The text up to the first stop string."""
        found = [at for at in (text.find(stop, self._first) for stop in self._stop) if at >= 0]
        self.stopped = bool(found)
        return text[: min(found)] if found else text

    def _begun(self, text: str) -> int:
        """Characters at the end of the text that a stop string may begin with."""
        generated = text[self._first :]
        return max(
            (n for stop in self._stop for n in range(1, len(stop)) if generated.endswith(stop[:n])),
            default=0,
        )

    def _show(self, text: str, held: int) -> str:
        start, self._shown = self._shown, max(self._shown, len(text) - held)
        return text[start : self._shown]
