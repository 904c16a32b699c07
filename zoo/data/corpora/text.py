"""Corpus `text`: plain text files, as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from zoo.config.registry import CORPORA
from zoo.data.corpora.base import Document, FileCorpus, Strings
from zoo.data.files import read_lines, read_text

MANY = 100  # files: from here on a share of the files is about that share of the text
PASSAGE = 4096  # characters: long enough to learn from, short enough that one book has hundreds


@CORPORA.register
class TextCorpus(FileCorpus):
    """Text files, directories and globs; UTF-8.

    What a document is decides what the validation split holds out:

    * ``file``: each file is one.
    * ``passage``: whole paragraphs of a file, gathered until they have 4096 characters; joined they
      are the file again, character by character.
    * ``line``: each line that is not blank.
    * ``auto``: ``file`` if there are 100 files or more, ``passage`` for fewer (some books).
    """

    type: Literal["text"] = "text"
    suffixes: Strings = Field(default=[".txt"], description="what the files taken from a directory end in")
    document: Literal["auto", "file", "passage", "line"] = Field(
        default="auto", description="what a document is; auto: passages, or files if there are 100 or more"
    )

    def documents(self) -> Iterator[Document]:
        """Yield the documents, file by file."""
        sources = self.sources()
        kind = self.document
        if kind == "auto":
            kind = "file" if len(sources) >= MANY else "passage"
        for source in sources:
            if kind == "file":
                yield Document(source.name, read_text(source.path))
            elif kind == "line":
                for number, line in read_lines(source.path):
                    yield Document(f"{source.name}:{number}", line)
            else:
                for number, passage in enumerate(passages(read_text(source.path)), 1):
                    yield Document(f"{source.name}#{number}", passage)


def passages(text: str, size: int = PASSAGE) -> Iterator[str]:
    """Cut a text after a blank line as soon as `size` characters are full.

    A stretch without blank lines is cut at the end of a line once it has twice as many, so that
    verse and logs are divided too.

    Args:
        text: any text.
        size: characters of a passage, at least.

    Yields:
        Passages that joined are `text`.
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
