"""nGPT, which transformers does not have: the format is zoo's own, and the model is in `zoo.hub.auto`."""

from __future__ import annotations

from zoo.hub.classifier import UNIT_HEAD
from zoo.hub.family import Family
from zoo.hub.fields import REQUIRED, ConfigField
from zoo.hub.rules import rule
from zoo.models import NGPTConfig
from zoo.utils.untyped import JsonObject

MODEL_FIELD = "model"
"""The field of config.json with zoo's fields, some of whose names have other meanings in transformers."""

FIELDS = tuple(
    ConfigField(name, name, REQUIRED if info.is_required() else info.default)
    for name, info in NGPTConfig.model_fields.items()
    if name != "type"
)
"""The fields; those that a folder of an older version lacks have their defaults."""

TENSORS = (
    "embedding.weight",
    *(f"blocks.{{i}}.attention.{x}.weight" for x in "qkvo"),
    "blocks.{i}.attention.qk.s_qk.scale",
    "blocks.{i}.attention.output_gate.weight",
    *(f"blocks.{{i}}.mlp.{x}.weight" for x in ("u", "nu", "down")),
    *(f"blocks.{{i}}.mlp.{x}.scale" for x in ("s_u", "s_nu")),
    *(f"blocks.{{i}}.{x}_residual.alpha.scale" for x in ("attention", "mlp")),
    "read_out.matrix.weight",
    "read_out.s_z.scale",
)


def _read(config: JsonObject) -> JsonObject:
    """Move zoo's fields to the top level."""
    own = config.get(MODEL_FIELD)
    fields = {key: value for key, value in own.items() if key != "type"} if isinstance(own, dict) else {}
    return {key: value for key, value in config.items() if key != MODEL_FIELD} | fields


def _write(config: JsonObject) -> JsonObject:
    """The inverse of `_read`."""
    own = {f.hub_name: config[f.hub_name] for f in FIELDS}
    return {key: value for key, value in config.items() if key not in own} | {MODEL_FIELD: own}


NGPT = Family(
    architecture="ZooNGPTForCausalLM",
    model_type="zoo-ngpt",
    model=NGPTConfig,
    fields=FIELDS,
    rules=tuple(rule(name, f"model.{name}") for name in TENSORS),
    null_tokens=("pad_token_id",),
    read=_read,
    write=_write,
    head=UNIT_HEAD,
)
