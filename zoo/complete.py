"""Text in, text out: a run folder continues a prompt, or answers it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from zoo.atomic import write_file
from zoo.checkpoint import load_model
from zoo.config import load_config
from zoo.data import TextData, load_tokenizer
from zoo.errors import DataError
from zoo.report.runs import SAMPLE
from zoo.sampling import Sampling, Writer, steps


def complete(
    run: Path,
    prompt: str,
    max_new_tokens: int,
    sampling: Sampling,
    *,
    stop: Sequence[str] = (),
    show: Callable[[str], object] | None = None,
    compile: bool = False,
) -> str:
    """Continue or answer a prompt, and leave the text in the run folder, where reports look for it.

    Args:
        run: the run folder.
        prompt: at least one character; for a model trained by span corruption, ``<extra_id_0>`` and so
            on stand for what is to be filled in.
        max_new_tokens: tokens to add at most; a document may end earlier.
        sampling: how tokens are chosen.
        stop: strings before which the continuation or answer ends, if they come.
        show: given the text piece by piece while it is being written; None: nobody looks on.
        compile: see `zoo.generate`.

    Returns:
        The prompt and its continuation, or the answer.

    Raises:
        ZooError: no run, one that was not trained on text, an empty prompt or stop string, or a setting
            out of range.
    """
    model = load_model(run)
    data = load_config(run).data
    if not isinstance(data, TextData):
        raise DataError(f"{run}: was not trained on text, so it cannot be given any")
    objective, tokenizer = data.objective, load_tokenizer(run / "tokenizer")
    ids = objective.encode(prompt, tokenizer)
    if not ids:
        raise DataError("prompt: empty; expected some text to continue")
    writer = Writer(
        lambda tokens: objective.decode(tokens, tokenizer), ids if objective.start is None else (), stop
    )
    pieces: list[str] = []

    def write(piece: str) -> None:
        pieces.append(piece)
        if show:
            show(piece)

    start, end = objective.start, objective.end(tokenizer)
    tokens = steps(
        model,
        torch.tensor([ids]),
        max_new_tokens,
        sampling,
        eos_id=end,
        start_id=start,
        compile=compile,
    )
    for token in tokens:
        write(writer.add(int(token)))
        if writer.stopped:
            break
    write(writer.end())
    text = "".join(pieces)
    write_file(run / SAMPLE, lambda partial: partial.write_text(text, encoding="utf-8"))
    return text
