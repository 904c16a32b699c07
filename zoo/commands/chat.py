"""An interactive conversation: `zoo generate --chat`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress

from zoo.commands.app import echo
from zoo.data.instructions.files import Message
from zoo.evaluation.text_generator import TextGenerator
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
    """Answer the lines of the input as one conversation, until the input ends.

    When the context is full, the oldest questions and their answers are left out. At a terminal, Ctrl-C ends
    the current answer, and a question that cannot be answered does not end the conversation.

    Args:
        generator: the model.
        opening: messages in front of the first question.
        max_new_tokens: largest number of tokens of an answer.
        sampling: the settings of the sampling.
        stop: strings before which an answer ends.

    Raises:
        ZooError: The model has no template, or its context no room for an answer; or a question cannot be
            answered, and the input is no terminal.
        KeyboardInterrupt: Ctrl-C was pressed outside of an answer.
    """
    if not generator.has_room([*opening, Message("user", "a")], max_new_tokens):
        raise ZooError(
            f"generate: --max-new-tokens {max_new_tokens}: the model's context has no room for a question "
            "and such an answer; expected fewer"
        )
    at_terminal = sys.stdin is not None and sys.stdin.isatty()
    if at_terminal:
        with suppress(ImportError):
            import readline  # noqa: F401  makes `input` support editing and history
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
    """The conversation without its oldest questions and answers, for which the context has no room.

    Args:
        generator: the model.
        messages: the conversation, whose last message is the user's.
        kept: number of messages at the beginning that stay.
        max_new_tokens: largest number of tokens of the answer.
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
        elif sys.stdin is None or not (line := sys.stdin.readline()):
            return None
        if line.strip():
            return line.rstrip("\n")
