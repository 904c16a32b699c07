"""YAML whose values carry the file and line where they were written.

Scalars follow YAML 1.2 in reading and writing: ``1e-3`` is a number (a string in YAML 1.1), ``yes`` and
``on`` are strings. Duplicate keys, anchors and tags are problems. All problems of a file are collected; only
a syntax error is raised at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import yaml

from zoo.utils.errors import ConfigError, joined_message
from zoo.utils.untyped import Json

Path: TypeAlias = tuple[str | int, ...]
"""The keys and indices that lead from the root to a value."""

TAG = "tag:yaml.org,2002:"
SCALARS: dict[str, tuple[re.Pattern[str], Callable[[str], object]]] = {
    "null": (re.compile(r"~|null|Null|NULL|"), lambda text: None),
    "bool": (re.compile(r"true|True|TRUE|false|False|FALSE"), lambda text: text.lower() == "true"),
    "int": (re.compile(r"[-+]?\d+(_\d+)*"), int),
    "float": (re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?"), float),
    "str": (re.compile(r"(?s).*"), str),
}
"""YAML 1.2's core schema without octal numbers, infinity and NaN, but with ``1_000_000``."""

COLLECTIONS = frozenset({f"{TAG}map", f"{TAG}seq"})
"""The tags of mappings and lists."""
DEEPEST = 50
"""Largest depth of nested mappings and lists."""
TOO_DEEP = f"nested too deeply; expected at most {DEEPEST} mappings and lists inside each other"
LONGEST_VALUE = 60
"""Largest number of characters of a value that a message shows."""
DIGITS = 40
"""Largest number of digits of an integer."""
SAFE_DEPTH = 500
"""Largest depth at which libyaml may compose a text: it recurses on C's stack, and crashes at some 20,000."""
TOLD_APART = "\t\r\x85\u2028\u2029!?|>"
"""Characters of texts that libyaml and the parser in Python do not always read alike."""


@dataclass(frozen=True)
class Located:
    """A value and the place where it was written.

    Attributes:
        value: a mapping or list of `Located`, or a scalar.
        place: ``file:line``, the text of an override, or "" for values that come from Python.
    """

    value: Any  # Any: as for `Json`
    place: str

    @classmethod
    def of(cls, value: object, place: str = "") -> Located:
        """Wrap a value from Python, and everything in it, with the same place."""
        if isinstance(value, dict):
            return cls({str(k): cls.of(v, place) for k, v in value.items()}, place)
        if isinstance(value, list | tuple):
            return cls([cls.of(v, place) for v in value], place)
        return cls(value, place)

    def plain(self) -> Json:
        """The value without places."""
        if isinstance(self.value, dict):
            return {key: item.plain() for key, item in self.value.items()}
        if isinstance(self.value, list):
            return [item.plain() for item in self.value]
        return self.value

    def find(self, path: Path) -> tuple[Located, bool]:
        """The value at `path` and True, or its nearest ancestor that exists and False."""
        at = self
        for key in path:
            inside = dict(enumerate(at.value)) if isinstance(at.value, list) else at.value
            if not isinstance(inside, dict) or key not in inside:
                return at, False
            at = inside[key]
        return at, True


class _Loader(yaml.SafeLoader):
    """Resolves scalars by `SCALARS` alone."""


_Fast = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


class _FastLoader(_Fast):  # type: ignore[misc,valid-type]  # found at run time
    """The same, where PyYAML was built with libyaml: in a tenth of the time."""


class _Dumper(yaml.SafeDumper):
    """Quotes strings that `SCALARS` would read as something else."""

    def ignore_aliases(self, data: object) -> bool:
        return True


for _class in (_Loader, _FastLoader, _Dumper):
    _class.yaml_implicit_resolvers = {}
    for _name, (_pattern, _) in SCALARS.items():
        if _name != "str":
            _class.add_implicit_resolver(TAG + _name, re.compile(f"(?:{_pattern.pattern})\\Z"), None)


def read_yaml(text: str, file: str, problems: list[str]) -> Located:
    """Read one document.

    Args:
        text: YAML.
        file: name of the file in places.
        problems: a list to which one line is added for each problem.

    Returns:
        A mapping; empty for an empty file.

    Raises:
        ConfigError: The text is not YAML, or not a mapping.
    """
    try:
        root = _compose(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError(f"{file}{line}: not YAML: {reason}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ConfigError(f"{file}: {TOO_DEEP}") from error
    if root is None:
        return Located({}, f"{file}:1")
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(
            f"{file}:{root.start_mark.line + 1}: expected a mapping (key: value), got {_kind(root)}"
        )
    return _Reader(file, problems).read(root, ())


def read_value(text: str, place: str, problems: list[str]) -> Located | None:
    """Read the right-hand side of an override; every value in it has the same `place`.

    Args:
        text: YAML of one value.
        place: the override, for messages.
        problems: a list to which one line is added for each problem.

    Returns:
        The value, or None if the text is not YAML.
    """
    try:
        root = _compose(text)
    except yaml.YAMLError as error:
        problems.append(f"{place}: not a YAML value: {getattr(error, 'problem', error)}")
        return None
    except RecursionError:
        problems.append(f"{place}: {TOO_DEEP}")
        return None
    if root is None or text[root.end_mark.index :].strip():
        problems.append(f"{place}: a comment is no part of a value; expected a text with # in quotes")
        return None
    return Located.of(_Reader(place, problems, has_lines=False).read(root, ()).plain(), place)


def _compose(text: str) -> yaml.Node | None:
    """The node of the only document of a text, None if it is empty; errors are those of the Python parser."""
    # An opening bracket nests by one; in a line, every second character may nest a mapping in a list.
    deepest = text.count("[") + text.count("{") + 2 * max(map(len, text.split("\n")))
    if deepest < SAFE_DEPTH and not any(sign in text for sign in TOLD_APART):
        try:
            return yaml.compose(text, Loader=_FastLoader)
        except yaml.YAMLError:
            pass  # its messages differ from those of the parser that every installation has
    return yaml.compose(text, Loader=_Loader)


def dump_yaml(value: object) -> str:
    """Write plain data as YAML from which `read_yaml` reads equal data."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def dotted(path: Path) -> str:
    """A path as it is written in overrides and messages."""
    return ".".join(map(str, path))


def shortened(text: str) -> str:
    """The beginning of a text, as messages show a value."""
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


class _Reader:
    """Turns composed nodes into `Located` values and collects their problems."""

    def __init__(self, file: str, problems: list[str], has_lines: bool = True) -> None:
        self.file = file
        self.problems = problems
        self.has_lines = has_lines
        self.seen: set[int] = set()

    def read(self, node: yaml.Node, path: Path) -> Located:
        if id(node) in self.seen:
            self.problem(node, path, "anchors and aliases are not supported; use `extends`")
            return Located(None, self.place(node))
        self.seen.add(id(node))
        if len(path) > DEEPEST:
            self.problem(node, path[:3], TOO_DEEP)
            return Located(None, self.place(node))
        if isinstance(node, yaml.CollectionNode):
            self.check_tag(node, path)
        if isinstance(node, yaml.MappingNode):
            return Located(self.mapping(node, path), self.place(node))
        if isinstance(node, yaml.SequenceNode):
            items = [self.read(item, (*path, i)) for i, item in enumerate(node.value)]
            return Located(items, self.place(node))
        return Located(self.scalar(node, path), self.place(node))

    def mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Located]:
        result: dict[str, Located] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.problem(key_node, path, f"expected a plain key, got {_kind(key_node)}")
                continue
            self.check_key(key_node, path)
            key = self.text(key_node, path)
            if key in result:
                self.problem(key_node, (*path, key), f"written twice, first at {result[key].place}")
            result[key] = Located(self.read(value_node, (*path, key)).value, self.place(key_node))
        return result

    def scalar(self, node: yaml.Node, path: Path) -> object:
        name = node.tag.removeprefix(TAG)
        if name not in SCALARS:
            self.problem(node, path, f"tag '{node.tag}' is not supported")
            return None
        pattern, convert = SCALARS[name]
        if not pattern.fullmatch(node.value):
            self.problem(node, path, f"value {shortened(repr(node.value))}: expected {name}")
            return None
        if name == "int" and len(node.value) > DIGITS:
            self.problem(node, path, f"a number of {len(node.value)} digits; expected at most {DIGITS}")
            return None
        return self.text(node, path) if name == "str" else convert(node.value)

    def text(self, node: yaml.Node, path: Path) -> str:
        """The text of a scalar; surrogate pairs, as JSON writes some characters, are joined."""
        try:
            text = str(node.value).encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            self.problem(node, path, "half a surrogate pair, which no UTF-8 text can hold")
            return ""
        if "\0" in text:
            self.problem(node, path, "the character U+0000, which no name of a file can hold")
        return text

    def place(self, node: yaml.Node) -> str:
        return f"{self.file}:{node.start_mark.line + 1}" if self.has_lines else self.file

    def check_tag(self, node: yaml.Node, path: Path) -> None:
        """Report a tag that is not one of YAML's own, which a reader of the text would take for an order."""
        if node.tag not in COLLECTIONS:
            self.problem(node, path, f"tag '{node.tag}' is not supported")

    def check_key(self, node: yaml.ScalarNode, path: Path) -> None:
        """Report a tag or an anchor of a key."""
        if node.tag.removeprefix(TAG) not in SCALARS or id(node) in self.seen:
            self.problem(node, path, "tags, anchors and aliases of keys are not supported")
        self.seen.add(id(node))

    def problem(self, node: yaml.Node, path: Path, message: str) -> None:
        self.problems.append(joined_message(self.place(node), dotted(path), message))


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    return "a list" if isinstance(node, yaml.SequenceNode) else shortened(repr(node.value))
