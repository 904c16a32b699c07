"""`zoo sweep` from the first run to the verdict, and what it and `zoo report` print at the end."""

from __future__ import annotations

from rich.console import Console, Group
from rich.text import Text

from zoo.ablate.caveats import caveats
from zoo.ablate.execute import SweepResult, execute
from zoo.ablate.pool import worker_count
from zoo.ablate.results import read_results
from zoo.ablate.sweep import Sweep
from zoo.ablate.tables import verdict_table
from zoo.ablate.verdict import Judgement, judge


def conclusion(judgement: Judgement) -> Group:
    """The verdict table, the verdicts in words, and the caveats, for a terminal."""
    table = verdict_table(judgement)
    sentences = [Text(sentence) for sentence in judgement.sentences]
    cautions = [Text(f"Caution: {sentence}.", style="yellow") for sentence in caveats(judgement)]
    return Group(table.rich(), Text(table.note, style="dim"), *sentences, *cautions)


def run_sweep(sweep: Sweep, workers: int | None, console: Console) -> SweepResult:
    """Train the runs that a sweep still needs, and print its verdict.

    Args:
        sweep: from `load_sweep`.
        workers: the number of runs at a time; None: one per GPU, or one per core.
        console: where to show the runs and the verdict.

    Raises:
        ConfigError: two runs have the same id, or a run folder was edited; before anything is trained.
        ZooError: another sweep is running in the same folder.
    """
    result = execute(sweep, worker_count(workers), console)
    if not result.finished:
        console.print("Stopped, and saved. The same command goes on.")
        return result
    console.print(conclusion(judge(read_results([sweep.folder]))))
    page = f"The page with all of it: zoo report {sweep.folder} --out DIR"
    console.print(page, highlight=False, markup=False)
    return result
