"""Corpus `jsonl`: one JSON object per line, the text in one of its fields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from zoo.config.registry import CORPORA
from zoo.data.corpora.base import Document, FileCorpus, StringList
from zoo.data.json_lines import read_json_lines, text_field


@CORPORA.register
class JsonlCorpus(FileCorpus):
    """JSON Lines files, directories and globs; every object is a document."""

    type: Literal["jsonl"] = "jsonl"
    suffixes: StringList = Field(
        default=[".jsonl"], description="suffixes of the files that are read from a directory"
    )
    field: str = Field(default="text", description="the key of the text in each object")

    def documents(self) -> Iterator[Document]:
        """Yield one document per line that is not blank."""
        for source, blank in self.files():
            for number, value in read_json_lines(source.path, blank=blank):
                text = text_field(value, self.field, f"{source.path}:{number}", blank=True)
                yield Document(f"{source.name}:{number}", text)
