"""What the machine changes: the same side of two questions, one trained on a GPU and one on processors."""

from __future__ import annotations

from benchmarks.harness import table
from benchmarks.scale.place import Place
from benchmarks.scale.questions import BY_KEY
from zoo.ablate.lines import Lines
from zoo.ablate.scale.runs import FinishedRun
from zoo.ablate.statistics import summarise

SIDES = (("q2-amos", "optimizer=adamw"), ("q1", "model=gpt"))
"""GPT with AdamW in two questions: the same data, sizes, budgets and seeds, each with a tuning of its own."""


def compare_machines(place: Place) -> str:
    """The differences in final loss, accelerator minus processor, as a table.

    Runs of the tuning are paired by their rates, which both machines have tried. Runs of the comparison have
    the rate that was found on each machine.

    Args:
        place: the files of the study.
    """
    ours, theirs = (_runs(place, *side) for side in SIDES)
    compared = place.load(BY_KEY[SIDES[0][0]]).ladder[0].seeds
    found: dict[str, list[float]] = {"of the tuning, at the same rate": [], "of the comparison": []}
    tuning, comparison = found.values()
    for run in ours:
        for other in theirs:
            same = (run.size, run.tokens, run.seed) == (other.size, other.tokens, other.seed)
            if not same or not run.making.accelerator or other.making.accelerator:
                continue
            if run.seed in compared:
                comparison.append(run.loss - other.loss)
            elif run.rate == other.rate:
                tuning.append(run.loss - other.loss)
    return table([_row(name, values) for name, values in found.items() if len(values) > 1])


def _runs(place: Place, key: str, variant: str) -> list[FinishedRun]:
    lines = place.load(BY_KEY[key]).lines
    assert lines is not None  # every question has lines
    return [line.run for line in Lines(lines.file) if line.run.variant == variant]


def _row(name: str, differences: list[float]) -> dict[str, object]:
    known = summarise(differences)
    return {
        "runs": name,
        "pairs": known.n,
        "mean difference": f"{known.mean:+.4f}",
        "95 %": f"{known.low:+.4f} to {known.high:+.4f}",
        "deviation of a pair": f"{known.sd:.4f}",
    }
