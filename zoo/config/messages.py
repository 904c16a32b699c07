"""What pydantic finds wrong, as lines that say where, which value, what was expected, what was meant."""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic_core import ErrorDetails

from zoo.config.registry import Config, classes_in, is_choice
from zoo.config.yaml import Located, Path, dotted
from zoo.utils.errors import did_you_mean

NOT_A_MAPPING = {"model_type", "model_attributes_type", "dict_type"}
PLAIN_WORDS = {
    r", unable to parse.*": "",
    r"an object|a valid dictionary.*": "a mapping (key: value)",
    r"a valid (array|tuple)": "a list",
    r"a valid integer": "an integer",
    r"a valid ": "a ",
}
"""pydantic's words, and YAML's."""
LONGEST_VALUE = 60


def describe(error: ErrorDetails, root: type[Config], given: Located) -> str:
    """One line for one error.

    Args:
        error: from ``ValidationError.errors()``.
        root: the class that was validated.
        given: what it was given, with places.

    Returns:
        ``file:line: path: value ...: expected ...; did you mean ...?``
    """
    path, classes = resolve(root, error["loc"])
    what = _what(error, path, classes, root)
    if error["type"] == "union_tag_invalid":
        path = (*path, "type")
    at, _ = given.find(path)
    return ": ".join(part for part in (at.place, dotted(path), what) if part)


def is_written(error: ErrorDetails, root: type[Config], given: Located) -> bool:
    """Whether an error is about something that is in `given`, or missing there; not about a default."""
    path, _ = resolve(root, error["loc"])
    return error["type"] == "missing" or given.find(path)[1]


def resolve(root: type[Config], loc: Path) -> tuple[Path, list[type[Config]]]:
    """Turn pydantic's location into a path in the file.

    Args:
        root: the class that was validated.
        loc: keys and indices, with the tags of discriminated unions between them.

    Returns:
        The path without the tags, and the classes that the last key is looked up in: one, several
        if the location ends at a union, none for anything that is not a component.
    """
    path: Path = ()
    classes, tag_follows = [root], False
    for key in loc:
        tagged = [c for c in classes if tag_follows and c.model_fields["type"].default == key]
        tag_follows = False
        if tagged:
            classes = tagged
        elif isinstance(key, int):
            path += (key,)
            tag_follows = is_choice(classes)
        elif len(classes) == 1:
            path += (key,)
            field = classes[0].model_fields.get(key)
            classes = classes if field is None else classes_in(field)
            tag_follows = is_choice(classes)
    return path, classes


def _what(error: ErrorDetails, path: Path, classes: list[type[Config]], root: type[Config]) -> str:
    value, kind, context = error["input"], error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return f"unknown key{_meant(str(path[-1]), path, classes[0], root)}"
    if kind == "missing":
        return f"missing{_purpose(str(path[-1]), error, root)}"
    types = [c.model_fields["type"].default for c in classes] if len(classes) > 1 else []
    if kind == "union_tag_invalid":
        return f"value {_shown(context['tag'])}: no such type{did_you_mean(str(context['tag']), types)}"
    if kind == "union_tag_not_found":
        return f"no `type`; expected one of {', '.join(sorted(types))}"
    if kind in NOT_A_MAPPING and types:
        return f"value {_shown(value)}: expected a `type` ({', '.join(sorted(types))}) and its fields"
    message = error["msg"].removeprefix("Value error, ")
    if message.startswith("Input should be "):
        expected = message.removeprefix("Input should be ")
        for words, plainer in PLAIN_WORDS.items():
            expected = re.sub(words, plainer, expected)
        choices = re.findall(r"'([^']*)'", str(context.get("expected", "")))
        near = did_you_mean(value, choices) if isinstance(value, str) and choices else ""
        return f"value {_shown(value)}: expected {expected}{near if 'did you mean' in near else ''}"
    return message if isinstance(value, dict) else f"value {_shown(value)}: {message}"


def _meant(key: str, path: Path, owner: type[Config], root: type[Config]) -> str:
    """What an unknown key may have been meant to be: here, or, for a key at the top, further down."""
    here = did_you_mean(key, owner.model_fields)
    if len(path) > 1 or "did you mean" in here:
        return here
    for section, field in root.model_fields.items():
        if any(key in c.model_fields for c in classes_in(field)):
            return f"; did you mean '{section}.{key}'?"
    return here


def _purpose(key: str, error: ErrorDetails, root: type[Config]) -> str:
    _, owners = resolve(root, error["loc"][:-1])
    field = owners[0].model_fields.get(key) if len(owners) == 1 else None
    return f"; expected: {field.description}" if field is not None and field.description else ""


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."
