"""config.json: every field is used, harmless or refused by name; old and new spellings say the same."""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any

import pytest
from hub_models import MODELS

from zoo.hub.families import FAMILIES, family_for, family_of
from zoo.hub.gpt2 import GPT2
from zoo.models import GPTConfig, ResNetConfig
from zoo.nn.rope_scaling import Llama3Scaling
from zoo.utils.errors import CheckpointError


@cache
def _written(name: str) -> str:
    """What transformers writes of a model."""
    model = MODELS[name]()
    model.config.architectures = [type(model).__name__]
    text: str = model.config.to_json_string()
    return text


def config(name: str, **changes: Any) -> dict[str, Any]:
    """A config.json with other values; ... leaves a field out."""
    given = json.loads(_written(name)) | changes
    return {key: value for key, value in given.items() if value is not ...}


def read(given: dict[str, Any]) -> Any:
    return family_of(given, "config.json").to_zoo(given, "config.json")


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
PHI4: dict[str, Any] = {
    "rope_parameters": ...,
    "rope_theta": 10000,
    "rope_scaling": None,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "embd_pdrop": 0.0,
    "resid_pdrop": 0.0,
    "initializer_range": 0.02,
    "original_max_position_embeddings": 64,
    "sliding_window": None,
    "torch_dtype": "bfloat16",
    "use_cache": True,
}
"""The spelling of the fields of Phi-4's config.json."""
YARN = {"factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 3.0, "beta_slow": 0.5}
SU = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.5, 2.0, 3.0, 4.0]}
SPELLINGS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"rope_parameters": ..., "rope_theta": 10000.0}),
    ("llama", {"rope_parameters": ..., "rope_theta": 10000.0, "rope_scaling": None}),
    ("llama", {"rope_parameters": ..., "rope_scaling": {"type": "default"}}),
    ("llama", {"rope_parameters": ..., "torch_dtype": "bfloat16", "pretraining_tp": 1, "_name_or_path": "x"}),
    ("llama", {"head_dim": 8, "hidden_act": "swish", "attention_bias": ..., "mlp_bias": ...}),
    ("llama", {"architectures": ...}),
    (
        "llama-3-rope",
        {"rope_parameters": ..., "rope_theta": 500.0, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
    ),
    (
        "llama-3-rope",
        {"rope_parameters": ..., "rope_theta": 500.0, "rope_scaling": {"type": "llama3", **LLAMA3}},
    ),
    (
        "llama-linear-rope",
        {"rope_parameters": ..., "rope_theta": 10000, "rope_scaling": {"type": "linear", "factor": 3.0}},
    ),
    ("llama-yarn", {"rope_parameters": ..., "rope_theta": 100.0, "rope_scaling": {"type": "yarn", **YARN}}),
    ("phi3-longrope", {"rope_parameters": ..., "rope_theta": 100.0, "rope_scaling": {"type": "su", **SU}}),
    ("qwen2", {"layer_types": ..., "sliding_window": 4096, "max_window_layers": 1}),
    ("mistral-window", {"rope_parameters": ..., "rope_theta": 10000.0, "head_dim": ...}),
    ("qwen2-window", {"layer_types": ..., "max_window_layers": 1}),
    ("smollm3", {"no_rope_layers": ..., "layer_types": ..., "max_window_layers": 28}),
    ("smollm3-window-untied", {"layer_types": ..., "no_rope_layer_interval": ...}),
    ("neox", {"rope_parameters": ..., "rotary_pct": 0.5, "rotary_emb_base": 10000}),
    (
        "gemma2",
        {
            "layer_types": ...,
            "rope_parameters": ...,
            "rope_theta": 10000.0,
            "hidden_act": "gelu_pytorch_tanh",
        },
    ),
    (
        "gemma3",
        {
            "layer_types": ...,
            "sliding_window_pattern": 2,
            "rope_parameters": ...,
            "rope_theta": 1000.0,
            "rope_local_base_freq": 100.0,
            "cache_implementation": "hybrid",
            "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        },
    ),
    ("qwen3", {"attention_bias": ..., "rope_parameters": ..., "rope_theta": 10000.0}),
    ("phi3", {"rope_parameters": ..., "partial_rotary_factor": 1.0, "head_dim": None}),
    ("phi3", PHI4),
    ("gpt2", {"n_ctx": 64, "activation_function": "gelu_pytorch_tanh", "n_inner": 128}),
    ("gpt2", {"tie_word_embeddings": ..., "n_inner": ...}),
]


def test_of_both_forms_of_rope_the_older_one_counts() -> None:
    """As in transformers, where a user adds it to files that have the newer one, to read longer texts."""
    both = config("llama", rope_scaling={"type": "linear", "factor": 3.0}, rope_theta=10000.0)
    assert "rope_parameters" in both
    assert read(both).rope_scaling.factor == 3.0


@pytest.mark.parametrize(("name", "changes"), SPELLINGS, ids=str)
def test_spellings(name: str, changes: dict[str, Any]) -> None:
    first, second = (read(config(name, **c)).model_dump() for c in ({}, changes))
    for either in (first, second):
        either["d_head"] = either["d_head"] or either["d_model"] // either["n_heads"]
        either["d_mlp"] = either["d_mlp"] or 4 * either["d_model"]
    assert first == second


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"attention_bias": True}, "attention_bias: true; expected false"),
    ("llama", {"mlp_bias": True}, "mlp_bias: true; expected false"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act: 'gelu'; expected 'silu' or 'swish'"),
    ("llama", {"pretraining_tp": 2}, "pretraining_tp: 2; expected 1"),
    ("llama", {"hidden_sise": 3}, "hidden_sise: 3; expected a field of LlamaForCausalLM that zoo knows; did"),
    ("llama", {"quantization_config": {"bits": 4}}, "quantization_config: {'bits': 4}; expected a field of"),
    ("llama", {"auto_map": {"AutoModel": "x.Y"}}, "auto_map: {'AutoModel': 'x.Y'}; expected a field of"),
    ("llama", {"vocab_size": ...}, "vocab_size: missing"),
    ("llama", {"vocab_size": "61"}, "vocab_size: '61'; Input should be a valid integer"),
    ("llama", {"num_hidden_layers": 0}, "num_hidden_layers: 0; Input should be greater than 0"),
    ("llama", {"num_key_value_heads": 3}, "num_attention_heads 4 is not divisible by num_key_value_heads 3"),
    ("llama", {"head_dim": 7}, "head_dim = 7 is odd, but RoPE rotates pairs"),
    (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
        "rope_scaling: {'rope_type': 'dynamic', 'factor': 2.0}; expected null or a rope_type among linear",
    ),
    (
        "llama",
        {"rope_parameters": {"rope_type": "linear"}},
        "rope_scaling: {'rope_type': 'linear'}; expected for 'linear' just factor",
    ),
    (
        "llama",
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        "rope_scaling: {'rope_type': 'default', 'partial_rotary_factor': 0.5}; expected null or",
    ),
    (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": -1.0}},
        "rope_scaling.linear.factor: -1.0",
    ),
    (
        "llama",
        {"rope_parameters": {"rope_type": "yarn", **YARN, "mscale": "a", "mscale_all_dim": 1.0}},
        "; expected numbers as factor, mscale and mscale_all_dim",
    ),
    (
        "llama",
        {"rope_parameters": {"rope_type": "yarn", **YARN, "factor": "x", "mscale": 1, "mscale_all_dim": 1}},
        "expected numbers as factor, mscale and mscale_all_dim",
    ),
    ("mistral", {"sliding_window": 0}, "sliding_window: 0; expected null or a positive number of tokens"),
    ("mistral", {"sliding_window": "4096"}, "sliding_window: '4096'; expected null or a positive number"),
    (
        "qwen2",
        {"layer_types": ["full_attention", "sliding_attention"]},
        "use_sliding_window: false; expected true",
    ),
    (
        "qwen2-window",
        {"layer_types": ["full_attention", "chunked_attention"]},
        "layer_types: ['full_attention', 'chunked_attention']; expected 'full_attention' or 'sliding_",
    ),
    (
        "qwen2",
        {"use_sliding_window": ..., "layer_types": ["full_attention", "sliding_attention"]},
        "use_sliding_window: false; expected true",
    ),
    (
        "qwen2-window",
        {"layer_types": ["full_attention"] * 3},
        "layer_types: 3 entries; expected 2 as num_hidden_layers is 2",
    ),
    ("qwen2", {"layer_types": 5}, "layer_types: 5; expected 'full_attention' or 'sliding_attention'"),
    ("qwen3", {"attention_bias": True}, "attention_bias: true; expected false"),
    ("phi3", {"attention_bias": True}, "attention_bias: true; expected false"),
    ("phi3", {"head_dim": 12}, "head_dim: 12; expected a field of Phi3ForCausalLM that zoo knows"),
    (
        "phi3",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
        "rope_scaling: {'rope_type': 'linear', 'factor': 2.0}; expected null or a rope_type among longrope",
    ),
    (
        "phi3",
        {"rope_parameters": {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4}},
        "expected for 'longrope' just short_factor, long_factor, original_max_position_embeddings, factor",
    ),
    (
        "phi3-longrope",
        {"rope_parameters": ..., "partial_rotary_factor": 0.5, "rope_scaling": {"type": "su", **SU}},
        "rope_scaling.short has 4 factors, but 2 pairs are rotated",
    ),
    (
        "phi3",
        {"rope_parameters": ..., "partial_rotary_factor": 0.4},
        "partial_rotary_factor * hidden_size / num_attention_heads, rounded down, = 3 is odd",
    ),
    (
        "phi3",
        {"rope_parameters": ..., "rope_scaling": "su"},
        "rope_scaling: 'su'; expected null or a rope_type",
    ),
    ("olmo2", {"attention_bias": True}, "attention_bias: true; expected false"),
    ("olmo2", {"clip_qkv": 8.0}, "clip_qkv: 8.0; expected a field of Olmo2ForCausalLM that zoo knows"),
    (
        "smollm3",
        {"no_rope_layers": [1, 2]},
        "no_rope_layers: [1, 2]; expected a list of 1 (rotary positions)",
    ),
    (
        "smollm3",
        {"sliding_window": 7, "layer_types": ["full_attention", "sliding_attention"]},
        "use_sliding_window: false; expected true",
    ),
    ("smollm3", {"mlp_bias": True}, "mlp_bias: true; expected false"),
    ("neox", {"hidden_act": "quick_gelu"}, "hidden_act: 'quick_gelu'; expected 'gelu' or 'gelu_new' or"),
    ("neox", {"attention_bias": False}, "attention_bias: false; expected true"),
    ("neox", {"num_attention_heads": 5}, "hidden_size 32 is not divisible by num_attention_heads 5"),
    ("gemma2", {"hidden_activation": "silu"}, "hidden_activation: 'silu'; expected 'gelu_pytorch_tanh'"),
    ("gemma2", {"sliding_window": math.nan}, "sliding_window: nan; expected null or a positive number"),
    ("gemma2", {"num_hidden_layers": 10**30}, "num_hidden_layers: value 1" + "0" * 30 + "; expected at most"),
    ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping: 50.0; expected null"),
    ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention: true; expected null"),
    (
        "gemma3",
        {
            "rope_parameters": {
                "sliding_attention": {"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0},
                "full_attention": {"rope_type": "default", "rope_theta": 1000.0},
            }
        },
        "rope_parameters.sliding_attention: {'rope_type': 'linear', 'factor': 4.0}; expected {'rope_type'",
    ),
    (
        "gemma3",
        {"rope_parameters": {"sliding_attention": {"rope_theta": 100.0, "partial_rotary_factor": 0.5}}},
        "rope_parameters.sliding_attention: {'partial_rotary_factor': 0.5}; expected {'rope_type'",
    ),
    (
        "gemma3",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 333.0, "factor": 2.0}},
        "rope_parameters: {'rope_type': 'linear', 'rope_theta': 333.0, 'factor': 2.0}; expected "
        "{'full_attention': {'rope_type': 'default'}, 'sliding_attention': {'rope_type': 'default'}}",
    ),
    ("gemma3", {"rope_parameters": 5}, "rope_parameters: 5; expected {'full_attention': "),
    (
        "gemma3",
        {"rope_parameters": {"full_attention": 5}},
        "rope_parameters: {'full_attention': 5}; expected",
    ),
    (
        "llama",
        {"rope_parameters": {"rope_type": ["llama3"], "factor": 2.0}},
        "rope_scaling: {'rope_type': ['llama3'], 'factor': 2.0}; expected null or a rope_type among linear",
    ),
    (
        "llama-3-rope",
        {"rope_parameters": {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}},
        "expected for 'llama3' just factor, low_freq_factor, high_freq_factor, original_max",
    ),
    (
        "gemma3",
        {"architectures": ["Gemma3ForSequenceClassification"]},
        "architectures: no family 'Gemma3ForSequenceClassification'",
    ),
    (
        "gemma3",
        {"architectures": ["Gemma3ForConditionalGeneration"]},
        "architectures: no family 'Gemma3ForConditionalGeneration'",
    ),
    ("gpt2", {"activation_function": "relu"}, "activation_function: 'relu'; expected 'gelu_new' or"),
    ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights: false; expected true"),
    (
        "gpt2",
        {"scale_attn_by_inverse_layer_idx": True},
        "scale_attn_by_inverse_layer_idx: true; expected false",
    ),
    ("gpt2", {"add_cross_attention": 0}, "add_cross_attention: 0; expected false"),
    (
        "llama",
        {"architectures": ["LlamaForCausalML"]},
        "no family 'LlamaForCausalML'; did you mean 'LlamaFor",
    ),
    ("llama", {"architectures": ["BloomForCausalLM"]}, "architectures: no family 'BloomForCausalLM'"),
    ("llama", {"architectures": ..., "model_type": "bloom"}, "model_type: 'bloom'; expected one of"),
]


@pytest.mark.parametrize(("name", "changes", "message"), REFUSED, ids=str)
def test_refused(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(config(name, **changes))
    lines = str(caught.value).splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("config.json: ")
    assert message in lines[0]


def test_everything_wrong_is_said_at_once() -> None:
    with pytest.raises(CheckpointError) as caught:
        read(config("llama", mlp_bias=True, vocab_size=-1, hidden_act="relu", sliding_window=7))
    assert [line.split(": ")[1] for line in str(caught.value).splitlines()] == [
        "sliding_window",
        "hidden_act",
        "mlp_bias",
        "vocab_size",
    ]


@pytest.mark.parametrize("name", MODELS)
def test_no_field_is_ignored_unless_it_is_listed(name: str) -> None:
    """Every field that transformers writes is in the family; and one more is refused."""
    given = config(name)
    family = family_of(given, name)
    used = {f.hub_name for f in family.fields} | {f.hub_name for f in family.fixed}
    assert all(key in used or family.ignores(key) for key in family.read(given))
    with pytest.raises(CheckpointError, match="something_new: 1; expected a field of"):
        read(given | {"something_new": 1})


SIZES: dict[str, Any] = {"vocab_size": 61, "d_model": 32, "n_layers": 2, "n_heads": 4}
CHOICES: list[tuple[dict[str, Any], str]] = [
    ({}, "LlamaForCausalLM"),
    ({"d_head": 6, "n_kv_heads": 2, "rope_scaling": Llama3Scaling(factor=8)}, "LlamaForCausalLM"),
    ({"qkv_bias": True}, "Qwen2ForCausalLM"),
    ({"qk_norm": True}, "Qwen3ForCausalLM"),
    ({"rope_blocks": (True, True, True, False), "tied": True}, "SmolLM3ForCausalLM"),
    ({"norms": "after", "attention": {"qk_norm": "all_heads"}}, "Olmo2ForCausalLM"),
]


@pytest.mark.parametrize(("fields", "architecture"), CHOICES, ids=str)
def test_the_family_that_fits(fields: dict[str, Any], architecture: str) -> None:
    assert family_for(GPTConfig(**SIZES, **fields))[0].architecture == architecture


def test_what_no_family_can_express() -> None:
    with pytest.raises(CheckpointError) as caught:
        family_for(GPTConfig(**SIZES, qk_norm=True, qkv_bias=True))
    assert "LlamaForCausalLM: model.qkv_bias: true; expected false" in str(caught.value)
    assert "Qwen2ForCausalLM: model.qk_norm: true; expected false" in str(caught.value)
    with pytest.raises(
        CheckpointError,
        match="of type 'resnet':\nexpected one of type bert, gpt, gpt2, modernbert, neox, ngpt, t5",
    ):
        family_for(ResNetConfig(depth=18, classes=3))


def test_architectures_are_known_once() -> None:
    names = [f.architecture for f in FAMILIES]
    assert len(set(names)) == len(names)


def test_a_model_of_another_family() -> None:
    with pytest.raises(CheckpointError, match=r"GPT2LMHeadModel: model.type: 'gpt'; expected 'gpt2'"):
        GPT2.to_hf(GPTConfig(**SIZES))


def test_windows_are_read_as_the_shortest_list() -> None:
    """Of one window in every block a number; of some blocks a list, which a model of any depth can take."""
    assert read(config("mistral-window")).attention.window == 7
    assert read(config("mistral", sliding_window=...)).attention.window == 4096  # what Mistral assumes
    assert read(config("qwen2-window")).attention.window == (None, 5)
    types = ["sliding_attention", "full_attention", "full_attention"] * 2
    longer = config("qwen2-window", num_hidden_layers=6, layer_types=types)
    assert read(longer).attention.window == (5, None, None)
    written = family_of(longer, "").to_hf(read(longer))
    assert (written["layer_types"], written["sliding_window"]) == (types, 5)


def test_windows_of_two_sizes_have_no_family() -> None:
    two = GPTConfig(**SIZES, attention={"window": [4, 8]})
    with pytest.raises(
        CheckpointError, match=r"model.attention.window: \[4, 8\]; expected one window for all"
    ):
        family_for(two)


def test_yarn_as_it_is_published() -> None:
    """Qwen 2.5's four fields, and the scales by which DeepSeek states the attention factor."""
    published = {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"}
    scaling = read(config("qwen2", rope_parameters=..., rope_scaling=published)).rope_scaling
    assert (scaling.low_turns, scaling.high_turns, scaling.context) == (1.0, 32.0, 32768)
    assert scaling.magnitude == pytest.approx(0.1 * math.log(4) + 1)
    scales = {"mscale": 0.7, "mscale_all_dim": 1.0}
    scaled = read(config("qwen2", rope_parameters=..., rope_scaling=published | scales)).rope_scaling
    assert scaled.magnitude == pytest.approx((0.07 * math.log(4) + 1) / (0.1 * math.log(4) + 1))


def test_the_factor_of_longrope_follows_from_the_lengths() -> None:
    scaling = read(config("phi3-longrope")).rope_scaling
    assert (scaling.factor, scaling.context) == (128 / 36, 36)
    assert scaling.magnitude == pytest.approx(math.sqrt(1 + math.log(128 / 36) / math.log(36)))
