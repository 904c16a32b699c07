"""Gemma 2 and 3 (text): norms on both sides of a branch, windows in most blocks, soft caps or QK-norm."""

from __future__ import annotations

from dataclasses import replace

from zoo.hub.family import Family
from zoo.hub.fields import Codec, ConfigField, FixedField, Value, without
from zoo.hub.llama import LLAMA
from zoo.hub.rope import RopeScaling, read_rope, write_rope
from zoo.hub.rules import rule
from zoo.hub.window import FULL, LAYER_TYPES, SLIDING, WINDOWS, read_windows, write_windows
from zoo.utils.errors import CheckpointError
from zoo.utils.untyped import JsonObject


class Whole(Codec):
    """A number that config.json writes without a decimal point if it is an integer."""

    def to_zoo(self, value: Value) -> Value:
        """Return the value unchanged."""
        return value

    def to_hf(self, value: Value) -> Value:
        """Return an integer for an integral number: 4.0 -> 4."""
        return int(value) if float(value).is_integer() else value


LAYER = "model.layers.{i}"
NORMS = (
    ("attention_residual.norm", "input_layernorm"),
    ("attention_residual.after", "post_attention_layernorm"),
    ("mlp_residual.norm", "pre_feedforward_layernorm"),
    ("mlp_residual.after", "post_feedforward_layernorm"),
    ("attention.qk.q_norm", "self_attn.q_norm"),
    ("attention.qk.k_norm", "self_attn.k_norm"),
)
RULES = (
    *(r for r in LLAMA.rules if not r.zoo_names[0].endswith(".scale")),
    *(rule(f"blocks.{{i}}.{zoo}.shift", f"{LAYER}.{hub}.weight") for zoo, hub in NORMS),
    rule("norm.shift", "model.norm.weight"),
)


WINDOW = 4096
"""transformers' default of ``sliding_window``, which it needs also where no layer has a window."""

LOCAL_ROPE = FixedField(f"rope_parameters.{SLIDING}", ({"rope_type": "default"}, {}), written=False)
"""RoPE in layers with a window, as `_of_types` takes it out: nothing but its base can be chosen."""


ROPE = FixedField(
    "rope_parameters", ({kind: {"rope_type": "default"} for kind in (FULL, SLIDING)},), written=False
)
"""RoPE in all layers, from which `_of_types` takes both objects out: any other form is refused."""
LOCAL_BASE = "rope_local_base_freq"


def _read(config: JsonObject, every: int) -> JsonObject:
    """Read RoPE's fields, and the windows of all layers but each `every`-th."""
    config = read_rope({"sliding_window": WINDOW, **config})
    layers, every = config.get("num_hidden_layers", 26), config.get("sliding_window_pattern", every)
    if isinstance(layers, int) and isinstance(every, int) and every > 0:
        config = read_windows(config, [SLIDING if (i + 1) % every else FULL for i in range(layers)])
    return config


def _of_types(config: JsonObject) -> JsonObject:
    """Read ``rope_parameters`` with an object for each type of layer, either of which may be missing.

    Fields of ``rope_scaling`` replace those of layers without a window, one by one, as in transformers.
    """
    rope, older = config.get(ROPE.hub_name), config.get("rope_scaling")
    if not isinstance(rope, dict) or not rope.keys() <= {FULL, SLIDING}:
        return config
    full, local = rope.get(FULL) or {}, rope.get(SLIDING) or {}
    if not isinstance(full, dict) or not isinstance(local, dict):
        return config
    return without(config, ROPE.hub_name) | {
        "rope_scaling": {**full, **older} if isinstance(older, dict) else older or full,
        LOCAL_BASE: local.get("rope_theta", config.get(LOCAL_BASE, 10000.0)),
        LOCAL_ROPE.hub_name: without(local, "rope_theta"),
    }


def _read_gemma3(config: JsonObject) -> JsonObject:
    """Read as `_read` does, with two RoPEs; without windows, the base of the second has no effect."""
    config = _of_types(config)
    refused = {key: value for key, value in config.items() if key == ROPE.hub_name and value is not None}
    config = _read(without(config, ROPE.hub_name), 6) | refused
    return config if config["sliding_window"] is not None else config | {LOCAL_BASE: None}


def _write(config: JsonObject) -> JsonObject:
    """Write RoPE and windows, with a size in any case."""
    config = write_windows(write_rope(config))
    return config if config["sliding_window"] is not None else config | {"sliding_window": WINDOW}


def _write_gemma3(config: JsonObject) -> JsonObject:
    """Write RoPE's fields for each type of layer, and in the older form.

    Raises:
        CheckpointError: RoPE is scaled in layers with a window as well.
    """
    config = _write(config)
    if config["rope_scaling"] and config[LOCAL_BASE] is None and SLIDING in config["layer_types"]:
        raise CheckpointError(
            "Gemma3ForCausalLM: model.rope_window_base: null with rope_scaling; expected a number"
        )
    local = config[LOCAL_BASE] or config["rope_theta"]
    of_types = {FULL: config["rope_parameters"], SLIDING: {"rope_type": "default", "rope_theta": local}}
    return config | {LOCAL_BASE: local, "rope_parameters": of_types}


def _fields(**defaults: Value) -> tuple[ConfigField, ...]:
    """The fields that both versions have."""
    return (
        ConfigField("vocab_size", "vocab_size", default=defaults["vocab_size"]),
        ConfigField("hidden_size", "d_model", default=2304),
        ConfigField("num_hidden_layers", "n_layers", default=26, layers=True),
        ConfigField("num_attention_heads", "n_heads", default=8),
        ConfigField("num_key_value_heads", "n_kv_heads", default=4, resolved="kv_heads"),
        ConfigField("head_dim", "d_head", default=256, resolved="head_size"),
        ConfigField("intermediate_size", "d_mlp", default=9216, resolved="mlp_size"),
        ConfigField("rms_norm_eps", "norm_eps", default=1e-6),
        ConfigField("rope_theta", "rope_base", default=defaults["rope_theta"]),
        ConfigField("rope_scaling", "rope_scaling", default=None, codec=RopeScaling()),
        ConfigField("tie_word_embeddings", "tied", default=True),
        ConfigField(
            "query_pre_attn_scalar",
            "attention.score_size",
            default=256,
            codec=Whole(),
            resolved="score_size",
        ),
        ConfigField("final_logit_softcapping", "soft_cap", default=defaults["soft_cap"]),
        WINDOWS,
    )


CONSTANTS = {
    **without(LLAMA.constants, "attention.window", "attention.score_size", "soft_cap"),
    "mlp": "geglu",
    "norms": "both",
    "centred_norms": True,
    "scaled_embedding": True,
}
FIXED = (
    FixedField("hidden_activation", ("gelu_pytorch_tanh",)),
    FixedField("attention_bias", (False,)),
    FixedField("use_bidirectional_attention", (None, False)),
    LAYER_TYPES,
)
HARMLESS = LLAMA.harmless | {"hidden_act", "cache_implementation", "sliding_window_size"}
"""Fields without effect: ``hidden_activation`` replaces ``hidden_act``; the other repeats a field."""

GEMMA2: Family = replace(
    LLAMA,
    architecture="Gemma2ForCausalLM",
    model_type="gemma2",
    fields=(
        *_fields(vocab_size=256000, rope_theta=10000.0, soft_cap=30.0),
        ConfigField("attn_logit_softcapping", "attention.score_cap", default=50.0),
    ),
    fixed=FIXED,
    constants=without(CONSTANTS, "attention.score_cap"),
    harmless=HARMLESS,
    rules=RULES,
    read=lambda config: _read(config, 2),
    write=_write,
)

GEMMA3: Family = replace(
    LLAMA,
    architecture="Gemma3ForCausalLM",
    trunk="Gemma3Text",  # other classes without "Text" in their names read images
    model_type="gemma3_text",
    fields=(
        *_fields(vocab_size=262208, rope_theta=1000000.0, soft_cap=None),
        ConfigField(LOCAL_BASE, "rope_window_base", default=10000.0),
    ),
    fixed=(*FIXED, ROPE, LOCAL_ROPE, FixedField("attn_logit_softcapping", (None,))),
    constants={**without(CONSTANTS, "rope_window_base"), "qk_norm": True},
    harmless=HARMLESS | {"sliding_window_pattern", "_sliding_window_pattern"},
    rules=RULES,
    read=_read_gemma3,
    write=_write_gemma3,
)
