"""Configurations from the JSON schema by hypothesis: valid ones, mutated ones, and bytes that are none."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from benchmarks.campaigns.common import Outcome, attempt, outcome_of
from benchmarks.campaigns.mutations import BYTES, VALUES, places_of
from zoo.run.config import json_schema, load_config
from zoo.run.first_weights import declared_model
from zoo.utils.errors import ZooError

SMALL = 64
"""Integers of valid configurations, so that models can be declared quickly."""
PLACE = re.compile(r"config\.yaml(:\d+)?: |override '")
NEEDED = {"model", "optimizer", "data", "train"}


class Configurations:
    """A file is loaded, and its model is declared; a refusal must say where the mistake is."""

    name = "configurations"
    seconds = 5.0
    size = 25

    def prepare(self, folder: Path) -> None:
        """Read the schema."""
        self._schema = json_schema()

    def attempt(self, chance: random.Random, folder: Path) -> list[Outcome]:
        """Draw some configurations."""
        outcomes: list[Outcome] = []
        file = folder / "config.yaml"

        @seed(chance.randrange(2**32))
        @settings(
            max_examples=self.size,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(self._value(self._schema, 0), st.integers(0, 2**32))
        def draw(content: Any, number: int) -> None:
            outcomes.append(self._tried(content, random.Random(number), file))

        draw()
        return outcomes

    def _tried(self, content: Any, chance: random.Random, file: Path) -> Outcome:
        how, data = "valid", json.dumps(content).encode()
        if (mutation := chance.random()) < 0.4:
            how, data = "mutated", json.dumps(_mutated(content, chance)).encode()
        elif mutation < 0.6:
            damage = chance.choice(BYTES)
            how, data = damage.__name__, damage(data, chance)
        file.write_bytes(data)
        case = f"{how}: {data[:200]!r}"

        def act() -> Outcome | None:
            config = load_config(file)
            if config.model is not None:
                with torch.device("meta"):
                    declared_model(config)
            return None

        try:
            outcome = attempt(case, act)
        except ZooError as error:
            return outcome_of(error, case)
        if outcome.kind == "refused" and not all(map(PLACE.search, outcome.detail[:250].splitlines()[:1])):
            return Outcome("traceback", case, f"no place: {outcome.detail}")
        return outcome

    def _value(self, schema: dict[str, Any], depth: int) -> st.SearchStrategy[Any]:
        """Values that a schema describes."""
        if "$ref" in schema:
            return self._value(self._schema["$defs"][schema["$ref"].rpartition("/")[2]], depth)
        if "const" in schema:
            return st.just(schema["const"])
        if "enum" in schema:
            return st.sampled_from(schema["enum"])
        if "anyOf" in schema:
            choices = [c for c in schema["anyOf"] if depth < 6 or c.get("type") != "object"]
            return st.deferred(
                lambda: st.one_of([self._value(c, depth + 1) for c in choices or schema["anyOf"]])
            )
        kind = schema.get("type")
        if kind == "integer":
            low = int(schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1))
            high = int(schema.get("maximum", schema.get("exclusiveMaximum", max(low, SMALL) + 1) - 1))
            return st.integers(low, max(low, min(high, SMALL)))
        if kind == "number":
            low, high = schema.get("minimum", schema.get("exclusiveMinimum", 0)), schema.get("maximum", 10)
            return st.floats(low, max(low, schema.get("exclusiveMaximum", high)), allow_nan=False)
        if kind == "array":
            items = schema.get("items", {"type": "integer"})
            return st.deferred(lambda: st.lists(self._value(items, depth + 1), max_size=3))
        if kind == "object":
            return self._object(schema, depth)
        return {"boolean": st.booleans(), "null": st.none()}.get(str(kind), st.text(max_size=8))

    def _object(self, schema: dict[str, Any], depth: int) -> st.SearchStrategy[dict[str, Any]]:
        properties = {
            k: v for k, v in schema.get("properties", {}).items() if k not in ("plugins", "extends")
        }
        always = {k: self._value(v, depth + 1) for k, v in properties.items() if k == "type"}
        if depth == 0:
            always |= {k: self._value(v, 1) for k, v in properties.items() if k in NEEDED}
        sizes = {k for k, v in properties.items() if v.get("type") == "integer" and "default" not in v}
        always |= {k: self._value(properties[k], depth + 1) for k in sizes}
        rest = {k: self._value(v, depth + 1) for k, v in properties.items() if k not in always}
        return st.fixed_dictionaries(always, optional=rest)


def _mutated(content: Any, chance: random.Random) -> Any:
    """A configuration with some values of another kind, or keys that do not exist."""
    content = json.loads(json.dumps(content))
    places = places_of(content)
    for _ in range(chance.choice((1, 1, 2, 5))):
        if not places:
            return chance.choice(VALUES)
        owner, key = chance.choice(places)
        action = chance.random()
        if action < 0.15 and isinstance(owner, dict):
            owner.pop(key, None)
        elif action < 0.3 and isinstance(owner, dict):
            owner[chance.choice(("typ", "d_modell", "", "a.b", "x" * 300, "\u202e"))] = chance.choice(VALUES)
        elif isinstance(owner, dict) or key < len(owner):
            owner[key] = chance.choice(VALUES)
    return content
