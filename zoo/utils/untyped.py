"""Names for what has no exact type, each with the reason.

Elsewhere, a line with `Any` says why in a comment.
"""

from typing import Any, TypeAlias

Json: TypeAlias = Any
"""None, a boolean, a number, a string, or a list or object of such values.

Any: with a recursive union, whoever reads a value would have to ask for the type of each level above it. Data
of users is checked where it is read, and what zoo wrote itself where its file is opened.
"""

JsonObject: TypeAlias = dict[str, Json]
"""An object of JSON, or a mapping of YAML as Python has it."""

Kwargs: TypeAlias = dict[str, Any]
"""Keyword arguments that are put together before a call.

Any: their types differ, and a `TypedDict` would repeat the signature of what is called.
"""

Passed: TypeAlias = Any
"""An argument that is passed on as it is.

Any: its type is in the signature of what it is passed to, which would be repeated.
"""
