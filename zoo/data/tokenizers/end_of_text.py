"""Finding the token that ends a document in the files of a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

from zoo.data.files import read_object

BY_TEXT = ("tokenizer_config.json", "special_tokens_map.json")
BY_ID = ("generation_config.json", "config.json")


def find_eos(folder: Path) -> str | int | None:
    """The end-of-text token that a folder's files name, or else the separator, as for BERT.

    Args:
        folder: a Hugging Face folder; each of the files may be missing.

    Returns:
        The token's text, or its id (the first of several), from the first file that names one; None if no
        file does.

    Raises:
        DataError: A file is not a JSON object.
    """
    contents = {name: read_object(folder / name) for name in (*BY_TEXT, *BY_ID) if (folder / name).is_file()}
    for key in ("eos", "sep"):
        for name in BY_TEXT:
            token = token_text(contents.get(name, {}).get(f"{key}_token"))
            if token is not None:
                return token
        for name in BY_ID:
            value = contents.get(name, {}).get(f"{key}_token_id")
            ids = value if isinstance(value, list) else [value]
            if ids and isinstance(ids[0], int):
                return ids[0]
    return None


def token_text(token: object) -> str | None:
    """The text of a token, which these files write as a string or as an object with a `content`."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
