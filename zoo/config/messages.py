"""Messages for pydantic's errors: the place, the value, the expected values, and a suggestion."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from pydantic_core import ErrorDetails

from zoo.config.registry import Config, Kind, classes_in, is_choice
from zoo.config.yaml import Located, Path, dotted, shortened
from zoo.utils.errors import did_you_mean, joined_message

NOT_A_MAPPING = {"model_type", "model_attributes_type", "dict_type"}
PLAIN_WORDS = {
    r", unable to parse.*": "",
    r"an object|a valid dictionary.*": "a mapping (key: value)",
    r"a valid (array|tuple)": "a list",
    r"a valid integer": "an integer",
    r"a valid ": "a ",
    r"^(?=greater than|less than)": "a number ",
}
"""Regular expressions of pydantic's phrases, and the terms of YAML that replace them."""
NAME = r"^\w[\w.-]*$"
"""The pattern of names of runs and sweeps, which are the names of their folders."""
PATTERNS = {NAME: "letters, digits, '_', '.' and '-', beginning with one of the first three"}
"""Patterns of texts, in words."""
PATH_HINT = "; the path of a class is written my_file.py:Name or package.module.Name"
EXPECTED = ": expected "
KEY = re.compile(r"(?P<keys>\w+(\.\w+)*)(\[(?P<index>\d+)\])?(?=:?\s)")


def describe_all(errors: Iterable[ErrorDetails], root: type[Config], given: Located) -> list[str]:
    """Describe errors in one line for each wrong value.

    Args:
        errors: items of ``ValidationError.errors()``. A value of a union, as ``float | Literal["auto"]``, has
            one for every member of the union.
        root: the class that raised them.
        given: the values that were validated, with their places.

    Returns:
        Lines ``file:line: path: value ...: expected ... or ...; did you mean ...?``, in the order of the
        errors.
    """
    alternatives: dict[str, dict[str, None]] = {}
    errors = list(errors)
    wrong = {error["loc"][:-1] for error in errors}
    for error in errors:
        if error["type"] == "too_short" and error["loc"] in wrong:
            continue  # pydantic counts without the items that are wrong
        head, _, expected = _describe(error, root, given).partition(EXPECTED)
        alternatives.setdefault(head, {})[expected] = None
    return [
        # A suggestion stands at the end of the line.
        head + EXPECTED * any(found) + " or ".join(sorted(filter(None, found), key=lambda e: e.endswith("?")))
        for head, found in alternatives.items()
    ]


def _describe(error: ErrorDetails, root: type[Config], given: Located) -> str:
    path, classes = resolve(root, error["loc"], given)
    explanation = _explanation(error, path, classes, root)
    if error["type"] == "union_tag_invalid":
        path = (*path, "type")
    inner = named_key(explanation, classes[0]) if len(classes) == 1 else ()
    node, _ = given.find((*path, *inner))
    return joined_message(node.place, dotted(path), explanation)


def named_key(message: str, owner: type[Config]) -> Path:
    """The key at the beginning of a message, as in ``clip: norm has ...`` and ``freeze[1] matches ...``.

    Args:
        message: the message of a check that concerns several fields of a class.
        owner: the class.

    Returns:
        The key; empty if the message begins with another word.
    """
    match = KEY.match(message)
    if match is None or (keys := match["keys"].split("."))[0] not in owner.model_fields:
        return ()
    return (*keys, *([int(match["index"])] if match["index"] else []))


def is_written(error: ErrorDetails, root: type[Config], given: Located) -> bool:
    """Whether an error is about a value in `given` or one that is missing there, and not about a default."""
    path, _ = resolve(root, error["loc"], given)
    return error["type"] == "missing" or given.find(path)[1]


def resolve(root: type[Config], loc: Path, given: Located | None = None) -> tuple[Path, list[type[Config]]]:
    """Turn pydantic's location into a path in the file.

    Args:
        root: the class that was validated.
        loc: keys and indices; the tags of unions stand between them.
        given: the values that were validated, by which keys of a mapping that is no component are told
            from the tags of a union; None: such keys are left out.

    Returns:
        The path without the tags, and the classes that the value at the path can be an instance of: one
        class, several if the location ends at a union, none if the value is no component. For an unknown key
        it is the class that lacks the key.
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
            if field is not None:
                classes = classes_in(field)
            elif classes[0].extra_keys is not None:
                classes = [classes[0].extra_keys]
            tag_follows = is_choice(classes)
        elif not classes and given is not None and given.find((*path, key))[1]:
            path += (key,)
    return path, classes


def _take_paths(classes: list[type[Config]]) -> bool:
    """Whether a `type` that selects one of these classes can also be the path of a class outside of zoo."""
    kinds = [kind for kind in Kind.registries.values() if kind.adapt is not None]
    return any(cls in kind.registered.values() for kind in kinds for cls in classes)


def _explanation(error: ErrorDetails, path: Path, classes: list[type[Config]], root: type[Config]) -> str:
    value, kind, context = error["input"], error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return f"unknown key{_suggestion(str(path[-1]), path, classes[0], root)}"
    if kind == "missing":
        return f"missing{_purpose(str(path[-1]), error, root)}"
    types = [c.model_fields["type"].default for c in classes] if len(classes) > 1 else []
    if kind == "union_tag_invalid":
        tag = str(context["tag"])
        path_hint = PATH_HINT if not re.fullmatch(r"[\w-]+", tag) and _take_paths(classes) else ""
        return f"value {_display(tag)}: no such type{path_hint}{did_you_mean(tag, types)}"
    if kind == "union_tag_not_found":
        return f"no `type`; expected one of {', '.join(sorted(types))}"
    if kind in NOT_A_MAPPING and types:
        return f"value {_display(value)}: expected a `type` ({', '.join(sorted(types))}) and its fields"
    if kind == "string_pattern_mismatch":
        form = PATTERNS.get(context["pattern"], f"a text of the pattern {context['pattern']}")
        return f"value {_display(value)}: expected {form}"
    if kind == "too_short":
        return f"value {_display(value)}: expected at least {context['min_length']}"
    message = error["msg"].removeprefix("Value error, ")
    if message.startswith("Input should be "):
        expected = message.removeprefix("Input should be ")
        for words, plainer in PLAIN_WORDS.items():
            expected = re.sub(words, plainer, expected)
        choices = re.findall(r"'([^']*)'", str(context.get("expected", "")))
        near = did_you_mean(value, choices) if isinstance(value, str) and choices else ""
        return f"value {_display(value)}: expected {expected}{near if 'did you mean' in near else ''}"
    return message if isinstance(value, dict) else f"value {_display(value)}: {message}"


def _suggestion(key: str, path: Path, owner: type[Config], root: type[Config]) -> str:
    """A clause that suggests a similar key of the same mapping, or the same key in another section."""
    suggestion = did_you_mean(key, owner.model_fields)
    if "did you mean" in suggestion:
        return suggestion
    for length in reversed(range(len(path) - 1)):
        around = resolve(root, path[:length])[1]
        if len(around) == 1 and key in around[0].model_fields:
            return f"; did you mean '{dotted((*path[:length], key))}'?"
    if len(path) == 1:
        for section, field in root.model_fields.items():
            if any(key in c.model_fields for c in classes_in(field)):
                return f"; did you mean '{section}.{key}'?"
    return suggestion


def _purpose(key: str, error: ErrorDetails, root: type[Config]) -> str:
    _, owners = resolve(root, error["loc"][:-1])
    return _expected(owners[0], key) if len(owners) == 1 else ""


def expected(config: Config, path: Path) -> str:
    """The description of a key, as the end of a message; "" if its class has none.

    Args:
        config: the configuration.
        path: the path of a key; the last part may be an index.
    """
    owner: object = config
    *above, key = [part for part in path if isinstance(part, str)] or [""]
    for part in above:
        owner = getattr(owner, part, None)
    return _expected(type(owner), key) if isinstance(owner, Config) else ""


def _expected(owner: type[Config], key: str) -> str:
    field = owner.model_fields.get(key)
    return f"; expected: {field.description}" if field is not None and field.description else ""


def _display(value: object) -> str:
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
    return shortened(text)
