"""Rotary positions in config.json: one object since transformers 5, two fields before."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from zoo.hub.fields import Codec, RefusedError, Value, without
from zoo.utils.untyped import JsonObject

ORIGINAL = "original_max_position_embeddings"
FRACTION = "partial_rotary_factor"
"""The rotated part of a head."""


@dataclass(frozen=True)
class ScalingType:
    """A type of RoPE scaling in config.json, and the fields that it has.

    Attributes:
        required: fields that the type must have, name in config.json to name in zoo.
        optional: fields that the type may have, in the same form.
        read: a function that converts fields of config.json that zoo expresses by others.
        nulls: what null means in fields where it is not the default.
    """

    required: Mapping[str, str]
    optional: Mapping[str, str] = field(default_factory=dict)
    read: Callable[[JsonObject], JsonObject] = dict
    nulls: Mapping[str, Value] = field(default_factory=dict)

    @property
    def fields(self) -> dict[str, str]:
        """All fields of the type, name in config.json to name in zoo."""
        return {**self.required, **self.optional}


def _yarn(fields: JsonObject) -> JsonObject:
    """Convert DeepSeek's mscale and mscale_all_dim to the equivalent attention factor.

    Raises:
        RefusedError: They or the factor are no numbers, or numbers without such a factor.
    """
    scales = fields.pop("mscale", None), fields.pop("mscale_all_dim", None)
    if all(scales) and fields.get("attention_factor") is None:
        factor = fields["factor"]
        try:
            grown = [0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0 for scale in scales]
            fields["attention_factor"] = grown[0] / grown[1]
        except (TypeError, ArithmeticError) as error:
            raise RefusedError("numbers as factor, mscale and mscale_all_dim") from error
    return fields


KINDS = {
    "linear": ScalingType({"factor": "factor"}),
    "llama3": ScalingType(
        {
            "factor": "factor",
            "low_freq_factor": "low_turns",
            "high_freq_factor": "high_turns",
            ORIGINAL: "context",
        }
    ),
    "yarn": ScalingType(
        {"factor": "factor", ORIGINAL: "context"},
        {
            "beta_slow": "low_turns",
            "beta_fast": "high_turns",
            "attention_factor": "attention_factor",
            "truncate": "whole_pairs",
        },
        _yarn,
        {"truncate": False},
    ),
    "longrope": ScalingType(
        {"short_factor": "short", "long_factor": "long", ORIGINAL: "context", "factor": "factor"},
        {"attention_factor": "attention_factor"},
    ),
}
"""The fields of each type of scaling."""


def read_fraction(config: JsonObject, name: str) -> JsonObject:
    """Move the rotated part of a head, which the object of `read_rope` may contain, to a field of its own.

    Of two objects only the one that `read_rope` uses counts: where ``rope_scaling`` has no such part,
    transformers assumes that of the field, and not that of ``rope_parameters``.

    Args:
        config: content of config.json.
        name: name of the field.
    """
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    rope = config.get(key)
    if not isinstance(rope, dict) or FRACTION not in rope:
        return config
    return config | {name: rope[FRACTION], key: without(rope, FRACTION)}


def read_rope(config: JsonObject) -> JsonObject:
    """Convert ``rope_parameters`` to the older ``rope_theta`` and ``rope_scaling`` with a ``rope_type``.

    If both forms are present, the older one is used, as in transformers (those of Gemma 3 are merged before).
    Settings of scalings that follow from the lengths in config.json are added to their fields.
    """
    config = dict(config)
    newer, older = config.pop("rope_parameters", None), config.pop("rope_scaling", None)
    scaling = older or newer
    if not isinstance(scaling, dict):
        return config | ({} if scaling is None else {"rope_scaling": scaling})
    scaling = dict(scaling)
    old = scaling.pop("type", "default")
    kind = scaling.pop("rope_type", old)
    if "rope_theta" in scaling:
        config["rope_theta"] = scaling.pop("rope_theta")
    if kind == "default" and not scaling:
        return config
    if isinstance(kind, str) and kind in LENGTHS:
        scaling = _with_lengths(scaling, config, LENGTHS[kind])
    return config | {"rope_scaling": {"rope_type": kind, **scaling}}


LENGTHS = {"llama3": (ORIGINAL,), "yarn": (ORIGINAL, "factor"), "longrope": (ORIGINAL, "factor")}
"""The types of scaling in which fields may be missing that follow from the lengths in config.json."""


def _with_lengths(scaling: JsonObject, config: JsonObject, fields: Sequence[str]) -> JsonObject:
    """Add those of the fields that follow from the lengths in config.json."""
    longest = config.get("max_position_embeddings")
    original = scaling.get(ORIGINAL) or config.get(ORIGINAL) or longest
    factor = scaling.get("factor")
    if factor is None and isinstance(longest, int) and isinstance(original, int) and original > 0:
        factor = longest / original
    lengths = {ORIGINAL: original, "factor": factor}
    return {**scaling, **{key: lengths[key] for key in fields if lengths[key] is not None}}


def write_rope(config: JsonObject) -> JsonObject:
    """Write both forms, for older and newer readers."""
    scaling = config["rope_scaling"] or {"rope_type": "default"}
    return config | {"rope_parameters": {"rope_theta": config["rope_theta"], **scaling}}


@dataclass(frozen=True)
class RopeScaling(Codec):
    """Codec of ``rope_scaling``: ``{"rope_type": ...}`` in config.json, ``{"type": ...}`` in zoo.

    Attributes:
        kinds: the types that the family supports.
    """

    kinds: tuple[str, ...] = tuple(KINDS)

    def to_zoo(self, value: Value) -> Value:
        """Convert a supported type with exactly its own fields."""
        if value is None:
            return None
        name = value.get("rope_type") if isinstance(value, dict) else None
        if not isinstance(name, str) or name not in self.kinds:
            raise RefusedError(f"null or a rope_type among {', '.join(self.kinds)}")
        kind = KINDS[name]
        given = {key: kind.nulls.get(key) if v is None else v for key, v in value.items()}
        fields = {key: v for key, v in given.items() if key != "rope_type" and v is not None}
        if kind.required.keys() <= fields.keys():
            fields = kind.read(fields)
        if not kind.required.keys() <= fields.keys() or not fields.keys() <= kind.fields.keys():
            may = f", and at most {', '.join(kind.optional)}" if kind.optional else ""
            raise RefusedError(f"for '{name}' just {', '.join(kind.required)}{may}")
        return {"type": name} | {kind.fields[key]: v for key, v in fields.items()}

    def to_hf(self, value: Value) -> Value:
        """The inverse of `to_zoo`."""
        if value is None:
            return None
        name = value["type"]
        if name not in self.kinds:
            raise RefusedError(f"null or a type among {', '.join(self.kinds)}")
        fields = {hub: value[own] for hub, own in KINDS[name].fields.items()}
        return {"rope_type": name} | {hub: v for hub, v in fields.items() if v is not None}
