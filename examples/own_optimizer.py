"""Compare an optimizer of your own with AdamW: a sweep with tuning and seeds, and its verdict.

The same on the command line: `zoo sweep examples/own_optimizer.yaml`, then `zoo report sweeps/own_optimizer
--plugin examples/lion.py`, because no code is imported from the folder of a sweep.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from zoo.ablate.conclusion import run_sweep
from zoo.ablate.sweep import load_sweep
from zoo.report.report import report

SWEEP = Path(__file__).with_name("own_optimizer.yaml")


def main(out: Path) -> None:
    """Run the sweep in the folder `out`, and write the report beside it."""
    sweep = load_sweep(SWEEP, [], out)
    run_sweep(sweep, workers=1, console=Console())
    judgement, page = report([sweep.folder], out / "report")
    print(*judgement.sentences, f"The report: {page}", sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "sweeps"))
