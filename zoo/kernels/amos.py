"""The C++ kernel of an Amos step, `amos.cpp`, compiled for this machine at first use.

Compiling takes seconds, and the result is kept in torch's cache of extensions. The plain PyTorch path is
`zoo.optim.amos_step`.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from zoo.utils.errors import CheckpointError, ConfigError, ZooError
from zoo.utils.lock import locked

log = logging.getLogger("zoo")

SOURCE = Path(__file__).with_name("amos.cpp")

LOCK_SECONDS = 300
"""Seconds that another process may take to compile before this one continues without the kernel."""
BUSY = "another process compiles the kernel of Amos"


class BusyError(RuntimeError):
    """Raised when another process compiles the kernel and has not finished in time."""


@functools.cache
def kernels() -> Any:  # Any: torch does not annotate operators
    """Compile and load the operators.

    Returns:
        The namespace ``torch.ops.zoo_amos``, whose operators torch does not annotate.

    Raises:
        ConfigError: There is no C++ compiler or no ninja, or one of them fails.
        BusyError: Another process compiles the kernel and does not finish.
    """
    from torch.utils.cpp_extension import load

    folder = _build_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            load(
                folder.name,
                [str(SOURCE)],
                extra_cflags=["-O3", "-march=native", "-fopenmp"],
                extra_ldflags=["-fopenmp"],
                build_directory=str(folder),
                is_python_module=False,
            )
    except BusyError:
        raise
    except (RuntimeError, OSError, CheckpointError) as error:
        raise ConfigError(
            f"Amos(fused=True) compiles a kernel, which failed; it needs a C++ compiler and ninja: {error}"
        ) from error
    return torch.ops.zoo_amos


def _build_folder() -> Path:
    """Return the folder of the kernel compiled for this processor and this torch."""
    from torch.utils.cpp_extension import get_default_build_root

    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root())
    processor = torch.backends.cpu.get_cpu_capability().lower()
    return root / f"torch_{torch.__version__}" / f"zoo_amos_{processor}"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Within a `with` block, be the only process that compiles, after those that began earlier.

    torch's own lock is a file that outlives a killed process, and for which all later processes would wait
    forever. Because this lock ends with its process, a lock file of torch that exists under it is stale and
    is removed.

    Raises:
        BusyError: Another process has not finished within `LOCK_SECONDS`.
    """
    with ExitStack() as stack:
        file = folder / "zoo.lock"
        try:
            stack.enter_context(locked(file, BUSY))
        except CheckpointError:
            raise
        except ZooError as first:
            log.warning("%s; waiting for at most %d s", first, LOCK_SECONDS)
            try:
                stack.enter_context(locked(file, BUSY, timeout=LOCK_SECONDS))
            except ZooError as error:
                raise BusyError(f"{file}: {error}, since more than {LOCK_SECONDS} s") from error
        (folder / "lock").unlink(missing_ok=True)
        yield
