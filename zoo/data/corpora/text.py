"""Corpus `text`: plain text files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from zoo.config.registry import CORPORA
from zoo.data.corpora.base import Document, FileCorpus, StringList
from zoo.data.files import read_lines, read_text
from zoo.data.parquet import TABLES
from zoo.utils.errors import DataError

MANY = 100  # files; with this many, a share of the files is about the same share of the text
PASSAGE = 4096  # characters: long enough for learning, short enough for a book to have hundreds


@CORPORA.register
class TextCorpus(FileCorpus):
    """Text files, directories and globs, UTF-8; Markdown where a directory has no .txt file.

    The validation split holds out whole documents. A document is:

    * ``file``: a whole file.
    * ``passage``: consecutive paragraphs of a file with 4096 characters or a little more; the passages of a
      file concatenated are the file.
    * ``line``: a line that is not blank.
    * ``auto``: ``file`` if there are at least 100 files, otherwise ``passage``.
    """

    otherwise = (".md", ".markdown")

    type: Literal["text"] = "text"
    suffixes: StringList = Field(
        default=[".txt"], description="suffixes of the files that are read from a directory"
    )
    document: Literal["auto", "file", "passage", "line"] = Field(
        default="auto",
        description="unit of the split; auto: passages, or files if there are 100 or more",
    )

    def documents(self) -> Iterator[Document]:
        """Yield the documents, file by file."""
        files = list(self.files())
        kind = self.document
        if kind == "auto":
            kind = "file" if len(files) >= MANY else "passage"
        for source, blank in files:
            if source.path.suffix in TABLES:
                raise DataError(
                    f"{source.path}: a table; expected a text, or data.corpus: {{type: parquet, ...}}"
                )
            if kind == "file":
                yield Document(source.name, read_text(source.path, blank=blank))
            elif kind == "line":
                for number, line in read_lines(source.path, blank=blank):
                    yield Document(f"{source.name}:{number}", line)
            else:
                for number, passage in enumerate(passages(read_text(source.path, blank=blank)), 1):
                    yield Document(f"{source.name}#{number}", passage)


def passages(text: str, size: int = PASSAGE) -> Iterator[str]:
    """Split a text at the first blank line after every `size` characters.

    A passage without a blank line is split at the end of a line once it has twice as many characters, so
    that verse and logs are split as well.

    Args:
        text: any text.
        size: minimal number of characters of a passage but the last.

    Yields:
        Passages whose concatenation is `text`.
    """
    start = end = 0
    for line in text.splitlines(keepends=True):
        end += len(line)
        filled = end - start
        if filled >= 2 * size or (filled >= size and not line.strip()):
            yield text[start:end]
            start = end
    if start < end:
        yield text[start:]
