"""Corpus `python-docs`: documentation and source code that are part of every Python installation."""

from __future__ import annotations

import importlib
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from zoo.config.registry import CORPORA
from zoo.data.corpora.base import CorpusConfig, Document, SourceFile
from zoo.data.files import read_text
from zoo.utils.errors import DataError

# Linux distributions package these separately, or not at all.
OPTIONAL = {"distutils", "ensurepip", "idlelib", "lib2to3", "tkinter", "turtle", "turtledemo", "venv"}
# These are character tables, and the topics themselves in another format.
TABLES = {"encodings", "pydoc_data"}
TESTS = frozenset({"test", "tests"})
MIN_LIBRARY_BYTES = 3_000_000


@CORPORA.register
class PythonDocsCorpus(CorpusConfig):
    """The interpreter's own documentation topics and standard library; no download.

    English prose and Python source, some megabytes. The same Python version has the same documents
    on every machine: the parts that Linux distributions package separately are left out.
    """

    type: Literal["python-docs"] = "python-docs"

    def documents(self) -> Iterator[Document]:
        """Yield the documentation topics, then the modules of the library, both sorted by name."""
        for name, text in sorted(_topics().items()):
            yield Document(f"topics/{name}", text)
        for source in _library():
            yield Document(source.name, read_text(source.path))

    def sources(self) -> list[SourceFile]:
        """List the file of the topics and the sources of the library."""
        library = _library()
        size = sum(source.path.stat().st_size for source in library)
        if size < MIN_LIBRARY_BYTES:
            raise DataError(
                f"python-docs: the Python installation at {_root()} has only {size:,} bytes of library "
                f"source in {len(library)} files (expected {MIN_LIBRARY_BYTES:,} or more); it was stripped: "
                "use a complete Python, or a 'text' corpus"
            )
        return [SourceFile("topics.py", _topics_file()), *library]


def _topics() -> dict[str, str]:
    try:
        module = importlib.import_module("pydoc_data.topics")
    except ImportError as error:
        raise DataError(
            f"python-docs: the Python installation at {_root()} has no documentation topics "
            "(module pydoc_data.topics); use a complete Python, or a 'text' corpus"
        ) from error
    topics: dict[str, str] = module.topics
    return topics


def _topics_file() -> Path:
    _topics()
    return Path(str(sys.modules["pydoc_data.topics"].__file__))


def _root() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _library() -> list[SourceFile]:
    """The sources of the standard library's modules, without tests and empty files."""
    root = _root()
    files: list[Path] = []
    for name in sorted(sys.stdlib_module_names - OPTIONAL - TABLES):
        module = root / f"{name}.py"
        files += [module] if module.is_file() else sorted((root / name).rglob("*.py"))
    relative = [(file.relative_to(root), file) for file in files]
    return [
        SourceFile(f"library/{name.as_posix()}", file)
        for name, file in relative
        if not TESTS.intersection(name.parts) and file.stat().st_size
    ]
