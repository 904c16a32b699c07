"""A page as one self-contained HTML file; its plots are interactive, and on paper they are pictures."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from zoo.report.interactive import plotly_figure
from zoo.report.plot import Plot
from zoo.report.section import Image, Section
from zoo.report.static import draw_png
from zoo.report.style import LineStyle
from zoo.utils.atomic import write_file

TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
SCRIPT = Path(__file__).with_name("page.js").read_text("utf-8")
SORTING = Path(__file__).with_name("sort.js").read_text("utf-8")
TEMPLATES.filters["kind"] = lambda block: type(block).__name__
TEMPLATES.filters["base64"] = lambda content: base64.b64encode(content).decode("ascii")
TEMPLATES.globals["zip"] = zip
TEMPLATES.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}


def draw_images(sections: Sequence[Section], styles: Mapping[str, LineStyle]) -> dict[str, bytes]:
    """The plots and images of some sections as PNG files, by key."""
    blocks = [block for section in sections for block in section.blocks]
    images = {block.key: block.png for block in blocks if isinstance(block, Image)}
    return images | {block.key: draw_png(block, styles) for block in blocks if isinstance(block, Plot)}


def html_page(
    title: str,
    lead: Sequence[str],
    sections: Sequence[Section],
    styles: Mapping[str, LineStyle],
    images: Mapping[str, bytes],
) -> str:
    """Write a page, in which all texts are escaped.

    Args:
        title: the heading of the page.
        lead: the sentences below the title.
        sections: the sections in order.
        styles: the colours and dashes by variant.
        images: the result of `draw_images`; the page shows the image of a plot on paper and without scripts.
    """
    plots = [block for section in sections for block in section.blocks if isinstance(block, Plot)]
    scripts = [_plotly(), f"{SORTING}\n{SCRIPT}"] if plots else [SORTING]
    return TEMPLATES.get_template("page.html").render(
        title=title,
        lead=lead,
        sections=sections,
        styles=styles,
        images=images,
        plots=[plotly_figure(plot, styles) for plot in plots],
        scripts=scripts,
        policy=_policy(scripts),
    )


def _policy(scripts: Sequence[str]) -> str:
    """A content security policy under which these scripts run and no others, and nothing is loaded.

    Inline styles are allowed, because the colours of variants and plotly.js need them; they cannot load
    anything either.
    """
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def write_files(folder: Path, contents: Mapping[str, str | bytes]) -> list[Path]:
    """Write files into a folder, each atomically, and texts as UTF-8.

    Args:
        folder: the folder, which is created if necessary.
        contents: the contents by file name.

    Returns:
        The paths in the same order.
    """
    for name, content in contents.items():
        _write(folder / name, content.encode("utf-8") if isinstance(content, str) else content)
    return [folder / name for name in contents]


def _write(path: Path, content: bytes) -> None:
    write_file(path, lambda partial: partial.write_bytes(content))


def _plotly() -> str:
    """The source of plotly.js."""
    from plotly.offline import get_plotlyjs

    source: str = get_plotlyjs()
    return source.replace("\r\n", "\n")  # the form of which a browser computes the hash
