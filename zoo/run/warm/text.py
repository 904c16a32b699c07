"""The text of a warm start: one part for measurements, and another one for comparing losses.

A model is measured on examples of the objective that it was trained with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from zoo.config.registry import type_of
from zoo.data.dataset import Batch, BatchSpec, DataConfig
from zoo.data.files import read_text
from zoo.data.objectives import Causal, Objective
from zoo.data.text.dataset import TextData
from zoo.models import LanguageModel, Model
from zoo.nn.evaluation_mode import evaluation_mode
from zoo.nn.loss import IGNORE_INDEX
from zoo.run.trained import check_together, data_of, tokenizer_of
from zoo.utils.errors import DataError, ZooError
from zoo.utils.progress import progress

BATCH = 8
"""Number of examples in a batch."""
MEASURED, COMPARED = 4, 16
"""Largest numbers of batches for measurements and for comparing losses."""
CONTEXT = 256
"""Number of tokens in an example if the context of the training is unknown."""


@dataclass(frozen=True)
class Text:
    """Batches of a text, by which a conversion is measured.

    Attributes:
        measured: the first input of some batches, (batch, time) int64 each: tokens, or T5's sources.
        compared: batches of inputs and targets, from another part of the text.
    """

    measured: Sequence[Tensor]
    compared: Sequence[Batch]

    @torch.no_grad()
    def loss(self, model: Model) -> float:
        """Mean cross entropy of `compared`, in nats per target."""
        weights = [int((batch[-1] != IGNORE_INDEX).sum()) for batch in self.compared]
        losses = []
        with evaluation_mode(model), progress("measuring the loss", len(self.compared)) as advance:
            for batch in self.compared:
                losses.append(model.loss(*batch).cross_entropy.item())
                advance(1)
        return sum(w * loss for w, loss in zip(weights, losses, strict=True)) / sum(weights)


def text_of(path: Path, model: Model, file: Path | None) -> Text:
    """Prepare the text for a model.

    Args:
        path: the path of the model.
        model: the model.
        file: UTF-8 text, whose first half is for measurements and whose second half is for comparing losses;
            None: the training and the validation text of the model.

    Raises:
        DataError: The file is too short, the model comes without a tokenizer or with that of another model,
            or nothing says how examples for it are made from a text.
        ZooError: No file is given, and the model was not trained on text.
    """
    data = data_of(path)
    objective = _objective(path, model, data)
    if file is not None:
        return _of_file(path, model, file, objective, _context(model, data))
    if data is None:
        raise ZooError(f"{path}: nothing tells what text it was trained on; give some, with --text FILE")
    if not isinstance(data, TextData):
        kind = type_of(data)
        raise ZooError(f"{path}: was trained on data of type '{kind}'; give some text, with --text FILE")
    examples = data.prepare(model.recipe.model)
    held_out = examples.validation_batches(BatchSpec(seed=0, step=0, batch_size=BATCH), COMPARED)
    if held_out is None:
        raise ZooError(f"{path}: no text was held out of its training; give some, with --text FILE")
    orders = [BatchSpec(seed=0, step=step, batch_size=BATCH) for step in range(MEASURED)]
    return Text([examples.train_batch(order)[0] for order in orders], list(held_out))


def _objective(path: Path, model: Model, data: DataConfig | None) -> Objective:
    """The objective that makes examples for the model from a text.

    Raises:
        DataError: The model was not trained on text by zoo, and does not predict the next token either.
    """
    if isinstance(data, TextData):
        return data.objective
    if isinstance(model, LanguageModel) and model.writes == "continuation":
        return Causal()
    config = model.recipe.model
    raise DataError(
        f"{path}: a model of type '{config.type}' is trained by {' or '.join(sorted(config.objectives))}, "
        "and nothing tells how its examples are made from a text (--text)"
    )


def _context(model: Model, data: DataConfig | None) -> int:
    return (
        data.length if isinstance(data, TextData) else min(CONTEXT, model.recipe.model.max_seq_len or CONTEXT)
    )


def _of_file(path: Path, model: Model, file: Path, objective: Objective, context: int) -> Text:
    """Batches of a text, whose examples the objective makes as it does for training."""
    tokenizer = tokenizer_of(path)
    check_together(path, tokenizer, model.recipe.model.vocab_size)
    tokens = torch.tensor(tokenizer.encode(read_text(file)))
    objective = objective.for_tokenizer(tokenizer)
    length, stride = objective.tokens_per_example(context), objective.stride(context)
    halves = [half.unfold(0, length, stride) for half in tokens.chunk(2) if len(half) >= length]
    if len(halves) < 2:
        raise DataError(f"{file}: {len(tokens)} tokens; expected at least {2 * length}, two examples")

    def batches(windows: Tensor, most: int) -> list[Batch]:
        parts = enumerate(torch.split(windows, BATCH)[:most])
        return [objective.checked_examples(rows, 0, i * BATCH, tokenizer.vocab_size) for i, rows in parts]

    measured, compared = halves
    return Text([inputs[0] for inputs in batches(measured, MEASURED)], batches(compared, COMPARED))
