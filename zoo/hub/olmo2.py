"""OLMo 2: Llama with the norms behind the branches, and a QK-norm over all heads at once."""

from __future__ import annotations

from dataclasses import replace

from zoo.hub.fields import ConfigField, FixedField
from zoo.hub.llama import FIELDS, LLAMA
from zoo.hub.rules import rule

NORMS = (
    rule("blocks.{i}.attention_residual.after.scale", "model.layers.{i}.post_attention_layernorm.weight"),
    rule("blocks.{i}.mlp_residual.after.scale", "model.layers.{i}.post_feedforward_layernorm.weight"),
)
BEFORE = {f"blocks.{{i}}.{branch}_residual.norm.scale" for branch in ("attention", "mlp")}

OLMO2 = replace(
    LLAMA,
    architecture="Olmo2ForCausalLM",
    model_type="olmo2",
    fields=(
        *(f for f in FIELDS if f.hub_name != "rms_norm_eps"),
        ConfigField("rms_norm_eps", "norm_eps", default=1e-5),
        ConfigField("num_key_value_heads", "n_kv_heads", default=None, resolved="kv_heads"),
    ),
    fixed=(FixedField("hidden_act", ("silu", "swish")), FixedField("attention_bias", (False,))),
    constants={**LLAMA.constants, "norms": "after", "attention.qk_norm": "all_heads", "d_head": None},
    rules=(*NORMS, *(r for r in LLAMA.rules if BEFORE.isdisjoint(r.zoo_names))),
)
