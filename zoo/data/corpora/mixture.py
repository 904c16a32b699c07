"""Corpus `mixture`: several corpora, each with a weight."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from zoo.config.registry import CORPORA, Config
from zoo.data.corpora.base import CorpusConfig, Document, SourceFile
from zoo.utils.untyped import JsonObject


class MixturePart(Config):
    """A corpus of a mixture. In a file its fields may stand beside the weight."""

    inlined: ClassVar[str] = "corpus"

    corpus: Annotated[CorpusConfig, CORPORA] = Field(description="any corpus")
    weight: float = Field(
        1.0,
        ge=0,
        le=1000,
        description="number of copies of its documents: 0.5 is half of them, 2 is each twice, 0 is none",
    )

    def count(self, document: str) -> int:
        """The number of copies of the document with this id.

        The fractional part of the weight selects documents by the hash of their ids, so that a larger weight
        keeps the documents of a smaller one.
        """
        whole = int(self.weight)
        digest = hashlib.blake2b(f"mixture/{document}".encode(), digest_size=8).digest()
        return whole + (int.from_bytes(digest, "big") < (self.weight - whole) * 2**64)


@CORPORA.register
class MixtureCorpus(CorpusConfig):
    """Several corpora one after the other, whose documents are left out or repeated by their weights."""

    type: Literal["mixture"] = "mixture"
    corpora: list[MixturePart] = Field(min_length=1, description="corpora with their weights")

    @model_validator(mode="after")
    def _has_text(self) -> Self:
        if not any(part.weight for part in self.corpora):
            raise ValueError("the weights of all corpora are 0; expected one above 0")
        return self

    def rules(self) -> JsonObject:
        """The rules and weights of the parts, and the order of copies where there are any."""
        parts = [{"weight": part.weight, "corpus": part.corpus.rules()} for part in self.corpora]
        # Mixtures without copies keep the tokens that earlier versions have prepared.
        order = {"copies": "in passes"} if self._passes > 1 else {}
        return {"type": self.type, "corpora": parts, **order}

    @property
    def _passes(self) -> int:
        """The largest number of copies of a document."""
        return math.ceil(max(part.weight for part in self.corpora))

    def documents(self) -> Iterator[Document]:
        """Yield the documents of each part, then their second copies, and so on.

        All copies of a document are on the same side of the split, and a context seldom has two of them.
        """
        for copy in range(self._passes):
            for i, part in enumerate(self.corpora):
                for document in part.corpus.documents() if part.weight > copy else ():
                    name = f"{i}/{document.id}"
                    if part.count(name) > copy:
                        yield Document(name, document.text, document.repeated or copy > 0)

    def sources(self) -> list[SourceFile]:
        """List the files of the parts that have a weight."""
        return [
            SourceFile(f"{i}/{source.name}", source.path)
            for i, part in enumerate(self.corpora)
            for source in (part.corpus.sources() if part.weight else ())
        ]

    def why_empty(self) -> str:
        """The weights, if the parts have documents with text."""
        parts = (part.corpus.documents() for part in self.corpora if part.weight)
        if any(document.text.strip() for documents in parts for document in documents):
            return (
                "the weights of the mixture leave no document with text; expected larger ones, or more text"
            )
        return super().why_empty()
