"""The pictures of terminals in docs/screens: `python -m benchmarks.screens` writes all of them.

The verdict is that of a sweep whose losses were made up for the picture.
"""

from __future__ import annotations

import re
import sys
import tempfile
from io import StringIO
from pathlib import Path

from rich.console import Console, RenderableType

from zoo.run.explanation import explain

ROOT = Path(__file__).parent.parent
SCREENS = ROOT / "docs/screens"
WIDTHS = (80, 200)
FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""What rich would load from another site; the reader's own font is as good."""
FINALS = {
    "gpt": [3.021, 3.034, 3.016],
    "ngpt": [2.948, 2.951, 2.939],
    "gpt, wesar": [3.012, 3.041, 3.009],
}


def draw(folder: Path) -> None:
    """Write `zoo explain` and a verdict as SVG, at 80 and at 200 columns.

    Args:
        folder: where to write them; it is created if necessary.
    """
    folder.mkdir(parents=True, exist_ok=True)
    screens = {
        "explain": ("zoo explain wesar-130m --fold", explain("wesar-130m").table(fold=True)),
        "verdict": ("zoo report sweeps/example", _verdict()),
    }
    for name, (title, content) in screens.items():
        for width in WIDTHS:
            console = Console(record=True, width=width, file=StringIO(), force_terminal=True, markup=False)
            console.print(content)
            picture = console.export_svg(title=title, unique_id=f"{name}-{width}")
            lines = [line.rstrip() for line in FONTS.sub("", picture).strip().splitlines()]
            (folder / f"{name}-{width}.svg").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _verdict() -> RenderableType:
    """The conclusion of a sweep that was never trained."""
    sys.path.insert(0, str(ROOT / "tests"))  # which write run folders with the losses that one wants
    from synthetic_runs import write_sweep

    from zoo.ablate.conclusion import conclusion
    from zoo.ablate.results import read_results
    from zoo.ablate.verdict import judge

    with tempfile.TemporaryDirectory() as name:
        return conclusion(judge(read_results([write_sweep(Path(name) / "sweep", FINALS)])))


if __name__ == "__main__":
    draw(SCREENS)
