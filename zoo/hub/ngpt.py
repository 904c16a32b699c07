"""nGPT on the hub: a layout of our own, for which `zoo.hub.auto` gives transformers the model."""

from __future__ import annotations

from zoo.hub.family import Family, Json
from zoo.hub.fields import Field
from zoo.hub.rules import rule
from zoo.models import NGPTConfig

OWN = "model"
"""The field of config.json that holds ours, some of whose names mean other things over there."""

FIELDS = tuple(Field(name, name) for name in NGPTConfig.model_fields if name != "type")

TENSORS = (
    "embedding.weight",
    *(f"blocks.{{i}}.attention.{x}.weight" for x in "qkvo"),
    "blocks.{i}.attention.qk.s_qk.scale",
    *(f"blocks.{{i}}.mlp.{x}.weight" for x in ("u", "nu", "down")),
    *(f"blocks.{{i}}.mlp.{x}.scale" for x in ("s_u", "s_nu")),
    *(f"blocks.{{i}}.{x}_residual.alpha.scale" for x in ("attention", "mlp")),
    "read_out.matrix.weight",
    "read_out.s_z.scale",
)


def _read(config: Json) -> Json:
    """Our fields beside theirs, without the name of the architecture."""
    own = config.get(OWN)
    fields = {key: value for key, value in own.items() if key != "type"} if isinstance(own, dict) else {}
    return {key: value for key, value in config.items() if key != OWN} | fields


def _write(config: Json) -> Json:
    """The inverse."""
    own = {f.theirs: config[f.theirs] for f in FIELDS}
    return {key: value for key, value in config.items() if key not in own} | {OWN: own}


NGPT = Family(
    architecture="ZooNGPTForCausalLM",
    model_type="zoo-ngpt",
    model=NGPTConfig,
    fields=FIELDS,
    rules=tuple(rule(name, f"model.{name}") for name in TENSORS),
    read=_read,
    write=_write,
)
