"""The runs of the study, question by question, from wherever it was stopped; and the hours that they take."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from benchmarks.harness import table
from benchmarks.scale.place import Place
from benchmarks.scale.questions import LADDERS, Question
from benchmarks.scale.scores import score
from benchmarks.scale.source import is_laid, lay_source, run_zoo
from zoo.ablate.estimate import SpeedProbe
from zoo.ablate.ladder_estimate import ladder_costs, total_cost
from zoo.ablate.pool import worker_count
from zoo.ablate.progress import progress
from zoo.ablate.sweep import Sweep
from zoo.utils.errors import DataError

FIRST = LADDERS[0]
"""The question with the run whose checkpoint is fine-tuned."""
JUDGED = (0, 1)
"""Statuses of `zoo sweep` after which the study goes on: with 1 a run diverged, or the check was an alarm."""


def train(place: Place, questions: Sequence[Question]) -> None:
    """Train what is missing; run folders may be gone, as every question goes on from its lines.

    Args:
        place: the files of the study.
        questions: the questions to train, in this order.

    Raises:
        ZooError: a sweep file or the lines of one have a mistake, or a text to score models on is not there,
            which is told before anything is trained; or Q6 has come before Q1.
        SystemExit: a sweep was interrupted, or could not be run.
    """
    probe = speed_probe()
    for question in questions:
        progress(place.load(question))
        for name in question.texts:
            if not (text := place.texts[name]).is_file():
                raise DataError(f"{text}: there is no such file; {question.key} scores its models on it")
    for question in questions:
        if question.fine_tunes:
            print(f"{question.key} begins with {lay_source(place.load(FIRST))}.", flush=True)
        print(hours(place, [question], probe), flush=True)
        scoring = partial(score_ended, place, question, place.load(question))
        status = run_zoo("sweep", str(place.file(question)), meanwhile=scoring)
        scoring()
        if status not in JUDGED:
            raise SystemExit(status)


def score_ended(place: Place, question: Question, sweep: Sweep) -> None:
    """Score the runs of a question that have ended and have no score, as long as their folders are there."""
    for sentence in score(question, sweep, place.texts):
        print(sentence, flush=True)


def speed_probe() -> SpeedProbe:
    """A probe that names every measurement on the standard error output."""
    return SpeedProbe(worker_count(None), lambda what: print(what, file=sys.stderr, flush=True))


def hours(place: Place, questions: Sequence[Question], probe: SpeedProbe) -> str:
    """What questions have taken and still take, as a table."""
    rows = []
    for question in questions:
        sweep = place.load(question)
        state = progress(sweep)
        row = {
            "question": question.key,
            "runs ended": state.ended,
            "planned": state.planned,
            "core-hours used": f"{state.hours.get('', 0):.3g}",
            "core-hours left": "–",
            "speed from": "no checkpoint yet",
        }
        if not question.fine_tunes or is_laid(sweep):
            cost = total_cost(ladder_costs(sweep, probe))
            row |= {"core-hours left": f"{cost.left:.3g}", "speed from": cost.measured_in}
        rows.append(row)
    return table(rows)
