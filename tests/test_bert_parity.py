"""BERT against transformers' BertForMaskedLM, through the rules that the import uses, both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, RobertaConfig, RobertaForMaskedLM

from zoo.checkpoint.recipe import Recipe, assemble
from zoo.hub.bert import BERT
from zoo.hub.export import export_model
from zoo.hub.folder import load_folder
from zoo.hub.roberta import ROBERTA
from zoo.hub.rules import expand
from zoo.init import BERTInit, He, Init
from zoo.models import BERTConfig
from zoo.reparam import NoReparam, Reparam, WeSaR
from zoo.utils.errors import CheckpointError

SIZES = {"vocab_size": 83, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
REST = {"intermediate_size": 80, "max_position_embeddings": 24, "type_vocab_size": 3}


def hugging_face(fields: dict[str, Any]) -> BertForMaskedLM:
    """Their model, without dropout."""
    config: Any = BertConfig  # its signature has no types for what it takes
    model: BertForMaskedLM = BertForMaskedLM(config(**fields, attn_implementation="eager"))
    model.train(False)
    return model


def theirs(seed: int = 0) -> BertForMaskedLM:
    """A random model none of whose tensors is at its usual start."""
    model = hugging_face({**SIZES, **REST})
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.data.normal_(0, 0.3, generator=generator)
    return model


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, segments and mask; the second sequence is padded."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(SIZES["vocab_size"], (3, 17), generator=generator)
    segments = torch.randint(3, (3, 17), generator=generator)
    mask = torch.ones(3, 17, dtype=torch.bool)
    mask[1, 11:] = False
    return tokens, segments, mask


def compare(ours: torch.nn.Module, hf: BertForMaskedLM) -> None:
    tokens, segments, mask = inputs()
    for s, m in ((None, None), (segments, None), (segments, mask)):
        expected = hf(tokens, token_type_ids=s, attention_mask=None if m is None else m.long()).logits
        found = ours(tokens, s, m)
        real = torch.ones_like(mask) if m is None else m
        torch.testing.assert_close(found[real], expected[real], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_imported_logits(tmp_path: Path) -> None:
    hf = theirs()
    hf.save_pretrained(tmp_path)
    model, report = load_folder(tmp_path)
    assert not report.missing
    assert not report.unexpected
    compare(model.eval(), hf)


@pytest.mark.parametrize(("init", "reparam"), [(BERTInit(std=0.3), NoReparam()), (He(), WeSaR())])
@torch.no_grad()
def test_exported_logits(tmp_path: Path, init: Init, reparam: Reparam) -> None:
    """Our weights in their model, gates folded."""
    config = BERTConfig(vocab_size=83, d_model=32, n_layers=3, n_heads=4, d_mlp=80, n_segments=3)
    model = assemble(Recipe(model=config, init=init, reparam=reparam), 0)
    export_model(model, tmp_path / "out")
    hf: Any = BertForMaskedLM
    compare(model.eval(), hf.from_pretrained(tmp_path / "out", attn_implementation="eager"))


@torch.no_grad()
def test_files_of_old_versions(tmp_path: Path) -> None:
    """Norms called gamma and beta, a buffer of positions, and a pooler that has to be allowed."""
    hf = theirs()
    hf.save_pretrained(tmp_path)
    state = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t
        for name, t in load_file(tmp_path / "model.safetensors").items()
    }
    state["bert.embeddings.position_ids"] = torch.arange(24)[None]
    state["bert.pooler.dense.weight"] = torch.zeros(32, 32)
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"bert\.pooler\.dense\.weight"):
        load_folder(tmp_path)
    model, report = load_folder(tmp_path, allow=["bert.pooler.*"])
    assert report.unexpected == ("bert.pooler.dense.weight",)
    assert not report.missing
    compare(model.eval(), hf)


@torch.no_grad()
def test_loss_is_theirs() -> None:
    """The mean over the masked positions alone, with its gradient's scale: the same number."""
    hf = theirs()
    config = BERT.to_zoo(hf.config.to_dict(), "test")
    model = assemble(Recipe(model=config, init=BERTInit(), reparam=NoReparam()), 0).eval()
    state = hf.state_dict()
    ours = model.state_dict()
    for r in expand(BERT.rules, ours):
        ours[r.zoo_names[0]].copy_(state[r.hub_name])
    tokens, _, _ = inputs()
    targets = tokens.masked_fill(
        torch.rand(tokens.shape, generator=torch.Generator().manual_seed(2)) > 0.3, -1
    )
    expected = hf(tokens, labels=targets.masked_fill(targets == -1, -100)).loss
    torch.testing.assert_close(model.loss(tokens, targets).total, expected, atol=1e-5, rtol=1e-5)


def test_config_round_trip() -> None:
    config = BERTConfig(vocab_size=83, d_model=32, n_layers=3, n_heads=4, dropout=0.2)
    there_and_back = BERT.to_zoo(BERT.to_hf(config), "test")
    assert there_and_back == config.model_copy(update={"d_mlp": 128})
    assert BertConfig(**BERT.to_hf(config)).hidden_dropout_prob == 0.2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "relu"}, r"hidden_act: 'relu'; expected 'gelu'"),
        ({"is_decoder": True}, r"is_decoder: (?i:true; expected false)"),
        ({"position_embedding_type": "relative_key"}, r"position_embedding_type: 'relative_key'"),
        ({"layer_norm_epsilon": 1e-5}, r"layer_norm_epsilon: .*did you mean 'layer_norm_eps'"),
    ],
)
def test_what_it_cannot_be_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        BERT.to_zoo({**BertConfig().to_dict(), **change}, "config.json")


def test_rotary_positions_cannot_be_written() -> None:
    config = BERTConfig(vocab_size=83, d_model=32, n_layers=3, n_heads=4, position={"type": "rope"})
    with pytest.raises(CheckpointError, match=r"model.position: .*expected absolute positions"):
        BERT.to_hf(config)


def roberta() -> Any:
    """A random RoBERTa; 0, 1 and 2 are no tokens of text."""
    fields: dict[str, Any] = {
        **SIZES,
        **REST,
        "max_position_embeddings": 26,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
    }
    model: Any = RobertaForMaskedLM(RobertaConfig(**fields))
    generator = torch.Generator().manual_seed(0)
    for p in model.parameters():
        p.data.normal_(0, 0.3, generator=generator)
    return model.eval()


@torch.no_grad()
def test_roberta_both_ways(tmp_path: Path) -> None:
    """Positions begin in the third row of the table; the padding of a batch is not seen."""
    hf = roberta()
    hf.save_pretrained(tmp_path / "given")
    model, report = load_folder(tmp_path / "given")
    assert not report.missing and not report.unexpected
    assert model.config.max_seq_len == 24
    tokens = inputs()[0].clamp(min=3)
    mask = inputs()[2]
    tokens = tokens.masked_fill(~mask, 1)
    model.published = {}  # as of a model that came from nowhere
    result = export_model(model, tmp_path / "out")
    assert result.architecture == "RobertaForMaskedLM"
    opened: Any = RobertaForMaskedLM
    again = opened.from_pretrained(tmp_path / "out").eval()
    for theirs_model in (hf, again):
        expected = theirs_model(tokens, attention_mask=mask.long()).logits
        found = model.eval()(tokens, None, mask)
        torch.testing.assert_close(found[mask], expected[mask], atol=1e-5, rtol=1e-5)
    given, written = (load_file(tmp_path / part / "model.safetensors") for part in ("given", "out"))
    assert all(torch.equal(written[name], given[name]) for name in written)
    assert set(given) - set(written) <= set(ROBERTA.duplicates)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pad_token_id": 0}, r"pad_token_id: 0; expected 1"),
        ({"hidden_act": "relu"}, r"hidden_act: 'relu'; expected 'gelu'"),
        ({"max_position_embeddings": 2}, r"max_position_embeddings.*length: 0; Input should be greater"),
    ],
)
def test_roberta_refusals(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        ROBERTA.to_zoo({**RobertaConfig().to_dict(), **change}, "config.json")
