"""A corpus: a column of CSV files, one document for each row."""

import csv
from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from zoo import CORPORA, Document, FileCorpus


@CORPORA.register
class CSVCorpus(FileCorpus):
    """CSV files with a header; one of the columns is the text."""

    type: Literal["csv"] = "csv"
    suffixes: list[str] = Field([".csv"], description="suffixes of the files that are read from a folder")
    column: str = Field("text", description="name of the column")

    def documents(self) -> Iterator[Document]:
        """Yield every row; the split into training and validation text keeps documents whole."""
        for source in self.sources():
            with source.path.open(encoding="utf-8", newline="") as file:
                for number, row in enumerate(csv.DictReader(file)):
                    yield Document(f"{source.name}:{number}", row[self.column] or "")  # None: a short row
