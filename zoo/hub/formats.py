"""Registers the formats of other libraries with `zoo.checkpoint`; their readers are imported on first use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.checkpoint.formats import FILE_FORMATS, FOLDER_FORMATS, FolderFormat
from zoo.hub import CONFIG

if TYPE_CHECKING:
    from zoo.hub.folder import HubFolder
    from zoo.models import Model


def load_hub(folder: Path, *, allow: Sequence[str] = ()) -> Model:
    """See `zoo.hub.folder.load_folder`."""
    from zoo.hub.folder import load_folder

    return load_folder(folder, allow=allow)[0]


def open_hub(folder: Path) -> HubFolder:
    """See `zoo.hub.folder.HubFolder.open`."""
    from zoo.hub.folder import HubFolder

    return HubFolder.open(folder)


def load_ngpt_reference(path: Path, *, n_heads: int) -> Model:
    """See `zoo.hub.ngpt_reference.load_ngpt_reference`."""
    from zoo.hub import ngpt_reference

    return ngpt_reference.load_ngpt_reference(path, n_heads=n_heads)


FOLDER_FORMATS.append(FolderFormat(CONFIG, load_hub, open_hub))
FILE_FORMATS["ngpt-reference"] = load_ngpt_reference
