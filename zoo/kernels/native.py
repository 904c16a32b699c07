"""Compiles the C++ kernels of this package for this machine at first use, in two or three seconds.

The library is kept in the folder of torch's extensions, by a digest of its sources, the compiler and the
processor. Where there is no compiler, operators take their plain PyTorch path, and the log says so once.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from zoo.utils.device import processor_field

log = logging.getLogger("zoo")

SOURCES = tuple(
    Path(__file__).with_name(name) for name in ("vectors.h", "attention.cpp", "rotation.cpp", "softmax.cpp")
)
FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-shared",
    "-fPIC",
)
SECONDS = 120
"""Time limit of the compiler."""
SUFFIXES = {torch.float32: "f32", torch.bfloat16: "bf16"}
"""The dtypes of the kernels, and the ends of their functions' names."""


@functools.cache
def load_kernels() -> ctypes.CDLL | None:
    """Compile and load the kernels; None, with a warning, if they cannot be compiled or loaded here."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        log.warning(
            "there is no C++ compiler (%s): attention and losses on the CPU take torch's operators",
            os.environ.get("CXX", "c++"),
        )
        return None
    try:
        file = _file(compiler)
        if not file.is_file():
            _compile(compiler, file)
        return ctypes.CDLL(str(file))
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        log.warning(
            "%s could not compile zoo's kernels: attention and losses on the CPU take torch's operators: %s",
            compiler,
            said.strip().splitlines()[0] if said.strip() else type(error).__name__,
        )
        return None


def kind() -> Literal["native", "torch"]:
    """Which kernels attention of short sequences and losses take on a CPU, for environment.json."""
    return "torch" if load_kernels() is None else "native"


def pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    """The address of a tensor's data; null for None."""
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def integers(*values: int) -> ctypes.Array[ctypes.c_int64]:
    """An array of int64."""
    return (ctypes.c_int64 * len(values))(*values)


def _file(compiler: str) -> Path:
    """The library's file, whose name changes with everything that it depends on."""
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=SECONDS).stdout
    digest = hashlib.sha256(version)
    for part in (*FLAGS, processor_field("model name") or "", processor_field("flags") or ""):
        digest.update(part.encode())
    for source in SOURCES:
        digest.update(source.read_bytes())
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or Path.home() / ".cache" / "torch_extensions"
    return Path(root) / "zoo" / f"kernels-{digest.hexdigest()[:16]}.so"


def _compile(compiler: str, file: Path) -> None:
    """Compile into a file of another name first, so that no other process loads half a library."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        made = Path(folder) / file.name
        sources = [str(source) for source in SOURCES if source.suffix == ".cpp"]
        subprocess.run(
            [compiler, *FLAGS, *sources, "-o", str(made)],
            capture_output=True,
            text=True,
            check=True,
            timeout=SECONDS,
        )
        made.replace(file)
