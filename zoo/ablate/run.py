"""`zoo sweep`: from a sweep file to a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from zoo.ablate.caveats import caveats
from zoo.ablate.execute import Result, execute
from zoo.ablate.pool import usual_workers
from zoo.ablate.results import read_results
from zoo.ablate.sweep import load_sweep
from zoo.ablate.tables import verdict_sheet
from zoo.ablate.verdict import judge
from zoo.errors import ZooError


def run_sweep(
    file: Path,
    overrides: Sequence[str] = (),
    *,
    out: Path | None = None,
    workers: int | None = None,
    console: Console | None = None,
) -> Result:
    """Run a sweep, or what is left of it, and show its verdict.

    Args:
        file: the sweep file.
        overrides: ``a.b=c``, put on top of its `base`.
        out: folder of the sweeps; None: the file's.
        workers: runs at a time; None: one per GPU, or one.
        console: where to show the runs and the verdict; None: silent.

    Raises:
        ConfigError: what is wrong with the file, two runs with one id, or a run folder that was changed
            by hand; before anything is trained.
        ZooError: another sweep is at work in the same folder.
    """
    if workers is not None and workers < 1:
        raise ZooError(f"sweep: --workers {workers}: expected at least 1")
    sweep = load_sweep(file, overrides, out)
    result = execute(sweep, workers or usual_workers(), console)
    if console is not None:
        if result.finished:
            show_verdict(sweep.folder, console)
        else:
            console.print("Stopped, and saved. The same command goes on.")
    return result


def show_verdict(folder: Path, console: Console) -> None:
    """Print the verdict on a sweep, and what speaks against it."""
    judgement = judge(read_results([folder]))
    sheet = verdict_sheet(judgement)
    console.print(sheet.rich(), sheet.note, sep="\n", highlight=False)
    for caveat in caveats(judgement):
        console.print(f"Note: {caveat}", highlight=False, markup=False)
    console.print(f"The page with all of it: zoo report {folder} --out DIR", highlight=False, markup=False)
