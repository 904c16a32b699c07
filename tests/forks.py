"""Child processes that begin with zoo imported: forks of one server, which saves each the seconds of imports.

The server of a process is one for all. If a sweep starts it, it has what `zoo.ablate.pool` imports before the
first fork.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

import torch

from zoo.ablate.pool import PRELOADED

METHOD: Final = "forkserver"
"""The method of `multiprocessing` by which processes are started."""

CONTEXT = multiprocessing.get_context(METHOD)
CONTEXT.set_forkserver_preload([*PRELOADED, "zoo.train.run", "zoo.commands.cli", "torch._dynamo"])


@dataclass(frozen=True)
class Ended:
    """What a child process has left: its exit status and what it printed."""

    status: int | None
    output: str
    errors: str


def start(function: Callable[..., Any], *arguments: Any) -> BaseProcess:
    """Begin to call a function of a module in a child process with this one's environment variables."""
    child = CONTEXT.Process(target=_call, args=(dict(os.environ), function, *arguments))
    child.start()
    return child


def run(
    function: Callable[..., Any], *arguments: Any, folder: Path, variables: Mapping[str, str] | None = None
) -> Ended:
    """Call a function of a module in a child process, and wait for its end.

    Args:
        function: The function; an exception that it raises is printed, and the status is then 1.
        arguments: Its arguments.
        folder: The working directory.
        variables: Environment variables besides those of this process.
    """
    with tempfile.TemporaryDirectory() as kept:
        printed = [Path(kept, name) for name in ("output", "errors")]
        child = start(_print_to_files, printed, folder, dict(variables or {}), function, *arguments)
        child.join()
        return Ended(child.exitcode, *(file.read_text("utf-8") for file in printed))


def _call(variables: dict[str, str], function: Callable[..., Any], *arguments: Any) -> None:
    os.environ.clear()
    os.environ.update(variables)
    torch.set_num_threads(1)
    function(*arguments)


def _print_to_files(
    files: list[Path],
    folder: Path,
    variables: dict[str, str],
    function: Callable[..., Any],
    *arguments: Any,
) -> None:
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    os.environ.update(variables)
    os.chdir(folder)
    function(*arguments)
