"""The study across scale: its runs, its pages from the committed lines alone, and what it still costs.

python -m benchmarks.scale train     train what is missing of all questions, or of some
python -m benchmarks.scale report    docs/results/scale.md, its pictures, the pages of the questions
python -m benchmarks.scale recount   count the operations of the runs in the committed lines again
python -m benchmarks.scale score     score what has ended of all questions, or of some, on further texts
python -m benchmarks.scale hours     core-hours used and left, question by question, or of some
python -m benchmarks.scale machines  what a GPU changes in the losses of GPT with AdamW
python -m benchmarks.scale copy DIR  a tiny copy of the study; with --study DIR the others are about it
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from benchmarks.scale.chapters import Chapter, judged
from benchmarks.scale.forgetting import fine_tuned
from benchmarks.scale.machines import compare_machines
from benchmarks.scale.page import write
from benchmarks.scale.place import THE_STUDY, Place
from benchmarks.scale.questions import BY_KEY, DRIFTING, LADDERS, Question
from benchmarks.scale.rates import drifting
from benchmarks.scale.recount import recount
from benchmarks.scale.stability import stability
from benchmarks.scale.study import hours, score_ended, speed_probe, train
from benchmarks.scale.tiny import write_tiny
from benchmarks.scale.together import added_up
from zoo.ablate.progress import progress
from zoo.utils.errors import ZooError

ABOUT_QUESTIONS = (
    ("train", "train what is missing"),
    ("score", "score what has ended on further texts"),
    ("hours", "print the hours"),
)
"""The commands that are about questions, and what they do."""


def chapters(place: Place = THE_STUDY) -> Iterator[Chapter]:
    """All questions in the order of the plan."""
    states = {question.key: progress(place.load(question)) for question in LADDERS}
    for question in LADDERS:
        state = states[question.key]
        if question.alone:
            yield added_up(question, state, states[question.alone])
        else:
            read = stability if question.described else fine_tuned if question.fine_tunes else judged
            yield read(question, state)
    yield drifting(DRIFTING, place.drift)


def _question(key: str) -> Question:
    """The question with a key, as an argument of a command.

    Raises:
        argparse.ArgumentTypeError: No question has the key.
    """
    if key not in BY_KEY:
        raise argparse.ArgumentTypeError(f"{key!r} is no question; there are {', '.join(BY_KEY)}")
    return BY_KEY[key]


def main() -> None:
    """Train, write the pages, count again, compare machines, score, print the hours, or make a tiny copy."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--study", type=Path, help="the folder of a tiny copy")
    commands = options.add_subparsers(dest="what", required=True)
    commands.add_parser("report", help="write the pages")
    commands.add_parser("recount", help="count the operations of the runs again")
    commands.add_parser("machines", help="compare the losses of two machines")
    for name, about in ABOUT_QUESTIONS:
        commands.add_parser(name, help=about).add_argument(
            "questions",
            nargs="*",
            type=_question,
            default=list(LADDERS),
            help="default: all",
            metavar="QUESTION",
        )
    commands.add_parser("copy", help="make a tiny copy").add_argument("folder", type=Path)
    given = options.parse_args()
    place = THE_STUDY if given.study is None else Place.within(given.study)
    try:
        if given.what == "copy":
            write_tiny(given.folder)
        elif given.what == "report":
            every = tuple(chapters(place))
            write(place.results, place.front, every)
            for chapter in every:
                print(f"{chapter.title}: {chapter.status}")
        elif given.what == "recount":
            for question in LADDERS:
                print(f"{question.title}: {recount(place.load(question))} lines have other operations now")
        elif given.what == "machines":
            print(compare_machines(place))
        elif given.what == "train":
            train(place, given.questions)
        elif given.what == "score":
            for question in given.questions:
                score_ended(place, question, place.load(question))
        else:
            print(hours(place, given.questions, speed_probe()))
    except ZooError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
