"""The elements of a page, which can be written as HTML or as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zoo.ablate.table import Table
from zoo.report.plot import Plot


@dataclass(frozen=True)
class Image:
    """A picture that is the same on paper and in the browser.

    Attributes:
        key: the file name without ".png": letters and hyphens.
        title: the heading.
        png: the content of the file.
        note: how the quantity is defined and how to read the picture.
    """

    key: str
    title: str
    png: bytes
    note: str


@dataclass(frozen=True)
class Sample:
    """A text that a run generated.

    Attributes:
        variant: the name of the run's variant.
        run: the name of the run.
        text: the generated text.
    """

    variant: str
    run: str
    text: str


@dataclass(frozen=True)
class Section:
    """A heading with the content below it.

    Attributes:
        title: the heading.
        blocks: tables, plots, images and samples, in order.
        notes: sentences without their full stops, which are shown as a list above the blocks.
    """

    title: str
    blocks: Sequence[Table | Plot | Image | Sample]
    notes: Sequence[str] = ()
