"""The checksum of everything that zoo must notice a damage of: 64 bits, at the speed of memory."""

from __future__ import annotations

import xxhash


def checksum(*parts: bytes | memoryview) -> str:
    """XXH3 of some bytes, as 16 hexadecimal digits.

    It finds accidents, such as a flipped bit on a disk. It does not protect against intention.

    Args:
        *parts: bytes, of which the checksum is that of all of them one after the other.
    """
    state = xxhash.xxh3_64()
    for part in parts:
        state.update(part)
    return state.hexdigest()
