"""The page of a coordinate check."""

from __future__ import annotations

from pathlib import Path

from zoo.ablate.table import Column, Table
from zoo.diagnose.coordinates import TOLERANCE, CoordinateCheck
from zoo.report.page import draw_images, html_page, write_files
from zoo.report.plot import Plot, Series, View
from zoo.report.section import Section
from zoo.report.style import line_styles


def coordinate_table(check: CoordinateCheck) -> Table:
    """A table with a row per module: its outputs over the sizes, and the alignment of linear maps."""
    columns = [Column("module", align_right=False), Column("verdict", align_right=False)]
    columns += [Column(f"step {step}", lambda value: f"{value:.2f}") for step in check.steps]
    columns += [Column(name, lambda value: f"{value:.2f}") for name in ("alpha", "omega", "nu")]
    rows = []
    for m in check.modules:
        a = m.alignment
        rows.append([m.name, m.word, *m.factors, *((a.alpha, a.omega, a.nu) if a else (None,) * 3)])
    shrink = "Ends of branches, of which there are more," if check.axis.adds_branches else "Logits"
    note = (
        f"The numbers are the {_measured(check)} at {check.axis.name} {check.sizes[-1]} over that at "
        f"{check.sizes[0]}; flat is less than a factor of {TOLERANCE:g}. {shrink} may shrink. Step 1 is "
        "before any update. alpha, omega and nu are exponents of the alignment: 1 if the terms of a product "
        "add up, 1/2 if their signs are random"
    )
    if check.axis.adds_branches:
        note += ". A block is compared with the one at the same share of the depth"
    return Table("coordinates", f"Coordinate check at lr {check.lr:g}", columns, rows, note)


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
    failing = [m.name for m in check.modules if not m.passes]
    verdict = (
        "All modules pass."
        if check.passes
        else f"These of {len(check.modules)} modules fail: {', '.join(failing)}."
    )
    sections = [Section("Modules", [coordinate_table(check)]), Section("Plot", [plot])]
    styles = line_styles(m.name for m in check.modules)
    images = draw_images(sections, styles)
    page = html_page(title, [verdict], sections, styles, images)
    png_files = {f"{key}.png": png for key, png in images.items()}
    return write_files(folder, {"coordinates.html": page, **png_files})
