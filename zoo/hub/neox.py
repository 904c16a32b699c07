"""GPT-NeoX and Pythia: q, k and v are fused head by head, and RoPE rotates a part of each head."""

from __future__ import annotations

from zoo.hub.bert import GELU_FORMS
from zoo.hub.classifier import LAST_TOKEN
from zoo.hub.family import Family
from zoo.hub.fields import PLAIN_DECODER, PLAIN_ROPE, ConfigField, FixedField, ValueMap, without
from zoo.hub.rope import FRACTION, RopeScaling, read_fraction, read_rope, write_rope
from zoo.hub.rules import StackedByHead, layer_norm, linear, rule
from zoo.models import NeoXConfig
from zoo.utils.untyped import JsonObject

LAYER = "gpt_neox.layers.{i}"
QKV = tuple(f"blocks.{{i}}.attention.{x}" for x in "qkv")

RULES = (
    rule("embedding.weight", "gpt_neox.embed_in.weight"),
    *layer_norm("blocks.{i}.attention_residual.norm", f"{LAYER}.input_layernorm"),
    *(
        rule(tuple(f"{x}.{kind}" for x in QKV), f"{LAYER}.attention.query_key_value.{kind}", StackedByHead())
        for kind in ("weight", "bias")
    ),
    *linear("blocks.{i}.attention.o", f"{LAYER}.attention.dense"),
    *layer_norm("blocks.{i}.mlp_residual.norm", f"{LAYER}.post_attention_layernorm"),
    *linear("blocks.{i}.mlp.up", f"{LAYER}.mlp.dense_h_to_4h"),
    *linear("blocks.{i}.mlp.down", f"{LAYER}.mlp.dense_4h_to_h"),
    *layer_norm("norm", "gpt_neox.final_layer_norm"),
    rule("read_out.matrix.weight", "embed_out.weight"),
)


ACTIVATIONS = ValueMap({**GELU_FORMS.words, "gelu_fast": "tanh"})
"""GELU by its name. ``gelu_fast`` is the approximation with tanh, with sqrt(2 / pi) in ten digits."""


REPEATED = ("rope_theta", FRACTION)
"""Fields that transformers 4.46 and later wrote beside ``rotary_emb_base`` and ``rotary_pct``, with the same
values; no version reads them."""


def _read(config: JsonObject) -> JsonObject:
    """Read RoPE's fields, by their names before transformers 5 as well."""
    config = read_rope(read_fraction(without(config, *REPEATED), "rotary_pct"))
    if "rope_theta" in config:
        config["rotary_emb_base"] = config.pop("rope_theta")
    return config


def _write(config: JsonObject) -> JsonObject:
    """Write both forms, for older and newer readers."""
    config = write_rope({**config, "rope_theta": config["rotary_emb_base"]})
    config["rope_parameters"][FRACTION] = config["rotary_pct"]
    return without(config, "rope_theta")


NEOX = Family(
    architecture="GPTNeoXForCausalLM",
    model_type="gpt_neox",
    model=NeoXConfig,
    fields=(
        ConfigField("vocab_size", "vocab_size", default=50432),
        ConfigField("hidden_size", "d_model", default=6144),
        ConfigField("num_hidden_layers", "n_layers", default=44, layers=True),
        ConfigField("num_attention_heads", "n_heads", default=64),
        ConfigField("intermediate_size", "d_mlp", default=24576, resolved="mlp_size"),
        ConfigField("hidden_act", "gelu", default="gelu", codec=ACTIVATIONS),
        ConfigField("layer_norm_eps", "norm_eps", default=1e-5),
        ConfigField("use_parallel_residual", "parallel", default=True),
        ConfigField("rotary_pct", "rope_fraction", default=0.25),
        ConfigField("rotary_emb_base", "rope_base", default=10000.0),
        ConfigField("rope_scaling", "rope_scaling", default=None, codec=RopeScaling()),
        ConfigField("tie_word_embeddings", "tied", default=False),
    ),
    fixed=(FixedField("attention_bias", (True,)), FixedField("is_decoder", (False, True))),
    constants={"n_kv_heads": None, "d_head": None, **PLAIN_DECODER, **without(PLAIN_ROPE, "rope_fraction")},
    harmless=frozenset(
        {
            *("max_position_embeddings", "attention_dropout", "hidden_dropout", "classifier_dropout"),
            *("attention_probs_dropout_prob", "hidden_dropout_prob"),  # in the file of the 20B model
        }
    ),
    rules=RULES,
    prefix="gpt_neox.",
    buffers=("*.attention.bias", "*.attention.masked_bias", "*.rotary_emb.inv_freq"),
    null_tokens=("pad_token_id",),
    read=_read,
    write=_write,
    duplicates={"embed_out.weight": "gpt_neox.embed_in.weight"},
    modules={"embed_out": "lm_head"},
    head=LAST_TOKEN,
)
