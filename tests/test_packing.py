"""Several documents in a row: each is computed as if it were alone, in attention and in models."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from test_instruct_run import fields
from test_instructions import dataset
from tiny_runs import of_kind, tiny_fields
from torch import Tensor

from zoo import build_model, load_model
from zoo.data.dataset import BatchSpec
from zoo.data.packing import pack
from zoo.kernels import documents as kernel
from zoo.kernels.documents import (
    Documents,
    block_mask,
    dense_mask,
    document_attention,
    takes_flex_attention,
)
from zoo.models import Model
from zoo.nn.attention import causal_attention
from zoo.run.config import load_config
from zoo.train.run import train
from zoo.utils.errors import ConfigError, DataError

LENGTHS = ((5, 1, 9, 3), (7, 11))
"""Tokens of the documents in each of two rows."""

NUMBERS = torch.stack([torch.repeat_interleave(torch.arange(len(row)), torch.tensor(row)) for row in LENGTHS])
MODELS: dict[str, dict[str, Any]] = {
    "gpt": {},
    "gpt, grouped": {"n_kv_heads": 1, "qk_norm": True, "tied": True},
    "gpt-post": {},
    "gpt, windows": {"attention": {"window": 3}},
    "gpt, soft caps": {"attention": {"score_cap": 5.0, "window": [3, None]}, "soft_cap": 4.0},
    "gpt, factors by length": {
        "rope_scaling": {"type": "longrope", "factor": 4, "context": 6, "short": [1.0] * 4, "long": [3.0] * 4}
    },
    "gpt2": {"context": 32},
    "neox": {},
    "ngpt": {},
}


def best_fit(lengths: list[int], capacity: int) -> list[list[int]]:
    """Best-fit decreasing, written from its definition; of rows with equal room the latest."""
    rows: list[list[int]] = []
    freed: list[int] = []  # rows in the order in which they got the room that they have
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        rooms = {r: capacity - sum(lengths[j] for j in rows[r]) for r in freed}
        fitting = [r for r in freed if rooms[r] >= lengths[i]]
        if fitting:
            row = min(reversed(fitting), key=lambda r: rooms[r])
            freed.remove(row)
        else:
            row = len(rows)
            rows.append([])
        rows[row].append(i)
        freed.append(row)
    return [sorted(row) for row in rows]


@pytest.mark.parametrize("seed", range(5))
def test_rows_are_those_of_best_fit_decreasing(seed: int) -> None:
    generator = random.Random(seed)
    lengths = [generator.randint(1, 20) for _ in range(60)]
    rows = pack(lengths, 20)
    assert rows == best_fit(lengths, 20)
    assert sorted(i for row in rows for i in row) == list(range(60))
    assert max(sum(lengths[i] for i in row) for row in rows) <= 20


def each_document(*tensors: Tensor) -> list[list[Tensor]]:
    """The parts of (batch, time, ...) tensors that belong to each document, (1, its tokens, ...)."""
    return [
        [t[row : row + 1, NUMBERS[row] == number] for t in tensors]
        for row, lengths in enumerate(LENGTHS)
        for number in range(len(lengths))
    ]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("kind", ["blockwise", "sdpa", "flex"])
def test_attention_is_that_of_each_document_alone(
    kind: str, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and gradients, with three query heads for each key head; FlexAttention has none on a CPU."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, grad = (
        torch.randn(2, 18, heads, 16, generator=generator, dtype=torch.float64) for heads in (6, 2, 2, 6)
    )
    inputs = [t.requires_grad_() for t in (q, k, v)]
    if kind == "sdpa":
        monkeypatch.setattr(kernel, "LONGEST", 0)
    else:
        monkeypatch.setattr("zoo.kernels.blockwise.BLOCK", 4)
    documents = Documents.of(NUMBERS, 16, q.dtype, [window])
    assert isinstance(documents.masks[window], Tensor)  # on a CPU
    if kind == "flex":
        documents = Documents(NUMBERS, {window: block_mask(NUMBERS, window)})
    alone = [causal_attention(a, b, c, 0.7, window=window) for a, b, c in each_document(*inputs)]
    q, k, v = (t.detach() for t in inputs) if kind == "flex" else inputs
    y = document_attention(q, k, v, 0.7, documents, window)
    torch.testing.assert_close([p for (p,) in each_document(y)], alone, rtol=1e-10, atol=1e-12)
    if kind != "flex":
        ours = torch.autograd.grad(y, inputs, grad)
        theirs = torch.autograd.grad(alone, inputs, [g for (g,) in each_document(grad)])
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("window", [None, 100])
def test_flex_attention_over_several_blocks(window: int | None) -> None:
    """In float32, as on a GPU, over blocks that are whole, cut by documents, and skipped."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 384, heads, 16, generator=generator) for heads in (4, 2, 2))
    lengths = [torch.tensor([150, 1, 140, 93]), torch.tensor([384])]
    numbers = torch.stack([torch.repeat_interleave(torch.arange(len(row)), row) for row in lengths])
    mask = block_mask(numbers, window)
    assert mask.sparsity() > 0
    flex, dense = (Documents(numbers, {window: m}) for m in (mask, dense_mask(numbers, window)))
    ours, plain = (document_attention(q, k, v, 0.25, documents, window) for documents in (flex, dense))
    torch.testing.assert_close(ours, plain, rtol=0, atol=1e-5)


def test_flex_attention_is_for_gpus() -> None:
    """Which cannot use it for small heads, nor in float64."""
    gpu = torch.device("cuda", 1)
    assert takes_flex_attention(gpu, 16, torch.bfloat16) and takes_flex_attention(gpu, 64, torch.float32)
    assert not takes_flex_attention(gpu, 8, torch.float32)
    assert not takes_flex_attention(gpu, 64, torch.float64)
    assert not takes_flex_attention(torch.device("cpu"), 64, torch.float32)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile warns of itself
@torch.no_grad()
def test_a_model_computes_the_same_with_flex_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in compiled blocks, which take the mask of blocks as an argument."""
    sizes: dict[str, Any] = {"vocab_size": 64, "d_model": 32, "n_layers": 1, "n_heads": 2, "d_mlp": 64}
    model = build_model("gpt", **sizes, seed=3).eval()
    tokens = torch.randint(64, (2, 18), generator=torch.Generator().manual_seed(1))
    expected = model(tokens, documents=NUMBERS)
    monkeypatch.setattr(kernel, "takes_flex_attention", lambda *_: True)
    torch.testing.assert_close(model(tokens, documents=NUMBERS), expected, rtol=0, atol=1e-5)
    module, method = model.compiled_parts[0]
    compiled = torch.compile(getattr(module, method), fullgraph=True, dynamic=False, backend="aot_eager")
    setattr(module, method, compiled)
    torch.testing.assert_close(model(tokens, documents=NUMBERS), expected, rtol=0, atol=1e-5)


def tiny_model(name: str) -> Model:
    sizes: dict[str, Any] = {"vocab_size": 64, "d_model": 32, "n_layers": 2, "n_heads": 4, "d_mlp": 64}
    model = build_model(name.split(",")[0], **sizes, **MODELS[name], seed=3).eval()
    with torch.no_grad():  # positions and scalings that are not those of the start
        for p in model.parameters():
            p.add_(0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    return model


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_logits_are_those_of_each_document_alone(name: str) -> None:
    model = tiny_model(name)
    tokens = torch.randint(64, (2, 18), generator=torch.Generator().manual_seed(1))
    packed = model(tokens, documents=NUMBERS)
    for (logits,), (alone,) in zip(each_document(packed), each_document(tokens), strict=True):
        torch.testing.assert_close(logits, model(alone), rtol=0, atol=1e-5)
    assert (packed - model(tokens)).abs().max() > 1e-2  # without documents they do see each other
    torch.testing.assert_close(model.predict(tokens, NUMBERS), packed)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile warns of itself
@torch.no_grad()
def test_a_block_compiles_whole() -> None:
    """With the documents among its arguments, as `train.compile: blocks` does it."""
    model = tiny_model("gpt")
    tokens = torch.randint(64, (2, 18), generator=torch.Generator().manual_seed(1))
    expected = model(tokens, documents=NUMBERS)
    module, method = model.compiled_parts[0]
    compiled = torch.compile(getattr(module, method), fullgraph=True, dynamic=False, backend="aot_eager")
    setattr(module, method, compiled)
    torch.testing.assert_close(model(tokens, documents=NUMBERS), expected)


def test_qk_clip_sees_documents_apart() -> None:
    """The largest logit of a packed batch is the largest of its documents."""
    largest = []
    tokens = torch.randint(64, (2, 18), generator=torch.Generator().manual_seed(1))
    for parts in ([(tokens, NUMBERS)], [(part, None) for (part,) in each_document(tokens)]):
        model = build_model(
            "gpt", vocab_size=64, d_model=32, n_layers=1, n_heads=4, attention={"qk_clip": 1.0}, seed=0
        )
        for part, documents in parts:
            model.train()(part, documents=documents)
        largest.append(model.get_buffer("blocks.0.attention.clip.largest"))
    torch.testing.assert_close(*largest)


ROWS = [{"prompt": f"Say {i}", "response": "yes " * (i % 5 + 1)} for i in range(20)]


def test_packed_examples_are_those_of_rows_of_their_own(tmp_path: Path) -> None:
    """Each once in an epoch; the loss of a batch is that of its examples; padding is counted."""
    single = dataset(tmp_path, ROWS, validation=None, context=64)
    packed = dataset(tmp_path, ROWS, validation=None, context=64, packing=True)
    assert packed.fingerprint != single.fingerprint
    count = len(packed.train_examples)
    assert count < len(single.train_examples) == 20
    tokens, documents, targets = packed.train_batch(BatchSpec(0, 0, count))
    assert tokens.shape == (count, 64)
    found = []
    for row, numbers, answers in zip(tokens, documents, targets, strict=True):
        for number in numbers.unique():
            part = numbers == number
            if (answers[part] >= 0).any():
                found.append((row[part].tolist(), answers[part].tolist()))
            else:
                assert number == numbers.max() and part[-1]  # padding, at the end
    alone, its_targets = single.train_batch(BatchSpec(0, 0, 20))
    lengths = [int((row != 255).nonzero().max()) + 1 for row in alone]
    cut = [(a[:n].tolist(), t[:n].tolist()) for a, t, n in zip(alone, its_targets, lengths, strict=True)]
    assert sorted(found) == sorted(cut)
    padding = count * 64 - sum(lengths)
    assert f"20 examples in {count} rows of 64 tokens, {padding} of them padding" in packed.summary
    assert (packed.unit, packed.units_per_example) == ("tokens", round(sum(lengths) / count))
    model = build_model("gpt", vocab_size=256, d_model=16, n_layers=1, n_heads=2, seed=1)
    mask = model.padding_mask(tokens, documents, targets)
    assert mask is not None and int((~mask).sum()) == padding
    ours, theirs = (
        model.loss(*batch).total for batch in ((tokens, documents, targets), (alone, its_targets))
    )
    torch.testing.assert_close(ours, theirs)


def test_a_resumed_packed_run_is_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = fields(tmp_path, "byte", "plain")
    settings["data"] |= {"packing": True, "context": 64}
    settings["train"] |= {"steps": 20, "eval_every": 10, "batch_size": 2, "checkpoint_every": 20}
    whole = train(load_config(settings)).folder
    settings["train"] |= {"runs_dir": str(tmp_path / "parts"), "checkpoint_every": 10}
    train(load_config(settings), until=10)
    again = train(load_config(settings), resume=True).folder
    ours, theirs = load_model(whole).state_dict(), load_model(again).state_dict()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_text_with_masked_documents(tmp_path: Path) -> None:
    """Documents begin with the token that ended the one before; a resumed run is the same."""
    settings = tiny_fields(tmp_path, steps=8, eval_every=4, checkpoint_every=8)
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(json.dumps({"text": f"line {i}"}) + "\n" for i in range(200)))
    settings["data"] |= {"corpus": {"type": "jsonl", "paths": [str(lines)]}, "documents": "masked"}
    config = load_config(settings)
    assert config.data is not None and config.model is not None
    prepared = config.data.prepare(config.model)
    tokens, documents, targets = prepared.train_batch(BatchSpec(0, 0, 4))
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    assert prepared.tokenizer is not None
    end = torch.eq(tokens, prepared.tokenizer.eos_id)
    assert end.any() and torch.equal(documents[:, 1:] - documents[:, :-1], end[:, 1:].long())
    whole = train(config).folder
    settings["train"] |= {"runs_dir": str(tmp_path / "parts"), "checkpoint_every": 4}
    train(load_config(settings), until=4)
    again = train(load_config(settings), resume=True).folder
    ours, theirs = load_model(whole).state_dict(), load_model(again).state_dict()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    del settings["data"]["documents"]
    joined = train(load_config(settings, ["name=joined"]), until=1).folder
    assert of_kind(joined, "train")[0]["loss"] != of_kind(whole, "train")[0]["loss"]


def test_who_cannot_tell_documents_apart_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="documents: masked is for the objective causal, and this one is mlm"
    ):
        load_config({"data": {"documents": "masked", "objective": "mlm"}})
    lstm = build_model("lstm", vocab_size=256)
    with pytest.raises(DataError, match="need a model that tells them apart, which model 'lstm' does not"):
        dataset(tmp_path, ROWS, lstm, packing=True)
    model = tiny_model("gpt")
    with pytest.raises(DataError, match=r"documents: expected integers \(2, 18\) like the tokens"):
        model(torch.zeros_like(NUMBERS), documents=NUMBERS[:, 1:])
    with pytest.raises(DataError, match="expected them without a cache"):
        model(NUMBERS, model.cache(2, 18), documents=NUMBERS)  # type: ignore[operator]
