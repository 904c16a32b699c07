"""What a corpus is: documents with names, and the files they come from."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from zoo.config.registry import Config
from zoo.data.files import find_files
from zoo.utils.errors import DataError


@dataclass(frozen=True)
class Document:
    """A piece of text that the split into training and validation keeps whole.

    Attributes:
        id: a name that is the same on every machine; it alone decides the side of the split.
        text: the text.
    """

    id: str
    text: str


@dataclass(frozen=True)
class Source:
    """A file that a corpus reads.

    Attributes:
        name: path within the corpus, the same on every machine.
        path: where it lies on this one.
    """

    name: str
    path: Path


class CorpusConfig(Config):
    """Where text comes from. Two passes over `documents` yield the same."""

    @abstractmethod
    def documents(self) -> Iterator[Document]:
        """Yield the documents in a fixed order.

        Raises:
            DataError: a file that cannot be used.
        """

    @abstractmethod
    def sources(self) -> list[Source]:
        """List the files whose contents decide what `documents` yields, in a fixed order.

        Raises:
            DataError: there is none, or a path does not exist.
        """


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Strings = Annotated[list[str], BeforeValidator(_as_list), Field(min_length=1)]


class FileCorpus(CorpusConfig):
    """A corpus that reads files which the user names."""

    paths: Strings = Field(description="files, directories (searched to the bottom) and glob patterns")
    suffixes: Strings = Field(description="what the files taken from a directory end in")

    def sources(self) -> list[Source]:
        """List the files, named by their paths below the directory they have in common."""
        default = type(self).model_fields["suffixes"].default
        if self.suffixes != default and not any(Path(path).expanduser().is_dir() for path in self.paths):
            raise DataError(
                f"suffixes {self.suffixes} select files inside directories, but paths {self.paths} "
                "has no directory: leave suffixes out"
            )
        files = find_files(self.paths, self.suffixes)
        root = os.path.commonpath([file.parent for file in files])
        return [Source(_printable(file.relative_to(root)), file) for file in files]


def _printable(path: Path) -> str:
    """The path with forward slashes; bytes that are not UTF-8, which file systems allow, are escaped."""
    return os.fsencode(path.as_posix()).decode("utf-8", errors="backslashreplace")
