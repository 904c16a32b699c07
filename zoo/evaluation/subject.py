"""What is evaluated: a model with the tokenizer that made its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from zoo.checkpoint import CHECKPOINTS, HUB_CONFIG, RUN_CONFIG, load_model
from zoo.config import load_config
from zoo.data import TextData, Tokenizer, load_tokenizer
from zoo.data.sentencepiece import MODEL_FILE, SentencePieceConfig
from zoo.data.text import TextCorpus
from zoo.data.tokenizer import DESCRIPTION
from zoo.errors import DataError
from zoo.hub.shards import read_json
from zoo.models import Model

TOKENIZER = "tokenizer"
"""Its folder in a run's."""


@dataclass(frozen=True)
class Subject:
    """A model that predicts text from left to right.

    Attributes:
        model: in evaluation mode.
        tokenizer: what made its tokens.
        start: the token that stands before a text.
        context: tokens of a sequence in its training, or that it has positions for; None: unknown.
        lines: whether each line was a document in its training.
    """

    model: Model
    tokenizer: Tokenizer
    start: int
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
    if not config.objectives & {"causal", "stream"}:
        raise DataError(
            f"{path}: a model of type '{config.type}' is trained by {' or '.join(sorted(config.objectives))} "
            "and gives a text no probability; expected one that predicts the next token, as gpt does"
        )
    folder = path if path.is_dir() else path.parent
    run = folder.parent.parent if folder.parent.name == CHECKPOINTS else folder
    found = _tokenizer((run / TOKENIZER, folder) if tokenizer is None else (tokenizer,))
    if found.vocab_size > config.vocab_size:
        raise DataError(
            f"{path}: the tokenizer has {found.vocab_size} tokens, but model.vocab_size is "
            f"{config.vocab_size}: they do not belong together"
        )
    start, context, lines = found.eos_id, config.longest, False
    if (run / RUN_CONFIG).is_file():
        data = load_config(run).data
        assert isinstance(data, TextData), "only text has the objectives above"
        context = data.context
        lines = isinstance(data.corpus, TextCorpus) and data.corpus.document == "line"
    elif (folder / HUB_CONFIG).is_file():
        first = read_json(folder / HUB_CONFIG).get("bos_token_id")
        start = start if first is None else first
        if not isinstance(start, int) or not 0 <= start < config.vocab_size:
            raise DataError(
                f"{folder / HUB_CONFIG}: bos_token_id is {start!r}; expected a token below "
                f"{config.vocab_size}, or null for the one that ends documents"
            )
    return Subject(model, found, start, context, lines)


def _tokenizer(places: tuple[Path, ...]) -> Tokenizer:
    """The tokenizer in the first folder that has one: zoo's own or a sentencepiece model."""
    for place in places:
        if (place / DESCRIPTION).is_file():
            return load_tokenizer(place)
        if (place / MODEL_FILE).is_file():
            return SentencePieceConfig.load(place)
    searched = " and ".join(map(str, places))
    raise DataError(
        f"no tokenizer in {searched}: expected {DESCRIPTION} or {MODEL_FILE} there; name the folder of the "
        "one that made the model's tokens, e.g. --tokenizer runs/demo/tokenizer (other formats, such as "
        "tokenizer.json, are not read)"
    )
