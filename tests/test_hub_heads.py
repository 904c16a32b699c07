"""A trunk of the hub under another head, or none: what is read is the same, what is missing is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
import transformers
from hub_models import GPT2, SIZES, random_, saved

from zoo.hub.folder import load_folder
from zoo.models import LanguageModel
from zoo.utils.errors import CheckpointError

BERT = {key: SIZES[key] for key in SIZES if key != "num_key_value_heads"}

HEADS: list[tuple[Any, list[str]]] = [
    (transformers.BertModel(transformers.BertConfig(**BERT)), ["cls.*", "pooler.*"]),
    (
        transformers.BertForSequenceClassification(transformers.BertConfig(**BERT)),
        ["cls.*", "bert.pooler.*", "classifier.*"],
    ),
    (
        transformers.BertForPreTraining(transformers.BertConfig(**BERT)),
        ["cls.seq_relationship.*", "bert.pooler.*"],
    ),
    (transformers.GPT2Model(transformers.GPT2Config(**GPT2)), []),
    (transformers.GPT2ForSequenceClassification(transformers.GPT2Config(**GPT2)), ["score.*"]),
    (transformers.LlamaModel(transformers.LlamaConfig(**SIZES)), ["lm_head.*"]),
    (
        transformers.LlamaForSequenceClassification(transformers.LlamaConfig(**SIZES)),  # type: ignore[no-untyped-call]
        ["lm_head.*", "score.*"],
    ),
]


@torch.no_grad()
@pytest.mark.parametrize(("theirs", "allow"), HEADS, ids=lambda x: type(x).__name__)
def test_the_trunk_is_read(theirs: Any, allow: list[str], tmp_path: Path) -> None:
    random_(theirs).save_pretrained(tmp_path)
    if allow and not type(theirs).__name__.endswith("ForSequenceClassification"):  # which is a classifier
        head = r"|".join(pattern.removesuffix(".*").replace(".", r"\.") for pattern in allow)
        with pytest.raises(CheckpointError, match=head):
            load_folder(tmp_path)
    ours, _ = load_folder(tmp_path, allow=allow)
    tokens = ours.example()[0]
    trunk = theirs.base_model
    expected = trunk(tokens).last_hidden_state
    found = cast(LanguageModel, ours.eval()).hidden_states(tokens)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_another_trunk_is_not(tmp_path: Path) -> None:
    """Bidirectional attention in Llama's tensors, for one, would be read without a complaint."""
    saved("llama", tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace("LlamaForCausalLM", "LlamaBiModel"))
    with pytest.raises(CheckpointError, match="architectures: no family 'LlamaBiModel'"):
        load_folder(tmp_path)
