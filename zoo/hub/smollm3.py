"""SmolLM 3: Llama in which every fourth block has no positions (NoPE)."""

from __future__ import annotations

from dataclasses import replace

from zoo.hub.fields import Codec, ConfigField, RefusedError, Value, without
from zoo.hub.llama import FIELDS, LLAMA
from zoo.hub.rope import read_rope, write_rope
from zoo.hub.window import (
    FULL,
    LAYER_TYPES,
    SLIDING,
    USE,
    WINDOWS,
    cycled,
    read_use,
    read_windows,
    shortest_cycle,
    write_windows,
)
from zoo.utils.untyped import JsonObject


class Rotated(Codec):
    """Codec of ``no_rope_layers``, in which 1 means that a layer rotates, as reduced by `_read`."""

    def to_zoo(self, value: Value) -> Value:
        """Convert zeros and ones to booleans."""
        values = value if isinstance(value, list) and value else [value]
        if not all(v in (0, 1) for v in values):
            raise RefusedError("a list of 1 (rotary positions) and 0 (none)")
        return [bool(v) for v in values]

    def to_hf(self, value: Value) -> Value:
        """The inverse of `to_zoo`."""
        return [int(v) for v in value]


def _read(config: JsonObject) -> JsonObject:
    """Read the layers without positions, and their windows, as lists that are repeated."""
    config = read_use(read_rope(config))
    layers, rotated = config.get("num_hidden_layers", 36), config.get("no_rope_layers")
    interval = config.get("no_rope_layer_interval", 4)
    if rotated is None and isinstance(interval, int) and isinstance(layers, int) and interval > 0:
        rotated = [int((i + 1) % interval != 0) for i in range(layers)]
    if not isinstance(rotated, list) or not rotated:
        return config | {"no_rope_layers": rotated}
    types = [FULL if rotates else SLIDING for rotates in rotated]
    return read_windows(config, types) | {"no_rope_layers": shortest_cycle(rotated)}


def _write(config: JsonObject) -> JsonObject:
    """Write lists with an entry for each layer."""
    config = write_windows(write_rope(config))
    rotated = cycled(config["no_rope_layers"], config["num_hidden_layers"])
    return config | {"no_rope_layers": rotated, "use_sliding_window": config["sliding_window"] is not None}


PRETRAINING = "pretraining_tp"
DEFAULTS = {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "intermediate_size": 11008,
    "rope_theta": 2000000.0,
    "tie_word_embeddings": True,
}

SMOLLM3 = replace(
    LLAMA,
    architecture="SmolLM3ForCausalLM",
    model_type="smollm3",
    fields=(
        *(replace(f, default=DEFAULTS.get(f.hub_name, f.default)) for f in FIELDS),
        ConfigField("num_key_value_heads", "n_kv_heads", default=4, resolved="kv_heads"),
        ConfigField("no_rope_layers", "rope_blocks", codec=Rotated()),
        WINDOWS,
    ),
    fixed=(*(f for f in LLAMA.fixed if f.hub_name != PRETRAINING), LAYER_TYPES, USE),
    constants={**without(LLAMA.constants, "attention.window", "rope_blocks"), "d_head": None},
    harmless=LLAMA.harmless | {"no_rope_layer_interval", "max_window_layers", PRETRAINING},
    read=_read,
    write=_write,
)
"""SmolLM 3's published files also have the fields of Qwen's windows, which `_read` turns into one.

They also have `PRETRAINING`, by which Llama selects the summation of products; SmolLM 3 does not read it."""
