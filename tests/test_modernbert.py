"""ModernBERT against transformers, both ways, and by hand what its blocks see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hub_models import SIZES, random_
from safetensors.torch import load_file
from torch import Tensor

from zoo import build_model, load_model
from zoo.hub.export import export_model
from zoo.hub.folder import load_folder
from zoo.hub.modernbert import MODERNBERT
from zoo.models.modernbert import local_mask
from zoo.utils.errors import CheckpointError, ConfigError

FIELDS: dict[str, Any] = {
    **{key: value for key, value in SIZES.items() if key != "num_key_value_heads"},
    "num_hidden_layers": 5,
    "local_attention": 6,
    "pad_token_id": 0,
    "cls_token_id": None,
    "sep_token_id": None,
}
FULL, LOCAL = "full_attention", "sliding_attention"
FORMS: dict[str, dict[str, Any]] = {
    "published": {},
    "of its own": {
        "layer_types": [LOCAL, LOCAL, FULL, LOCAL, FULL],
        "rope_parameters": {
            FULL: {"rope_type": "default", "rope_theta": 500.0},
            LOCAL: {"rope_type": "default", "rope_theta": 50.0},
        },
        "norm_eps": 1e-3,
    },
}


def saved(folder: Path, dtype: torch.dtype = torch.float32, **fields: Any) -> Any:
    config = transformers.ModernBertConfig(**{**FIELDS, **fields})
    empty: Any = transformers.ModernBertForMaskedLM(config)
    model = random_(empty.to(dtype))
    model.save_pretrained(folder)
    return model


def inputs() -> tuple[Tensor, Tensor]:
    """Tokens and mask; the second text is so short that its last padding has none of it within reach."""
    tokens = torch.randint(61, (2, 40), generator=torch.Generator().manual_seed(2))
    return tokens, torch.arange(40) < torch.tensor([[40], [15]])


@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_both_ways(form: str, tmp_path: Path) -> None:
    theirs = saved(tmp_path / "hub", **FORMS[form])
    ours, report = load_folder(tmp_path / "hub")
    assert not report.missing and not report.unexpected
    ours.published = {}  # as of a model that came from nowhere
    assert export_model(ours, tmp_path / "out").architecture == "ModernBertForMaskedLM"
    opened: Any = transformers.ModernBertForMaskedLM
    tokens, mask = inputs()
    for hf in (theirs, opened.from_pretrained(tmp_path / "out").eval()):
        torch.testing.assert_close(ours.eval()(tokens), hf(tokens).logits, atol=1e-5, rtol=0)
        expected = hf(tokens, attention_mask=mask.long()).logits
        torch.testing.assert_close(ours(tokens, None, mask)[mask], expected[mask], atol=1e-5, rtol=0)
    given, written = (load_file(tmp_path / part / "model.safetensors") for part in ("hub", "out"))
    assert all(torch.equal(written[name], given[name]) for name in written)
    assert set(given) - set(written) <= set(MODERNBERT.duplicates)


@torch.no_grad()
def test_weights_in_bfloat16(tmp_path: Path) -> None:
    """The logits are as near to those in float32 as transformers' are, within a factor of 2."""
    theirs = saved(tmp_path, torch.bfloat16)
    tokens, _ = inputs()
    truth = load_model(tmp_path).eval()(tokens)
    found = load_model(tmp_path, dtype=torch.bfloat16).eval()(tokens).float()
    expected = theirs(tokens).logits.float()
    largest = truth.abs().max()
    assert (found - truth).abs().max() < 2 * (expected - truth).abs().max()
    assert (found - expected).abs().max() < 0.08 * largest


@torch.no_grad()
def test_the_loss_is_theirs(tmp_path: Path) -> None:
    theirs, ours = saved(tmp_path), load_model(tmp_path).eval()
    tokens, _ = inputs()
    targets = tokens.where(torch.arange(40) % 4 == 0, -1)
    expected = theirs(tokens, labels=targets.masked_fill(targets == -1, -100)).loss
    torch.testing.assert_close(ours.loss(tokens, targets).total, expected, atol=1e-5, rtol=1e-5)


def test_what_local_blocks_see() -> None:
    seen = local_mask(torch.arange(5), 1, torch.tensor([[True] * 5, [True, True, False, False, False]]))
    assert [[int(x) for x in row] for row in seen[1, 0]] == [
        [1, 1, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 1, 1, 0, 0],
        [0, 0, 0, 1, 0],
        [0, 0, 0, 0, 1],
    ]
    assert seen[0, 0].sum(1).tolist() == [2, 3, 3, 3, 2]
    assert local_mask(torch.arange(3), 0, None).tolist() == [[torch.eye(3).bool().tolist()]]


SPELLINGS: list[dict[str, Any]] = [
    {"global_rope_theta": 160000.0, "local_rope_theta": 10000.0, "global_attn_every_n_layers": 3},
    {"layer_types": None, "rope_parameters": None},
    {"local_attention": 7, "layer_norm_eps": 1e-5, "position_embedding_type": "absolute"},
    {"rope_parameters": {FULL: {"rope_type": "default"}}, "layer_types": [FULL, LOCAL, LOCAL, FULL, LOCAL]},
]


@pytest.mark.parametrize("changes", SPELLINGS, ids=str)
def test_spellings(changes: dict[str, Any]) -> None:
    given = {key: value for key, value in FIELDS.items() if value is not None}
    assert MODERNBERT.to_zoo(given | changes, "") == MODERNBERT.to_zoo(given, "")


def test_a_config_and_back() -> None:
    """The older field of the types of layers is written where it can express them."""
    given = MODERNBERT.to_zoo(FIELDS, "")
    written = MODERNBERT.to_hf(given)
    assert written["global_attn_every_n_layers"] == 3
    assert MODERNBERT.to_zoo(json.loads(json.dumps(written)), "") == given
    odd = given.model_copy(update={"global_blocks": (False, True)})
    assert "global_attn_every_n_layers" not in MODERNBERT.to_hf(odd)
    assert MODERNBERT.to_zoo(MODERNBERT.to_hf(odd), "") == odd


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"norm_bias": True}, "norm_bias: true; expected false"),
    ({"attention_bias": True}, "attention_bias: true; expected false"),
    ({"mlp_bias": True}, "mlp_bias: true; expected false"),
    ({"classifier_bias": True}, "classifier_bias: true; expected false"),
    ({"decoder_bias": False}, "decoder_bias: false; expected true"),
    ({"tie_word_embeddings": False}, "tie_word_embeddings: false; expected true"),
    ({"hidden_activation": "silu"}, "hidden_activation: 'silu'; expected 'gelu'"),
    ({"classifier_activation": "tanh"}, "classifier_activation: 'tanh'; expected 'gelu'"),
    ({"local_attention": -1}, "local_attention: -1; expected a number of tokens"),
    ({"layer_types": [FULL, LOCAL]}, "layer_types: 2 entries; expected 5 as num_hidden_layers is 5"),
    ({"layer_types": ["chunked_attention"] * 5}, "layer_types: 'chunked_attention'; expected a list of"),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling: {'type': 'linear', 'factor': 2.0};"),
    ({"rope_parameters": {FULL: {"rope_type": "yarn"}}}, "rope_parameters: {'full_attention': {'rope_type"),
    ({"num_attention_heads": 5}, "hidden_size 32 is not divisible by num_attention_heads 5"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=str)
def test_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        MODERNBERT.to_zoo(FIELDS | changes, "config.json")
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"config.json: {message}")


def test_heads_that_cannot_rotate() -> None:
    with pytest.raises(ConfigError, match="d_model / n_heads = 3 is odd, but RoPE rotates pairs"):
        build_model("modernbert", vocab_size=9, d_model=12, n_layers=1, n_heads=4)


def test_a_reach_beyond_every_text_is_refused() -> None:
    """A tensor of distances cannot be compared with it."""
    with pytest.raises(ConfigError, match="reach"):
        build_model("modernbert", vocab_size=9, d_model=12, n_layers=1, n_heads=2, reach=2**63)
