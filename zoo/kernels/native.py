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
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
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
    named = os.environ.get("CXX", "").strip() or "c++"
    compiler = _command(named)
    if compiler is None:
        log.warning(
            "there is no C++ compiler (%s): attention and losses on the CPU take torch's operators", named
        )
        return None
    try:
        file = _file(compiler)
        if not file.is_file():
            _compile(compiler, file)
        return ctypes.CDLL(str(file))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:  # RuntimeError: there is no home
        said = getattr(error, "stderr", None) or str(error)
        log.warning(
            "%s could not compile zoo's kernels: attention and losses on the CPU take torch's operators: %s",
            named,
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


def _command(named: str) -> list[str] | None:
    """A compiler and its arguments, such as those of "ccache g++"; None: there is no such program."""
    try:
        program, *arguments = shlex.split(named)
    except ValueError:  # a quotation mark that is not closed
        return None
    found = shutil.which(program)
    return None if found is None else [found, *arguments]


def _file(compiler: Sequence[str]) -> Path:
    """The library's file, whose name changes with everything that it depends on."""
    asked = [*compiler, "--version"]
    digest = hashlib.sha256(subprocess.run(asked, capture_output=True, check=True, timeout=SECONDS).stdout)
    for part in (*compiler[1:], *FLAGS, processor_field("model name") or "", processor_field("flags") or ""):
        digest.update(part.encode())
    for source in SOURCES:
        digest.update(source.read_bytes())
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or Path.home() / ".cache" / "torch_extensions"
    return Path(root) / "zoo" / f"kernels-{digest.hexdigest()[:16]}.so"


def _compile(compiler: Sequence[str], file: Path) -> None:
    """Compile into a file of another name first, so that no other process loads half a library."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        made = Path(folder) / file.name
        sources = [str(source) for source in SOURCES if source.suffix == ".cpp"]
        subprocess.run(
            [*compiler, *FLAGS, *sources, "-o", str(made)],
            capture_output=True,
            text=True,
            check=True,
            timeout=SECONDS,
        )
        made.replace(file)
