"""Models of transformers, tiny and random: the same logits here, the same tensors back, the same text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hub_models import LLAMA3, MODELS, saved
from safetensors.torch import load_file, save_file
from torch import Tensor

from zoo import build_model, generate, load_model, save_model
from zoo.hub.export import export_model
from zoo.hub.families import family_of
from zoo.hub.folder import load_folder
from zoo.hub.rules import expand
from zoo.utils.errors import ZooError


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


def without_dots(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields whose value is not ..., also within other fields."""
    return {
        key: without_dots(value) if isinstance(value, dict) else value
        for key, value in fields.items()
        if value is not ...
    }


def changed(name: str, folder: Path, **changes: Any) -> Any:
    """A model of `MODELS` as transformers opens it with other values in config.json; ... leaves one out."""
    model = saved(name, folder)
    file = folder / "config.json"
    fields = json.loads(file.read_text()) | changes
    file.write_text(json.dumps(without_dots(fields)))
    return type(model).from_pretrained(folder).eval()


YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16}
YARN |= {"beta_slow": 0.5}
BOTH_ROPES = {
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 333.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
    },
}
CHANGED: list[tuple[str, dict[str, Any]]] = [
    ("llama-yarn", {"rope_parameters": YARN | {"truncate": None}}),  # false, unlike a missing one
    ("phi3-longrope", {"original_max_position_embeddings": 20}),  # beside the 36 of longrope's own fields
    ("phi3-longrope", {"original_max_position_embeddings": ...}),  # 4096
    ("gemma3", BOTH_ROPES),  # merged
    ("gemma3", {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 333.0}}}),
    ("gemma3", {"rope_parameters": {"sliding_attention": None}, "rope_local_base_freq": 50.0}),
    ("llama-3-rope", {"rope_parameters": LLAMA3 | {"original_max_position_embeddings": ...}}),  # the longest
    ("neox", {"rope_scaling": {"type": "linear", "factor": 2.0}}),  # a quarter rotates, as without the other
    ("neox", {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.75}}),
    ("neox", {"rope_parameters": ..., "rotary_pct": 0.5, "partial_rotary_factor": 0.5, "rope_theta": 10000}),
    ("neox", {"rope_parameters": ..., "rotary_emb_base": 50, "partial_rotary_factor": 0.5, "rope_theta": 9}),
    ("phi3-partly-rotated", {"rope_scaling": {"rope_type": "default"}, "partial_rotary_factor": ...}),
    ("phi3-partly-rotated", {"rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}}),
]


@pytest.mark.parametrize(("name", "changes"), CHANGED, ids=str)
@torch.no_grad()
def test_the_same_logits_of_files_with_other_settings(
    tmp_path: Path, name: str, changes: dict[str, Any]
) -> None:
    theirs = changed(name, tmp_path, **changes)
    found = load_folder(tmp_path)[0](tokens())
    torch.testing.assert_close(found, theirs(tokens()).logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_the_same_tensors_back(tmp_path: Path, name: str) -> None:
    """One set of rules: what was read is written again bit for bit, and the config says the same."""
    saved(name, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    family = family_of(config, name)
    ours, report = load_folder(tmp_path)
    state = ours.state_dict()
    back = {
        r.hub_name: r.transform.to_hf([state[n] for n in r.zoo_names]).contiguous()
        for r in expand(family.rules, state, ours.recipe.model)
    }
    theirs = load_file(tmp_path / "model.safetensors")
    assert set(report.loaded) == set(back) == set(theirs)
    for key, tensor in back.items():
        assert torch.equal(tensor, theirs[key]), key
    written = family.to_hf(ours.recipe.model)
    assert family.to_hf(family.to_zoo(written, name)) == written
    (tmp_path / "again").mkdir()
    save_file(back, tmp_path / "again" / "model.safetensors", {"format": "pt"})
    tokens_of_none = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}  # Phi-3's is 32000
    (tmp_path / "again" / "config.json").write_text(json.dumps(written | tokens_of_none))
    auto: Any = transformers.AutoModelForCausalLM
    opened = auto.from_pretrained(tmp_path / "again", dtype=torch.float32)
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


LIMITS = {torch.bfloat16: 0.08, torch.float16: 0.01}
"""Largest differences of a logit from that of transformers, over the largest logit; both round."""


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_weights_stay_small_on_request(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    """Root mean square: the logits are as near to those in float32 as transformers' are, within 1.25 x."""
    saved(name, tmp_path, dtype=dtype)
    auto: Any = transformers.AutoModelForCausalLM
    theirs = auto.from_pretrained(tmp_path, dtype=dtype).eval()
    ours, exact = load_model(tmp_path, dtype=dtype), load_model(tmp_path)
    assert {p.dtype for p in ours.parameters()} == {dtype}
    assert all(torch.equal(p.float(), q) for p, q in zip(ours.parameters(), exact.parameters(), strict=True))
    with torch.no_grad():
        truth, found, expected = (m.eval()(tokens()) for m in (exact, ours, theirs))
    here, there = ((x.float() - truth).square().mean() for x in (found, expected.logits))
    assert 0 < here < 1.25**2 * there
    difference = (found.float() - expected.logits.float()).abs().max()
    assert difference < LIMITS[dtype] * truth.abs().max()


def test_a_dtype_for_any_file(tmp_path: Path) -> None:
    """zoo's own files are rounded as they are read; a small model is exported bit for bit."""
    model = build_model("gpt", vocab_size=61, d_model=16, n_layers=1, n_heads=2, seed=0)
    save_model(model, tmp_path / "own.safetensors")
    small = load_model(tmp_path / "own.safetensors", dtype=torch.bfloat16)
    for p, q in zip(small.parameters(), model.parameters(), strict=True):
        assert p.dtype == torch.bfloat16 and torch.equal(p, q.bfloat16())
    result = export_model(small, tmp_path / "out", dtype=torch.bfloat16)
    assert result.max_difference is not None and result.max_difference < 1e-5
    assert {p.dtype for p in small.parameters()} == {torch.bfloat16}
    again = load_model(tmp_path / "out", dtype=torch.bfloat16)
    assert all(torch.equal(p, q) for p, q in zip(again.parameters(), small.parameters(), strict=True))
    with pytest.raises(ZooError, match=r"dtype: torch.int8; expected one of floating point"):
        load_model(tmp_path / "out", dtype=torch.int8)


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
