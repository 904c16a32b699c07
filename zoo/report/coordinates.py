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
    """A row per module: what it does over the widths, and the alignment of linear maps."""
    steps = range(len(check.modules[0].sizes))
    columns = [Column("module", align_right=False), Column("verdict", align_right=False)]
    columns += [Column(f"step {step + 1}", lambda value: f"{value:.2f}") for step in steps]
    columns += [Column(name, lambda value: f"{value:.2f}") for name in ("alpha", "omega", "nu")]
    rows = []
    for m in check.modules:
        a = m.alignment
        rows.append([m.name, m.word, *m.factors, *((a.alpha, a.omega, a.nu) if a else (None,) * 3)])
    note = (
        f"The numbers are the mean absolute output at width {check.widths[-1]} over that at "
        f"{check.widths[0]}; flat is less than a factor of {TOLERANCE:g}. Step 1 is before any update. "
        "alpha, omega and nu are exponents of the alignment: 1 if the terms of a product add up, 1/2 if "
        "their signs are random"
    )
    return Table("coordinates", f"Coordinate check at lr {check.lr:g}", columns, rows, note)


def write_coordinates(check: CoordinateCheck, title: str, folder: Path) -> list[Path]:
    """Write the page and its plot.

    Args:
        check: the result.
        title: what was checked.
        folder: made if it does not exist.

    Returns:
        The files.
    """
    views = [
        View(
            f"step {step + 1}",
            "width",
            "mean absolute output",
            [Series(m.name, m.name, check.widths, m.sizes[step]) for m in check.modules],
            log_x=True,
            log_y=True,
            ticks=check.widths,
        )
        for step in range(len(check.modules[0].sizes))
    ]
    plot = Plot("coordinates", "Outputs over the width", views, "A line per module", panels=True)
    failing = [m.name for m in check.modules if not m.passes]
    verdict = "All modules pass." if check.passes else f"{len(failing)} modules fail: {', '.join(failing)}."
    sections = [Section("Modules", [coordinate_table(check)]), Section("Plot", [plot])]
    styles = line_styles(m.name for m in check.modules)
    images = draw_images(sections, styles)
    page = html_page(title, [verdict], sections, styles, images)
    pictures = {f"{key}.png": png for key, png in images.items()}
    return write_files(folder, {"coordinates.html": page, **pictures})
