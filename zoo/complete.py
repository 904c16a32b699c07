"""Text in, text out: a run folder continues a prompt, or answers it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from zoo.atomic import write_file
from zoo.checkpoint import load_model
from zoo.config import load_config
from zoo.data import TextData, load_tokenizer
from zoo.errors import DataError
from zoo.report.runs import SAMPLE
from zoo.sampling import generate


def complete(run: Path, prompt: str, max_new_tokens: int, **sampling: Any) -> str:
    """Continue or answer a prompt, and leave the text in the run folder, where reports look for it.

    Args:
        run: the run folder.
        prompt: at least one character; for a model trained by span corruption, ``<extra_id_0>`` and so
            on stand for what is to be filled in.
        max_new_tokens: tokens to add at most; a document may end earlier.
        **sampling: `temperature`, `top_k`, `top_p`, `seed` of `zoo.sampling.generate`.

    Returns:
        The prompt and its continuation, or the answer.

    Raises:
        ZooError: no run, one that was not trained on text, an empty prompt, or a setting out of range.
    """
    model = load_model(run)
    data = load_config(run).data
    if not isinstance(data, TextData):
        raise DataError(f"{run}: was not trained on text, so it cannot be given any")
    objective, tokenizer = data.objective, load_tokenizer(run / "tokenizer")
    ids = objective.encode(prompt, tokenizer)
    if not ids:
        raise DataError("prompt: empty; expected some text to continue")
    sampling |= {"eos_id": objective.end(tokenizer), "start_id": objective.start}
    tokens = generate(model, torch.tensor([ids]), max_new_tokens, **sampling)
    text = objective.decode(tokens[0].tolist(), tokenizer)
    write_file(run / SAMPLE, lambda partial: partial.write_text(text, encoding="utf-8"))
    return text
