"""Corpora: named documents and the files they come from."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field

from zoo.config.inputs import READS_FILES
from zoo.config.registry import Config
from zoo.data.files import find_files
from zoo.utils.errors import DataError
from zoo.utils.files import expand_home
from zoo.utils.untyped import JsonObject


@dataclass(frozen=True)
class Document:
    """A piece of text that belongs as a whole to the training or the validation split.

    Attributes:
        id: name that is the same on every machine; the split depends on it alone.
        text: the text.
        repeated: whether it is a further copy of a document that the corpus has yielded; a held-out document
            is read once.
    """

    id: str
    text: str
    repeated: bool = False


@dataclass(frozen=True)
class SourceFile:
    """A file that a corpus reads.

    Attributes:
        name: path within the corpus, which is the same on every machine.
        path: path on this machine.
    """

    name: str
    path: Path


class CorpusConfig(Config):
    """The source of a text. Every pass over `documents` yields the same documents."""

    def rules(self) -> JsonObject:
        """The settings that, with the contents of the files, determine the documents."""
        return self.model_dump(mode="json")

    @abstractmethod
    def documents(self) -> Iterator[Document]:
        """Yield the documents in a fixed order; blank ones are left out by those that prepare the text.

        Raises:
            DataError: A file cannot be used.
        """

    @abstractmethod
    def sources(self) -> list[SourceFile]:
        """List the files that `documents` reads, in a fixed order.

        Raises:
            DataError: There is no file, or a path does not exist.
        """

    def why_empty(self) -> str:
        """The end of the message about a corpus none of whose documents has text: the reason."""
        return "no document has any text; expected at least one that is not blank"


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


StringList = Annotated[
    list[str], BeforeValidator(_as_list, json_schema_input_type=str | list[str]), Field(min_length=1)
]


class FileCorpus(CorpusConfig):
    """A corpus of files that the configuration names."""

    paths: Annotated[StringList, READS_FILES] = Field(
        description="files, directories (searched recursively) and glob patterns; relative ones start at the "
        "folder of the file that names them, or, if nothing is there, at the current folder"
    )
    otherwise: ClassVar[tuple[str, ...]] = ()
    """Suffixes of the files that are read from a directory which has none of the default suffixes."""

    suffixes: StringList = Field(description="suffixes of the files that are read from a directory")

    def rules(self) -> JsonObject:
        """All settings but the paths."""
        return self.model_dump(mode="json", exclude={"paths"})

    def sources(self) -> list[SourceFile]:
        """List the files, named by their paths relative to their common directory."""
        default = type(self).model_fields["suffixes"].default
        if self.suffixes != default and not any(expand_home(path).is_dir() for path in self.paths):
            raise DataError(
                f"suffixes {self.suffixes} select files inside directories, but paths {self.paths} "
                "has no directory: leave suffixes out"
            )
        files = find_files(self.paths, self.suffixes, self.otherwise if self.suffixes == default else ())
        root = os.path.commonpath([file.parent for file in files])
        return [SourceFile(_printable(file.relative_to(root)), file) for file in files]

    def files(self) -> Iterator[tuple[SourceFile, bool]]:
        """Yield the files in their order, each with whether it may be empty: one among others may."""
        sources = self.sources()
        for source in sources:
            yield source, len(sources) > 1


def _printable(path: Path) -> str:
    """The path with forward slashes, and bytes that are not valid UTF-8 escaped."""
    return os.fsencode(path.as_posix()).decode("utf-8", errors="backslashreplace")
