"""A run that was stopped and resumed equals one that was not, for every model, optimizer and step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import zoo.models
import zoo.optim  # noqa: F401
from benchmarks.campaigns.common import Case, Outcome, attempt, chance_of
from benchmarks.campaigns.tiny import difference_in_common, fields, finished, state_of
from zoo.config.registry import CLIPS, INITS, MODELS, OPTIMIZERS, REPARAMS
from zoo.run.config import load_config
from zoo.train.run import train
from zoo.utils.errors import DivergenceError, ZooError

SIZES = {"vocab_size": 272, "d_model": 8, "n_layers": 1, "n_heads": 2, "d_mlp": 16}
LABELS = "text\tlabel\n" + "".join(f"{'one' if i % 2 else 'two'} and {i}\t{i % 3}\n" for i in range(60))
TINY: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bert": ({**SIZES, "dropout": 0.1}, {"objective": "mlm"}),
    "classifier": (
        {"classes": 3, "dropout": 0.1, "trunk": {"type": "bert", **SIZES}},
        {"type": "classification", "train": "{folder}/labels.tsv", "validation": 0.2, "context": 16},
    ),
    "gpt": (SIZES, {}),
    "gpt-post": (SIZES, {}),
    "gpt2": ({**SIZES, "context": 8}, {}),
    "lstm": (
        {"vocab_size": 256, "d_model": 8, "d_memory": 8, "streams": 2, "memory_dropout": 0.1},
        {"objective": "stream"},
    ),
    "modernbert": ({**SIZES, "mlp_dropout": 0.1}, {"objective": "mlm"}),
    "neox": ({**SIZES, "rope_fraction": 0.5}, {}),
    "ngpt": (SIZES, {}),
    "ngpt-t5": (SIZES, {"objective": {"type": "span-corruption", "sentinels": 8}}),
    "resnet": (
        {"depth": 18, "classes": 10, "channels": 1, "width": 2, "stem_size": 3, "stem_stride": 1},
        {"type": "digits"},
    ),
    "t5": ({**SIZES, "dropout": 0.1}, {"objective": {"type": "span-corruption", "sentinels": 8}}),
}
"""The smallest form of every model, with dropout where it has one, and its data: what is added to the text of
other campaigns, or another data set, where {folder} has the labelled texts."""


class Exactness:
    """Bit by bit: weights, slots, random state, metrics and pointers.

    Every model is tried with every optimizer, in an order that follows from the seed, before a pair is met
    again; what else is configured is drawn. A combination that zoo refuses is tried without methods.
    """

    name = "exactness"
    seconds = 30.0
    size = 1

    def prepare(self, folder: Path) -> None:
        """Prepare the text and the labelled texts once."""
        self._folder = folder
        finished(folder)
        (folder / "labels.tsv").write_text(LABELS)

    def draw(self, seed: int, number: int, folder: Path) -> Sequence[Case]:
        """The n-th pair, with what else is drawn for it."""
        model, optimizer = self.pair(seed, number)
        return [lambda: self._attempt(model, optimizer, chance_of(self.name, seed, number), folder)]

    def pair(self, seed: int, number: int) -> tuple[str, str]:
        """The model and the optimizer of the n-th case."""
        pairs = [*product(sorted(MODELS.choices), sorted(OPTIMIZERS.choices))]
        turn, place = divmod(number, len(pairs))
        return random.Random(f"{self.name} {seed} {turn}").sample(pairs, len(pairs))[place]

    def _attempt(self, model: str, optimizer: str, chance: random.Random, folder: Path) -> Outcome:
        """Train once without and once with stops, whose steps are drawn."""
        methods = {
            "reparam": chance.choice(sorted(REPARAMS.choices)),
            "init": chance.choice([None, *sorted(INITS.choices)]),
            "train": {"clip": chance.choice(sorted(CLIPS.choices))},
        }
        until = sorted({chance.randrange(1, 8) for _ in range(chance.choice((1, 1, 2)))})
        seed = chance.randrange(2**63)
        case = f"{model}, {optimizer}, {methods}, stopped after {until}"

        def act() -> Outcome | None:
            settings = self._settings(model, optimizer, seed)
            try:
                whole = _train(settings, methods, folder / "whole")
            except (ZooError, DivergenceError):
                methods.clear()
                whole = _train(settings, methods, folder / "plain")
            for i, stop in enumerate(until):
                _train(settings, methods, folder / "part", until=stop, resume=i > 0)
            part = _train(settings, methods, folder / "part", resume=True)
            found = difference_in_common(state_of(whole), state_of(part))
            return Outcome("changed", case, found) if found else None

        return attempt(case, act)

    def _settings(self, model: str, optimizer: str, seed: int) -> dict[str, Any]:
        """The configuration of a model that trains on what it is made for."""
        settings = fields(self._folder)
        sizes, changes = TINY[model]
        data = {k: v.format(folder=self._folder) if isinstance(v, str) else v for k, v in changes.items()}
        return {
            **settings,
            "model": {"type": model, **sizes},
            "optimizer": {"type": optimizer, "lr": 0.01},
            "data": data if "type" in data else {**settings["data"], **data},
            "seed": seed,
        }


def _train(settings: dict[str, Any], methods: dict[str, Any], runs: Path, **options: Any) -> Path:
    """Train in a folder of runs; returns that of the run."""
    own = {**settings["train"], **methods.get("train", {}), "runs_dir": str(runs)}
    return train(load_config({**settings, **methods, "train": own}), **options).folder
