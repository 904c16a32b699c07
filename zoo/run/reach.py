"""Tests whether the scalings of a model can reach their targets within the steps of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable

from zoo.init.registry import Entry
from zoo.models.starts import Reach
from zoo.utils.printable import with_wildcards

USED = 0.5
"""The smallest share of its reach that a scaling has used in measured runs; the largest was .8."""


def unreached(entries: Iterable[Entry], reach: Reach | None) -> list[str]:
    """Describe the scalings that are likely to end before the value that their layer declares.

    Args:
        entries: the registry.
        reach: `RunConfig.reach`.

    Returns:
        A sentence for each kind of scaling whose distance to the target is more than `USED` times its reach.
    """
    sentences: dict[str, None] = {}
    for entry in entries:
        spec = entry.spec
        if reach is None or spec.target is None or spec.start is None or (bound := reach(spec)) is None:
            continue
        way, bound = abs(spec.target - spec.start), bound * entry.lr_factor
        if way > USED * bound:
            name = with_wildcards(entry.name)
            share = way / bound if bound else math.inf
            sentence = (
                f"{name} starts at {spec.start / spec.target:.2g} of the value that it should reach; the way "
                f"there is {share:.0%} of what the learning rates of all steps allow, and a run uses "
                f"{USED:.0%} to 80%; expected a start nearer to the value (`init: auto`), or more steps"
            )
            sentences[sentence] = None
    return list(sentences)
