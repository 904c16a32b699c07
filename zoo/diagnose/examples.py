"""The examples on which a model's attention is measured."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from zoo.data.dataset import BatchSpec
from zoo.models import LanguageModel, Model
from zoo.run.trained import data_of, tokenizer_of
from zoo.utils.errors import DataError, ZooError
from zoo.utils.files import TEXT_BYTES, read_text

EXAMPLES, MAX_LENGTH = 4, 512
"""The number of examples, and the largest number of tokens of an example that is cut from a text."""


def validation_examples(model: Model, path: Path) -> tuple[Sequence[Tensor] | None, Tensor | None, str]:
    """The first validation examples of the data that a model was trained on.

    Args:
        model: the model.
        path: the path that the model was loaded from.

    Returns:
        The inputs of the model, or None if there are none; the mask of their padding, see
        `Model.padding_mask`; and a clause that says on what attention was measured, or why it was not.
    """
    config = data_of(path)
    if config is None:
        return None, None, "was not measured: nobody knows what the model was trained on; give --text"
    try:
        held_out = config.prepare(model.recipe.model).validation_batches(BatchSpec(0, 0, EXAMPLES), 1)
    except ZooError as error:
        return None, None, f"was not measured: {error}"
    batch = next(iter(held_out or ()), None)
    if batch is None:
        return None, None, "was not measured: the run holds nothing out; give --text"
    return batch[:-1], model.padding_mask(*batch), f"on {len(batch[0])} validation examples"


def text_examples(model: Model, path: Path, text: Path) -> list[Tensor]:
    """The beginning of a text, cut into examples.

    Args:
        model: a model whose only input is a text.
        path: the path that the model was loaded from, with its tokenizer.
        text: a UTF-8 file.

    Returns:
        One tensor, (up to 4, context) int64.

    Raises:
        DataError: The model needs other inputs than a text or has no tokenizer, or the text cannot be read
            or has fewer than two tokens.
    """
    config = model.recipe.model
    if not isinstance(model, LanguageModel) or model.writes == "answer":
        raise DataError(
            f"inspect: --text: a model of type '{config.type}' is trained by "
            f"{' or '.join(sorted(config.objectives))} and needs other inputs than a text; leave --text out "
            "to measure its attention on its validation examples"
        )
    content = read_text(text, TEXT_BYTES, DataError)
    tokens = tokenizer_of(path).encode(content)
    if len(tokens) < 2:
        raise DataError(f"{text}: {len(tokens)} tokens; expected two or more")
    data = data_of(path)
    context = min(MAX_LENGTH, config.max_seq_len or MAX_LENGTH, data.length if data else MAX_LENGTH)
    starts = list(islice(range(0, len(tokens) - context + 1, context), EXAMPLES))
    return [torch.tensor([tokens[i : i + context] for i in starts] or [tokens])]
