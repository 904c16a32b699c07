"""The operations of runs that have ended, counted again as zoo counts them now."""

from __future__ import annotations

import csv
import io

from zoo.ablate.run_metrics import flops_of
from zoo.ablate.sweep import Sweep
from zoo.utils.atomic import write_text


def recount(sweep: Sweep) -> int:
    """Write the operations into the lines of a ladder, whichever commit has trained the runs.

    Returns:
        The number of lines whose operations were others.
    """
    if sweep.lines is None or not sweep.lines.file.exists():
        return 0
    sides = {(side.variant, size.params): side for size in sweep.ladder for side in size.sides}
    with sweep.lines.file.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        rows, columns = list(reader), reader.fieldnames or []
    changed = 0
    for row in rows:
        side = sides.get((row["variant"], int(row["size"])))
        if side is None or not row["flops"]:
            continue
        tokens = float(row["tokens"])
        per_target, per_step = flops_of(side.config)
        flops = repr(per_target * tokens + per_step * tokens / side.per_step)
        changed += flops != row["flops"]
        row["flops"] = flops
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    if changed:
        write_text(sweep.lines.file, text.getvalue())
    return changed
