"""Formats of other libraries' checkpoints, which register themselves here: see `zoo.hub.formats`.

This module imports neither torch nor the readers, so that registering a format costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from zoo.utils.run_folder import CheckpointFolder, RunFolder

if TYPE_CHECKING:
    from torch import Tensor, nn

    from zoo.checkpoint.recipe import Recipe
    from zoo.checkpoint.report import LoadPlan
    from zoo.models import Model


class OpenedCheckpoint(Protocol):
    """A checkpoint of any format whose weights have not been read yet."""

    @property
    def recipe(self) -> Recipe:
        """The recipe of the model."""
        ...

    @property
    def published(self) -> Mapping[str, Any]:
        """See `zoo.models.base.Model`."""
        ...

    @property
    def labels(self) -> Sequence[str]:
        """The names of the classes in the order of their indices; empty: there are none, or none is known."""
        ...

    def restore(self, part: nn.Module) -> None:
        """Set up a model that was declared on the meta device as far as the recipe does not describe it."""

    def plan(self, whole: Mapping[str, Tensor], needed: Collection[str], allow: Sequence[str]) -> LoadPlan:
        """Decide which tensors to read, given the state dict of a model that has all of them."""
        ...


@dataclass(frozen=True)
class FolderFormat:
    """Folders that describe themselves.

    Attributes:
        marker: name of the file by which such a folder is recognised.
        load: reads the model of a folder; takes its path and the options of the format, of which all have
            `dtype`, that of the model or None for float32.
        open: reads everything but the weights.
        tokenizer_folder: the folder that has the tokenizer.
    """

    marker: str
    load: Callable[..., Model]
    open: Callable[[Path], OpenedCheckpoint]
    tokenizer_folder: Callable[[Path], Path] = Path


FOLDER_FORMATS: list[FolderFormat] = []
FILE_FORMATS: dict[str, Callable[..., Model]] = {}
"""Files that do not describe themselves: the name by which the user selects the format, and the function that
reads the model; it takes the path and the options of the format."""


def folder_format(path: Path) -> FolderFormat | None:
    """The format of a folder, or None if it is not a folder of another library."""
    return next((f for f in FOLDER_FORMATS if (path / f.marker).is_file()), None)


def holds_model(path: Path) -> bool:
    """Whether a path is a checkpoint, a file of weights or a folder of another library, and no run."""
    if path.is_file():
        return path.suffix == CheckpointFolder(path).model.suffix
    if RunFolder(path).exists:
        return False
    return folder_format(path) is not None or CheckpointFolder(path).model.is_file()
