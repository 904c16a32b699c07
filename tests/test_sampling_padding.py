"""Prompts of different lengths in one batch: each goes on as it does alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from zoo import build_model, generate
from zoo.hub.folder import load_folder
from zoo.models import Decoder
from zoo.sampling import left_padded
from zoo.utils.errors import DataError, ZooError

SIZES = {"vocab_size": 30, "d_model": 16, "n_layers": 2, "n_heads": 4}
MODELS: list[dict[str, Any]] = [
    {"source": "gpt"},
    {"source": "gpt", "n_kv_heads": 2, "qk_norm": True, "rope_scaling": {"type": "linear", "factor": 2.0}},
    {"source": "ngpt"},
    {"source": "ngpt", "n_kv_heads": 1, "update": "slerp"},
    {"source": "gpt2", "context": 32},
    {"source": "gpt-post"},
    {"source": "neox", "rope_fraction": 0.5},
    *(
        {
            "source": "gpt",
            "rope_scaling": {
                "type": "longrope",
                "short": [1.0, 1.0],
                "long": [9.0, 90.0],
                "context": context,
                "factor": 4.0,
            },
        }
        for context in (4, 22)  # between the lengths of the prompts, and those of their continuations
    ),
]
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [7], [2, 7, 1], [5, 6, 7, 8, 9]]


def model(**changes: Any) -> Decoder:
    net = build_model(**{"source": "gpt", **SIZES, "seed": 1, **changes})
    assert isinstance(net, Decoder)
    return net


@pytest.mark.parametrize("penalty", [None, 1.3])
@pytest.mark.parametrize("fields", MODELS, ids=str)
def test_each_row_is_what_it_is_alone(fields: dict[str, Any], penalty: float | None) -> None:
    net = model(**fields)
    settings: dict[str, Any] = {"temperature": 0, "repetition_penalty": penalty}
    tokens, mask = left_padded(PROMPTS)
    together = generate(net, tokens, 20, mask=mask, **settings)
    for row, own, alone in zip(together, mask, PROMPTS, strict=True):
        found = row[int((~own).sum()) :]
        assert torch.equal(found, generate(net, torch.tensor([alone]), 20, **settings)[0])


@torch.no_grad()
@pytest.mark.parametrize("fields", MODELS, ids=str)
@pytest.mark.parametrize("pieces", [[8], [3, 4, 1], [1] * 8])
def test_logits_do_not_see_the_padding(fields: dict[str, Any], pieces: list[int]) -> None:
    """Whatever stands there, and in whatever pieces the cache is filled."""
    net, (tokens, mask) = model(**fields), left_padded(PROMPTS)
    cache = net.cache(4, 8, padding=(~mask).sum(1))
    noise = torch.where(mask, tokens, torch.arange(32).reshape(4, 8) % 30)
    logits = torch.cat([net(piece, cache) for piece in torch.split(noise, pieces, 1)], 1)
    assert logits.isfinite().all()
    for row, alone in zip(logits, PROMPTS, strict=True):
        torch.testing.assert_close(row[-len(alone) :], net(torch.tensor([alone]))[0], atol=1e-5, rtol=0)


def test_a_mask_without_padding_changes_nothing() -> None:
    net, tokens = model(), torch.tensor(PROMPTS[:1])
    plain = generate(net, tokens, 5, seed=3)
    assert torch.equal(plain, generate(net, tokens, 5, seed=3, mask=torch.ones_like(tokens).bool()))


MASKS: list[tuple[Tensor, str]] = [
    (torch.tensor([[True, True], [True, False]]), "mask: row 1 has padding inside or after its text"),
    (torch.tensor([[False, False], [True, True]]), "mask: row 0 has padding inside or after"),
    (torch.ones(2, 2), "mask: expected bool (2, 2) like the tokens, got torch.float32 (2, 2)"),
    (torch.ones(2, 3).bool(), "got torch.bool (2, 3)"),
]


@pytest.mark.parametrize(("mask", "message"), MASKS, ids=lambda value: str(value)[:50])
def test_bad_masks(mask: Tensor, message: str) -> None:
    with pytest.raises(DataError) as caught:
        generate(model(), torch.ones(2, 2, dtype=torch.int64), 3, mask=mask)
    assert message in str(caught.value)


def test_bad_prompts() -> None:
    with pytest.raises(DataError, match="prompts: there are none"):
        left_padded([])
    with pytest.raises(DataError, match="prompts: number 1 is empty"):
        left_padded([[1], []])
    with pytest.raises(DataError, match=r"prompts: number 1 is float32 \(2,\); expected token ids"):
        left_padded([[1], [1.5, 2.0]])  # type: ignore[list-item]
    with pytest.raises(DataError, match=r"prompts: number 0 is int64 \(\); expected token ids"):
        left_padded(torch.tensor([1, 2]))
    with pytest.raises(DataError, match=r"prompts: number 0 is int64 \(1, 2\); expected token ids"):
        left_padded([torch.tensor([[1, 2]])])


def test_prompts_may_be_tensors() -> None:
    expected = left_padded([[1, 2], [3]])
    given: Any = ([torch.tensor([1, 2]), torch.tensor([3])], [np.array([1, 2], np.int32), [3]])
    for prompts in given:
        for made, wanted in zip(left_padded(prompts), expected, strict=True):
            assert torch.equal(made, wanted)
    assert left_padded(torch.tensor([[1, 2], [3, 4]]))[0].tolist() == [[1, 2], [3, 4]]


def test_a_recurrent_model_takes_no_mask() -> None:
    net = build_model("lstm", vocab_size=30, d_model=8, d_memory=8)
    tokens, mask = left_padded(PROMPTS)
    with pytest.raises(ZooError, match="LSTMModel does not support padding"):
        generate(net, tokens, 3, mask=mask)


SMALL: dict[str, Any] = {"vocab_size": 61, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
LLAMA = LlamaConfig(
    hidden_size=32,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    **SMALL,
)
GPT2 = GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, tie_word_embeddings=False, **SMALL)


@pytest.mark.parametrize("config", [LLAMA, GPT2], ids=lambda config: config.model_type)
def test_padded_greedy_tokens_are_those_of_transformers(config: Any, tmp_path: Path) -> None:
    auto: Any = AutoModelForCausalLM
    hf = auto.from_config(config)
    generator = torch.Generator().manual_seed(5)
    for p in hf.parameters():
        if p.dim() > 1:  # a large bias before the read-out would decide every token
            p.data.normal_(0, 0.3, generator=generator)
    hf.eval().save_pretrained(tmp_path)
    net, _ = load_folder(tmp_path)
    tokens, mask = left_padded(PROMPTS)
    expected = hf.generate(tokens, attention_mask=mask.long(), max_new_tokens=20, do_sample=False)
    found = generate(net, tokens, 20, temperature=0, mask=mask)
    assert torch.equal(found, expected)
    assert len(set(found[:, 8:].flatten().tolist())) > 3, "something happens"
