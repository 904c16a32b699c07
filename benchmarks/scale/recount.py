"""The operations of runs that have ended, counted again as zoo counts them now."""

from __future__ import annotations

import math

from zoo.ablate.lines import RunLine
from zoo.ablate.sweep import Sweep
from zoo.run.flops import run_flops


def recount(sweep: Sweep) -> int:
    """Write the operations into the lines of a ladder, whichever commit has trained the runs.

    Returns:
        The number of lines whose operations were others.
    """
    sides = {(side.variant, size.params): side for size in sweep.ladder for side in size.sides}

    def counted(line: RunLine) -> dict[str, str]:
        run = line.run
        side = sides.get((run.variant, int(run.size)))
        if side is None or not line.row["flops"]:
            return {}
        flops = run_flops(side.config).step * (run.tokens / side.per_step)
        same = math.isclose(float(line.row["flops"]), flops, rel_tol=1e-12)  # but for the order of sums
        return {} if same else {"flops": repr(flops)}

    return 0 if sweep.lines is None else sweep.lines.correct(counted)
