"""The pages of the study across scale, from the committed lines alone, and what is left to train.

python -m benchmarks.scale report    docs/results/scale.md, its pictures, the pages of the questions
python -m benchmarks.scale hours     core-hours used and left, question by question, or of some
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.drift.lines import RESULTS as DRIFT
from benchmarks.harness import RESULTS, ROOT, table
from benchmarks.scale.chapters import Chapter, judged
from benchmarks.scale.page import write
from benchmarks.scale.questions import DRIFTING, LADDERS
from benchmarks.scale.rates import drifting
from benchmarks.scale.stability import stability
from zoo.ablate.ladder_estimate import ladder_costs, total_cost
from zoo.ablate.pool import worker_count
from zoo.ablate.progress import progress
from zoo.ablate.sweep import load_sweep


def chapters(drift: Path = DRIFT) -> Iterator[Chapter]:
    """All questions in the order of the plan.

    Args:
        drift: the lines of the drift table.
    """
    counted: set[str] = set()
    for question in LADDERS:
        read = stability if question.described else judged
        yield read(question, progress(load_sweep(question.file)), counted)
    yield drifting(DRIFTING, drift)


def hours(keys: Sequence[str], workers: int) -> str:
    """What questions have taken and still take, as a table."""
    rows = []
    for question in LADDERS:
        if keys and question.key not in keys:
            continue
        sweep = load_sweep(question.file)
        state = progress(sweep)
        cost = total_cost(ladder_costs(sweep, workers))
        rows.append(
            {
                "question": question.key,
                "runs ended": state.ended,
                "planned": state.planned,
                "core-hours used": f"{sum(state.seconds.values()) / 3600:.3g}",
                "core-hours left": f"{cost.left:.3g}",
                "speed from": cost.measured_in,
            }
        )
    return table(rows)


def main() -> None:
    """Write the pages, or print the hours."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = options.add_subparsers(dest="what", required=True)
    commands.add_parser("report", help="write the pages")
    about = "a ladder; default: all"
    known = [question.key for question in LADDERS]
    commands.add_parser("hours", help="print the hours").add_argument(
        "questions", nargs="*", choices=known, default=[], help=about, metavar="QUESTION"
    )
    given = options.parse_args()
    if given.what == "hours":
        print(hours(given.questions, worker_count(None)))
        return
    every = tuple(chapters())
    write(RESULTS, ROOT / "README.md", every)
    for chapter in every:
        print(f"{chapter.title}: {chapter.status}")


if __name__ == "__main__":
    main()
