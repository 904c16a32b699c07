"""Rotary positions in config.json: one object since transformers 5, two fields before."""

from __future__ import annotations

from zoo.data.files import JsonObject
from zoo.hub.fields import Codec, RefusedError, Value

KINDS = {
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "low_freq_factor": "low_turns",
        "high_freq_factor": "high_turns",
        "original_max_position_embeddings": "context",
    },
}
"""The fields of each type of scaling: name in config.json to name in zoo."""


def read_rope(config: JsonObject) -> JsonObject:
    """``rope_parameters`` as the older ``rope_theta`` and ``rope_scaling``; its ``type`` as ``rope_type``.

    If both spellings are present the newer one is used, as transformers does.
    """
    config = dict(config)
    scaling = config.pop("rope_parameters", None) or config.pop("rope_scaling", None)
    config.pop("rope_scaling", None)
    if not isinstance(scaling, dict):
        return config | ({} if scaling is None else {"rope_scaling": scaling})
    scaling = dict(scaling)
    old = scaling.pop("type", "default")
    kind = scaling.pop("rope_type", old)
    if "rope_theta" in scaling:
        config["rope_theta"] = scaling.pop("rope_theta")
    if kind == "default" and not scaling:
        return config
    return config | {"rope_scaling": {"rope_type": kind, **scaling}}


def write_rope(config: JsonObject) -> JsonObject:
    """Write both spellings, for older and newer readers."""
    scaling = config["rope_scaling"] or {"rope_type": "default"}
    return config | {"rope_parameters": {"rope_theta": config["rope_theta"], **scaling}}


class RopeScaling(Codec):
    """``rope_scaling``: ``{"rope_type": ...}`` in config.json, ``{"type": ...}`` in zoo."""

    def to_zoo(self, value: Value) -> Value:
        """Convert a supported type with exactly its own fields."""
        if value is None:
            return None
        kind = value.get("rope_type") if isinstance(value, dict) else None
        if not isinstance(kind, str) or kind not in KINDS:
            raise RefusedError(f"null or a rope_type among {', '.join(KINDS)}")
        fields = {key: v for key, v in value.items() if key != "rope_type"}
        if fields.keys() != KINDS[kind].keys():
            raise RefusedError(f"for '{kind}' just {', '.join(KINDS[kind])}")
        return {"type": kind} | {KINDS[kind][key]: v for key, v in fields.items()}

    def to_hf(self, value: Value) -> Value:
        """The inverse of `to_zoo`."""
        if value is None:
            return None
        kind = value["type"]
        return {"rope_type": kind} | {hub: value[own] for hub, own in KINDS[kind].items()}
