"""GPT-2: matrices are (in, out), and q, k, v are fused."""

from __future__ import annotations

from zoo.hub.classifier import LAST_TOKEN
from zoo.hub.family import Family
from zoo.hub.fields import PLAIN_DECODER, ConfigField, FixedField
from zoo.hub.rules import Stacked, Transposed, layer_norm, rule
from zoo.models import GPT2Config

LAYER = "transformer.h.{i}"
QKV = tuple(f"blocks.{{i}}.attention.{x}" for x in "qkv")

RULES = (
    rule("embedding.weight", "transformer.wte.weight"),
    rule("position.weight", "transformer.wpe.weight"),
    *layer_norm("blocks.{i}.attention_residual.norm", f"{LAYER}.ln_1"),
    rule(tuple(f"{x}.weight" for x in QKV), f"{LAYER}.attn.c_attn.weight", Stacked(transposed=True)),
    rule(tuple(f"{x}.bias" for x in QKV), f"{LAYER}.attn.c_attn.bias", Stacked()),
    rule("blocks.{i}.attention.o.weight", f"{LAYER}.attn.c_proj.weight", Transposed()),
    rule("blocks.{i}.attention.o.bias", f"{LAYER}.attn.c_proj.bias"),
    *layer_norm("blocks.{i}.mlp_residual.norm", f"{LAYER}.ln_2"),
    rule("blocks.{i}.mlp.up.weight", f"{LAYER}.mlp.c_fc.weight", Transposed()),
    rule("blocks.{i}.mlp.up.bias", f"{LAYER}.mlp.c_fc.bias"),
    rule("blocks.{i}.mlp.down.weight", f"{LAYER}.mlp.c_proj.weight", Transposed()),
    rule("blocks.{i}.mlp.down.bias", f"{LAYER}.mlp.c_proj.bias"),
    *layer_norm("norm", "transformer.ln_f"),
    rule("read_out.matrix.weight", "lm_head.weight"),
)

GPT2 = Family(
    architecture="GPT2LMHeadModel",
    model_type="gpt2",
    model=GPT2Config,
    fields=(
        ConfigField("vocab_size", "vocab_size", default=50257),
        ConfigField("n_positions", "context", default=1024),
        ConfigField("n_embd", "d_model", default=768),
        ConfigField("n_layer", "n_layers", default=12, layers=True),
        ConfigField("n_head", "n_heads", default=12),
        ConfigField("n_inner", "d_mlp", default=None, resolved="mlp_size"),
        ConfigField("layer_norm_epsilon", "norm_eps", default=1e-5),
        ConfigField("tie_word_embeddings", "tied", default=True),
    ),
    fixed=(
        FixedField("activation_function", ("gelu_new", "gelu_pytorch_tanh")),
        FixedField("scale_attn_weights", (True,)),
        FixedField("scale_attn_by_inverse_layer_idx", (False,)),
        FixedField("add_cross_attention", (False,)),
    ),
    constants={"n_kv_heads": None, "d_head": None, **PLAIN_DECODER},
    harmless=frozenset(
        {
            *("resid_pdrop", "embd_pdrop", "attn_pdrop"),  # dropout in training
            *("n_ctx", "reorder_and_upcast_attn"),  # old names, and the way a product is computed
            *("summary_type", "summary_use_proj", "summary_activation", "summary_first_dropout"),
            "summary_proj_to_labels",
        }
    ),
    rules=RULES,
    prefix="transformer.",
    buffers=(
        "transformer.h.*.attn.bias",
        "transformer.h.*.attn.masked_bias",
        "h.*.attn.bias",
        "h.*.attn.masked_bias",
    ),
    duplicates={"lm_head.weight": "transformer.wte.weight"},
    null_tokens=("pad_token_id",),
    head=LAST_TOKEN,
)
