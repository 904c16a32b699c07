"""Perplexity of text files under a model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
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
from zoo.nn.loss import IGNORE_INDEX
from zoo.utils.errors import DataError, ZooError
from zoo.utils.progress import AdvanceStage, ignore

CHUNK = 1024
"""Number of tokens that a model with a carried state reads at once, so that a text may have any length."""

BATCH_SIZE = 8
"""Number of windows, or of requests of a task, that are computed at once unless another one is given."""

FIRST_BATCHES = 10
"""Number of batches of every kind of windows that are computed first: one to warm up, and nine to time."""

Windows = tuple[int, int]
"""The context and the stride of sliding windows."""


@dataclass(frozen=True)
class TokenizedText:
    """A text file as tokens, with the counts that perplexities are divided by.

    Attributes:
        name: name of the file.
        tokens: (n + 1,) int64; the first one is the start token, which is not predicted.
        words: number of words, separated by white space.
        utf8_bytes: number of bytes of the text, without a byte order mark.
        lossless: whether decoding the tokens gives the text back.
        separator: the token that ends documents which do not see each other; None: every token sees all
            before it.
        carriage_returns: whether lines end with a carriage return and a line feed, which are both predicted.
    """

    name: str
    tokens: Tensor
    words: int
    utf8_bytes: int
    lossless: bool
    separator: int | None = None
    carriage_returns: bool = False


def read(file: Path, tokenizer: Tokenizer, start_id: int, lines: bool) -> TokenizedText:
    """Tokenise a file.

    Args:
        file: a text file, UTF-8.
        tokenizer: the tokenizer of the model.
        start_id: the token in front of the text.
        lines: whether each line that is not blank is a document, whose end is a token that is predicted
            like all others; otherwise the file is one text, to its last character.

    Raises:
        DataError: The file is unreadable, empty, not UTF-8, or a text of which the tokenizer makes no token.
    """
    documents = [line for _, line in read_lines(file)] if lines else [read_text(file)]
    ids, lossless = [start_id], True
    for document in documents:
        encoded = tokenizer.encode(document)
        lossless &= tokenizer.decode(encoded) == document
        ids += [*encoded, tokenizer.eos_id] if lines else encoded
    if len(ids) == 1:
        raise DataError(f"{file}: the tokenizer makes no token of this text; leave it out")
    return TokenizedText(
        name=str(file),
        tokens=torch.tensor(ids),
        words=sum(len(document.split()) for document in documents),
        utf8_bytes=sum(len(document.encode("utf-8")) + lines for document in documents),
        lossless=lossless,
        carriage_returns=any("\r\n" in document for document in documents),
    )


def choose_windows(
    evaluated: EvaluatedModel, contexts: Sequence[int], stride: int | None, batch_size: int | None
) -> list[Windows | None]:
    """Choose the windows in which texts are read.

    Args:
        evaluated: the model.
        contexts: numbers of tokens in a window; empty: the context of the model's training.
        stride: number of new tokens in a window; None: half the context.
        batch_size: number of windows in a batch; None: `BATCH_SIZE`, or nothing to choose.

    Returns:
        One element for each context, in increasing order; the only element is None if the model carries its
        state through the whole text, without windows.

    Raises:
        ZooError: A setting is out of range or has no effect, or the context is unknown or larger than the
            model's `max_seq_len`.
    """
    if evaluated.model.config.carries_state:
        if contexts or stride is not None or batch_size is not None:
            raise ZooError(
                "eval: contexts, stride and batch_size have no effect on this model, which carries its state "
                "through the whole text (model.streams): leave them out"
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
        check_windows(context, new, BATCH_SIZE if batch_size is None else batch_size)
        if max_seq_len is not None and context > max_seq_len:
            raise ZooError(
                f"eval: context is {context}, but the model has vectors for {max_seq_len} positions; "
                f"expected at most {max_seq_len}"
            )
        chosen.append((context, new))
    return chosen


def evaluate(
    model: LanguageModel,
    texts: Sequence[TokenizedText],
    windows: Sequence[Windows | None],
    batch_size: int,
    advance: AdvanceStage = ignore,
) -> list[list[Score]]:
    """Predict every token of several texts once, in windows of each kind.

    The first batches of every kind of windows are computed before all others, so that the remaining time can
    be estimated early.

    Args:
        model: a model that continues text, in evaluation mode.
        texts: results of `read`.
        windows: the result of `choose_windows`.
        batch_size: number of windows in a batch.
        advance: a function that is called with the number of tokens that were predicted since the last call,
            and the index of the windows.

    Returns:
        For each kind of windows, a list with a score for each text.

    Raises:
        DataError: A loss is not finite.
    """
    kinds = [[nats_of(model, text, each, batch_size) for text in texts] for each in windows]
    sums: list[list[list[float]]] = [[[] for _ in texts] for _ in windows]
    for most in (FIRST_BATCHES, None):
        for kind, of_texts in enumerate(kinds):
            batches = (
                (of_text, *batch)
                for of_text, batches in zip(sums[kind], of_texts, strict=True)
                for batch in batches
            )
            for of_text, nats, count in islice(batches, most):
                of_text.append(nats)
                advance(count, kind)
    return [
        [_score(text, each, math.fsum(of_text)) for text, of_text in zip(texts, of_texts, strict=True)]
        for each, of_texts in zip(windows, sums, strict=True)
    ]


def _score(text: TokenizedText, windows: Windows | None, nats: float) -> Score:
    """The score of a text by -log p of its tokens.

    Raises:
        DataError: The sum is not finite.
    """
    if not math.isfinite(nats):
        raise DataError(f"{text.name}: the loss is {nats}; the model's weights are damaged")
    context, stride = windows or (None, None)
    return Score(text.name, context, stride, len(text.tokens) - 1, text.words, text.utf8_bytes, nats)


Batches = Iterator[tuple[float, int]]
"""Iterator over batches: -log p of the tokens of a batch, in nats, and their number."""


def nats_of(model: LanguageModel, text: TokenizedText, windows: Windows | None, batch_size: int) -> Batches:
    """Predict a text, batch by batch; the arguments are those of `evaluate`."""
    if windows is None:
        return carried_nats(model, text.tokens)
    return windowed_nats(model, text.tokens, *windows, batch_size, text.separator)


@torch.no_grad()
def windowed_nats(
    model: Model, tokens: Tensor, context: int, stride: int, batch_size: int, separator: int | None = None
) -> Batches:
    """-log p of all tokens but the first, read in sliding windows.

    Args:
        model: a model whose loss is that of the next tokens, in evaluation mode.
        tokens: (n,) int64 on the CPU, n > 1.
        context: number of tokens of a window, see `sliding_windows`.
        stride: number of new tokens in a window, see `sliding_windows`.
        batch_size: number of windows in a batch.
        separator: see `TokenizedText`; with one, the model must read numbers of documents, as in training.
    """
    device = next(model.parameters()).device
    for inputs, targets in sliding_windows(tokens, context, stride, batch_size):
        documents = () if separator is None else ((inputs == separator).cumsum(1),)
        batch = (tensor.to(device) for tensor in (inputs, *documents, targets))
        mean = model.loss(*batch).cross_entropy.item()
        count = int((targets != IGNORE_INDEX).sum())
        yield mean * count, count


@torch.no_grad()
def carried_nats(model: LanguageModel, tokens: Tensor) -> Batches:
    """-log p of all tokens but the first, each predicted from all tokens before it.

    Args:
        model: a model that carries its state, in evaluation mode. It starts from an empty cache, and the
            state of its training is not changed.
        tokens: (n,) int64, n > 1.
    """
    device = next(model.parameters()).device
    cache = model.cache(1, len(tokens), device)
    chunks = (torch.split(part.to(device), CHUNK) for part in (tokens[:-1], tokens[1:]))
    for inputs, targets in zip(*chunks, strict=True):
        logits = model(inputs[None], cache)[0]
        yield F.cross_entropy(logits, targets, reduction="sum").item(), len(targets)
