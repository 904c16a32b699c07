"""`zoo sweep`: from a sweep file to a verdict."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from zoo.ablate.conclusion import conclusion
from zoo.ablate.execute import Result, execute
from zoo.ablate.pool import usual_workers
from zoo.ablate.results import read_results
from zoo.ablate.sweep import Sweep
from zoo.ablate.verdict import judge
from zoo.utils.errors import ZooError


def run_sweep(sweep: Sweep, workers: int | None = None, console: Console | None = None) -> Result:
    """Run a sweep, or what is left of it, and show its verdict.

    Args:
        sweep: from `load_sweep`.
        workers: runs at a time; None: one per GPU, or one.
        console: where to show the runs and the verdict; None: silent.

    Raises:
        ConfigError: two runs with one id, or a run folder that was changed by hand; before anything is
            trained.
        ZooError: another sweep is at work in the same folder.
    """
    result = execute(sweep, checked(workers), console)
    if console is not None:
        if result.finished:
            show_verdict(sweep.folder, console)
        else:
            console.print("Stopped, and saved. The same command goes on.")
    return result


def checked(workers: int | None) -> int:
    """The number of workers that is meant.

    Raises:
        ZooError: less than one.
    """
    if workers is not None and workers < 1:
        raise ZooError(f"sweep: --workers {workers}: expected at least 1")
    return workers or usual_workers()


def show_verdict(folder: Path, console: Console) -> None:
    """Print the verdict on a sweep, and what speaks against it."""
    console.print(conclusion(judge(read_results([folder]))))
    console.print(f"The page with all of it: zoo report {folder} --out DIR", highlight=False, markup=False)
