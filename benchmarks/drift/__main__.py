"""How far the best learning rate drifts over widths, depths and horizons, in octaves.

    python -m benchmarks.drift --dry-run                        what it costs, in core-hours
    python -m benchmarks.drift --sizes 3                        to width 256, 8 blocks, four times the steps
    python -m benchmarks.drift --optimizers adamw --axes width  a part of it
    python -m benchmarks.drift --report                         the table again, without a run

At every size the rate is searched on its own: a grid with steps of 2 at the base size, three rates about the
best one so far at the next sizes, more while the best lies at a border, and the vertex of the parabola. Every
seed is a search of its own. Cheap runs come first. Each finished run is appended to the CSV, and no run
that is there is trained again, so the command may be stopped and repeated with other parts at any time. A
line has the hash of its settings; one whose settings are no longer those of this file is an error.

With Muon, AdamW trains embeddings, read-out and vectors at a fifth of the rate.
A cell is a size of one axis; at the base size all rules are the same, and are trained once.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.drift.cells import AXES, MODELS, OPTIMIZERS, RULES, Part, sides_of
from benchmarks.drift.lines import RESULTS, Table, check_settings
from benchmarks.drift.rows import drift_table
from benchmarks.drift.training import costs, train
from zoo.report.markdown import markdown_block
from zoo.utils.cores import cores


def main() -> None:
    """Train, or say what it costs, or what is known."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    every = sorted({rule for rules in RULES.values() for rule in rules})
    options.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    options.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=OPTIMIZERS)
    options.add_argument("--rules", nargs="+", choices=every, default=[], help="default: all that apply")
    options.add_argument("--axes", nargs="+", choices=AXES, default=AXES)
    options.add_argument("--sizes", type=int, default=4, help="so many of the smallest sizes of each axis")
    options.add_argument("--seeds", type=int, default=2)
    options.add_argument("--workers", type=int, default=cores())
    options.add_argument("--csv", type=Path, default=RESULTS)
    options.add_argument("--dry-run", action="store_true")
    options.add_argument("--report", action="store_true")
    given = options.parse_args()
    sides = tuple(sides_of(given.models, given.optimizers, given.rules))
    part, table = Part(sides, tuple(given.axes), given.seeds, given.sizes), Table.read(given.csv)
    if given.dry_run:
        print(costs(table, part))
        return
    check_settings(table, part)
    if not given.report:
        train(table, given.csv, part, given.workers)
    known = drift_table(table, part)
    print(markdown_block(known.drifts), markdown_block(known.errors), sep="\n\n")


if __name__ == "__main__":
    main()
