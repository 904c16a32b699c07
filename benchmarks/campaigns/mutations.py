"""Damages of files: what disks, editors, other programs and hostile people do to them."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

VALUES: list[Any] = [
    None,
    [],
    {},
    "",
    0,
    -1,
    2**64,
    1e308,
    float("nan"),
    "x" * 100_000,
    True,
    [[]],
    {"a": {}},
]


def flip(data: bytes, chance: random.Random) -> bytes:
    """Flip one bit."""
    place = chance.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]


def cut(data: bytes, chance: random.Random) -> bytes:
    """Leave out the end."""
    return data[: chance.randrange(len(data))]


def zeros(data: bytes, chance: random.Random) -> bytes:
    """Overwrite a range with zeros, as a file system does after a loss of power."""
    begin = chance.randrange(len(data))
    end = min(len(data), begin + chance.choice([1, 8, 512, 4096]))
    return data[:begin] + bytes(end - begin) + data[end:]


def insert(data: bytes, chance: random.Random) -> bytes:
    """Put bytes between others."""
    place = chance.randrange(len(data) + 1)
    return data[:place] + chance.randbytes(chance.choice([1, 7, 300])) + data[place:]


def drop(data: bytes, chance: random.Random) -> bytes:
    """Leave out a range."""
    begin = chance.randrange(len(data))
    return data[:begin] + data[begin + chance.choice([1, 9, 200]) :]


def random_bytes(data: bytes, chance: random.Random) -> bytes:
    """Replace everything."""
    return chance.randbytes(chance.choice([0, 1, 100, 5000]))


def nested(data: bytes, chance: random.Random) -> bytes:
    """Replace everything by brackets."""
    return chance.choice([b"[", b'{"a":', b"- ", b"{a: "]) * chance.choice([100, 5000, 200_000])


def digits(data: bytes, chance: random.Random) -> bytes:
    """Make a number in a text very long."""
    places = [i for i, byte in enumerate(data) if chr(byte).isdigit()]
    place = chance.choice(places) if places else 0
    return data[:place] + b"9" * chance.choice([20, 400, 5000]) + data[place:]


def json_value(data: bytes, chance: random.Random) -> bytes:
    """Replace a value of a JSON text, of one of its lines, or of a safetensors header."""
    header = int.from_bytes(data[:8], "little")
    if 2 < header <= len(data) - 8 and data[8:9] == b"{":
        text = _changed(data[8 : 8 + header], chance)
        return len(text).to_bytes(8, "little") + text + data[8 + header :]
    lines = data.splitlines(keepends=True)
    if len(lines) > 1 and lines[0].lstrip()[:1] == b"{" and lines[0].rstrip()[-1:] == b"}":
        i = chance.randrange(len(lines))
        return b"".join([*lines[:i], _changed(lines[i], chance) + b"\n", *lines[i + 1 :]])
    return _changed(data, chance)


def _changed(text: bytes, chance: random.Random) -> bytes:
    try:
        content = json.loads(text)
    except ValueError:
        return flip(text, chance) if text else text
    places = places_of(content)
    if not places:
        return json.dumps(chance.choice(VALUES)).encode()
    owner, key = chance.choice(places)
    if chance.random() < 0.3 and isinstance(owner, dict):
        del owner[key]
    else:
        owner[key] = chance.choice(VALUES)
    return json.dumps(content).encode()


def places_of(content: Any) -> list[tuple[Any, Any]]:
    """Everything inside nested mappings and lists: what it is in, and its key or index."""
    if not isinstance(content, dict | list):
        return []
    items = content.items() if isinstance(content, dict) else enumerate(content)
    return [place for key, item in items for place in ((content, key), *places_of(item))]


BYTES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    *(flip,) * 3,
    *(json_value,) * 3,
    *(cut, zeros, insert, drop, random_bytes, nested, digits),
)


def replace(path: Path, kind: str) -> None:
    """Put something in the place of a file."""
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path.name)


PLACES = ("missing", "folder", "fifo", "zero", "loop")


def damage(path: Path, chance: random.Random) -> str:
    """Damage a file; returns in words how."""
    if chance.random() < 0.12:
        kind = chance.choice(PLACES)
        replace(path, kind)
        return kind
    mutation = chance.choice(BYTES)
    data = path.read_bytes()
    path.unlink()  # it may be linked to another one
    path.write_bytes(mutation(data, chance) if data else b"\0")
    return mutation.__name__
