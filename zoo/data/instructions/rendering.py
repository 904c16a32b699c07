"""Rendering chat templates in a process of their own, see `zoo.data.instructions.jinja_process`."""

from __future__ import annotations

import contextlib
import functools
import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from zoo.data.instructions.files import Message
from zoo.utils.errors import DataError
from zoo.utils.untyped import Json

PROGRAM = Path(__file__).with_name("jinja_process.py")

WALL_SECONDS = 60
"""Limit of a request in seconds, in case processor time is not limited or the process is suspended."""


class ChatTemplateError(DataError):
    """Raised for a chat template that is no template or has to be stopped, whatever the conversation is."""


class Rendered(NamedTuple):
    """The text of a conversation, as a chat template renders it.

    Attributes:
        text: the text.
        generated: character positions (start, end) of the parts that the template marks as the assistant's
            with ``{% generation %}``.
    """

    text: str
    generated: list[tuple[int, int]]


class ChatRenderer:
    """A chat template, running in a process that is started at the first request.

    Args:
        source: text of the template.
        special_tokens: the tokens that templates refer to by name, such as ``bos_token``.
    """

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        self._source, self._special_tokens = source, special_tokens
        self._process: subprocess.Popen[str] | None = None
        self._stop: Callable[[], object] | None = None

    def render(self, requests: Sequence[tuple[Sequence[Message], bool]]) -> list[Rendered]:
        """Render conversations with a chat template.

        Args:
            requests: messages, and whether the text continues up to the beginning of the assistant's next
                message.

        Raises:
            ChatTemplateError: The template has an error, or takes too much time or memory.
            DataError: The template refuses the messages.
        """
        variables = [
            {
                "messages": [message._asdict() for message in messages],
                "tools": None,
                "documents": None,
                "add_generation_prompt": goes_on,
                **self._special_tokens,
            }
            for messages, goes_on in requests
        ]
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                encoding="utf-8",
            )
            self._stop = weakref.finalize(self, _end, self._process)
            mistake = self._ask(self._process, self._source)
            if mistake is not None:
                raise ChatTemplateError(f"the chat template has a mistake: {mistake['error']}")
        answer = self._ask(self._process, variables)
        if isinstance(answer, dict):
            raise DataError(f"the chat template refuses the conversation: {answer['error']}")
        return [Rendered(item["text"], [(start, end) for start, end in item["spans"]]) for item in answer]

    def _ask(self, process: subprocess.Popen[str], request: object) -> Json:
        assert process.stdin and process.stdout  # both are pipes
        timer = threading.Timer(WALL_SECONDS, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            self._close()
            from zoo.data.instructions.jinja_process import CPU_SECONDS, MEMORY_BYTES

            raise ChatTemplateError(
                f"the chat template was stopped: it takes more than {CPU_SECONDS} seconds of processor time, "
                f"or more memory than {MEMORY_BYTES // 2**30} GiB, for one conversation"
            )
        answer = json.loads(line)
        if isinstance(answer, dict):
            self._close()
        return answer

    def _close(self) -> None:
        """End the process; the next request starts another one."""
        if self._stop:
            self._stop()
        self._process = self._stop = None


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    with contextlib.suppress(BrokenPipeError):  # closing the pipe flushes data that the process did not read
        process.communicate()


@functools.lru_cache(maxsize=4)
def chat_renderer(source: str, special_tokens: tuple[tuple[str, str], ...]) -> ChatRenderer:
    """The renderer of a template; the same template has one process."""
    return ChatRenderer(source, dict(special_tokens))
