"""The page of a coordinate check."""

from __future__ import annotations

import math
from pathlib import Path

from zoo.ablate.table import Column, Table
from zoo.diagnose.coordinates import MAX_CHANGE, TOLERANCE, CoordinateCheck
from zoo.report.page import draw_images, html_page, write_files
from zoo.report.plot import Plot, Series, View
from zoo.report.section import Section
from zoo.report.style import line_styles
from zoo.utils.printable import first_few

NAMED = 8
"""Number of failing modules that are named; the table has all."""


def coordinate_table(check: CoordinateCheck) -> Table:
    """A table with a row per module: its outputs over the sizes, and the alignment of linear maps."""
    columns = [Column("module", align_right=False), Column("verdict", align_right=False)]
    columns += [Column(f"step {step}", lambda value: f"{value:.2f}") for step in check.steps]
    columns += [Column(name, lambda value: f"{value:.2f}") for name in ("change", "alpha", "omega", "nu")]
    rows = []
    for m in check.modules:
        a = m.alignment
        exponents = (a.alpha, a.omega, a.nu) if a else (None,) * 3
        rows.append([m.name, m.word, *m.factors, m.change, *exponents])
    shrink = "Ends of branches, of which there are more," if check.axis.adds_branches else "Logits"
    note = (
        f"The numbers are the {_measured(check)} at {check.axis.name} {check.sizes[-1]} over that at "
        f"{check.sizes[0]}; flat is less than a factor of {TOLERANCE:g}. {shrink} may shrink. Step 1 is "
        f"before any update. change is that of the weights at {check.axis.name} {check.sizes[0]}, relative "
        "to their start in norm. alpha, omega and nu are exponents of the alignment: 1 if the terms of a "
        "product add up, 1/2 if their signs are random"
    )
    if check.axis.adds_branches:
        note += ". A block is compared with the one at the same share of the depth"
    return Table("coordinates", f"Coordinate check at lr {check.lr:g}", columns, rows, note)


def verdict_of(check: CoordinateCheck) -> list[str]:
    """The sentences about a check as a whole: which modules fail, and whether the rate is too large."""
    smallest, sentences = f"{check.axis.name} {check.sizes[0]}", ["All modules pass."]
    if check.failing:
        names = first_few([m.name for m in check.failing], NAMED)
        sentences = [f"{len(check.failing)} of {len(check.modules)} modules fail: {names}."]
    if not check.learns:
        before, after = check.losses
        sentences.append(
            f"The learning rate {check.lr:g} is too large: the loss at {smallest} rises from {before:.3g} to "
            f"{after:.3g}. Expected a smaller --lr."
        )
    elif check.rate_hides_rule and check.largest_lr is not None:
        changes = [(m.change, m.name) for m in check.modules if m.change is not None]
        change, name = max(changes, key=lambda pair: pair[0])
        sentences.append(
            f"The learning rate {check.lr:g} is too large for a judgement of the rule: at {smallest} the "
            f"weights of {name} change by {change:.2g} times their start, and from {MAX_CHANGE:.2g} on "
            "outputs may shrink under an exact rule as well. "
            f"Expected --lr {_rounded_down(check.largest_lr):g} or less."
        )
    return sentences


def _rounded_down(value: float) -> float:
    """The largest number of one digit that is not above a positive value."""
    unit = 10.0 ** math.floor(math.log10(value))
    return math.floor(value / unit) * unit


def _measured(check: CoordinateCheck) -> str:
    """The quantity that a check measures, in words."""
    return "movement of the output since step 1" if check.movement else "mean absolute output"


def write_coordinates(check: CoordinateCheck, title: str, folder: Path) -> list[Path]:
    """Write the page and its plot.

    Args:
        check: the result of the check.
        title: the heading of the page.
        folder: the folder to write to, which is created if necessary.

    Returns:
        The paths of the files.
    """
    views = [
        View(
            f"step {step}",
            check.axis.name,
            _measured(check),
            [Series(m.name, m.name, check.sizes, m.sizes[i]) for m in check.modules],
            log_x=True,
            log_y=True,
            ticks=check.sizes,
        )
        for i, step in enumerate(check.steps)
    ]
    plot = Plot("coordinates", f"Outputs over the {check.axis.name}", views, "A line per module", panels=True)
    sections = [Section("Modules", [coordinate_table(check)]), Section("Plot", [plot])]
    styles = line_styles(m.name for m in check.modules)
    images = draw_images(sections, styles)
    page = html_page(title, verdict_of(check), sections, styles, images)
    png_files = {f"{key}.png": png for key, png in images.items()}
    return write_files(folder, {"coordinates.html": page, **png_files})
