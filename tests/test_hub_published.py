"""The fields of published config.json files: accepted, refused by name, and none ignored that matters.

`data/published_configs.json` has the fields of well-known models as their files have them, but for the
factors of longrope, of which only the number is that of the model. ``parameters`` is the published
number, or follows from the shapes in the published files.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hub_models import MODELS, SIZES, random_

from zoo import build_model
from zoo.hub.classifier import SUFFIX, read_classifier
from zoo.hub.families import FAMILIES, family_of
from zoo.hub.family import Family
from zoo.hub.fields import HARMLESS
from zoo.utils.errors import CheckpointError

PUBLISHED: dict[str, Any] = json.loads((Path(__file__).parent / "data/published_configs.json").read_text())


def family(name: str) -> Family:
    return family_of(PUBLISHED[name]["config"], name)


@pytest.mark.parametrize("name", PUBLISHED)
def test_accepted(name: str) -> None:
    """Without a word, and the model has as many parameters as the published one."""
    published = PUBLISHED[name]["config"]
    config = family(name).to_zoo(published, name)
    if published["architectures"][0].endswith(SUFFIX):
        config = read_classifier(family(name), config, published, name)
    model = build_model({"model": config.model_dump()}, device="meta")
    assert sum(p.numel() for p in model.parameters()) == PUBLISHED[name]["parameters"]


REFUSED = [(name, field) for name, entry in PUBLISHED.items() for field in entry.get("refused", {})]


@pytest.mark.parametrize(("name", "field"), REFUSED)
def test_refused(name: str, field: str) -> None:
    """A feature that is absent is named, alone."""
    config = PUBLISHED[name]["config"] | {field: PUBLISHED[name]["refused"][field]}
    with pytest.raises(CheckpointError) as caught:
        family(name).to_zoo(config, "config.json")
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"config.json: {field}: ")


def test_every_family_is_among_them() -> None:
    """But nGPT, whose format is zoo's own; and each has something that is refused."""
    architectures = {family(name).architecture for name in PUBLISHED}
    refusing = {family(name).architecture for name, _ in REFUSED}
    known = {f.architecture for f in FAMILIES} - {"ZooNGPTForCausalLM"}
    assert architectures == refusing == known


ENCODER = {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}
T5: dict[str, Any] = {"vocab_size": 61, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
PLAIN: dict[str, Any] = {
    **{name: MODELS[name] for name in ("llama", "mistral-window", "qwen2-window", "qwen3", "phi3", "olmo2")},
    **{name: MODELS[name] for name in ("smollm3", "gemma2", "gemma3", "neox", "gpt2")},
    "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**ENCODER)),
    "roberta": lambda: transformers.RobertaForMaskedLM(transformers.RobertaConfig(**ENCODER)),
    "modernbert": lambda: transformers.ModernBertForMaskedLM(
        transformers.ModernBertConfig(**ENCODER, local_attention=6, pad_token_id=0)
    ),
    "t5": lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(**T5)),
}
OTHER: dict[str, Any] = {
    "classifier_pooling": "mean",
    "summary_type": "mean",
    "summary_activation": "tanh",
    "problem_type": "regression",
    "cache_implementation": "static",
    "hidden_act": "relu",  # of Gemma, which has it under another name
}
"""Another value of fields whose value is a word or null."""
NOT_NUMBERS = {
    "architectures",
    "model_type",
    "transformers_version",
    "dtype",
    "return_dict",
    "output_attentions",
    "output_hidden_states",
    "dense_act_fn",  # T5's reader refuses what contradicts `feed_forward_proj`
    "is_gated_act",
}
"""Fields that say which class reads the file, in which dtype, and in which form it returns the logits; and
those that repeat another."""


def changed(name: str, value: Any) -> Any:
    """Another value of a field, or ... if there is none to think of."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value / 2 + 0.1
    if value is None and name.endswith("_token_id"):
        return 5
    return OTHER.get(name, ...)


@pytest.mark.parametrize("name", PLAIN)
@torch.no_grad()
def test_what_is_ignored_changes_nothing(name: str) -> None:
    """Every field that a reader calls harmless, and transformers has: another value, the same logits."""
    model = random_(PLAIN[name]())
    config = model.config
    config.architectures = [type(model).__name__]
    family = family_of(config.to_dict(), name)
    ignored = (HARMLESS | family.harmless) - {f.hub_name for f in family.fixed} - NOT_NUMBERS
    tokens = torch.randint(6, 61, (2, 12), generator=torch.Generator().manual_seed(2))
    inputs = {"input_ids": tokens} | ({"decoder_input_ids": tokens[:, :7]} if name == "t5" else {})
    expected = model(**inputs)[0]
    tried = 0
    for field, value in config.to_dict().items():
        other = changed(field, value)
        if field not in ignored or other is ...:
            continue
        again = copy.deepcopy(config)
        setattr(again, field, other)
        theirs = type(model)(again).eval()
        theirs.load_state_dict(model.state_dict())
        torch.testing.assert_close(theirs(**inputs)[0], expected, atol=1e-5, rtol=0, msg=field)
        tried += 1
    assert tried >= 5
