"""Registration of other libraries' formats with `zoo.checkpoint`; readers are imported on first use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.checkpoint.formats import FILE_FORMATS, FOLDER_FORMATS, FolderFormat
from zoo.hub import ADAPTER_CONFIG, CONFIG

if TYPE_CHECKING:
    import torch

    from zoo.hub.adapter_import import AdapterFolder
    from zoo.hub.folder import HubFolder
    from zoo.models import Model


def load_hub(folder: Path, *, allow: Sequence[str] = (), dtype: torch.dtype | None = None) -> Model:
    """Load a Hugging Face folder, see `zoo.hub.folder.load_folder`."""
    from zoo.hub.folder import load_folder

    return load_folder(folder, allow=allow, dtype=dtype)[0]


def open_hub(folder: Path) -> HubFolder:
    """Open a Hugging Face folder, see `zoo.hub.folder.HubFolder.open`."""
    from zoo.hub.folder import HubFolder, is_classifier

    return HubFolder.open(folder, head=is_classifier(folder))


def load_peft(
    folder: Path,
    *,
    base: Path | str | None = None,
    fold: bool = False,
    dtype: torch.dtype | None = None,
) -> Model:
    """Load an adapter and its base, see `zoo.hub.adapter_import.load_adapter`."""
    from zoo.hub.adapter_import import load_adapter

    return load_adapter(folder, base=base, fold=fold, dtype=dtype)


def open_peft(folder: Path) -> AdapterFolder:
    """Open an adapter and its base, see `zoo.hub.adapter_import.AdapterFolder.open`."""
    from zoo.hub.adapter_import import AdapterFolder

    return AdapterFolder.open(folder)


def peft_tokenizer_folder(folder: Path) -> Path:
    """The adapter's own folder if a tokenizer was saved there, otherwise that of its base.

    Raises:
        CheckpointError: The base does not exist, or the adapter cannot be read.
    """
    from zoo.data.tokenizers.saved import has_tokenizer
    from zoo.hub.adapter_folder import AdapterFiles

    return folder if has_tokenizer(folder) else AdapterFiles.read(folder).find_base()


def load_ngpt_reference(path: Path, *, n_heads: int) -> Model:
    """Load a state dict of the nGPT authors, see `zoo.hub.ngpt_reference.load_ngpt_reference`."""
    from zoo.hub import ngpt_reference

    return ngpt_reference.load_ngpt_reference(path, n_heads=n_heads)


# Before the hub format, because an adapter may be in the folder of its base.
FOLDER_FORMATS.append(FolderFormat(ADAPTER_CONFIG, load_peft, open_peft, peft_tokenizer_folder))
FOLDER_FORMATS.append(FolderFormat(CONFIG, load_hub, open_hub))
FILE_FORMATS["ngpt-reference"] = load_ngpt_reference
