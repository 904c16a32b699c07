"""Special tokens of a tokenizer that an objective names by their texts."""

from __future__ import annotations

from zoo.data.tokenizers.base import Tokenizer
from zoo.utils.errors import DataError, did_you_mean


def named_token(tokenizer: Tokenizer, token: str, key: str) -> int:
    """The id of a token that is given by its text.

    Args:
        tokenizer: the tokenizer.
        token: the text of the token.
        key: the key of the configuration that names the token, for the message.

    Raises:
        DataError: The tokenizer has no such token.
    """
    known = tokenizer.token_id(token)
    if known is None:
        special = tokenizer.special_tokens
        hint = did_you_mean(token, special) if special else ", and no special tokens that have a text"
        raise DataError(f"{key}: the tokenizer '{tokenizer.type}' has no token {token!r}{hint}")
    return known
