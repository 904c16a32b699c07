"""JSON schemas of configuration files for editors: pydantic's, extended by all short forms."""

from __future__ import annotations

from typing import cast

from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import CoreSchema, core_schema

from zoo.config.compose import FROM
from zoo.config.registry import INLINED, MODELS, Config, Kind, definition_key
from zoo.utils.untyped import Json, JsonObject

TAKEN_OVER = {
    "type": "object",
    "required": [FROM],
    "properties": {FROM: {"type": "string", "description": "a checkpoint; other keys are put on top"}},
}
"""The schema of a model that is given by its checkpoint."""
BY_PATH = {"type": "string", "pattern": r"^.+\.py:\w+$|^\w+(\.\w+)+$", "description": "the path of a class"}
"""The schema of a `type` that is the path of a class, see `zoo.config.plugins.CLASS_PATH`."""


def for_editors(cls: type[Config]) -> JsonObject:
    """The schema of a file, or of a section of a file, as users write it, given the class of its long form.

    Nothing is required, because any key may come from a file that is extended. A component may be given by
    its name, a model by its checkpoint and an optimizer by the path of a class, and the fields of an inlined
    component may be written beside those of its owner.
    """
    choices = [choice for kind in Kind.registries.values() for choice in kind.choices.values()]
    definitions = [cast(CoreSchema, {**_core(choice), "ref": definition_key(choice)}) for choice in choices]
    schema = GenerateJsonSchema().generate(core_schema.definitions_schema(_core(cls), definitions))
    with_optional: JsonObject = _optional({**schema, "$defs": _with_inlined(schema["$defs"])})
    return with_optional


def _core(cls: type[Config]) -> CoreSchema:
    cls.model_rebuild()
    return cls.__pydantic_core_schema__


def _with_inlined(definitions: JsonObject) -> JsonObject:
    """The definitions, with a variant of an owner for every component that can be inlined in it."""
    return {name: _inlined(schema, definitions) for name, schema in definitions.items()}


def _inlined(schema: JsonObject, definitions: JsonObject) -> JsonObject:
    if INLINED not in schema:
        return schema
    long = {key: value for key, value in schema.items() if key != INLINED}
    others = dict(long["properties"])
    components = others.pop(schema[INLINED])["discriminator"]["mapping"].values()
    choices = [definitions[reference.rpartition("/")[2]] for reference in components]
    return {"anyOf": [long, *({**c, "properties": {**c["properties"], **others}} for c in choices)]}


def _optional(schema: Json) -> Json:
    """A JSON schema without required keys, and with the other ways to write a component."""
    if isinstance(schema, list):
        return [_optional(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    # A `required` that is a list is the keyword; a property of that name would be a mapping.
    kept = {k: _optional(v) for k, v in schema.items() if not (k == "required" and isinstance(v, list))}
    if "discriminator" not in kept:
        return kept
    names, choices = sorted(kept.pop("discriminator")["mapping"]), kept.pop("oneOf")
    of_kind = [kind for kind in Kind.registries.values() if kind.choices.keys() >= set(names)]
    other: list[Json] = [TAKEN_OVER] if MODELS in of_kind else []
    if any(kind.adapt is not None for kind in of_kind):
        other += [BY_PATH, {"type": "object", "required": ["type"], "properties": {"type": BY_PATH}}]
    return {**kept, "anyOf": [{"enum": names}, *choices, *other]}
