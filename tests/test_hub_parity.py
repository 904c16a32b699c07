"""Models of transformers, tiny and random: the same logits here, the same tensors back, the same text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hub_models import MODELS, saved
from torch import Tensor

from zoo import generate
from zoo.hub.families import family_of
from zoo.hub.folder import load_folder
from zoo.hub.rules import expand


def tokens() -> Tensor:
    return torch.randint(61, (2, 40), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("name", MODELS)
def test_the_same_logits(tmp_path: Path, name: str) -> None:
    theirs = saved(name, tmp_path)
    ours, report = load_folder(tmp_path)
    with torch.no_grad():
        expected = theirs(tokens()).logits
        found = ours(tokens())
    assert not report.missing and not report.unexpected
    assert expected.abs().max() > 0.5
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_the_same_tensors_back(tmp_path: Path, name: str) -> None:
    """One set of rules: what was read is written again bit for bit, and the config says the same."""
    saved(name, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    family = family_of(config, name)
    ours, report = load_folder(tmp_path)
    state = ours.state_dict()
    back = {
        r.hub_name: r.transform.to_hf([state[n] for n in r.zoo_names]) for r in expand(family.rules, state)
    }
    theirs = saved(name, tmp_path).state_dict()
    assert set(report.loaded) == set(back)
    for key, tensor in back.items():
        assert torch.equal(tensor, theirs[key]), key
    assert set(theirs) - set(back) <= set(family.duplicates)
    written = family.to_hf(ours.recipe.model)
    assert family.to_hf(family.to_zoo(written, name)) == written
    config_again = transformers.AutoConfig.for_model(**written, pad_token_id=None)  # Phi-3's is 32000
    auto: Any = transformers.AutoModelForCausalLM
    opened = auto.from_config(config_again).eval()
    opened.load_state_dict(back, strict=False)
    with torch.no_grad():
        torch.testing.assert_close(opened(tokens()).logits, ours(tokens()), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_shards_hold_the_same(tmp_path: Path, name: str) -> None:
    saved(name, tmp_path / "whole")
    saved(name, tmp_path / "parts", max_shard_size="20KB")
    whole, parts = (load_folder(tmp_path / kind)[0].state_dict() for kind in ("whole", "parts"))
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 1
    assert all(torch.equal(parts[key], tensor) for key, tensor in whole.items())


@pytest.mark.parametrize("name", ["llama", "phi3"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_smaller_floats_are_read_exactly(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    theirs = saved(name, tmp_path, dtype=dtype)
    ours, _ = load_folder(tmp_path)
    embedding = theirs.state_dict()["model.embed_tokens.weight"].float()
    assert torch.equal(ours.get_parameter("embedding.weight"), embedding)
    assert {p.dtype for p in ours.parameters()} == {torch.float32}
    widened = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens()), widened(tokens()).logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_the_same_text(tmp_path: Path, name: str) -> None:
    """Greedy, token for token, with both caches."""
    theirs = saved(name, tmp_path)
    ours, _ = load_folder(tmp_path)
    prompt = tokens()[:, :7]
    settings: dict[str, Any] = {
        "do_sample": False,
        "max_new_tokens": 24,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    expected = theirs.generate(prompt, attention_mask=torch.ones_like(prompt), **settings)
    assert torch.equal(generate(ours, prompt, 24, temperature=0.0), expected)
    assert expected[:, 7:].unique().numel() > 1
