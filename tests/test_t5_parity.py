"""T5 against transformers' T5ForConditionalGeneration, through the rules that the import uses, both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import T5Config as HFConfig
from transformers import T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5Attention

from zoo.checkpoint.recipe import Recipe, assemble
from zoo.config.registry import INITS
from zoo.hub.export import export_model
from zoo.hub.folder import load_folder
from zoo.hub.rules import expand
from zoo.hub.t5 import T5 as FAMILY
from zoo.models import T5, T5Config
from zoo.nn.relative_bias import RelativeBias
from zoo.reparam import NoReparam
from zoo.utils.errors import CheckpointError

SIZES: dict[str, Any] = {"vocab_size": 61, "d_model": 32, "d_ff": 40, "d_kv": 6}
SIZES |= {"num_heads": 4, "num_layers": 2, "num_decoder_layers": 3}
V1_1: dict[str, Any] = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
START: dict[str, Any] = {"decoder_start_token_id": 0}


FORMS: dict[str, dict[str, Any]] = {
    "v1.1": V1_1,
    "first": {"feed_forward_proj": "relu"},
    "gated and tied": {"feed_forward_proj": "gated-gelu"},
}


def theirs(seed: int = 0, form: str = "v1.1") -> Any:
    """A random model none of whose tensors is at its usual start; v1.1 has a read-out of its own."""
    model: Any = T5ForConditionalGeneration(HFConfig(**SIZES, **FORMS[form], **START))
    if form == "v1.1":
        model.lm_head.weight = nn.Parameter(torch.empty(61, 32))
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.data.normal_(0, 0.3, generator=generator)
    return model.eval()


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    """Source, prefix and mask; the second source is padded. Long enough for the wide buckets."""
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(61, (3, 150), generator=generator)
    prefix = torch.randint(61, (3, 40), generator=generator)
    mask = torch.ones(3, 150, dtype=torch.bool)
    mask[1, 90:] = False
    return source, prefix, mask


def compare(ours: nn.Module, hf: Any) -> None:
    source, prefix, mask = inputs()
    for m in (None, mask):
        theirs_mask = None if m is None else m.long()
        expected = hf(source, attention_mask=theirs_mask, decoder_input_ids=prefix).logits
        torch.testing.assert_close(ours(source, prefix, m), expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_v1_1_that_transformers_5_has_begun(tmp_path: Path) -> None:
    """Its read-out is the embedding, which is not scaled, and its file has one of both."""
    hf: Any = T5ForConditionalGeneration(HFConfig(**SIZES, **V1_1, **START))
    hf.eval().save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"] is True
    model, report = load_folder(tmp_path)
    assert "lm_head.weight" in report.loaded and not report.missing
    compare(model.eval(), hf)
    config = tmp_path / "config.json"
    fields = json.loads(config.read_text())
    config.write_text(json.dumps(fields | {"tie_word_embeddings": False}))
    with pytest.raises(CheckpointError, match=r"lacks lm_head\.weight"):
        load_folder(tmp_path)


@torch.no_grad()
@pytest.mark.parametrize("form", FORMS)
def test_imported_logits(tmp_path: Path, form: str) -> None:
    hf = theirs(form=form)
    hf.save_pretrained(tmp_path)
    model, report = load_folder(tmp_path)
    assert not report.missing
    assert not report.unexpected
    compare(model.eval(), hf)


@torch.no_grad()
@pytest.mark.parametrize("form", FORMS)
def test_exported_again(tmp_path: Path, form: str) -> None:
    """The folder that is written has the tensors of the one that was read, and transformers opens it."""
    hf = theirs(form=form)
    hf.save_pretrained(tmp_path / "given")
    model, _ = load_folder(tmp_path / "given")
    model.published = {}  # as of a model that came from nowhere
    result = export_model(model, tmp_path / "out")
    given, written = (load_file(tmp_path / part / "model.safetensors") for part in ("given", "out"))
    kept = set(given) - set(FAMILY.duplicates) | ({"lm_head.weight"} if form == "v1.1" else set())
    assert set(written) == kept
    assert all(torch.equal(written[name], given[name]) for name in written)
    assert result.max_difference is not None and result.max_difference < 1e-5
    compare(model.eval(), T5ForConditionalGeneration.from_pretrained(tmp_path / "out"))


@torch.no_grad()
def test_exported_logits() -> None:
    """Our weights, under their names, in their model."""
    config = T5Config(vocab_size=61, d_model=32, n_layers=2, n_heads=4, d_head=6, d_mlp=40)
    model = assemble(Recipe(model=config, init=INITS["amos"](), reparam=NoReparam()), 0)
    state = model.state_dict()
    written = {
        r.hub_name: r.transform.to_hf([state[n] for n in r.zoo_names]) for r in expand(FAMILY.rules, state)
    }
    hf: Any = T5ForConditionalGeneration(HFConfig(**FAMILY.to_hf(config)))
    hf.lm_head.weight = nn.Parameter(torch.empty(61, 32))
    missing, unexpected = hf.load_state_dict(written, strict=False)
    assert set(missing) == {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}
    assert unexpected == []
    compare(model.eval(), hf.eval())


@pytest.mark.parametrize("form", FORMS)
def test_gradients_are_theirs(tmp_path: Path, form: str) -> None:
    """Of every tensor, the tables of positions among them."""
    hf = theirs(form=form)
    hf.save_pretrained(tmp_path)
    model, _ = load_folder(tmp_path)
    model.eval()
    assert isinstance(model, T5)
    source, prefix, _ = inputs()
    targets = prefix.roll(-1, 1)
    hf(source, decoder_input_ids=prefix, labels=targets).loss.backward()
    torch.autograd.backward(model.loss(source, prefix, targets).total)
    for r in expand(FAMILY.rules, model.state_dict()):
        expected, found = hf.get_parameter(r.hub_name).grad, model.get_parameter(r.zoo_names[0]).grad
        assert expected is not None
        assert found is not None, r.hub_name
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("both_directions", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 20), (16, 1000)])
def test_buckets_are_theirs(both_directions: bool, buckets: int, max_distance: int) -> None:
    bias = RelativeBias(2, buckets, max_distance, both_directions=both_directions)
    distance = torch.arange(-max_distance - 50, max_distance + 50)
    reference: Any = T5Attention
    expected = reference._relative_position_bucket(distance, both_directions, buckets, max_distance)
    assert torch.equal(bias.bucket(distance), expected)


def test_config_round_trip() -> None:
    config = T5Config(vocab_size=83, d_model=32, n_layers=3, n_heads=4, dropout=0.2)
    there_and_back = FAMILY.to_zoo(FAMILY.to_hf(config), "test")
    resolved = {"n_decoder_layers": 3, "d_head": 8, "d_mlp": 128}
    assert there_and_back == config.model_copy(update=resolved)
    assert FAMILY.to_zoo(HFConfig(**FAMILY.to_hf(config)).to_dict(), "test") == there_and_back


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"feed_forward_proj": "gated-silu"}, r"feed_forward_proj: 'gated-silu'; expected 'relu' or 'gated-"),
        ({"is_gated_act": False}, r"'gated-gelu and is_gated_act: False'; expected 'relu' or 'gated-gelu'"),
        ({"scale_decoder_output": True}, r"scale_decoder_output: .*did you mean 'scale_decoder_outputs'"),
    ],
)
def test_what_it_cannot_be_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        FAMILY.to_zoo({"model_type": "t5", **SIZES, **V1_1, **change}, "config.json")
