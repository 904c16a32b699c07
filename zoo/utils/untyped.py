"""Type names for values without an exact type, each with the reason.

Elsewhere, a line with `Any` says why in a comment.
"""

from typing import Any, TypeAlias

Json: TypeAlias = Any
"""None, a boolean, a number, a string, or a list or object of such values.

Any: with a recursive union, a reader of a value would have to check the type of each level above it. Data of
users is checked where it is read, and data that zoo wrote where its file is opened.
"""

JsonObject: TypeAlias = dict[str, Json]
"""An object of JSON, or a mapping of YAML as Python has it."""

Kwargs: TypeAlias = dict[str, Any]
"""Keyword arguments that are put together before a call.

Any: their types differ, and a `TypedDict` would repeat the signature of the called function.
"""

Passed: TypeAlias = Any
"""An argument that is passed on as it is.

Any: its type is in the signature of the function that receives it, which would be repeated.
"""
