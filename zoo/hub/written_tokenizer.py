"""A tokenizer beside an exported model, kept only if transformers reads the same tokens with it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from zoo.data import Tokenizer
from zoo.data.tokenizers.base import DESCRIPTION
from zoo.hub.quiet import quiet
from zoo.hub.special import add_special
from zoo.hub.tokenizer import read_plainly, samples, write_tokenizer
from zoo.utils.atomic import remove


def add_tokenizer(tokenizer: Tokenizer, folder: Path, special: Sequence[str], end: int | None) -> str | None:
    """Write the tokenizer, and have transformers, if it is there, read texts with it.

    Args:
        tokenizer: of the model.
        folder: the model's, gets the tokenizer's files.
        special: names of the tokens behind the tokenizer's.
        end: the token that ends what the model writes.

    Returns:
        Why there is none, and then nothing was written; None: there is one.
    """
    apart = folder / "tokenizer"  # where it can be tried, and leaves nothing behind if it fails
    apart.mkdir()
    try:
        reason = write_tokenizer(tokenizer, apart)
        if reason is None and special and end is not None:
            (apart / DESCRIPTION).unlink()  # which knows nothing of them
            add_special(apart, special, tokenizer.vocab_size, end)
        if reason is None and not _reads_the_same(tokenizer, apart, special):
            read_plainly(apart)
            if not _reads_the_same(tokenizer, apart, special):
                reason = "transformers reads other tokens with it"
        if reason is None:
            for file in apart.iterdir():
                file.rename(folder / file.name)
        return reason
    finally:
        remove(apart)


def _reads_the_same(tokenizer: Tokenizer, folder: Path, special: Sequence[str]) -> bool:
    """Whether transformers has the tokens of ours for a few texts; without it nobody can tell."""
    if find_spec("transformers") is None:
        return True
    import transformers

    texts, first = samples(tokenizer), tokenizer.vocab_size
    try:
        with quiet(transformers.utils.logging):
            theirs = transformers.AutoTokenizer.from_pretrained(folder)
        numbers = theirs.convert_tokens_to_ids(list(special))
        read = [theirs.encode(text, add_special_tokens=False) for text in texts]
    except Exception:  # whatever a class raises that is not made for this file
        return False
    same = read == [tokenizer.encode(text) for text in texts]
    return same and numbers == list(range(first, first + len(special)))
