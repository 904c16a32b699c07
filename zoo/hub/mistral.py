"""Mistral: Llama, in some versions with a sliding window."""

from __future__ import annotations

from dataclasses import replace

from zoo.hub.fields import ConfigField, FixedField, without
from zoo.hub.llama import FIELDS, LLAMA
from zoo.hub.window import ONE_WINDOW

MISTRAL = replace(
    LLAMA,
    architecture="MistralForCausalLM",
    model_type="mistral",
    fields=(
        *FIELDS,
        ConfigField("num_key_value_heads", "n_kv_heads", default=8, resolved="kv_heads"),
        ConfigField("head_dim", "d_head", default=None, resolved="head_size"),
        replace(ONE_WINDOW, default=4096),
    ),
    fixed=(FixedField("hidden_act", ("silu", "swish")),),
    constants=without(LLAMA.constants, "attention.window"),
)
