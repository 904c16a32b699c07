"""Packing several examples into one row of a batch to reduce padding."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence

import numpy as np


def pack(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Distribute examples over rows by best-fit decreasing.

    The examples are taken from the longest to the shortest, each into the fullest row that has room for
    it. It needs at most 11/9 of the smallest number of rows, plus one (Johnson et al. 1974).

    Args:
        lengths: number of tokens of each example, from 1 to `capacity`.
        capacity: number of tokens of a row.

    Returns:
        For each row the indices of its examples, ascending. The rows are a function of the arguments alone.
    """
    rows: list[list[int]] = []
    with_room: dict[int, list[int]] = defaultdict(list)  # rows by the number of tokens that still fit
    rooms: list[int] = []  # the keys of `with_room` that have rows, ascending
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")
    for example in order.tolist():
        place = bisect_left(rooms, lengths[example])
        if place == len(rooms):
            room, row = capacity, len(rows)
            rows.append([])
        else:
            room = rooms[place]
            row = with_room[room].pop()
            if not with_room[room]:
                del rooms[place]
        rows[row].append(example)
        left = room - lengths[example]
        if left:
            if not with_room[left]:
                insort(rooms, left)
            with_room[left].append(row)
    return [sorted(row) for row in rows]
