"""`zoo sweep` from the first run to the verdict, and the output of it and of `zoo report`."""

from __future__ import annotations

from rich.console import Console, Group
from rich.text import Text

from zoo.ablate.caveats import caveats
from zoo.ablate.execute import SweepResult, execute
from zoo.ablate.ladder_verdict import LadderVerdict, judge_ladder
from zoo.ablate.pool import worker_count
from zoo.ablate.progress import progress
from zoo.ablate.results import read_results
from zoo.ablate.scale.presentation import verdict_table as ladder_table
from zoo.ablate.sweep import Sweep
from zoo.ablate.tables import verdict_table
from zoo.ablate.verdict import Judgement, judge
from zoo.utils.errors import DataError


def conclusion(judgement: Judgement) -> Group:
    """The verdict table, the verdicts in words, and the caveats, for a terminal."""
    table = verdict_table(judgement)
    sentences = [Text(sentence) for sentence in judgement.sentences]
    cautions = map(_caution, caveats(judgement))
    return Group(table.rich(), Text(table.note, style="dim"), *sentences, *cautions)


def ladder_conclusion(verdict: LadderVerdict) -> Group:
    """The verdicts of a ladder in words, its table, and the reasons for doubt, for a terminal."""
    table = ladder_table(verdict.verdicts, verdict.baseline)
    cautions = map(_caution, verdict.notes)
    return Group(*map(Text, verdict.sentences), table.rich(), Text(table.note, style="dim"), *cautions)


def _caution(sentence: str) -> Text:
    return Text(f"Caution: {sentence}.", style="yellow")


def run_sweep(
    sweep: Sweep, workers: int | None, console: Console, *, largest_first: bool = False
) -> SweepResult:
    """Train the runs that a sweep still needs, and print its verdict.

    Args:
        sweep: the sweep, from `load_sweep`.
        workers: the number of runs at a time; None: one per GPU, or one per core.
        console: the console that shows the runs and the verdict.
        largest_first: the order of the runs, see `execute`.

    Raises:
        ConfigError: Two runs have the same id, or a run folder was edited; before anything is trained.
        ZooError: Another sweep is running in the same folder.
    """
    result = execute(sweep, worker_count(workers), console, largest_first=largest_first)
    if not result.finished:
        console.print("Stopped, and saved. The same command goes on.")
        if sweep.scale is None:
            return result
    if sweep.scale is None:
        console.print(conclusion(judge(read_results([sweep.folder]))))
    else:
        try:
            console.print(ladder_conclusion(judge_ladder(sweep.folder)))
        except DataError as error:  # stopped before there were runs to compare
            console.print(f"No verdict yet: {error}")
            return result
    if result.finished and sweep.lines is not None and (doubt := progress(sweep).doubt):
        console.print(_caution(doubt))
    return result
