"""Which token ends a document: what the files of a Hugging Face folder say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zoo.data.files import read_object

BY_TEXT = ("tokenizer_config.json", "special_tokens_map.json")
BY_ID = ("generation_config.json", "config.json")


def end_of_text(folder: Path) -> str | int | None:
    """The token that ends a document, by the first file that names one.

    Args:
        folder: where the files are; none of them has to be. BERT's separator will do where there is no
            such token.

    Returns:
        Its text or its id; None: no file names one. Of several ids the first.

    Raises:
        DataError: a file that is no JSON object.
    """
    contents = {name: read_object(folder / name) for name in (*BY_TEXT, *BY_ID) if (folder / name).is_file()}
    for key in ("eos", "sep"):
        for name in BY_TEXT:
            token = name_of(contents.get(name, {}).get(f"{key}_token"))
            if token is not None:
                return token
        for name in BY_ID:
            found = contents.get(name, {}).get(f"{key}_token_id")
            ids = found if isinstance(found, list) else [found]
            if ids and isinstance(ids[0], int):
                return ids[0]
    return None


def name_of(token: Any) -> str | None:
    """The text of a token as these files write it: a string, or an object with its `content`."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
