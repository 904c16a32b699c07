"""Masked language modelling: which tokens are chosen, and what the model sees of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from zoo.data.dataset import BatchSpec
from zoo.data.objectives.mlm import MaskedLM
from zoo.data.tokens import TokenFile
from zoo.run.config import load_config
from zoo.utils.errors import ConfigError, DataError

VOCABULARY = 1000
CONTEXT = 64
MASK = VOCABULARY


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> TokenFile:
    """A text of 50 000 random tokens."""
    file = tmp_path_factory.mktemp("tokens") / "train.bin"
    ids = np.random.default_rng(0).integers(VOCABULARY, size=50_000).astype("<u2")
    file.write_bytes(ids.tobytes())
    return TokenFile(file, "uint16", len(ids))


def batch(
    tokens: TokenFile, seed: int = 0, step: int = 0, rank: int = 0, world_size: int = 1
) -> list[torch.Tensor]:
    order = BatchSpec(seed=seed, step=step, batch_size=200, rank=rank, world_size=world_size)
    return list(MaskedLM().train_batch(tokens, order, CONTEXT, VOCABULARY))


def test_what_the_paper_says(tokens: TokenFile) -> None:
    """15 % of every sequence; of these 80 % masked, 10 % replaced, 10 % left (within four deviations)."""
    inputs, targets = batch(tokens)
    chosen = targets != -1
    assert set(chosen.sum(1).tolist()) == {round(0.15 * CONTEXT)}
    n = int(chosen.sum())
    masked = (inputs == MASK) & chosen
    left = (inputs == targets) & chosen
    for found, share in ((masked, 0.8), (left, 0.1), (chosen & ~masked & ~left, 0.1)):
        assert abs(int(found.sum()) / n - share) < 4 * (share * (1 - share) / n) ** 0.5
    assert not (inputs[~chosen] == MASK).any()


def test_the_text_is_what_inputs_and_targets_say_together(tokens: TokenFile) -> None:
    """Put back the targets, and every sequence is a stretch of the text."""
    inputs, targets = batch(tokens)
    text = tokens.windows(np.array([0]), len(tokens))[0]
    where = {tuple(text[i : i + 4]): i for i in range(len(text))}
    for row in torch.where(targets == -1, inputs, targets).numpy():
        start = where[tuple(row[:4])]
        assert (row == tokens.windows(np.array([start]), CONTEXT)[0]).all()


def test_a_batch_is_a_function_of_seed_and_step(tokens: TokenFile) -> None:
    again = batch(tokens, seed=3, step=7)
    assert all(map(torch.equal, batch(tokens, seed=3, step=7), again))
    for other in (batch(tokens, seed=3, step=8), batch(tokens, seed=4, step=7)):
        assert not torch.equal(again[0], other[0])
        assert not torch.equal(again[1] == -1, other[1] == -1), "other places are masked"


@pytest.mark.parametrize("world", [2, 5])
def test_ranks_share_the_batch_of_one(tokens: TokenFile, world: int) -> None:
    parts = [batch(tokens, step=3, rank=rank, world_size=world) for rank in range(world)]
    for joined, whole in zip(map(torch.cat, zip(*parts, strict=True)), batch(tokens, step=3), strict=True):
        assert torch.equal(joined, whole)


def test_every_epoch_has_other_masks(tokens: TokenFile) -> None:
    """No token is chosen for ever: after an epoch the masks of the same text are others."""
    steps = len(tokens) // CONTEXT // 200 + 1
    first, second = ((t != -1) for t in (batch(tokens)[1], batch(tokens, step=steps)[1]))
    assert not torch.equal(first, second)


def test_validation_is_always_the_same(tokens: TokenFile) -> None:
    def batches(seed: int, rank: int = 0, world_size: int = 1) -> list[torch.Tensor]:
        order = BatchSpec(seed=seed, step=seed, batch_size=20, rank=rank, world_size=world_size)
        found = [torch.stack(b) for b in MaskedLM().validation_batches(tokens, order, CONTEXT, VOCABULARY, 3)]
        assert len(found) == 3
        return found

    whole = batches(seed=0)
    assert all(map(torch.equal, whole, batches(seed=1)))
    halves = [batches(0, rank, 2) for rank in range(2)]
    assert all(torch.equal(torch.cat(parts, 1), b) for *parts, b in zip(*halves, whole, strict=True))


@pytest.mark.parametrize(
    ("share", "context", "count"), [(0.15, 4, 1), (0.15, 2, 1), (0.5, 9, 4), (1.0, 5, 5)]
)
def test_at_least_one_token_is_chosen(tokens: TokenFile, share: float, context: int, count: int) -> None:
    order = BatchSpec(seed=0, step=0, batch_size=3)
    _, targets = MaskedLM(share=share).train_batch(tokens, order, context, VOCABULARY)
    assert (targets != -1).sum(1).tolist() == [count] * 3


def test_the_mask_needs_a_place_in_the_vocabulary(tmp_path: Path) -> None:
    config: Any = load_config("bert-tiny", [f"data.cache_dir={tmp_path}", "model.vocab_size=256"])
    with pytest.raises(DataError, match="has 256 tokens, and the objective 'mlm' needs 1 more"):
        config.data.prepare(config.model)


def test_a_decoder_is_not_trained_by_masks() -> None:
    with pytest.raises(
        (ConfigError, DataError), match="the objective is 'mlm', but model 'gpt' is trained by"
    ):
        config: Any = load_config("gpt-tiny", ["data.objective=mlm"])
        config.data.prepare(config.model)
