"""Tokenizer `word`: words separated by blanks, as in word-level benchmarks (Mikolov's Penn Treebank)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from zoo.config.registry import TOKENIZERS
from zoo.data.files import read_text, sha256
from zoo.data.tokenizers.base import Tokenizer, TokenizerConfig
from zoo.utils.errors import DataError

VOCABULARY_FILE = "vocabulary.txt"
EOS, UNKNOWN = "<eos>", "<unk>"


class WordTokenizer(Tokenizer):
    """A fixed vocabulary of words; any other word becomes ``<unk>``, and ``<eos>`` ends a document.

    White space, including line ends, only separates words. With a corpus of ``document: line`` each line is
    a document and ends with ``<eos>``.

    Args:
        vocabulary: the words in the order of their ids; the first two are ``<eos>`` and ``<unk>``.
        place: the file, for messages.

    Raises:
        DataError: The list does not begin with these two words, or has a word twice.
    """

    type = "word"
    eos_id = 0
    unknown_id = 1

    def __init__(self, vocabulary: Sequence[str], place: str | Path) -> None:
        if list(vocabulary[:2]) != [EOS, UNKNOWN] or len(set(vocabulary)) != len(vocabulary):
            raise DataError(f"{place}: expected a vocabulary of different words that begins {EOS}, {UNKNOWN}")
        self.vocabulary = list(vocabulary)
        self.vocab_size = len(self.vocabulary)
        self.hash = sha256("\n".join(self.vocabulary).encode("utf-8"))
        self._ids = {word: i for i, word in enumerate(self.vocabulary) if i != self.eos_id}

    def encode(self, text: str) -> list[int]:
        """Look up the words; ``<eos>`` in the text becomes ``<unk>``."""
        return [self._ids.get(word, self.unknown_id) for word in text.split()]

    def decode(self, ids: Iterable[int]) -> str:
        """Join the words with blanks."""
        return " ".join(self.vocabulary[i] for i in self.without_eos(ids))

    def is_final(self, ids: Sequence[int]) -> bool:
        """Return True, as words are looked up one by one."""
        return True

    def save(self, folder: Path) -> None:
        """Write the words, one per line, and the description."""
        text = "".join(f"{word}\n" for word in self.vocabulary)
        (folder / VOCABULARY_FILE).write_text(text, encoding="utf-8", newline="\n")
        super().save(folder)


@TOKENIZERS.register
class WordConfig(TokenizerConfig):
    """Words between blanks: those of the training text; all others are <unk>."""

    may_keep_text: ClassVar[bool] = False

    type: Literal["word"] = "word"
    vocab_size: int | None = Field(
        default=None,
        ge=3,
        description="size of the vocabulary, which has the most frequent words; null: every word",
    )

    @property
    def is_trained(self) -> bool:
        """True: the vocabulary consists of the words of the training text."""
        return True

    def build(self, texts: Callable[[], Iterator[str]]) -> WordTokenizer:
        """Count the words of the texts; the ids are sorted by frequency, then alphabetically.

        Raises:
            DataError: The texts have no word.
        """
        counts = Counter(word for text in texts() for word in text.split())
        for special in (EOS, UNKNOWN):
            counts.pop(special, None)
        if not counts:
            raise DataError("the training text has no word to make a vocabulary from")
        words = sorted(counts, key=lambda word: (-counts[word], word))
        return WordTokenizer([EOS, UNKNOWN, *words][: self.vocab_size], "the training text")

    @classmethod
    def load(cls, folder: Path) -> WordTokenizer:
        """Load the words that `save` wrote."""
        path = folder / VOCABULARY_FILE
        return WordTokenizer(read_text(path).split("\n")[:-1], path)
