"""The axes of a sweep: values with short names, and the changes of a configuration by each value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from zoo.ablate.reserved import reserved
from zoo.config.compose import extend
from zoo.config.yaml import Located
from zoo.utils.errors import did_you_mean


@dataclass(frozen=True, eq=False)
class Level:
    """One value of an axis of a sweep, as changes of the configuration.

    Attributes:
        settings: short name by axis; several axes if these change together.
        changes: mappings to merge over a configuration, one after the other.
        exact: whether each change is the value of one key, which the merged configuration must then have.
    """

    settings: Mapping[str, str]
    changes: tuple[Located, ...]
    exact: bool


@dataclass(frozen=True)
class Combination:
    """A variant as a combination of one level of every axis."""

    levels: tuple[Level, ...]

    @property
    def settings(self) -> dict[str, str]:
        """The short name of the value on every axis."""
        return {axis: name for level in self.levels for axis, name in level.settings.items()}

    @property
    def name(self) -> str:
        """``axis=value,axis=value``."""
        return variant_name(self.settings)

    def matches(self, wanted: Mapping[str, str]) -> bool:
        """Whether the combination has all values in `wanted`, short names by axis."""
        return wanted.items() <= self.settings.items()


def variant_name(settings: Mapping[str, str]) -> str:
    """The name ``axis=value,axis=value``, or ``base`` for the only variant of a sweep without axes."""
    return ",".join(f"{axis}={name}" for axis, name in settings.items()) or "base"


def combinations(content: Located, taken: Mapping[str, str], problems: list[str]) -> list[Combination]:
    """All variants of a sweep file, in the order of the file.

    Args:
        content: the sweep file.
        taken: the keys that the sweep sets itself, see `zoo.ablate.reserved`.
        problems: a list to which one line is added for each problem.
    """
    axes = [_axis(key, values, taken, problems) for key, values in _get(content, "axes", {}).items()]
    axes += [_joint_axes(group, taken, problems) for group in _get(content, "zip", [])]
    kept = [Combination(levels) for levels in product(*axes)]
    if problems:
        return kept
    for rule in _get(content, "exclude", []):
        wanted = select(rule, kept, problems, "exclude")
        if wanted is not None:
            before = len(kept)
            kept = [c for c in kept if not c.matches(wanted)]
            if len(kept) == before:
                problems.append(
                    f"{rule.place}: exclude: {variant_name(wanted)}: excludes nothing that is left"
                )
    return kept


def select(
    rule: Located, variants: Sequence[Combination], problems: list[str], where: str
) -> dict[str, str] | None:
    """Convert a mapping of axes to values into one of axes to short names.

    Args:
        rule: the mapping as it is written in the file.
        variants: the variants to select from.
        problems: a list to which one line is added for each problem.
        where: the key of the sweep file, for messages.

    Returns:
        The short names by axis, or None if an axis or a value does not exist.
    """
    names: dict[str, set[str]] = {}
    for variant in variants:
        for axis, name in variant.settings.items():
            names.setdefault(axis, set()).add(name)
    wanted = {}
    for axis, value in rule.value.items():
        if axis not in names:
            problems.append(f"{value.place}: {where}.{axis}: no such axis{did_you_mean(axis, names)}")
        elif (name := short_name(value.plain())) not in names[axis]:
            problems.append(
                f"{value.place}: {where}.{axis}: no value '{name}'{did_you_mean(name, names[axis])}"
            )
        else:
            wanted[axis] = name
    return wanted if len(wanted) == len(rule.value) else None


def entries_of(
    node: Located, key: str, what: str, variants: Sequence[Combination], problems: list[str], place: str
) -> dict[Combination, Located]:
    """Find the entries of a list that hold for some variants, which each names by `where`.

    Args:
        node: a mapping that may have the list.
        key: the key of the list in `node`.
        what: what an entry gives a variant, for messages.
        variants: the variants to select from.
        problems: a list to which one line is added for each problem.
        place: the key of `node` in the sweep file, for messages.

    Returns:
        The entry of every variant that has one; a variant has at most one.
    """
    entries: dict[Combination, Located] = {}
    for entry in _get(node, key, []):
        wanted = select(entry.value["where"], variants, problems, f"{place}.{key}.where")
        for variant in variants:
            if wanted is not None and variant.matches(wanted):
                if variant in entries:
                    problems.append(
                        f"{entry.place}: {place}.{key}: {variant.name} has {what} of its own already"
                    )
                entries[variant] = entry
        if wanted is not None and not any(variant.matches(wanted) for variant in variants):
            problems.append(f"{entry.place}: {place}.{key}: {variant_name(wanted)}: no such variant")
    return entries


def nest(key: str, value: Located) -> Located:
    """A mapping of mappings with a value at the dotted key ``a.b``."""
    for part in reversed(key.split(".")):
        value = Located({part: value}, value.place)
    return value


def short_name(value: object, full: bool = False) -> str:
    """A value as part of a variant's name.

    Args:
        value: plain data.
        full: whether the fields of a component are named in addition to its type.
    """
    if isinstance(value, dict):
        fields = " ".join(f"{k}={short_name(v, True)}" for k, v in value.items() if k != "type")
        if "type" not in value:
            return fields
        return f"{value['type']}({fields})" if full and fields else str(value["type"])
    if isinstance(value, list | tuple):
        return f"[{' '.join(short_name(item, True) for item in value)}]"
    if isinstance(value, bool) or value is None:
        return "null" if value is None else str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _axis(key: str, values: Located, taken: Mapping[str, str], problems: list[str]) -> list[Level]:
    if isinstance(values.value, dict):
        return _fragments(key, values, taken, problems)
    if not isinstance(values.value, list):
        problems.append(
            f"{values.place}: axes.{key}: value {values.plain()!r}: expected a list of values, or a mapping "
            "of named fragments"
        )
        return []
    _require_two(f"axes.{key}", values, problems)
    names = _short_names(key, values, taken, problems, "axes")
    return [
        Level({key: name}, (nest(key, value),), exact=True)
        for name, value in zip(names, values.value, strict=True)
    ]


def _joint_axes(group: Located, taken: Mapping[str, str], problems: list[str]) -> list[Level]:
    """The levels of an axis of several keys whose values change together."""
    names = {key: _short_names(key, values, taken, problems, "zip") for key, values in group.value.items()}
    lengths = {key: len(column) for key, column in names.items()}
    if len(set(lengths.values())) != 1:
        counts = ", ".join(f"{key} has {length}" for key, length in lengths.items()) or "there are no keys"
        problems.append(f"{group.place}: zip: expected lists of one length: {counts}")
        return []
    _require_two("zip", next(iter(group.value.values())), problems)
    rows = zip(*(values.value for values in group.value.values()), strict=True)
    levels = [
        Level(
            {key: column[i] for key, column in names.items()},
            tuple(nest(key, value) for key, value in zip(names, row, strict=True)),
            exact=True,
        )
        for i, row in enumerate(rows)
    ]
    rows_written = Counter(variant_name(level.settings) for level in levels)
    problems += [
        f"{group.place}: zip: {row} is written twice" for row, count in rows_written.items() if count > 1
    ]
    return levels


def _short_names(
    key: str, values: Located, taken: Mapping[str, str], problems: list[str], where: str
) -> list[str]:
    """The short names of a key's values, which include fields if the types alone are not distinct."""
    if not all(key.split(".")):
        problems.append(f"{values.place}: {where}: '{key}': expected a key such as optimizer.lr")
    of_values = [reserved(nest(key, value), f"{where}.", taken) for value in values.value]
    # Of several values each has the problem; the first line says all of it.
    problems += list(dict.fromkeys(problem for found in of_values for problem in found))[:1]
    plain = [value.plain() for value in values.value]
    names = [short_name(value) for value in plain]
    if len(set(names)) < len(names):
        names = [short_name(value, full=True) for value in plain]
    repeated = sorted({name for name in names if names.count(name) > 1 and where == "axes"})
    problems += [f"{values.place}: {where}.{key}: value '{name}' is written twice" for name in repeated]
    return names


def _fragments(label: str, named: Located, taken: Mapping[str, str], problems: list[str]) -> list[Level]:
    levels = []
    _require_two(f"axes.{label}", named, problems)
    for name, fragment in named.value.items():
        # A fragment that changes nothing may be left empty.
        content = Located({}, fragment.place) if fragment.value is None else fragment
        if not isinstance(content.value, dict):
            problems.append(
                f"{fragment.place}: axes.{label}.{name}: value {fragment.plain()!r}: expected a mapping "
                "to put on top of the configuration (`extends: NAME` for that of a file)"
            )
        else:
            problems += reserved(content, f"axes.{label}.{name}.", taken)
            levels.append(
                Level({label: name}, (extend(content, Path(), problems, imported=True),), exact=False)
            )
    return levels


def _require_two(where: str, values: Located, problems: list[str]) -> None:
    if len(values.value) < 2:
        problems.append(
            f"{values.place}: {where}: expected at least two values; a single one belongs into `base`"
        )


def _get(content: Located, key: str, default: Any) -> Any:  # Any: a mapping or a list of `Located`
    """The value of a key in a sweep file."""
    return content.value[key].value if key in content.value else default
