"""A console on which names and texts have no effect: their control characters are escaped."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from zoo.utils.printable import printable
from zoo.utils.untyped import Passed


class InertConsole(Console):
    """A console that sends its own control sequences, such as colours, but none of the texts it shows."""

    def render_str(self, text: str, **settings: Passed) -> Text:
        """Make a text of a string, with the width of the escaped form."""
        return super().render_str(printable(text), **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does; called for every part of the output."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Raise the error that rich handles when it calls this method: of a stream without a reader."""
        raise
