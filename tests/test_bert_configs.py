"""The configs of the Amos paper's encoders say what its Table 4 and A.5 say."""

from __future__ import annotations

from typing import Any

import pytest

from zoo.run.config import load_config

BASE, LARGE = (12, 768, 12), (24, 1024, 16)
TABLE_4 = {  # sizes, positions, batch, AdamW's beta_2 and rate, Amos' beta and xi, steps
    "bert-base": (BASE, "absolute", 1024, (0.98, 2e-4), (0.98, 0.01), 300_000),
    "rope-base": (BASE, "rope", 1024, (0.98, 2e-4), (0.98, 0.01), 300_000),
    "rpe-base": (BASE, "relative", 1024, (0.98, 2e-4), (0.98, 0.01), 300_000),
    "bert-large": (LARGE, "absolute", 4096, (0.98, 2e-4), (0.98, 0.01), 250_000),
    "rope-large": (LARGE, "rope", 1024, (0.99, 1e-4), (0.99, 5e-3), 1_000_000),
}


def common(c: Any) -> tuple[Any, ...]:
    """What does not depend on the optimizer."""
    m = c.model
    return (m.n_layers, m.d_model, m.n_heads), m.position.type, c.train.batch_size


@pytest.mark.parametrize("name", TABLE_4)
def test_table_4(name: str) -> None:
    sizes, position, batch_size, adamw, amos, steps = TABLE_4[name]
    for kind in ("adamw", "amos"):
        c: Any = load_config(f"{name}-{kind}")
        assert common(c) == (sizes, position, batch_size)
        assert (c.optimizer.type, c.train.steps, c.train.precision) == (kind, steps, "fp32")
        assert (c.data.objective.type, c.data.objective.share, c.data.context) == ("mlm", 0.15, 512)
        assert (c.model.dropout, c.model.attention_dropout, c.init.type) == (0.1, 0.1, "bert")
        if kind == "adamw":
            assert (c.optimizer.betas[1], c.optimizer.lr) == adamw
            assert (c.schedule.type, c.schedule.final, c.schedule.warmup) == ("linear", 0, 10_000)
        else:
            assert (c.optimizer.beta, c.optimizer.lr) == amos
            assert (c.schedule.type, c.schedule.warmup) == ("constant", 20_000)


@pytest.mark.parametrize("name", [name for name in TABLE_4 if name.endswith("base")])
def test_the_shorter_runs_end_at_zero(name: str) -> None:
    """AdamW-200k is a run with a horizon of its own, not the first part of the longer one."""
    c: Any = load_config(f"{name}-adamw-200k")
    longer: Any = load_config(f"{name}-adamw")
    assert c.train.steps == 200_000
    assert c.schedule.factor(199_999, c.train.steps) < 1e-5
    assert c.model_copy(update={"train": longer.train, "name": longer.name}) == longer
