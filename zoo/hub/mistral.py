"""Mistral: Llama without a sliding window."""

from __future__ import annotations

from dataclasses import replace

from zoo.hub.fields import Field, Fixed
from zoo.hub.llama import FIELDS, LLAMA

MISTRAL = replace(
    LLAMA,
    architecture="MistralForCausalLM",
    model_type="mistral",
    fields=(
        *FIELDS,
        Field("num_key_value_heads", "n_kv_heads", default=8, resolved="kv_heads"),
        Field("head_dim", "d_head", default=None, resolved="head_size"),
    ),
    fixed=(Fixed("hidden_act", ("silu", "swish")), Fixed("sliding_window", (None,), default=4096)),
)
