"""Opening a folder with transformers, without its progress bars and warnings."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any


def from_pretrained(auto: str, folder: Path, **options: Any) -> Any:  # Any: `auto` decides the class
    """Open a folder with one of transformers' Auto classes, without running code from the folder.

    Args:
        auto: name of the class, for instance ``AutoTokenizer``.
        folder: the folder.
        **options: further arguments of `from_pretrained`.
    """
    import transformers

    logging: Any = transformers.utils.logging  # Any: its functions have no types
    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        return getattr(transformers, auto).from_pretrained(folder, trust_remote_code=False, **options)
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()


def with_adapter(model: Any, folder: Path) -> Any:  # Any: as above
    """Put an adapter on a model of transformers with the library peft.

    Args:
        model: the base model.
        folder: a folder with the files of the adapter.
    """
    from peft import PeftModel

    with warnings.catch_warnings():  # peft calls functions that newer versions of transformers deprecate
        warnings.simplefilter("ignore", FutureWarning)
        return PeftModel.from_pretrained(model, folder)
