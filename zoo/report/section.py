"""What a report is made of, whether it becomes a page or Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zoo.ablate.sheet import Sheet
from zoo.report.plot import Plot


@dataclass(frozen=True)
class Sample:
    """Text that a run generated, and the variant it is of."""

    variant: str
    run: str
    text: str


@dataclass(frozen=True)
class Section:
    """A heading with what stands below it.

    Attributes:
        title: the heading.
        blocks: tables, plots and samples, in order.
        notes: sentences that stand first, as a list.
    """

    title: str
    blocks: Sequence[Sheet | Plot | Sample]
    notes: Sequence[str] = ()
