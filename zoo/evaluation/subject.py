"""What is evaluated: a model with the tokenizer that made its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from zoo.checkpoint.model import load_model
from zoo.data import TextData, Tokenizer, find_tokenizer
from zoo.data.corpora.text import TextCorpus
from zoo.hub import CONFIG
from zoo.hub.shards import read_json
from zoo.models import LanguageModel
from zoo.run.trained import check_together, data_of, tokenizer_of
from zoo.utils.errors import DataError

POSITIONS = "max_position_embeddings"
"""What a folder of the hub calls the context of its model's training."""


@dataclass(frozen=True)
class Subject:
    """A model that predicts text from left to right.

    Attributes:
        model: in evaluation mode.
        tokenizer: what made its tokens.
        start: the token that stands before a text.
        opening: what stands in front of a prompt: the tokenizer's own opening, which the texts of a run
            on plain text never had.
        context: tokens of a sequence in its training, or that it has positions for; None: unknown.
        lines: whether each line was a document in its training.
    """

    model: LanguageModel
    tokenizer: Tokenizer
    start: int
    opening: list[int]
    context: int | None
    lines: bool


def load_subject(path: Path, tokenizer: Path | None, device: torch.device) -> Subject:
    """Open a model and find out how it was trained.

    Args:
        path: a run, one of its checkpoints, a file of zoo, or a folder as on the Hugging Face hub.
        tokenizer: the tokenizer's folder; None: it is with the model.
        device: where the model should be.

    Raises:
        DataError: a model that is not trained to predict the next token, no tokenizer, one with more
            tokens than the model, or a first token that the model does not have.
        ZooError: no model there.
    """
    model = load_model(path, device=device).eval()
    config = model.recipe.model
    if not isinstance(model, LanguageModel) or model.writes != "continuation":
        raise DataError(
            f"{path}: a model of type '{config.type}' is trained by {' or '.join(sorted(config.objectives))} "
            "and gives a text no probability; expected one that predicts the next token, as gpt does"
        )
    found = _tokenizer(path, tokenizer)
    check_together(path, found, config.vocab_size)
    folder = path if path.is_dir() else path.parent
    start, opening, context, lines = found.start_id, found.prefix_ids, config.max_seq_len, False
    data = data_of(path)
    if data is not None:
        context = data.length
        if isinstance(data, TextData):
            start, opening = found.eos_id, []
            lines = isinstance(data.corpus, TextCorpus) and data.corpus.document == "line"
    elif (folder / CONFIG).is_file():
        notes = read_json(folder / CONFIG)
        context, first = context or notes.get(POSITIONS), notes.get("bos_token_id")
        start = start if first is None else first
        if not isinstance(start, int) or not 0 <= start < config.vocab_size:
            raise DataError(
                f"{folder / CONFIG}: bos_token_id is {start!r}; expected a token below "
                f"{config.vocab_size}, or null for the one that ends documents"
            )
    return Subject(model, found, start, opening, context, lines)


def _tokenizer(model: Path, tokenizer: Path | None) -> Tokenizer:
    """The tokenizer in a folder, or the one that comes with a model."""
    try:
        return tokenizer_of(model) if tokenizer is None else find_tokenizer(tokenizer)
    except DataError as error:
        raise DataError(
            f"{error}; name the folder of the one that made the model's tokens, e.g. --tokenizer "
            "runs/demo/tokenizer"
        ) from error
