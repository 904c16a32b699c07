"""Qwen 2 and 2.5: Llama with biases on q, k and v. Qwen 3: with QK-norm and a head size of its own."""

from __future__ import annotations

from dataclasses import replace

from zoo.hub.fields import ConfigField, FixedField, without
from zoo.hub.llama import FIELDS, LLAMA
from zoo.hub.rope import read_rope, write_rope
from zoo.hub.window import FULL, LAYER_TYPES, SLIDING, USE, WINDOWS, read_use, read_windows, write_windows
from zoo.utils.untyped import JsonObject


def _read(config: JsonObject) -> JsonObject:
    """Read the window of the layers from ``max_window_layers`` on, if ``use_sliding_window``."""
    config = read_use(read_rope(config))
    if not config.get("use_sliding_window", False):
        return config
    first, layers = config.get("max_window_layers", 28), config.get("num_hidden_layers")
    config = {"sliding_window": 4096, **config}
    if not isinstance(first, int) or not isinstance(layers, int):
        return config
    return read_windows(config, [SLIDING if i >= first else FULL for i in range(layers)])


def _write(config: JsonObject) -> JsonObject:
    """Write the window in the older fields as well, if they can express it."""
    config = write_windows(write_rope(config))
    types = config["layer_types"]
    first = types.index(SLIDING) if SLIDING in types else len(types)
    return config | {"use_sliding_window": SLIDING in types, "max_window_layers": first}


KV_HEADS = ConfigField("num_key_value_heads", "n_kv_heads", default=32, resolved="kv_heads")
FIXED = (
    FixedField("hidden_act", ("silu", "swish")),
    LAYER_TYPES,
    USE,
)
HARMLESS = LLAMA.harmless | {"max_window_layers"}
"""Fields without effect; `_read` has converted ``max_window_layers`` to a list of windows."""

QWEN2 = replace(
    LLAMA,
    architecture="Qwen2ForCausalLM",
    model_type="qwen2",
    fields=(
        *FIELDS,
        KV_HEADS,
        ConfigField("head_dim", "d_head", default=None, resolved="head_size"),
        WINDOWS,
    ),
    fixed=(*FIXED, FixedField("use_mrope", (False,))),
    constants={**without(LLAMA.constants, "attention.window"), "qkv_bias": True},
    harmless=HARMLESS,
    read=_read,
    write=_write,
)

QWEN3 = replace(
    QWEN2,
    architecture="Qwen3ForCausalLM",
    model_type="qwen3",
    fields=(*FIELDS, KV_HEADS, ConfigField("head_dim", "d_head", default=128, resolved="head_size"), WINDOWS),
    fixed=(*FIXED, FixedField("attention_bias", (False,))),
    constants={**without(LLAMA.constants, "attention.window"), "qk_norm": True},
)
