"""What a JSON schema allows in the places of a configuration, as strategies of hypothesis."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

SMALL = (1, 2, 3, 4, 6, 8, 12, 16, 32)
"""Integers where the schema has no smaller limit: models of these sizes are built at once."""
NUMBERS = (1e-8, 1e-5, 1e-3, 0.01, 0.1, 0.25, 0.5, 0.9, 0.999, 1.0, 2.0, 10.0)
DEEPEST = 6
"""Objects within objects that are drawn."""


class Schema:
    """A schema whose definitions lie under `$defs`.

    Args:
        root: the schema of the whole.
    """

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root

    def places(self, content: dict[str, Any]) -> list[tuple[dict[str, Any], str, dict[str, Any]]]:
        """Every key of every object in `content`, also those left out: the object, the key, its schema."""
        return self._places(content, self._root)

    def without_defaults(self, content: dict[str, Any]) -> dict[str, Any]:
        """A configuration as a user writes it: what is the default is left out."""
        content = json.loads(json.dumps(content))
        for owner, key, schema in reversed(self.places(content)):
            if key in owner and owner[key] == schema.get("default", ...):
                del owner[key]
        return content

    def _places(
        self, content: dict[str, Any], schema: dict[str, Any]
    ) -> list[tuple[dict[str, Any], str, dict[str, Any]]]:
        found = []
        for key, inner in schema.get("properties", {}).items():
            if key in ("plugins", "extends", "checkpoint", "type"):
                continue
            found.append((content, key, inner))
            value = content.get(key)
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, dict) and (chosen := self._object_of(item, inner)) is not None:
                    found += self._places(item, chosen)
        return found

    def _object_of(self, value: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any] | None:
        """The object among the choices of a schema that a value is meant to be."""
        schema = self._resolved(schema)
        if "anyOf" in schema:
            choices = (self._object_of(value, choice) for choice in schema["anyOf"])
            return next((choice for choice in choices if choice is not None), None)
        if "items" in schema:
            return self._object_of(value, schema["items"])
        kind = schema.get("properties", {}).get("type", {})
        if "properties" not in schema or kind.get("const", value.get("type")) != value.get("type"):
            return None
        return schema

    def _resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        if "$ref" in schema:
            found: dict[str, Any] = self._root["$defs"][schema["$ref"].rpartition("/")[2]]
            return found
        return schema

    def values(self, schema: dict[str, Any], depth: int = 0) -> st.SearchStrategy[Any]:
        """Values that a schema describes."""
        schema = self._resolved(schema)
        if "const" in schema:
            return st.just(schema["const"])
        if "enum" in schema:
            return st.sampled_from(schema["enum"])
        if "anyOf" in schema:
            choices = [c for c in schema["anyOf"] if depth < DEEPEST or c.get("type") != "object"]
            return st.sampled_from(choices or schema["anyOf"]).flatmap(lambda c: self.values(c, depth + 1))
        kind = schema.get("type")
        if kind == "integer":
            low = int(schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1))
            high = int(schema.get("maximum", schema.get("exclusiveMaximum", 2**31) - 1))
            fitting = [n for n in SMALL if low <= n <= high] or [low]
            return st.sampled_from(fitting) | st.integers(low, min(high, max(low, SMALL[-1])))
        if kind == "number":
            low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
            high = schema.get("maximum", schema.get("exclusiveMaximum", 10.0))
            usual = [x for x in NUMBERS if low <= x <= high and x != schema.get("exclusiveMaximum")]
            return st.sampled_from(usual) | st.floats(low, max(low, high), allow_nan=False)
        if kind == "array":
            items = schema.get("items", {"type": "integer"})
            return st.lists(self._later(items, depth + 1), max_size=3)
        if kind == "object":
            return self._object(schema, depth)
        if kind == "string" and "pattern" in schema:
            return st.from_regex(schema["pattern"], fullmatch=True)
        return {"boolean": st.booleans(), "null": st.none()}.get(str(kind), st.text(max_size=8))

    def _later(self, schema: dict[str, Any], depth: int) -> st.SearchStrategy[Any]:
        """`values`, made when they are drawn, since schemas contain themselves."""
        return st.deferred(lambda: self.values(schema, depth))

    def _object(self, schema: dict[str, Any], depth: int) -> st.SearchStrategy[dict[str, Any]]:
        """An object with its type, the sizes that have no default, and some of the other keys."""
        properties = schema.get("properties", {})
        always = {k for k, v in properties.items() if k == "type" or (v.get("type") and "default" not in v)}
        values = {k: self._later(v, depth + 1) for k, v in properties.items()}
        rest = {k: values[k] for k in properties if k not in always}
        few = st.lists(st.sampled_from(sorted(rest)), max_size=2, unique=True) if rest else st.just([])
        return few.flatmap(
            lambda keys: st.fixed_dictionaries({k: values[k] for k in (*sorted(always), *keys)})
        )
