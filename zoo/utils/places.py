"""Where files were looked for, so that a message can name every place."""

from __future__ import annotations

from pathlib import Path

_tried: dict[str, Path] = {}
"""The paths that were not found beside the file that names them, and the folder of that file."""


def note_tried(written: str, folder: Path) -> None:
    """Remember, for messages, that a relative path was not found in a folder."""
    _tried[written] = folder.resolve()


def forget_tried() -> None:
    """Forget what was looked for, because another file is read now."""
    _tried.clear()


def places_tried(written: str | Path) -> str:
    """The places where a path was looked for, as the end of a message; "" if it has only one place."""
    folder = _tried.get(str(written))
    return "" if folder is None else f" (looked in {folder} and in {Path.cwd()})"
