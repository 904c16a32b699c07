"""A console on which no name and no text is obeyed: their control characters are written out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from zoo.utils.printable import printable


class InertConsole(Console):
    """A console that sends its own control sequences, such as colours, and none of what it shows."""

    def render_str(self, text: str, **settings: Any) -> Text:
        """Make a text of a string, as wide as what is shown of it."""
        return super().render_str(printable(text), **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does; called for every part of what is shown."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
