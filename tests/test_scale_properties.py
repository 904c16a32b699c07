"""Short simulations of the verdict across scale; `benchmarks/scale_verdict.py` runs them in full."""

import pytest

from benchmarks.scale_verdict import PARTS, run

SHARES = {"law": 0.02, "looks": 0.1, "critical values": 0.1, "graph": 0.05, "items": 0.02, "tuning": 1.0}
"""Of the stated numbers of studies; of other parts a twentieth."""


@pytest.mark.parametrize("part", PARTS)
def test_properties(part: str) -> None:
    missed = [str(row) for row in run(part, SHARES.get(part, 0.05)) if not row.holds]
    assert not missed, "\n".join(missed)
