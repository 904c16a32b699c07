"""`compile: auto`: what it chooses, what it says, and that one worker compiles for all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_sweeps import base, sweep_file

from zoo.ablate import compiling
from zoo.ablate.compiling import Shape, shape_of
from zoo.ablate.plan import PlannedRun, Planner
from zoo.ablate.pool import Pool, _Worker
from zoo.ablate.step_cost import step_cost
from zoo.ablate.sweep import Sweep, load_sweep
from zoo.utils.errors import ConfigError


def planned(sweep: Sweep) -> list[PlannedRun]:
    return list(Planner(sweep).plan({}).runs)


def test_short_runs_stay_as_they_are(tmp_path: Path) -> None:
    """The choice follows from the file: the same ids as without the key, and a note with the figures."""
    plain = load_sweep(sweep_file(tmp_path))
    chosen = load_sweep(sweep_file(tmp_path, "chosen", compile="auto"))
    assert [run.id for run in planned(chosen)] == [run.id for run in planned(plain)]
    assert plain.notes == ()
    (note,) = chosen.notes
    assert "not compiled" in note
    assert "60 seconds" in note


def test_long_runs_are_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four runs of twelve steps, of one shape: it pays if they together take longer than the compilation."""
    plain = load_sweep(sweep_file(tmp_path))
    seconds = 4 * 12 * step_cost(plain.variants[0].configs[0]).flops / compiling.EAGER
    for factor, how in ((0.99, "blocks"), (1.01, False)):
        monkeypatch.setattr(compiling, "COMPILATION", factor * seconds * compiling.SAVED)
        sweep = load_sweep(sweep_file(tmp_path, "chosen", compile="auto"))
        trains = [run.config.train for run in planned(sweep)]
        assert {train.compile for train in trains if train is not None} == {how}
    assert not Shape(1, 1e9, compiles=False).pays


def test_the_optimizer_and_the_init_are_no_part_of_a_shape(tmp_path: Path) -> None:
    runs = planned(load_sweep(sweep_file(tmp_path)))
    assert len({shape_of(run.config) for run in runs}) == 1
    other = load_sweep(sweep_file(tmp_path, "other", base=base(tmp_path, batch_size=8)))
    assert shape_of(planned(other)[0].config) != shape_of(runs[0].config)


def test_both_is_an_error(tmp_path: Path) -> None:
    file = sweep_file(tmp_path, base=base(tmp_path, compile="blocks"), compile="auto")
    with pytest.raises(ConfigError, match=r"has train\.compile already"):
        load_sweep(file)


def test_one_worker_compiles_for_all(tmp_path: Path) -> None:
    first, second, *_ = planned(load_sweep(sweep_file(tmp_path, base=base(tmp_path, compile="blocks"))))
    eager = planned(load_sweep(sweep_file(tmp_path, "eager")))[0]
    pool, nothing = Pool(2, tmp_path, tmp_path), None
    assert not pool.holds_back(first)
    process: Any = nothing
    worker = _Worker(process, process, shape_of(first.config), first)
    pool._slots[0] = worker
    assert pool.holds_back(second)
    assert not pool.holds_back(eager)
    worker.compiled = True
    assert not pool.holds_back(second)
