"""Mistral: Llama without a sliding window."""

from __future__ import annotations

from dataclasses import replace

from zoo.hub.fields import ConfigField, FixedField
from zoo.hub.llama import FIELDS, LLAMA

MISTRAL = replace(
    LLAMA,
    architecture="MistralForCausalLM",
    model_type="mistral",
    fields=(
        *FIELDS,
        ConfigField("num_key_value_heads", "n_kv_heads", default=8, resolved="kv_heads"),
        ConfigField("head_dim", "d_head", default=None, resolved="head_size"),
    ),
    fixed=(FixedField("hidden_act", ("silu", "swish")), FixedField("sliding_window", (None,), default=4096)),
)
