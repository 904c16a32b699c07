"""Perplexity of text files under a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.data.files import read_lines, read_text
from zoo.data.tokenizers.base import Tokenizer
from zoo.evaluation.evaluated_model import EvaluatedModel
from zoo.evaluation.score import Score
from zoo.evaluation.windows import check_windows, sliding_windows
from zoo.models import LanguageModel, Model
from zoo.nn.loss import IGNORED
from zoo.utils.errors import DataError, ZooError
from zoo.utils.progress import Advance, ignore

CHUNK = 1024
"""Number of tokens that a model with a carried state reads at once, so that a text may have any length."""

Windows = tuple[int, int]
"""Context and stride of sliding windows."""


@dataclass(frozen=True)
class TokenizedText:
    """A text file as a model reads it.

    Attributes:
        name: name of the file.
        tokens: (n + 1,) int64; the first one is the start token, which is not predicted.
        words: number of words, separated by white space.
        utf8_bytes: number of bytes of the text, without a byte order mark.
        lossless: whether decoding the tokens gives the text back.
    """

    name: str
    tokens: Tensor
    words: int
    utf8_bytes: int
    lossless: bool


def read(file: Path, tokenizer: Tokenizer, start_id: int, lines: bool) -> TokenizedText:
    """Tokenise a file.

    Args:
        file: a text file, UTF-8.
        tokenizer: the tokenizer of the model.
        start_id: the token in front of the text.
        lines: whether each line that is not blank is a document, whose end is a token that is predicted
            like all others; otherwise the file is one text, to its last character.

    Raises:
        DataError: the file is unreadable, empty, or not UTF-8.
    """
    documents = [line for _, line in read_lines(file)] if lines else [read_text(file)]
    ids, lossless = [start_id], True
    for document in documents:
        encoded = tokenizer.encode(document)
        lossless &= tokenizer.decode(encoded) == document
        ids += [*encoded, tokenizer.eos_id] if lines else encoded
    return TokenizedText(
        name=str(file),
        tokens=torch.tensor(ids),
        words=sum(len(document.split()) for document in documents),
        utf8_bytes=sum(len(document.encode("utf-8")) + lines for document in documents),
        lossless=lossless,
    )


def choose_windows(
    evaluated: EvaluatedModel, contexts: Sequence[int], stride: int | None, batch_size: int
) -> list[Windows | None]:
    """Choose the windows in which texts are read.

    Args:
        evaluated: the model.
        contexts: numbers of tokens in a window; empty: the context of the model's training.
        stride: number of new tokens in a window; None: half the context.
        batch_size: number of windows in a batch.

    Returns:
        One element for each context, in increasing order; the only element is None if the model carries its
        state through the whole text, without windows.

    Raises:
        ZooError: a setting is out of range or has no effect, or the context is unknown or larger than the
            model's `max_seq_len`.
    """
    if evaluated.model.config.carries_state:
        if contexts or stride is not None:
            raise ZooError(
                "eval: contexts and stride have no effect on this model, which carries its state through "
                "the whole text (model.streams): leave them out"
            )
        return [None]
    if not contexts and evaluated.context is None:
        raise ZooError(
            "eval: nothing tells the context the model was trained with; give it, e.g. --contexts 1024"
        )
    max_seq_len = evaluated.model.max_seq_len
    chosen: list[Windows | None] = []
    for context in sorted(set(contexts or [evaluated.context or 0])):
        new = max(1, context // 2) if stride is None else stride
        check_windows(context, new, batch_size)
        if max_seq_len is not None and context > max_seq_len:
            raise ZooError(
                f"eval: context is {context}, but the model has vectors for {max_seq_len} positions; "
                f"expected at most {max_seq_len}"
            )
        chosen.append((context, new))
    return chosen


def evaluate(
    model: LanguageModel,
    text: TokenizedText,
    windows: Windows | None,
    batch_size: int,
    advance: Advance = ignore,
) -> Score:
    """Predict every token of a text once.

    Args:
        model: a model that continues text, in evaluation mode.
        text: from `read`.
        windows: from `choose_windows`.
        batch_size: number of windows in a batch.
        advance: called with the number of tokens that were predicted since the last call.

    Raises:
        DataError: the loss is not finite.
    """
    if windows is None:
        nats = carried_nats(model, text.tokens, advance)
    else:
        nats = windowed_nats(model, text.tokens, *windows, batch_size, advance)
    if not math.isfinite(nats):
        raise DataError(f"{text.name}: the loss is {nats}; the model's weights are damaged")
    context, stride = windows or (None, None)
    return Score(text.name, context, stride, len(text.tokens) - 1, text.words, text.utf8_bytes, nats)


@torch.no_grad()
def windowed_nats(
    model: Model, tokens: Tensor, context: int, stride: int, batch_size: int, advance: Advance = ignore
) -> float:
    """-log p of all tokens but the first, in nats, read in sliding windows.

    Args:
        model: a model whose loss is that of the next tokens, in evaluation mode.
        tokens: (n,) int64 on the CPU, n > 1.
        context: see `sliding_windows`.
        stride: see `sliding_windows`.
        batch_size: see `sliding_windows`.
        advance: called with the number of tokens that were predicted since the last call.
    """
    device = next(model.parameters()).device
    sums = []
    for inputs, targets in sliding_windows(tokens, context, stride, batch_size):
        mean = model.loss(inputs.to(device), targets.to(device)).cross_entropy.item()
        count = int((targets != IGNORED).sum())
        sums.append(mean * count)
        advance(count)
    return math.fsum(sums)


@torch.no_grad()
def carried_nats(model: LanguageModel, tokens: Tensor, advance: Advance = ignore) -> float:
    """-log p of all tokens but the first, in nats, each predicted from all tokens before it.

    Args:
        model: a model that carries its state, in evaluation mode. It starts from an empty cache, and the
            state of its training is not changed.
        tokens: (n,) int64, n > 1.
        advance: called with the number of tokens that were predicted since the last call.
    """
    device = next(model.parameters()).device
    cache = model.cache(1, len(tokens), device)
    sums = []
    chunks = (torch.split(part.to(device), CHUNK) for part in (tokens[:-1], tokens[1:]))
    for inputs, targets in zip(*chunks, strict=True):
        logits = model(inputs[None], cache)[0]
        sums.append(F.cross_entropy(logits, targets, reduction="sum").item())
        advance(len(targets))
    return math.fsum(sums)
