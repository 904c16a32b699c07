"""Llama, whose tensor names most open decoders share."""

from __future__ import annotations

from zoo.hub.classifier import LAST_TOKEN
from zoo.hub.family import Family
from zoo.hub.fields import PLAIN_DECODER, PLAIN_ROPE, ConfigField, FixedField
from zoo.hub.rope import RopeScaling, read_rope, write_rope
from zoo.hub.rules import rule
from zoo.models import GPTConfig

RULES = (
    rule("embedding.weight", "model.embed_tokens.weight"),
    rule("blocks.{i}.attention_residual.norm.scale", "model.layers.{i}.input_layernorm.weight"),
    rule("blocks.{i}.attention.q.weight", "model.layers.{i}.self_attn.q_proj.weight"),
    rule("blocks.{i}.attention.k.weight", "model.layers.{i}.self_attn.k_proj.weight"),
    rule("blocks.{i}.attention.v.weight", "model.layers.{i}.self_attn.v_proj.weight"),
    *(rule(f"blocks.{{i}}.attention.{x}.bias", f"model.layers.{{i}}.self_attn.{x}_proj.bias") for x in "qkv"),
    *(
        rule(f"blocks.{{i}}.attention.qk.{x}_norm.scale", f"model.layers.{{i}}.self_attn.{x}_norm.weight")
        for x in "qk"
    ),
    rule("blocks.{i}.attention.o.weight", "model.layers.{i}.self_attn.o_proj.weight"),
    rule("blocks.{i}.mlp_residual.norm.scale", "model.layers.{i}.post_attention_layernorm.weight"),
    rule("blocks.{i}.mlp.u.weight", "model.layers.{i}.mlp.up_proj.weight"),
    rule("blocks.{i}.mlp.nu.weight", "model.layers.{i}.mlp.gate_proj.weight"),
    rule("blocks.{i}.mlp.down.weight", "model.layers.{i}.mlp.down_proj.weight"),
    rule("norm.scale", "model.norm.weight"),
    rule("read_out.matrix.weight", "lm_head.weight"),
)

FIELDS = (
    ConfigField("vocab_size", "vocab_size"),
    ConfigField("hidden_size", "d_model"),
    ConfigField("num_hidden_layers", "n_layers", layers=True),
    ConfigField("num_attention_heads", "n_heads"),
    ConfigField("intermediate_size", "d_mlp", resolved="mlp_size"),
    ConfigField("rms_norm_eps", "norm_eps", default=1e-6),
    ConfigField("rope_theta", "rope_base", default=10000.0),
    ConfigField("rope_scaling", "rope_scaling", default=None, codec=RopeScaling()),
    ConfigField("tie_word_embeddings", "tied", default=False),
)
"""The fields that Llama, Mistral and Qwen share."""

LLAMA = Family(
    architecture="LlamaForCausalLM",
    model_type="llama",
    model=GPTConfig,
    fields=(
        *FIELDS,
        ConfigField("num_key_value_heads", "n_kv_heads", default=None, resolved="kv_heads"),
        ConfigField("head_dim", "d_head", default=None, resolved="head_size"),
    ),
    fixed=(
        FixedField("hidden_act", ("silu", "swish")),
        FixedField("attention_bias", (False,)),
        FixedField("mlp_bias", (False,)),
        FixedField("pretraining_tp", (1,)),
        FixedField("rope_interleaved", (False,), written=False),  # written by SmolLM's training code
    ),
    constants={
        "mlp": "swiglu",
        "norms": "before",
        "centred_norms": False,
        "scaled_embedding": False,
        "qkv_bias": False,
        "qk_norm": False,
        **PLAIN_DECODER,
        **PLAIN_ROPE,
    },
    harmless=frozenset({"max_position_embeddings", "attention_dropout", "is_llama_config"}),
    rules=RULES,
    prefix="model.",
    buffers=("*.rotary_emb.inv_freq",),
    duplicates={"lm_head.weight": "model.embed_tokens.weight"},
    null_tokens=("pad_token_id",),
    read=read_rope,
    write=write_rope,
    head=LAST_TOKEN,
)
