"""The records of metrics.jsonl as lines of JSON."""

from __future__ import annotations

import json
import math

from zoo.utils.run_folder import Record
from zoo.utils.untyped import Json


def finite(value: Json) -> Json:
    """A value in which null replaces numbers that are not finite, because JSON has none of them."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_line(record: Record) -> str:
    """A record whose numbers are finite, as one line.

    Raises:
        ValueError: A number is not finite.
    """
    return json.dumps(record, allow_nan=False) + "\n"
