"""Names for plain data, whose types are known only where it is read: what JSON and YAML can hold."""

from typing import Any, TypeAlias

Json: TypeAlias = Any
"""None, a boolean, a number, a string, or a list or object of such values.

Any: with a recursive union, whoever reads a value would have to ask for the type of each level above it. Data
of users is checked where it is read, and what zoo wrote itself where its file is opened.
"""

JsonObject: TypeAlias = dict[str, Json]
"""An object of JSON, or a mapping of YAML as Python has it."""
