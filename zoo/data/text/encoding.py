"""Encoding the texts of a corpus on all cores, in their order.

Most tokenizers encode a few megabytes per second and core. Texts are therefore also encoded in other
processes (`zoo.data.text.encoding_process`), one for each further core. The result does not depend on the
processes: every text is encoded by itself, and the results are returned in the order of the texts.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self, TypeVar

import numpy as np

from zoo.config.plugins import sources
from zoo.config.yaml import shortened
from zoo.data.tokenizers.base import Tokenizer
from zoo.data.tokens import Ids, dtype_for
from zoo.utils.cores import cores
from zoo.utils.errors import DataError

log = logging.getLogger("zoo")

PROGRAM = Path(__file__).with_name("encoding_process.py")
ALONE = 1.0
"""Seconds of encoding in this process alone, because short texts are done before other processes start."""
CHUNK = 2**19
"""Approximate number of characters of text that a process receives at a time."""
AHEAD = 3
"""Number of chunks per process that are read before the first of them is encoded."""

Key = TypeVar("Key")


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Ids]:
    """Encode texts one after the other.

    Returns:
        The ids of each text in the dtype of `dtype_for`, without the one that ends a document.

    Raises:
        DataError: The tokenizer returns something else than ids below its `vocab_size`.
    """
    return [_ids(tokenizer, tokenizer.encode(text)) for text in texts]


def _ids(tokenizer: Tokenizer, encoded: Sequence[int]) -> Ids:
    dtype = dtype_for(tokenizer.vocab_size)
    with contextlib.suppress(OverflowError, TypeError, ValueError):
        if not len(encoded):
            return np.empty(0, dtype)
        ids = np.asarray(encoded)  # in its own dtype: NumPy wraps numbers around that do not fit into another
        is_list_of_integers = ids.ndim == 1 and np.issubdtype(ids.dtype, np.integer)
        if is_list_of_integers and ids.min() >= 0 and ids.max() < tokenizer.vocab_size:
            return ids.astype(dtype)
    raise DataError(
        f"the tokenizer '{tokenizer.type}' encodes a text as {shortened(repr(encoded))}; expected a list of "
        f"ids below its vocab_size, {tokenizer.vocab_size}"
    )


def encode_in_order(
    tokenizer: Tokenizer, documents: Iterable[tuple[Key, str]]
) -> Generator[tuple[Key, str, Ids], None, None]:
    """Encode documents on all cores that this process may use.

    Args:
        tokenizer: the tokenizer; if other processes cannot load it, one core encodes everything.
        documents: pairs of a key of the caller and a text.

    Yields:
        The documents in their order, with the ids that `encode_texts` returns.

    Raises:
        DataError: A text cannot be encoded, or a process has been killed.
    """
    chunks = _chunks(documents)
    processes = cores() - 1
    began = time.monotonic()
    for chunk in chunks:
        yield from _with_ids(chunk, encode_texts(tokenizer, [text for _, text in chunk]))
        if processes and time.monotonic() - began >= ALONE:
            break
    else:
        return
    pending: deque[tuple[list[tuple[Key, str]], _Task]] = deque()
    with _Processes(tokenizer, processes) as others:
        for chunk in chunks:
            pending.append((chunk, others.submit([text for _, text in chunk])))
            if len(pending) > AHEAD * processes:
                yield from _first(tokenizer, pending)
        while pending:
            yield from _first(tokenizer, pending)


def _chunks(documents: Iterable[tuple[Key, str]]) -> Iterator[list[tuple[Key, str]]]:
    chunk: list[tuple[Key, str]] = []
    size = 0
    for key, text in documents:
        chunk.append((key, text))
        size += len(text)
        if size >= CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _with_ids(chunk: list[tuple[Key, str]], ids: list[Ids]) -> Iterator[tuple[Key, str, Ids]]:
    return ((key, text, each) for (key, text), each in zip(chunk, ids, strict=True))


def _first(
    tokenizer: Tokenizer, pending: deque[tuple[list[tuple[Key, str]], _Task]]
) -> Iterator[tuple[Key, str, Ids]]:
    """Wait for the first chunk, and encode the last ones that no process has begun in the meantime."""
    while not pending[0][1].is_done:
        task = next((task for _, task in reversed(pending) if task.take_back()), None)
        if task is None:
            break
        task.ids = encode_texts(tokenizer, task.texts)
    chunk, task = pending.popleft()
    ids = task.result()
    return _with_ids(chunk, encode_texts(tokenizer, task.texts) if ids is None else ids)


@dataclass
class _Task:
    """A task of another process: texts to encode.

    Attributes:
        texts: the texts.
        future: the ids of the texts; None if the process cannot load the tokenizer.
        ids: the ids if the texts have been encoded in this process instead.
    """

    texts: list[str]
    future: Future[list[Ids] | None]
    ids: list[Ids] | None = None

    @property
    def is_done(self) -> bool:
        return self.ids is not None or self.future.done()

    def take_back(self) -> bool:
        """Withdraw the task if no process has begun it; return whether it was withdrawn."""
        return self.ids is None and self.future.cancel()

    def result(self) -> list[Ids] | None:
        return self.future.result() if self.ids is None else self.ids


class _Processes:
    """Processes with a copy of a tokenizer; a context manager.

    The processes are separate programs and no forks, because threads and a GPU do not survive a fork. For
    each process, a thread of this one sends the texts.
    """

    def __init__(self, tokenizer: Tokenizer, count: int) -> None:
        """Start the processes without waiting for them.

        Args:
            tokenizer: the tokenizer.
            count: number of processes.
        """
        self._type = tokenizer.type
        self._folder = tempfile.TemporaryDirectory()
        tokenizer.save(Path(self._folder.name))
        self._warned, self._ended = threading.Lock(), threading.Event()
        self._mine = threading.local()
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        arguments = [self._folder.name, *sources()]
        # The modules are the same as in this process; files in the current folder cannot shadow them.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-P", str(PROGRAM), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                process_group=0,  # Ctrl-C is for this process, which ends the others
            )
            for _ in range(count)
        ]
        for process in self._processes:
            self._idle.put(process)
        self._threads = ThreadPoolExecutor(count, initializer=self._meet)

    def submit(self, texts: list[str]) -> _Task:
        """Submit texts to encode."""
        return _Task(texts, self._threads.submit(self._encode, texts))

    def _meet(self) -> None:
        """Assign this thread a process that has loaded the tokenizer, or None."""
        process = self._idle.get()
        try:
            mistake = self._answer(process)
        except DataError as error:
            mistake = error
        self._mine.process = process if mistake is None else None
        if mistake is not None and not self._ended.is_set() and self._warned.acquire(blocking=False):
            log.warning(
                "the tokenizer '%s' cannot be loaded in other processes, so one core encodes the text: %s",
                self._type,
                mistake,
            )

    def _encode(self, texts: list[str]) -> list[Ids] | None:
        process: subprocess.Popen[bytes] | None = self._mine.process
        if process is None:
            return None
        assert process.stdin is not None  # a pipe
        with contextlib.suppress(BrokenPipeError):  # `_answer` reports the end of the process
            pickle.dump(texts, process.stdin, pickle.HIGHEST_PROTOCOL)
            process.stdin.flush()
        answer = self._answer(process)
        if isinstance(answer, str):
            raise DataError(answer)
        lengths, ids = answer
        return np.split(ids, np.cumsum(lengths[:-1]))

    def _answer(self, process: subprocess.Popen[bytes]) -> Any:  # Any: the unpickled answer
        assert process.stdout is not None  # a pipe
        try:
            return pickle.load(process.stdout)
        except (EOFError, pickle.UnpicklingError):
            status = process.wait()
            killed = " (killed, perhaps because memory was short)" if status < 0 else ""
            raise DataError(f"a process that tokenises ended with status {status}{killed}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()  # a process that is killed before it was ready causes no warning
        for process in self._processes:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.wait()
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):  # closing flushes data that the process has not read
                    stream.close()  # type: ignore[union-attr]  # both are pipes
        self._folder.cleanup()
