"""`train.compile` changes the speed, not the result."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from tiny_runs import of_kind, tiny

from zoo.train.run import train


@pytest.mark.filterwarnings("default")  # the compiler's own
def test_compiled_is_eager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced and differentiated as for the real backend, which would spend a minute on writing C++."""
    compiled_for = []

    def compile(*args: object) -> object:  # noqa: A001
        compiled_for.append(args)
        return partial(original, backend="aot_eager")(*args)

    original = torch.compile
    settings = {"steps": 3, "accumulation": 2, "z_loss": 1e-3}
    eager = train(tiny(tmp_path, "name=eager", "schedule=constant", **settings))
    monkeypatch.setattr(torch, "compile", compile)
    compiled = train(tiny(tmp_path, "name=compiled", "schedule=constant", compile=True, **settings))
    assert len(compiled_for) == 1
    for kind, keys in (("train", ("loss", "z_loss", "grad_norm")), ("validation", ("cross_entropy",))):
        for a, b in zip(of_kind(eager.folder, kind), of_kind(compiled.folder, kind), strict=True):
            assert [b[key] for key in keys] == pytest.approx([a[key] for key in keys], abs=1e-5)
