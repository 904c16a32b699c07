"""Streaming the text of generated tokens: complete characters only, up to a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zoo.utils.errors import ZooError

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""The character to which tokenizers decode bytes that do not, or do not yet, form a character."""

PATIENCE = 8
"""After n tokens without new text, the next n / `PATIENCE` tokens are decoded together (our choice)."""


def require_stops(stop: Sequence[str]) -> None:
    """Refuse a stop string without a character.

    Raises:
        ZooError: A stop string is empty.
    """
    if "" in stop:
        raise ZooError("generate: stop is ''; expected at least one character")


class TextStreamer:
    """Decodes tokens that arrive one by one.

    The text of a token depends on its neighbours: several tokens may be the bytes of one character, and
    tokenizers remove the space in front of the first word. Where the tokenizer says that the text so far is
    final (`Tokenizer.is_final`), later calls decode only the tokens behind that point, and in front of them
    those of the last final part, whose text is then removed. The number of tokens that are decoded is thus
    proportional to the length of the text, and the text is that of all tokens decoded at once. (A part
    without a text of its own cannot stand in front, so that a long row of blanks takes more with tokenizers
    that remove blanks in front of a text.) Where it is not known what is final, every call decodes all tokens
    again.

    Tokens that make no text, such as special tokens and bytes that form no character, could be many between
    two final parts. They are therefore decoded less and less often until a text comes.

    Attributes:
        stopped: whether a stop string was generated; the text ends before it.
    """

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        prompt: Sequence[int] = (),
        stop: Sequence[str] = (),
        is_final: Callable[[Sequence[int]], bool | None] = lambda _: None,
    ) -> None:
        """Start with a prompt.

        Args:
            decode: a function from tokens to their text.
            prompt: tokens that the text begins with.
            stop: strings before which the text ends; they are not searched in the prompt.
            is_final: `Tokenizer.is_final` of the tokenizer of `decode`; by default nothing is known.

        Raises:
            ZooError: A stop string is empty.
        """
        require_stops(stop)
        self.stopped = False
        self._decode, self._stop, self._is_final = decode, tuple(stop), is_final
        self._last: list[int] = []  # the last final part, and the length of its text
        self._last_length = 0
        self._ids = list(prompt)  # the tokens behind it
        self._kept = ""  # final text that is not shown yet, because it may begin a stop string
        # Positions in the text that is kept and that of `_ids`: where the generated text begins, and what is
        # shown of it.
        self._first = len(decode(self._ids)) if prompt else 0
        self._shown = 0
        self._silent, self._due = 0, 1  # tokens since there was new text, and their number at the next look

    def add(self, token: int) -> str:
        """Add a token, and return the part of the text that is new and final.

        The bytes of an incomplete character are held back, and so is the beginning of a possible stop string.
        """
        self._ids.append(token)
        self._silent += 1
        final = self._is_final(self._ids)
        if final is False or self._silent < self._due:
            return ""
        text = self._text()
        complete = text.rstrip(UNFINISHED)
        ended = self._before_stop(complete)
        piece = self._show(ended, held=0 if self.stopped else self._possible_stop(complete))
        is_part = bool(final) and text == complete and text != self._kept  # there is some new text
        if is_part:
            self._begin_part(text)
        self._silent = 0 if piece or is_part else self._silent
        self._due = self._silent + 1 + self._silent // PATIENCE
        return piece

    def end(self) -> str:
        """Return the text that was held back; no more tokens follow."""
        return "" if self.stopped else self._show(self._before_stop(self._text()), held=0)

    def _text(self) -> str:
        """The text that is kept and that of the tokens behind the last final part."""
        return self._kept + self._decode(self._last + self._ids)[self._last_length :]

    def _begin_part(self, text: str) -> None:
        """Begin a part behind a final text, which is that of `_text`."""
        self._kept = text[self._shown :]
        self._first, self._shown = max(0, self._first - self._shown), 0
        # A part without a text of its own, such as a blank that begins a text, would not separate the next
        # tokens from the beginning.
        own = self._decode(self._ids)
        self._last = self._ids if own else self._last + self._ids
        self._last_length = len(own or self._decode(self._last))
        self._ids = []

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
