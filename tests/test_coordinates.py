"""The coordinate check: the standard parameterisation fails it, the rules pass; its exponents, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import zoo

from zoo.diagnose.coordinates import _exponent, at_width, check_coordinates
from zoo.run.config import load_config
from zoo.utils.errors import ConfigError

BASE = {"embed": 32, "heads": 32, "kv_heads": 32, "mlp": 128}
SETTINGS: dict[str, Any] = {
    "model": {"type": "gpt", "vocab_size": 64, "d_model": 32, "n_layers": 2, "n_heads": 4, "d_mlp": 128},
    "init": "small",
    "optimizer": {"type": "adamw", "lr": 3e-3},
}
MUON = {"type": "muon", "adjust": "shape", "lr": 0.005, "rest": {"type": "adamw", "lr": 3e-3}}
RULES: dict[str, dict[str, Any]] = {
    "mup": {"transfer": {"type": "mup", "base": BASE}},
    "completep": {"transfer": {"type": "completep", "base": BASE | {"layers": 2}}},
    "spectral": {"transfer": {"type": "spectral", "base": BASE}, "optimizer": MUON},
    "wesar": {
        "transfer": {"type": "mup", "base": BASE},
        "reparam": "wesar",
        "optimizer": {"type": "adamw", "lr": 2.5e-4},
    },
}


def test_the_standard_parameterisation_fails() -> None:
    """What ends a branch grows, and so does the stream."""
    check = check_coordinates(load_config(SETTINGS), [32, 256], seeds=2)
    words = {module.name: module.word for module in check.modules}
    assert not check.passes
    assert words["blocks.0.mlp.down"] == words["blocks.1"] == "grows"


@pytest.mark.parametrize("rule", RULES)
def test_rules_pass(rule: str) -> None:
    """Within a factor of 1.2 over an eightfold width, but for the logits, which shrink."""
    check = check_coordinates(load_config(SETTINGS | RULES[rule]), [32, 256], seeds=2)
    assert check.passes, [(m.name, m.factors) for m in check.modules if not m.passes]
    assert [module.name for module in check.modules if module.word == "shrinks"] == ["read_out"]


def test_exponents_by_hand() -> None:
    """All terms of one sign: 1; random signs: 1/2."""
    signs = torch.randn(512, 1024, generator=torch.Generator().manual_seed(0)).sign()
    ones = torch.ones(512, 1024)
    assert _exponent(ones, torch.ones(7, 1024)) == pytest.approx(1.0)
    assert _exponent(signs, torch.ones(7, 1024)) == pytest.approx(0.5, abs=0.02)


def test_a_width_keeps_the_size_of_heads() -> None:
    model = load_config(SETTINGS).model
    assert model is not None
    wide: Any = at_width(model, 128)
    assert (wide.d_model, wide.n_heads, wide.d_mlp, wide.head_size) == (128, 16, 512, 8)
    with pytest.raises(ConfigError, match=r"width 36: model\.n_heads would be 4\.5; expected a whole number"):
        at_width(model, 36)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "model: {type: gpt, vocab_size: 64, d_model: 32, n_layers: 1, n_heads: 4}\n"
        "optimizer: {type: adamw, lr: 3e-3}\n"
    )
    page = tmp_path / "page"
    zoo("coord-check", path, "--widths", "32,128", "--seeds", "1", "--out", page, status=1)
    assert "modules fail" in capsys.readouterr().out
    assert "blocks.0.mlp.down" in (page / "coordinates.html").read_text()
    for bad, message in {"32": "1 widths", "32,x": "expected numbers", "36,32": "whole number"}.items():
        zoo("coord-check", path, "--widths", bad, status=2)
        assert message in capsys.readouterr().err
