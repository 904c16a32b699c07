"""The C++ kernel of an Amos step, `amos.cpp`, compiled for this machine when it is first asked for.

Compiling takes seconds, and the result is kept in torch's cache of extensions. The plain PyTorch path is
`zoo.optim.amos_step`.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from pathlib import Path
from typing import Any

import torch

from zoo.utils.errors import ConfigError

log = logging.getLogger("zoo")

SOURCE = Path(__file__).with_name("amos.cpp")

LOCK_SECONDS = 300
"""A lock of the build folder that is older belongs to a compilation that was killed."""


class StaleLockError(RuntimeError):
    """The build folder is locked by a compilation that has not ended in time."""


@functools.cache
def kernels() -> Any:
    """Compile and load the operators.

    Returns:
        The namespace ``torch.ops.zoo_amos``, whose operators torch does not annotate.

    Raises:
        ConfigError: there is no C++ compiler or no ninja, or one of them fails.
        StaleLockError: the build folder stays locked.
    """
    from torch.utils.cpp_extension import load

    folder = _build_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _wait_for(folder / "lock")
        load(
            folder.name,
            [str(SOURCE)],
            extra_cflags=["-O3", "-march=native", "-fopenmp"],
            extra_ldflags=["-fopenmp"],
            build_directory=str(folder),
            is_python_module=False,
        )
    except StaleLockError:
        raise
    except (RuntimeError, OSError) as error:
        raise ConfigError(
            f"Amos(fused=True) compiles a kernel, which failed; it needs a C++ compiler and ninja: {error}"
        ) from error
    return torch.ops.zoo_amos


def _build_folder() -> Path:
    """Return the folder of what is compiled for this processor and this torch."""
    from torch.utils.cpp_extension import get_default_build_root

    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root())
    processor = torch.backends.cpu.get_cpu_capability().lower()
    return root / f"torch_{torch.__version__}" / f"zoo_amos_{processor}"


def _wait_for(lock: Path) -> None:
    """Wait for another process to finish compiling; torch itself would wait for a killed one forever.

    Raises:
        StaleLockError: the lock is older than `LOCK_SECONDS`, or becomes so.
    """
    if lock.exists():
        log.warning("waiting for %s, with which another process compiles the kernel of Amos", lock)
    while lock.exists():
        try:
            age = time.time() - lock.stat().st_mtime
        except FileNotFoundError:
            return
        if age > LOCK_SECONDS:
            raise StaleLockError(
                f"{lock} is {age:.0f} seconds old: a compilation was killed; remove the file to compile again"
            )
        time.sleep(0.2)
