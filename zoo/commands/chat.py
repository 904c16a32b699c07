"""A conversation line after line: `zoo generate --chat`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress

from zoo.commands.app import echo
from zoo.commands.generate import TextGenerator
from zoo.data.instructions.files import Message
from zoo.sampling import Sampling
from zoo.utils.errors import ZooError

PROMPT = "> "


def converse(
    generator: TextGenerator,
    opening: Sequence[Message],
    max_new_tokens: int,
    sampling: Sampling,
    stop: Sequence[str] = (),
) -> None:
    """Answer the lines of the input, each as a part of one conversation, until the input ends.

    When the context is full, the oldest question and its answer are left out. At a terminal Ctrl-C ends the
    answer that is being written, and a question that cannot be answered does not end the conversation.

    Args:
        generator: the model.
        opening: messages in front of the first question.
        max_new_tokens: tokens of an answer at most.
        sampling: how tokens are chosen.
        stop: strings before which an answer ends, if they come.

    Raises:
        ZooError: a question cannot be answered, and the input is no terminal.
        KeyboardInterrupt: Ctrl-C, unless it ends an answer.
    """
    at_terminal = sys.stdin.isatty()
    if at_terminal:
        with suppress(ImportError):
            import readline  # noqa: F401  lines that `input` reads can be edited and repeated
    messages = [*opening]
    while (line := _asked(at_terminal)) is not None:
        asked = [*messages, Message("user", line)]
        pieces: list[str] = []

        def show(piece: str, pieces: list[str] = pieces) -> None:
            pieces.append(piece)
            echo(piece, nl=False)

        try:
            asked = _shortened(generator, asked, len(opening), max_new_tokens)
            generator.answer(asked, max_new_tokens, sampling, stop=stop, show=show)
        except KeyboardInterrupt:
            if not at_terminal:
                raise
        except ZooError as error:
            if not at_terminal:
                raise
            echo(f"error: {error}", err=True)
            continue
        echo()
        messages = [*asked, Message("assistant", "".join(pieces))]


def _shortened(
    generator: TextGenerator, messages: list[Message], kept: int, max_new_tokens: int
) -> list[Message]:
    """The conversation without its oldest questions and answers, as far as there is no room for them.

    Args:
        generator: the model.
        messages: the last one is the user's.
        kept: number of messages at the beginning that stay.
        max_new_tokens: tokens of the answer at most.
    """
    shorter = messages
    while len(shorter) > kept + 1 and not generator.has_room(shorter, max_new_tokens):
        shorter = [*shorter[:kept], *shorter[kept + 2 :]]
    if shorter is not messages:
        left_out = (len(messages) - len(shorter)) // 2
        echo(f"(the context is full: questions left out at the beginning: {left_out})", err=True)
    return shorter


def _asked(at_terminal: bool) -> str | None:
    """The next line of the user that is not blank; None at the end of the input."""
    while True:
        if at_terminal:
            try:
                line = input(PROMPT)
            except EOFError:
                echo()
                return None
        elif not (line := sys.stdin.readline()):
            return None
        if line.strip():
            return line.rstrip("\n")
