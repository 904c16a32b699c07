"""Tests whether the speed of training was steady, so that seconds can be compared."""

from __future__ import annotations

from zoo.ablate.results import Results

QUIET = 0.1
"""Largest relative variation of speeds that were not disturbed (our choice)."""


def disturbance(results: Results) -> str | None:
    """A clause on why the seconds of a comparison do not count; None if the speed was steady.

    The speed was steady if it varies little within every finished run (the middle half of its log lines) and
    between the seeds of every variant, which do the same work.
    """
    within, between = 0.0, 0.0
    for runs in results.all_finished().values():
        within = max([within, *(run.speed_spread or 0.0 for run in runs.values())])
        speeds = [run.tokens_per_second for run in runs.values() if run.tokens_per_second]
        if speeds:
            between = max(between, max(speeds) / min(speeds) - 1)
    if within > QUIET:
        return f"the speed within a run varied by {within:.0%}, so that something else ran on the machine"
    if between > QUIET:
        return f"the speeds of seeds of one variant differ by {between:.0%}, though they do the same work"
    return None
