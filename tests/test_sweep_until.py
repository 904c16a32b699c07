"""`train(..., until=k)`: what successive halving stops at, and goes on from."""

from __future__ import annotations

from pathlib import Path

from tiny_runs import assert_same, tiny

from zoo.train.run import train


def test_a_run_in_three_parts_is_the_run(tmp_path: Path) -> None:
    whole = train(tiny(tmp_path, "name=whole"))
    for until, step in [(10, 10), (27, 27), (None, 40)]:
        part = train(tiny(tmp_path), resume=step > 10, until=until)
        assert (part.step, part.finished) == (step, until is None)
    assert_same(whole.folder, part.folder)
