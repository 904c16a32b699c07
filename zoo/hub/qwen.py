"""Qwen 2 and 2.5: Llama with biases on q, k and v. Qwen 3: with QK-norm and a head size of its own."""

from __future__ import annotations

from dataclasses import replace

from zoo.hub.fields import ConfigField, FixedField
from zoo.hub.llama import FIELDS, LLAMA

KV_HEADS = ConfigField("num_key_value_heads", "n_kv_heads", default=32, resolved="kv_heads")
FIXED = (
    FixedField("hidden_act", ("silu", "swish")),
    FixedField("use_sliding_window", (False,)),
    FixedField("layer_types", ("full_attention",), each=True),
)
HARMLESS = LLAMA.harmless | {"sliding_window", "max_window_layers"}
"""Without `use_sliding_window` these say nothing."""

QWEN2 = replace(
    LLAMA,
    architecture="Qwen2ForCausalLM",
    model_type="qwen2",
    fields=(*FIELDS, KV_HEADS, ConfigField("head_dim", "d_head", default=None, resolved="head_size")),
    fixed=FIXED,
    constants={**LLAMA.constants, "qkv_bias": True},
    harmless=HARMLESS,
)

QWEN3 = replace(
    LLAMA,
    architecture="Qwen3ForCausalLM",
    model_type="qwen3",
    fields=(*FIELDS, KV_HEADS, ConfigField("head_dim", "d_head", default=128, resolved="head_size")),
    fixed=(*FIXED, FixedField("attention_bias", (False,))),
    constants={**LLAMA.constants, "qk_norm": True},
    harmless=HARMLESS,
)
