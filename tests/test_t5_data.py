"""Span corruption: nothing of a text is lost, and lengths and shares are those of the T5 paper."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from zoo.data.dataset import BatchSpec
from zoo.data.objectives.span_corruption import SpanCorruption, random_partition
from zoo.data.prompting import DECODER_START_ID
from zoo.data.tokenizers.byte import ByteTokenizer
from zoo.data.tokens import TokenFile
from zoo.utils.errors import DataError

VOCABULARY = 5000
OBJECTIVE = SpanCorruption()


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    """Tokens 1, 2, 3, ...: a token says where it stands."""
    path = tmp_path / "tokens.bin"
    np.arange(1, 4001, dtype="<u2").tofile(path)
    return TokenFile(path, "uint16", 4000)


def batch(tokens: TokenFile, step: int = 0, context: int = 128, **order: int) -> tuple[Tensor, ...]:
    order = {"seed": 3, "batch_size": 4, **order}
    return OBJECTIVE.train_batch(tokens, BatchSpec(step=step, **order), context, VOCABULARY)


def rebuilt(source: list[int], target: list[int]) -> list[int]:
    """The text: every sentinel of the source replaced by what stands behind it in the targets."""
    assert source[-1] == target[-1] == VOCABULARY
    spans: dict[int, list[int]] = {}
    for token in target[:-1]:
        if token > VOCABULARY:
            span = spans.setdefault(token, [])
            assert span == []
        else:
            span.append(token)
    assert list(spans) == list(range(VOCABULARY + 100, VOCABULARY + 100 - len(spans), -1))
    assert [t for t in source if t > VOCABULARY] == list(spans)
    return [t for token in source[:-1] for t in spans.get(token, [token])]


@pytest.mark.parametrize("context", [16, 64, 128, 511])
def test_the_text_can_be_rebuilt(tokens: TokenFile, context: int) -> None:
    source, prefix, targets = batch(tokens, context=context)
    assert source.shape == (4, context)
    assert prefix.shape == targets.shape
    for s, t in zip(source.tolist(), targets.tolist(), strict=True):
        text = rebuilt(s, t)
        assert len(text) == OBJECTIVE.tokens_per_example(context)
        assert np.array_equal(np.diff(text) % 4000, np.ones(len(text) - 1)), "consecutive tokens of the file"
    assert prefix[:, 0].tolist() == [DECODER_START_ID] * 4
    assert torch.equal(prefix[:, 1:], targets[:, :-1])


def test_lengths_of_the_paper() -> None:
    """T5's 512 tokens of source are made from 568, and leave targets of 114."""
    shape = OBJECTIVE.lengths(512)
    assert (shape.text, shape.source, shape.targets) == (568, 512, 114)


@pytest.mark.parametrize(
    "fields", [{}, {"density": 0.5}, {"mean_span": 1.0}, {"density": 0.3, "mean_span": 5}]
)
def test_every_source_is_full(fields: dict[str, Any]) -> None:
    """And one token more of text would not fit."""
    objective = SpanCorruption(**fields, sentinels=10_000)
    for context in range(8, 700):
        shape = objective.lengths(context)
        assert shape.source == context
        assert objective._lengths_of(shape.text + 1).source > context


def test_density_and_mean_span(tokens: TokenFile) -> None:
    """15 % of the text in spans of 3, up to rounding to whole tokens and spans."""
    source, _, targets = batch(tokens, context=512, batch_size=16)
    left_out = (targets < VOCABULARY).sum(1)
    spans = (targets > VOCABULARY).sum(1)
    assert left_out.tolist() == [85] * 16
    assert spans.tolist() == [28] * 16
    assert (left_out / OBJECTIVE.tokens_per_example(512)).tolist() == pytest.approx([0.15] * 16, abs=0.001)
    assert (left_out / spans).tolist() == pytest.approx([3.0] * 16, abs=0.05)
    lengths = [
        sum(1 for _ in run)
        for row in targets.tolist()
        for is_span, run in groupby(row, lambda t: t < VOCABULARY)
        if is_span
    ]
    assert np.mean(lengths) == pytest.approx(85 / 28)
    assert max(lengths) > 6, "spans vary"
    assert (source[:, 0] < VOCABULARY).all(), "a text begins with what is kept"


def test_a_pure_function_of_the_order(tokens: TokenFile) -> None:
    """The ranks' parts are the whole batch, in any division into steps; another seed divides otherwise."""
    whole = batch(tokens, step=1, batch_size=8)
    for found in (
        [batch(tokens, step=1, batch_size=8, rank=r, world_size=2) for r in range(2)],
        [batch(tokens, step=2 + i, batch_size=4) for i in range(2)],
    ):
        for i, expected in enumerate(whole):
            assert torch.equal(torch.cat([part[i] for part in found]), expected)
    assert not torch.equal(batch(tokens, step=1, batch_size=8, seed=4)[0], whole[0])


def test_validation_is_the_same_at_every_call(tokens: TokenFile) -> None:
    def run(world: int) -> list[list[Tensor]]:
        orders = [BatchSpec(9, 5, 4, rank, world) for rank in range(world)]
        found = [list(OBJECTIVE.validation_batches(tokens, o, 64, VOCABULARY, 2)) for o in orders]
        return [[torch.cat(same) for same in zip(*parts, strict=True)] for parts in zip(*found, strict=True)]

    once, again, halves = run(1), run(1), run(2)
    assert len(once) == 2
    for a, b, c in zip(once, again, halves, strict=True):
        assert all(torch.equal(x, y) and torch.equal(x, z) for x, y, z in zip(a, b, c, strict=True))
        assert sorted(rebuilt(a[0][0].tolist(), a[2][0].tolist())) == rebuilt(
            a[0][0].tolist(), a[2][0].tolist()
        )


def test_divisions_are_equally_likely() -> None:
    """5 = 1 + 1 + 3 = 1 + 2 + 2 = ...: six ways."""
    chance = np.random.default_rng(0)
    drawn = [tuple(random_partition(5, 3, chance).tolist()) for _ in range(6000)]
    counts = {way: drawn.count(way) for way in set(drawn)}
    assert set(counts) == {(1, 1, 3), (1, 3, 1), (3, 1, 1), (1, 2, 2), (2, 1, 2), (2, 2, 1)}
    assert all(abs(count - 1000) < 120 for count in counts.values())


def test_prompts_and_answers_are_text() -> None:
    tokenizer = ByteTokenizer()
    source = OBJECTIVE.encode("def <extra_id_0>(x):<extra_id_1>", tokenizer)
    assert source == [*b"def ", 356, *b"(x):", 355, 256]
    assert OBJECTIVE.decode([356, *b"f", 355, *b" pass"], tokenizer) == "<extra_id_0>f<extra_id_1> pass"
    assert OBJECTIVE.decode([256, *"é".encode(), 256, 256, 400], tokenizer) == "é"
    assert OBJECTIVE.encode("", tokenizer) == []
    with pytest.raises(DataError, match="<extra_id_100>: there are 100 sentinels, from 0 on"):
        OBJECTIVE.encode("<extra_id_100>", tokenizer)


@pytest.mark.parametrize(
    ("fields", "context", "message"),
    [
        ({}, 2, r"data.context 2 is too small to leave out 15% of a text in spans of 3"),
        ({"density": 0.9, "mean_span": 1.0}, 64, r"data.context 64 is too small to leave out 90%"),
        ({"sentinels": 20}, 512, r"data.context 512 makes 28 spans, but data.objective.sentinels is 20"),
    ],
)
def test_impossible_shapes(fields: dict[str, Any], context: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        SpanCorruption(**fields).tokens_per_example(context)
