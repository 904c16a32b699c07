"""The files in which the tensors of a model or of its optimizer are: one file, or a piece for each rank."""

from __future__ import annotations

from pathlib import Path


def piece_of(path: Path, rank: int) -> Path:
    """The path of a rank's piece.

    Args:
        path: the file that the pieces replace, ``model.safetensors``.
        rank: the number of the rank, from 0.
    """
    return path.with_name(f"shard-{rank + 1:05}-{path.stem}-00001-of-00001.safetensors")


def pieces_of(path: Path) -> list[Path]:
    """The pieces of a file, in the order of the ranks; empty if there are none."""
    return sorted(path.parent.glob(f"shard-*-{path.stem}-*.safetensors"))


def is_there(path: Path) -> bool:
    """Whether a file or its pieces exist."""
    return path.is_file() or bool(pieces_of(path))
