"""Corpus `parquet`: tables with a text in each row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from zoo.config.registry import CORPORA
from zoo.data.corpora.base import Document, FileCorpus, StringList
from zoo.data.json_lines import text_field
from zoo.data.parquet import ARROW, PARQUET, read_rows


@CORPORA.register
class ParquetCorpus(FileCorpus):
    """Parquet files, directories and globs; every row is a document. It needs the extra `data`.

    In a directory without .parquet files the .arrow files are read, such as those that
    ``datasets.Dataset.save_to_disk`` has written.
    """

    otherwise = (ARROW,)

    type: Literal["parquet"] = "parquet"
    suffixes: StringList = Field(
        default=[PARQUET], description="suffixes of the files that are read from a directory"
    )
    column: str = Field(default="text", description="the column of the text")

    def documents(self) -> Iterator[Document]:
        """Yield one document per row; only the column of the text is read."""
        for source, blank in self.files():
            for number, (place, row) in enumerate(read_rows(source.path, [self.column], blank=blank), 1):
                yield Document(f"{source.name}:{number}", text_field(row, self.column, place, blank=True))
