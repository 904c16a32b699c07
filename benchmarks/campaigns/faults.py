"""The operations on files that a process makes below a folder: counted, recorded, and ended by a kill."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

from zoo.data.dataset import Batch, BatchSpec
from zoo.data.text.dataset import TextDataset

CALLS = ("rename", "replace", "unlink", "mkdir", "rmdir", "link", "fsync")
"""Functions of `os` that are operations."""


@dataclass(frozen=True)
class Operation:
    """An operation on a file or folder.

    Attributes:
        kind: a function of `CALLS`, or create, append, write.
        path: the path of the file, relative to the folder.
        target: the new path of a rename or link.
        data: the bytes that are written at `offset`.
    """

    kind: str
    path: str
    target: str = ""
    data: bytes = b""
    offset: int = 0


class Watch:
    """Sees every operation below a folder.

    Args:
        root: the folder.
        act: a function that is called before each operation with its number from 0, and the operation.
    """

    def __init__(self, root: Path, act: Callable[[int, Operation], object]) -> None:
        self._root, self._act = os.path.realpath(root), act
        self.count = 0
        self._open: dict[int, str] = {}

    def see(self, operation: Operation) -> None:
        """Note an operation that is about to be made."""
        number = self.count
        self.count += 1
        self._act(number, operation)

    def inside(self, path: Any, dir_fd: int | None = None) -> str | None:
        """A path relative to the folder, None for one elsewhere; `dir_fd` as in functions of os."""
        if isinstance(path, int):
            path = Path(f"/proc/self/fd/{path}").readlink()
        elif dir_fd is not None:
            path = Path(f"/proc/self/fd/{dir_fd}").readlink() / path
        path = os.path.abspath(path)  # noqa: PTH100 - a link is an entry of its own folder
        return os.path.relpath(path, self._root) if path.startswith(self._root + os.sep) else None


class _Writer(io.RawIOBase):
    """A file whose writes are seen before they are made."""

    def __init__(self, watch: Watch, path: str, file: io.FileIO) -> None:
        self._watch, self._path, self._file = watch, path, file
        self.name = file.name

    def write(self, data: Any) -> int:
        view = bytes(memoryview(data).cast("B"))
        self._watch.see(Operation("write", self._path, data=view, offset=self._file.tell()))
        return self._file.write(view) or 0

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def fileno(self) -> int:
        return self._file.fileno()

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Have `watch` see what this process does to files."""
    originals = {name: getattr(os, name) for name in CALLS}
    real_open = io.open

    def seen(name: str) -> Callable[..., Any]:
        original = originals[name]

        def call(*arguments: Any, **options: Any) -> Any:
            folder = options.get("dir_fd", options.get("src_dir_fd"))
            path = watch.inside(arguments[0], folder)
            if path is not None:
                two = name in ("rename", "replace", "link")
                target = watch.inside(arguments[1]) if two else ""
                watch.see(Operation(name, path, target or ""))
            return original(*arguments, **options)

        return call

    def opened(
        file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, *more: Any, **options: Any
    ) -> Any:
        path = None if isinstance(file, int) or "r" in mode else watch.inside(file)
        if path is None:
            return real_open(file, mode, buffering, encoding, *more, **options)
        watch.see(Operation("append" if "a" in mode else "create", path))
        raw = _Writer(watch, path, io.FileIO(file, mode.replace("b", "").replace("t", "")))
        buffered = io.BufferedWriter(raw)
        return (
            buffered
            if "b" in mode
            else io.TextIOWrapper(buffered, encoding=encoding or "utf-8", newline="\n")
        )

    for name in CALLS:
        setattr(os, name, seen(name))
    io.open = opened
    try:
        yield
    finally:
        io.open = real_open
        for name, original in originals.items():
            setattr(os, name, original)


@dataclass(frozen=True)
class Fault:
    """A fault that ends a process.

    Attributes:
        number: the number, from 0, of the operation on a file, or of the batch of the training, before which
            the process ends.
        kind: the kind of the end; an operation that is `torn` and writes is half done.
        rank: the rank of the process that ends, where there are several.
        asked: how often the process is asked to end (SIGTERM) instead of being killed; 0: it is killed.
    """

    number: int
    kind: Literal["operation", "torn", "batch"] = "operation"
    rank: int = 0
    asked: int = 0

    def __str__(self) -> str:
        how = ("killed", "asked to end", "asked twice to end")[self.asked]
        where = {"operation": "at operation", "torn": "in a half of operation", "batch": "before batch"}
        return f"{how} {where[self.kind]} {self.number}" + (f" on rank {self.rank}" if self.rank else "")

    @contextmanager
    def armed(self, root: Path, group: bool = False) -> Iterator[None]:
        """Have this process end, when it has come so far, in a `with` block; with its whole `group`."""

        def end() -> None:
            for _ in range(max(1, self.asked)):
                os.kill(0 if group else os.getpid(), signal.SIGTERM if self.asked else signal.SIGKILL)

        def act(at: int, operation: Operation) -> None:
            if at != self.number:
                return
            if self.kind == "torn" and operation.kind == "write":
                with io.FileIO(root / operation.path, "r+") as file:
                    file.seek(operation.offset)
                    file.write(operation.data[: len(operation.data) // 2])
            end()

        if self.kind != "batch":
            with watched(Watch(root, act)):
                yield
            return
        right, calls = TextDataset.train_batch, count()

        def batch(dataset: TextDataset, spec: BatchSpec) -> Batch:
            if next(calls) == self.number:
                end()
            return right(dataset, spec)

        with patch.object(TextDataset, "train_batch", batch):
            yield
