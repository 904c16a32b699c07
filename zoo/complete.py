"""Text in, text out: a run folder continues a prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from zoo.atomic import write_file
from zoo.checkpoint import load_model
from zoo.data import load_tokenizer
from zoo.errors import DataError
from zoo.report.runs import SAMPLE
from zoo.sampling import generate


def complete(run: Path, prompt: str, max_new_tokens: int, **sampling: Any) -> str:
    """Continue a prompt, and leave the text in the run folder, where reports look for it.

    Args:
        run: the run folder.
        prompt: at least one character.
        max_new_tokens: tokens to add at most; a document may end earlier.
        **sampling: `temperature`, `top_k`, `top_p`, `seed` of `zoo.sampling.generate`.

    Returns:
        The prompt and its continuation.

    Raises:
        ZooError: no run, an empty prompt, or a setting out of range.
    """
    model = load_model(run)
    tokenizer = load_tokenizer(run / "tokenizer")
    ids = tokenizer.encode(prompt)
    if not ids:
        raise DataError("prompt: empty; expected some text to continue")
    tokens = generate(model, torch.tensor([ids]), max_new_tokens, eos_id=tokenizer.eos_id, **sampling)
    text = tokenizer.decode(tokens[0].tolist())
    write_file(run / SAMPLE, lambda partial: partial.write_text(text, encoding="utf-8"))
    return text
