"""`zoo generate --chat` at a terminal, which is a pseudo-terminal here: typed lines, Ctrl-C, Ctrl-D."""

from __future__ import annotations

import os
import subprocess
import sys
from io import StringIO
from typing import cast

import pytest
from tiny_runs import environment

from zoo.commands.chat import converse
from zoo.evaluation.text_generator import TextGenerator
from zoo.sampling import Sampling
from zoo.utils.errors import ZooError

pty = pytest.importorskip("pty")

PROGRAM = """
import time
from zoo.commands.chat import converse
from zoo.data.instructions.files import Message
from zoo.sampling import Sampling
from zoo.utils.errors import DataError

class Parrot:
    def has_room(self, messages, max_new_tokens):
        return len(messages) <= 4

    def answer(self, messages, max_new_tokens, sampling, *, stop, show):
        asked = messages[-1].content
        if asked == "refuse":
            raise DataError("this cannot be asked")
        show(f"<{len(messages)}: ")
        if asked == "wait":
            while True:
                time.sleep(0.01)
        show(f"{asked}, {messages[-2].content}>")

converse(Parrot(), [Message("system", "S")], 10, Sampling())
"""
"""With a model that says how many messages it was given, the last one, and the one before that."""


def conversation(steps: list[tuple[str, str]]) -> tuple[int, str]:
    """The exit status and the screen of a conversation: what is awaited on it, then typed, in turn."""
    main, terminal = pty.openpty()
    settings = environment() | {"TERM": "dumb"}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=settings,
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    os.close(terminal)
    screen, seen = "", 0
    try:
        for awaited, typed in [*steps, ("", "")]:
            while not awaited or (at := screen.find(awaited, seen)) < 0:
                try:
                    read = os.read(main, 4096)
                except OSError:  # Linux's end of the file
                    read = b""
                if not read:
                    return process.wait(), screen.replace("\r", "")
                screen += read.decode()
            seen = at + len(awaited)
            os.write(main, typed.encode())
    finally:
        process.kill()
        process.wait()
        os.close(main)
    raise AssertionError


def _take_terminal() -> None:
    """Make the terminal that of the new session, so that Ctrl-C reaches its process and is not ignored.

    A shell without job control starts its background jobs with SIGINT ignored, and so are their children.
    """
    import fcntl
    import signal
    import termios

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_a_conversation() -> None:
    """Blank lines are passed over, Ctrl-C ends an answer, a refused question is forgotten, and so is the
    oldest one when there is no room; Ctrl-D ends it all."""
    status, screen = conversation(
        [
            ("> ", "one\n"),
            ("<2: one, S>", ""),
            ("> ", "  \n"),
            ("> ", "wait\n"),
            ("<4: ", "\x03"),
            ("> ", "refuse\n"),
            ("> ", "two\n"),
            ("> ", "\x04"),
        ]
    )
    assert status == 0
    assert "error: this cannot be asked" in screen
    left_out = "(the context is full: questions left out at the beginning: 1)"
    assert screen.count(left_out) == 2 and f"{left_out}\n<4: two, <4: >" in screen
    assert screen.endswith("> \n")


def test_an_answer_that_has_no_room_is_told_before_the_first_question(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Full:
        def has_room(self, messages: object, max_new_tokens: int) -> bool:
            return False

    monkeypatch.setattr(sys, "stdin", StringIO(""))
    with pytest.raises(ZooError, match="--max-new-tokens 10: the model's context has no room"):
        converse(cast(TextGenerator, Full()), [], 10, Sampling())
    assert capsys.readouterr().out == ""
