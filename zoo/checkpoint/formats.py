"""The registry of other libraries' checkpoint formats, which `zoo.hub.formats` fills.

This module imports neither torch nor the readers, so that registering a format costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from zoo.checkpoint.pieces import is_there
from zoo.utils.run_folder import CheckpointFolder, RunFolder
from zoo.utils.untyped import Json

if TYPE_CHECKING:
    from torch import Tensor, nn

    from zoo.checkpoint.recipe import Recipe
    from zoo.checkpoint.report import LoadPlan
    from zoo.models import Model


class OpenedCheckpoint(Protocol):
    """A checkpoint of any format, whose weights have not been read yet."""

    @property
    def recipe(self) -> Recipe:
        """The recipe of the model."""
        ...

    @property
    def published(self) -> Mapping[str, Json]:
        """The published settings of the model, see `zoo.models.base.Model`."""
        ...

    @property
    def labels(self) -> Sequence[str]:
        """The names of the classes in the order of their indices; empty if they are not known."""
        ...

    def restore(self, part: nn.Module) -> None:
        """Complete a model on the meta device with the properties that its recipe does not describe."""

    def plan(self, whole: Mapping[str, Tensor], needed: Collection[str], allow: Sequence[str]) -> LoadPlan:
        """Decide which tensors to read, given the state dict of a model that has all of them."""
        ...


@dataclass(frozen=True)
class FolderFormat:
    """A format of folders that describe their model.

    Attributes:
        marker: name of the file by which such a folder is recognised.
        load: a function that reads the model of a folder. Its arguments are the path and the options of the
            format, one of which is `dtype`, the dtype of the model or None for float32.
        open: a function that reads everything but the weights.
        tokenizer_folder: a function that returns the folder with the tokenizer.
    """

    marker: str
    load: Callable[..., Model]
    open: Callable[[Path], OpenedCheckpoint]
    tokenizer_folder: Callable[[Path], Path] = Path


FOLDER_FORMATS: list[FolderFormat] = []
FILE_FORMATS: dict[str, Callable[..., Model]] = {}
"""Formats of files that do not describe their model: the name by which the user selects the format, and the
function that reads the model; its arguments are the path and the options of the format."""


def folder_format(path: Path) -> FolderFormat | None:
    """The format of a folder, or None if it is not a folder of another library."""
    return next((f for f in FOLDER_FORMATS if (path / f.marker).is_file()), None)


def holds_model(path: Path) -> bool:
    """Whether a path is a checkpoint, a file of weights or a folder of another library, but not a run."""
    if path.is_file():
        return path.suffix == CheckpointFolder(path).model.suffix
    if RunFolder(path).exists:
        return False
    return folder_format(path) is not None or is_there(CheckpointFolder(path).model)
