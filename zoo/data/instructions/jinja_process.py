"""The program that runs chat templates, `python jinja_process.py`; it does not import the rest of zoo.

A chat template is untrusted code. Jinja's sandbox prevents access to files and imports, but not endless
loops, huge numbers and huge texts. Therefore it runs in a process of its own, whose time and memory the
operating system limits. The process reads and writes one JSON value a line; the other side is
`zoo.data.instructions.rendering`.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import sys
import uuid
from collections.abc import Callable
from typing import Any, NoReturn

from jinja2 import FunctionLoader, Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY_BYTES = 2**30
CPU_SECONDS = 2
"""Limit of the processor time of one request, in seconds."""
MAX_CHARS = 8_000_000
"""Largest number of characters of one rendered text."""

_MARK = f"\0{uuid.uuid4().hex}\0"
"""A mark around the text of ``{% generation %}`` blocks, until their positions have been read."""


class GenerationTag(Extension):
    """The tag ``{% generation %} ... {% endgeneration %}`` around the text of the assistant."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        """Put a mark before and after the block's text."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Callable[[], str]) -> str:
        return _MARK + caller() + _MARK


def environment() -> ImmutableSandboxedEnvironment:
    """The environment in which transformers runs chat templates: its options, filters and functions."""

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def tojson(value: object, **options: Any) -> str:  # Any: the arguments of json.dumps
        return json.dumps(value, **{"ensure_ascii": False, **options})

    def strftime_now(form: str) -> str:
        return datetime.datetime.now().strftime(form)

    def no_file(name: str) -> NoReturn:
        raise TemplateError(f"it asks for the file '{name}', but a chat template cannot read others")

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[GenerationTag, "jinja2.ext.loopcontrols"],
        loader=FunctionLoader(no_file),
    )
    made.filters["tojson"] = tojson
    made.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    return made


def limit() -> None:
    """Limit the memory of the process and its processor time from now on; Windows does not support it."""
    try:
        import resource
    except ImportError:
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + CPU_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    with contextlib.suppress(OSError, ValueError):  # macOS defines the limit but does not accept it
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))


def render(template: Template, variables: dict[str, object]) -> dict[str, object]:
    """Render one conversation with a chat template.

    Returns:
        The text, and the character positions [start, end) of the blocks that ``{% generation %}`` marks.

    Raises:
        ValueError: The text is longer than `MAX_CHARS`.
    """
    pieces, length = [], 0
    for piece in template.generate(**variables):
        pieces.append(piece)
        length += len(piece)
        if length > MAX_CHARS:
            raise ValueError(f"it writes more than {MAX_CHARS:,} characters")
    parts = "".join(pieces).split(_MARK)
    ends = [0]
    for part in parts:
        ends.append(ends[-1] + len(part))
    return {"text": "".join(parts), "spans": [(ends[i], ends[i + 1]) for i in range(1, len(parts), 2)]}


def main() -> None:
    """Compile the template of the first line, then answer each line of variables with the rendered text."""
    template: Template | None = None
    for line in sys.stdin:
        limit()
        try:
            request = json.loads(line)
            if template is None:
                template = environment().from_string(request)
                answer: object = None
            else:
                answer = [render(template, variables) for variables in request]
        except Exception as error:  # untrusted code can raise any exception
            answer = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:500]}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
