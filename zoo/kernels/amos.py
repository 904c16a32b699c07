"""The C++ kernel of an Amos step, `amos.cpp`, compiled for this machine when it is first asked for.

Compiling takes seconds; torch's extension cache keeps the result. The plain PyTorch path is
`zoo.optim.amos_step`.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch

from zoo.utils.errors import ConfigError

SOURCE = Path(__file__).with_name("amos.cpp")


@functools.cache
def kernels() -> Any:
    """The compiled operators.

    Raises:
        ConfigError: there is no C++ compiler or no ninja, or they fail.
    """
    from torch.utils.cpp_extension import load

    try:
        load(
            "zoo_amos_" + torch.backends.cpu.get_cpu_capability().lower(),
            [str(SOURCE)],
            extra_cflags=["-O3", "-march=native", "-fopenmp"],
            extra_ldflags=["-fopenmp"],
            is_python_module=False,
        )
    except (RuntimeError, OSError) as error:
        raise ConfigError(
            f"Amos(fused=True) compiles a kernel, which failed; it needs a C++ compiler and ninja: {error}"
        ) from error
    return torch.ops.zoo_amos
