"""Perplexity of text files under a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.data import Tokenizer
from zoo.data.files import read_lines, read_text
from zoo.evaluation.score import Score
from zoo.evaluation.subject import Subject
from zoo.evaluation.windows import check_windows, sliding_windows
from zoo.models import LanguageModel, Model
from zoo.nn.loss import IGNORED
from zoo.utils.errors import DataError, ZooError

STRETCH = 1024
"""Tokens at a time where a state is carried, so that a text may be of any length."""

Windows = tuple[int, int]
"""Context and stride."""


@dataclass(frozen=True)
class Text:
    """A file as a model reads it.

    Attributes:
        name: of the file.
        tokens: (n + 1,) int64; the first one only stands before the text.
        words: stretches without white space.
        utf8_bytes: of the text, without a byte order mark.
        lossless: whether the tokens give the text back.
    """

    name: str
    tokens: Tensor
    words: int
    utf8_bytes: int
    lossless: bool


def read(file: Path, tokenizer: Tokenizer, start: int, lines: bool) -> Text:
    """Tokenise a file.

    Args:
        file: UTF-8.
        tokenizer: the model's.
        start: what stands before the text.
        lines: each line that is not blank is a document: the token that ends documents stands for its
            end, and is predicted like all others; otherwise the file is the text, to its last character.

    Raises:
        DataError: unreadable, empty, or not UTF-8.
    """
    documents = [line for _, line in read_lines(file)] if lines else [read_text(file)]
    ids, lossless = [start], True
    for document in documents:
        encoded = tokenizer.encode(document)
        lossless &= tokenizer.decode(encoded) == document
        ids += [*encoded, tokenizer.eos_id] if lines else encoded
    return Text(
        name=str(file),
        tokens=torch.tensor(ids),
        words=sum(len(document.split()) for document in documents),
        utf8_bytes=sum(len(document.encode("utf-8")) + lines for document in documents),
        lossless=lossless,
    )


def choose_windows(
    subject: Subject, contexts: Sequence[int], stride: int | None, batch_size: int
) -> list[Windows | None]:
    """The windows to evaluate with; None: none at all, the state is carried through the text.

    Args:
        subject: the model.
        contexts: tokens of a window; empty: those of its training.
        stride: new tokens of a window; None: half of them.
        batch_size: windows at once.

    Raises:
        ZooError: a setting out of range or without effect, an unknown context, or one that the model
            cannot have.
    """
    if subject.model.config.carries_state:
        if contexts or stride is not None:
            raise ZooError(
                "eval: contexts and stride have no effect on this model, which carries its state through "
                "the whole text (model.streams): leave them out"
            )
        return [None]
    if not contexts and subject.context is None:
        raise ZooError(
            "eval: nothing tells the context the model was trained with; give it, e.g. --contexts 1024"
        )
    max_seq_len = subject.model.max_seq_len
    chosen: list[Windows | None] = []
    for context in sorted(set(contexts or [subject.context or 0])):
        new = max(1, context // 2) if stride is None else stride
        check_windows(context, new, batch_size)
        if max_seq_len is not None and context > max_seq_len:
            raise ZooError(
                f"eval: context is {context}, but the model has vectors for {max_seq_len} positions; "
                f"expected at most {max_seq_len}"
            )
        chosen.append((context, new))
    return chosen


def evaluate(subject: Subject, text: Text, windows: Windows | None, batch_size: int) -> Score:
    """Predict every token of a text once.

    Args:
        subject: the model.
        text: from `read`.
        windows: from `choose_windows`.
        batch_size: windows at once.

    Raises:
        DataError: the model's predictions are no numbers.
    """
    model = subject.model
    if windows is None:
        nats = carried_nats(model, text.tokens)
    else:
        nats = windowed_nats(model, text.tokens, *windows, batch_size)
    if not math.isfinite(nats):
        raise DataError(f"{text.name}: the loss is {nats}; the model's weights are no use")
    context, stride = windows or (None, None)
    return Score(text.name, context, stride, len(text.tokens) - 1, text.words, text.utf8_bytes, nats)


@torch.no_grad()
def windowed_nats(model: Model, tokens: Tensor, context: int, stride: int, batch_size: int) -> float:
    """-log p of all tokens but the first, in windows.

    Args:
        model: in evaluation mode.
        tokens: (n,) int64 on the CPU, n > 1.
        context: see `sliding_windows`.
        stride: the same.
        batch_size: the same.
    """
    device = next(model.parameters()).device
    sums = []
    for inputs, targets in sliding_windows(tokens, context, stride, batch_size):
        mean = model.loss(inputs.to(device), targets.to(device)).cross_entropy.item()
        sums.append(mean * int((targets != IGNORED).sum()))
    return math.fsum(sums)


@torch.no_grad()
def carried_nats(model: LanguageModel, tokens: Tensor) -> float:
    """-log p of all tokens but the first, each from all those before it.

    Args:
        model: a model that carries its state, in evaluation mode; it starts from an empty cache, and the
            state of its training stays as it is.
        tokens: (n,) int64, n > 1.
    """
    device = next(model.parameters()).device
    memory = model.cache(1, len(tokens), device)
    sums = []
    stretches = (torch.split(part.to(device), STRETCH) for part in (tokens[:-1], tokens[1:]))
    for given, following in zip(*stretches, strict=True):
        logits = model(given[None], memory)[0]
        sums.append(F.cross_entropy(logits, following, reduction="sum").item())
    return math.fsum(sums)
