"""Configurations: shipped ones made small, changed within the schema or against it, and damaged bytes."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from benchmarks.campaigns.common import Case, Outcome, attempt, chance_of, quiet
from benchmarks.campaigns.mutations import BYTES, VALUES, places_of
from benchmarks.campaigns.schema import Schema
from zoo.kernels.amos import BusyError, kernels
from zoo.run.config import json_schema, load_config, plain
from zoo.run.first_weights import initial_model
from zoo.run.located import located
from zoo.run.optimizer import build_optimizer
from zoo.utils.errors import ConfigError

PLACE = re.compile(r"config\.yaml(:\d+: |: (not|cannot|nested))")
"""A message that says where the mistake is: in a line, or in the file as a whole."""
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "d_model": 16,
    "n_layers": 1,
    "n_decoder_layers": 1,
    "n_heads": 2,
    "d_head": None,
}
SIZES |= {"n_kv_heads": None, "d_mlp": 32, "d_memory": 8, "width": 8, "stages": [1, 1], "blocks": [1, 1]}
"""What makes a shipped model small, by key."""
BASES: tuple[str, ...] = (
    "bert-tiny",
    "gpt-tiny",
    "lstm-tiny",
    "ngpt-tiny",
    "ngpt-t5-tiny",
    "resnet18-digits",
    "t5-tiny",
    "wesar-tiny",
    "quickstart-wesar-amos",
    "rpe-base-amos",
    "resnet50-imagenet-amos-scale",
    "wesar-130m-stable",
    "spikes",
)
"""The shipped configurations that are changed."""
VALID, MUTATED = 0.6, 0.85
"""Shares of the cases: up to the first within the schema; up to the second against it; then bytes."""


class Configurations:
    """A file is loaded, its model built and trained for one step; a refusal must say where the mistake is."""

    name = "configurations"
    seconds = 5.0
    size = 25

    def prepare(self, folder: Path) -> None:
        """Read the schema, and make the shipped configurations small."""
        self._schema = Schema(json_schema())
        whole = [_small(name) for name in BASES]
        self._bases = [*map(self._schema.without_defaults, whole), *whole[:3]]
        built(self._bases[0])  # what torch imports with the first optimizer is imported once
        with suppress(ConfigError, BusyError):  # half a minute, which no case has
            kernels()

    def draw(self, seed: int, number: int, folder: Path) -> Sequence[Case]:
        """Draw some configurations."""
        chance = chance_of(self.name, seed, number)
        file = folder / "config.yaml"
        drawn: list[tuple[dict[str, Any], int]] = []

        @hypothesis.seed(chance.randrange(2**32))
        @settings(
            max_examples=self.size,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(st.data())
        def collect(data: st.DataObject) -> None:
            content = json.loads(json.dumps(data.draw(st.sampled_from(self._bases))))
            for _ in range(data.draw(st.sampled_from((1, 1, 1, 2, 3)))):
                owner, key, schema = data.draw(st.sampled_from(self._schema.places(content)))
                owner[key] = data.draw(self._schema.values(schema))
            drawn.append((content, data.draw(st.integers(0, 2**32))))

        collect()
        drawn += [drawn[-1]] * (self.size - len(drawn))
        return [
            partial(_tried, content, random.Random(number), file) for content, number in drawn[: self.size]
        ]


def _tried(content: dict[str, Any], chance: random.Random, file: Path) -> Outcome:
    how, data = "valid", json.dumps(content, indent=1).encode()
    share = chance.random()
    if VALID <= share < MUTATED:
        how, data = "mutated", json.dumps(_mutated(content, chance), indent=1).encode()
    elif share >= MUTATED:
        damage = chance.choice(BYTES)
        how, data = damage.__name__, damage(data, chance)
    file.write_bytes(data)
    case = f"{how}: {data[:20_000].decode(errors='replace')!r}"

    def act() -> None:
        built(file)

    outcome = attempt(case, act)
    if outcome.kind == "refused" and not all(map(PLACE.search, outcome.detail.splitlines()[:1])):
        return Outcome("traceback", case, f"no place: {outcome.detail}")
    return outcome


def built(source: Path | dict[str, Any]) -> None:
    """Load a configuration, build its model and its optimizer, and take a step on an example."""
    config = load_config(source)
    if config.model is None:
        return
    with located(config), quiet():
        model = initial_model(config).model
        config.constraint.apply(model)
        if config.optimizer is None or config.train is None:
            return
        optimizer = build_optimizer(
            model,
            config.optimizer,
            eta_overrides=config.eta_overrides,
            layer_decay=config.layer_decay,
            transfer=config.transfer,
            steps=config.train.steps,
        )
        config.schedule.build(optimizer, config.train.steps)
        loss = model.loss(*model.example(2, 8), z_loss=config.train.z_loss).total
        loss.backward()  # type: ignore[no-untyped-call]  # torch's
        for group in optimizer.param_groups:
            if "targets" in group:  # as `Stepper.update` does it
                group["targets"] = 16
        optimizer.step()


def _small(name: str) -> dict[str, Any]:
    """A shipped configuration with a model of some hundred weights."""
    content: dict[str, Any] = plain(load_config(name))
    _shrink(content["model"])
    return {key: value for key, value in content.items() if key not in ("plugins", "checkpoint")}


def _shrink(model: dict[str, Any]) -> None:
    """Make the model of a resolved configuration small, and every model in it."""
    for key, value in model.items():
        if isinstance(value, dict):
            _shrink(value)
        elif key in SIZES and value is not None:
            model[key] = SIZES[key]


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
