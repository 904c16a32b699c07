"""Tables for terminals of any width: names are folded, and columns are left out in a given order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill

from rich import box
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

FOLDED = 24
"""Smallest width, in characters, to which a name is folded."""
UNBOUNDED = 100_000
"""Width in characters that every table fits into."""


@dataclass(frozen=True)
class FittingTable:
    """A table that shows as many columns as fit into the terminal.

    If the table is too wide, headings are broken into lines, and the cells of the first column are folded, if
    possible after commas or at dots. If this is not enough, columns without any value are left out, then
    those of `drop`, in order, and a line under the table names them.

    Attributes:
        title: the heading of the table.
        columns: the headings of the columns.
        rows: the cells, row by row; "" means no value.
        drop: headings of the columns that may be left out, the least important one first.
        right: headings of the columns that are aligned on the right.
        lines: whether lines are drawn between the columns.
        totals: the number of rows at the end that are sums, in bold.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    drop: Sequence[str] = ()
    right: Sequence[str] = ()
    lines: bool = True
    totals: int = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, and a line that names the columns left out."""
        width = options.max_width
        every = list(range(len(self.columns)))
        whole = self._measured(console, options, every, self.columns)
        if whole <= width:
            yield self._table(every, self.columns, UNBOUNDED)
            return
        headings = [self._folded_heading(i) for i in every]
        empty = [i for i in every if self.columns[i] in self.drop and not any(row[i] for row in self.rows)]
        drop = [*empty, *(i for i in map(self.columns.index, self.drop) if i not in empty)]
        kept, name = every, max(map(len, self._names))
        while True:
            room = width - (self._measured(console, options, kept, headings) - name)
            if room >= min(FOLDED, name) or not drop:
                break
            left_out = drop.pop(0)
            kept = [i for i in kept if i != left_out]
        yield self._table(kept, headings, max(room, 1))
        if len(kept) < len(every):
            names = ", ".join(self.columns[i] for i in every if i not in kept)
            yield Text(f"left out at {width} columns: {names}", style="dim")

    @property
    def _names(self) -> list[str]:
        return [self.columns[0], *(row[0] for row in self.rows)]

    def _folded_heading(self, column: int) -> str:
        """A heading in several lines, none longer than the cells below or the longest word."""
        words = self.columns[column].split()
        longest = max(map(len, [*words, *(row[column] for row in self.rows)]))
        return fill(self.columns[column], longest)

    def _measured(
        self, console: Console, options: ConsoleOptions, kept: Sequence[int], headings: Sequence[str]
    ) -> int:
        """The number of characters of the longest line, if nothing is cut off."""
        unbounded = options.update(max_width=UNBOUNDED, width=UNBOUNDED)
        table = self._table(kept, headings, UNBOUNDED, title=False)
        return Measurement.get(console, unbounded, table).maximum

    def _table(self, kept: Sequence[int], headings: Sequence[str], room: int, title: bool = True) -> Table:
        table = Table(
            title=self.title if title else None,
            title_justify="left",
            header_style="bold",
            pad_edge=False,
            box=box.HEAVY_HEAD if self.lines else None,
        )
        for i in kept:
            justify: JustifyMethod = "right" if self.columns[i] in self.right else "left"
            table.add_column(headings[i], justify=justify, overflow="fold", no_wrap=i != 0)
        for number, row in enumerate(self.rows, 1):
            cells = (folded(row[i], room) if i == 0 else row[i] for i in kept)
            table.add_row(*cells, style="bold" if number > len(self.rows) - self.totals else None)
        return table


def folded(name: str, width: int) -> str:
    """A name in lines of at most `width` characters, broken if possible after commas or before dots.

    All lines but the first are indented, to distinguish them from other names. A name with commas is one of
    settings, whose dots may be those of numbers.
    """
    lines: list[str] = []
    line = ""
    for piece in re.split(r"(?<=[, ])" if "," in name else r"(?=\.)", name):
        if len(line) + len(piece) > width and line.strip():
            lines.append(line)
            line = "  "
        line += piece
    return "\n".join([*lines, line])
