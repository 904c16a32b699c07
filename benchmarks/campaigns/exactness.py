"""A run that was stopped and resumed equals one that was not, for any model, optimizer and step."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import zoo.models
import zoo.optim  # noqa: F401
from benchmarks.campaigns.common import OneByOne, Outcome, attempt
from benchmarks.campaigns.tiny import difference, fields, finished, state_of
from zoo.config.registry import INITS, MODELS, OPTIMIZERS, REPARAMS
from zoo.run.config import load_config
from zoo.train.run import train

SIZES = {"vocab_size": 256, "d_model": 8, "n_layers": 1, "n_heads": 2, "d_mlp": 16}
MODELS_OF_TEXT = {
    "gpt": SIZES,
    "ngpt": SIZES,
    "gpt2": {**SIZES, "context": 8},
    "post_gpt": SIZES,
    "lstm": {"vocab_size": 256, "d_model": 8, "d_memory": 8},
}
"""Fields of the models that the objective `causal` trains."""


class Exactness(OneByOne):
    """Bit by bit: weights, slots, random state, metrics and pointers."""

    name = "exactness"
    seconds = 30.0

    def prepare(self, folder: Path) -> None:
        """Prepare the text once."""
        self._folder = folder
        finished(folder)

    def attempt(self, chance: random.Random, folder: Path) -> Outcome:
        """Draw a combination, and the step at which the run is stopped."""
        model = chance.choice(sorted(MODELS.choices.keys() & MODELS_OF_TEXT.keys()))
        optimizer = chance.choice(sorted(OPTIMIZERS.choices))
        reparam, init = chance.choice(sorted(REPARAMS.choices)), chance.choice([None, *sorted(INITS.choices)])
        until = [chance.randrange(1, 8) for _ in range(chance.choice((1, 1, 2)))]
        changes: dict[str, Any] = {
            "model": {"type": model, **MODELS_OF_TEXT[model]},
            "optimizer": {"type": optimizer, "lr": 0.01},
            "reparam": reparam,
            "init": init,
            "seed": chance.randrange(2**63),
        }
        case = f"{model}, {optimizer}, {reparam}, {init}, stopped after {until}"

        def act() -> Outcome | None:
            settings = {**fields(self._folder), **changes}
            where = [{**settings, "train": {**settings["train"], "runs_dir": str(folder / n)}} for n in "ab"]
            whole = train(load_config(where[0])).folder
            for i, stop in enumerate(sorted(set(until))):
                train(load_config(where[1]), until=stop, resume=i > 0)
            part = train(load_config(where[1]), resume=True).folder
            # A run that was stopped has checkpoints at other steps.
            ignored = ("checkpoints",)
            one, two = ({k: v for k, v in state_of(run).items() if k not in ignored} for run in (whole, part))
            shared = one.keys() & two.keys()
            found = difference(
                {k: one[k] for k in one if k in shared}, {k: two[k] for k in two if k in shared}
            )
            return Outcome("changed", case, found) if found else None

        return attempt(case, act)
