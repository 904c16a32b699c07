"""Tokens behind a tokenizer's own, which an objective needs: the mask, sentinels, their end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zoo.data.objectives.mlm import MASK
from zoo.data.tokenizers.huggingface import SETTINGS_FILE, TOKENIZER_FILE

Json = dict[str, Any]


def special(text: str, token: int) -> Json:
    """A special token in a tokenizer.json."""
    where = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token, "content": text, **where, "special": True}


def add_special(folder: Path, names: Sequence[str], first: int, end: int) -> None:
    """Add tokens to a tokenizer that was written.

    Args:
        folder: with tokenizer.json and tokenizer_config.json.
        names: of the tokens, in the order of their ids.
        first: the id of the first one.
        end: the id that ends what a model writes; if it is one of them, it becomes the tokenizer's.
    """
    files = [folder / TOKENIZER_FILE, folder / SETTINGS_FILE]
    tokenizer, settings = (json.loads(file.read_text("utf-8")) for file in files)
    tokenizer["added_tokens"] += [special(name, first + i) for i, name in enumerate(names)]
    if end >= first:
        settings["eos_token"] = names[end - first]
    if MASK in names:
        settings["mask_token"] = MASK
    for file, content in zip(files, (tokenizer, settings), strict=True):
        file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
