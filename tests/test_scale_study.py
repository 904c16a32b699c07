"""The sweeps of the study across scale: sizes, counts, starts. Files with axes load in test_sweep_docs.py."""

from pathlib import Path

import pytest

from zoo.ablate.ladder_sizes import parameters
from zoo.ablate.sweep import Sweep, load_sweep
from zoo.config.yaml import dump_yaml
from zoo.run.declared_once import declared_once
from zoo.utils.errors import ConfigError

FOLDER = Path(__file__).parents[1] / "configs/sweeps/scale"
VOCABULARY = 4096


@pytest.fixture(scope="module")
def context() -> Sweep:
    return load_sweep(FOLDER / "q1-context.yaml")


def test_sizes_count_without_the_vocabulary(context: Sweep) -> None:
    for size, (width, blocks) in zip(context.ladder, [(80, 4), (128, 6)], strict=True):
        norms = (2 * blocks + 1) * width + 2 * blocks * 16  # QK-norm: one vector each per head size
        assert size.params == 16 * blocks * width**2 + norms
        gpt, ngpt = (declared_once(side.config) for side in size.sides)
        assert parameters(gpt) == size.params + 2 * VOCABULARY * width
        assert parameters(ngpt) - parameters(ngpt, "non_embedding") == VOCABULARY * (2 * width + 1)
        assert parameters(ngpt, "non_embedding") == pytest.approx(size.params, rel=0.011)


def test_a_model_of_another_type_gets_the_size(context: Sweep) -> None:
    for size, width in zip(context.ladder, (80, 128), strict=True):
        gpt, ngpt = (side.config.model.model_dump() for side in size.sides if side.config.model is not None)
        assert (gpt["type"], ngpt["type"]) == ("gpt", "ngpt")
        assert gpt["d_model"] == ngpt["d_model"] == width
        assert ngpt["s_z"]["init"] == pytest.approx(width**0.5)
        assert ngpt["alpha"]["init"] == pytest.approx(1 / ngpt["n_layers"])


def test_every_side_is_tuned_alike_and_no_token_is_read_twice(context: Sweep) -> None:
    for size in context.ladder:
        assert size.budgets == (732 * 2048, 1465 * 2048, 2930 * 2048)
        assert max(size.budgets) < 7_107_667  # docs/results/scale/plan.md
        assert size.seeds == (0, 1, 2)
        assert {len(side.points) for side in size.sides} == {3}
        assert {side.config.schedule.warmup for side in size.sides} == {50}


def test_amos_by_its_rule_has_a_rate_for_every_budget() -> None:
    """1/sqrt(batches) at each budget; the rate that is tuned is that of the middle one."""
    for size in load_sweep(FOLDER / "q2-amos.yaml").ladder:
        _, amos = (side.config for side in size.sides)
        lengths = [amos.transfer.sizes([], 1, tokens // 2048).steps for tokens in size.budgets]
        factors = [length**amos.transfer.exponent for length in lengths]
        assert factors == pytest.approx([2**0.5, 1, 2**-0.5], rel=1e-3)


def test_a_fragment_that_sets_the_size_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "clash.yaml"
    axes = {"model": {"gpt": {}, "wide": {"model": {"d_model": 96}}}}
    scale = {"sizes": [{"model.d_model": 32}], "budgets": {"tokens": ["1M", "2M"]}}
    file.write_text(dump_yaml({"base": "quickstart-gpt", "axes": axes, "scale": scale}))
    with pytest.raises(ConfigError, match="d_model: has no effect"):
        load_sweep(file)
