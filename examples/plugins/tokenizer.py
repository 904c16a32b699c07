"""A tokenizer: the characters of the training text, for small models and ciphers."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Literal

from pydantic import Field

from zoo import TOKENIZERS, Tokenizer, TokenizerConfig

FILE = "characters.json"
UNKNOWN = "\N{REPLACEMENT CHARACTER}"


class CharacterTokenizer(Tokenizer):
    """One id per character; id 0 ends a document, id 1 stands for all other characters."""

    type = "characters"
    eos_id = 0

    def __init__(self, characters: str) -> None:
        self.characters = characters
        self.vocab_size = len(characters) + 2
        self.hash = sha256(characters.encode()).hexdigest()
        self._ids = {character: i for i, character in enumerate(characters, 2)}

    def encode(self, text: str) -> list[int]:
        """Look up the characters."""
        return [self._ids.get(character, 1) for character in text]

    def decode(self, ids: Iterable[int]) -> str:
        """Join the characters."""
        return "".join((UNKNOWN + self.characters)[i - 1] for i in self.without_eos(ids))

    def save(self, folder: Path) -> None:
        """Write the characters beside the description."""
        (folder / FILE).write_text(json.dumps(self.characters), encoding="utf-8")
        super().save(folder)


@TOKENIZERS.register
class Characters(TokenizerConfig):
    """The characters of the training text."""

    type: Literal["characters"] = "characters"
    least: int = Field(1, ge=1, description="how often a character must occur to have an id of its own")

    @property
    def is_trained(self) -> bool:
        """True: the result is kept with the prepared data."""
        return True

    def build(self, texts: Callable[[], Iterator[str]]) -> CharacterTokenizer:
        """Count the characters; ids are in the order of Unicode."""
        counts = Counter(character for text in texts() for character in text)
        return CharacterTokenizer("".join(sorted(c for c, count in counts.items() if count >= self.least)))

    @classmethod
    def load(cls, folder: Path) -> CharacterTokenizer:
        """Read what `save` wrote."""
        return CharacterTokenizer(json.loads((folder / FILE).read_text(encoding="utf-8")))
