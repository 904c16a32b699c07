"""Phi-3 and Phi-4: Llama with q, k and v in one matrix, and both matrices of the MLP's gate in another."""

from __future__ import annotations

from dataclasses import replace

from zoo.hub.fields import ConfigField, FixedField, without
from zoo.hub.llama import LLAMA
from zoo.hub.rope import FRACTION, ORIGINAL, RopeScaling, read_fraction, read_rope, write_rope
from zoo.hub.rules import Stacked, rule
from zoo.hub.window import ONE_WINDOW
from zoo.utils.untyped import JsonObject

FUSED = (
    rule(
        tuple(f"blocks.{{i}}.attention.{x}.weight" for x in "qkv"),
        "model.layers.{i}.self_attn.qkv_proj.weight",
        Stacked(),
    ),
    rule(
        ("blocks.{i}.mlp.nu.weight", "blocks.{i}.mlp.u.weight"),
        "model.layers.{i}.mlp.gate_up_proj.weight",
        Stacked(),
    ),
)
FUSED_NAMES = {name for fused in FUSED for name in fused.zoo_names}


CONTEXT = 4096
"""transformers' default of ``original_max_position_embeddings``."""


def _read(config: JsonObject) -> JsonObject:
    """Read RoPE's fields, also with ``partial_rotary_factor`` at the top level, as before transformers 5.

    As in transformers, the types ``su`` and ``yarn`` of old files mean longrope, and the original context is
    the one at the top level, also where the fields of longrope name another.
    """
    config = dict(read_fraction(config, FRACTION))
    for key in ("rope_parameters", "rope_scaling"):
        scaling = config.get(key)
        if isinstance(scaling, dict) and scaling.get("rope_type", scaling.get("type")) in ("su", "yarn"):
            scaling = config[key] = {**scaling, "rope_type": "longrope"}
        if isinstance(scaling, dict) and scaling.get("rope_type", scaling.get("type")) == "longrope":
            config[key] = {**scaling, ORIGINAL: config.get(ORIGINAL, CONTEXT)}
    return read_rope(config)


def _write(config: JsonObject) -> JsonObject:
    """Write RoPE's fields, with the rotated part in both places and the context also at the top level."""
    config = write_rope(config)
    config["rope_parameters"][FRACTION] = config[FRACTION]
    scaling = config["rope_scaling"]
    return config if scaling is None else config | {ORIGINAL: scaling[ORIGINAL]}


PHI3 = replace(
    LLAMA,
    architecture="Phi3ForCausalLM",
    model_type="phi3",
    fields=(
        ConfigField("vocab_size", "vocab_size", default=32064),
        ConfigField("hidden_size", "d_model", default=3072),
        ConfigField("num_hidden_layers", "n_layers", default=32, layers=True),
        ConfigField("num_attention_heads", "n_heads", default=32),
        ConfigField("num_key_value_heads", "n_kv_heads", default=None, resolved="kv_heads"),
        ConfigField("intermediate_size", "d_mlp", default=8192, resolved="mlp_size"),
        ConfigField("rms_norm_eps", "norm_eps", default=1e-5),
        ConfigField("rope_theta", "rope_base", default=10000.0),
        ConfigField("tie_word_embeddings", "tied", default=False),
        ONE_WINDOW,
        ConfigField(FRACTION, "rope_fraction", default=1.0),
        ConfigField("rope_scaling", "rope_scaling", default=None, codec=RopeScaling(("longrope",))),
    ),
    fixed=(
        FixedField("hidden_act", ("silu", "swish")),
        FixedField("attention_bias", (False,)),
        *(FixedField(name, (False,), written=False) for name in ("mlp_bias", "lm_head_bias")),
        *(FixedField(name, (1,), written=False) for name in ("full_attn_mod", "interpolate_factor")),
    ),
    constants={**without(LLAMA.constants, "attention.window", "rope_fraction"), "d_head": None},
    # Published folders name Python code from before transformers had Phi-3, which is never loaded unasked.
    harmless=LLAMA.harmless | {ORIGINAL, "resid_pdrop", "embd_pdrop", "auto_map"},
    rules=(*FUSED, *(r for r in LLAMA.rules if FUSED_NAMES.isdisjoint(r.zoo_names))),
    read=_read,
    write=_write,
)
