"""The axes of a sweep: values with short names, and what each puts on top of a configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from zoo.config.compose import extend
from zoo.config.yaml import Located
from zoo.utils.errors import did_you_mean

RESERVED = {"seed": "`seeds`", "name": "the sweep, which names its runs", "train.runs_dir": "`out`"}
"""Keys that no axis can have, and what says them."""


@dataclass(frozen=True)
class Level:
    """One value of an axis.

    Attributes:
        settings: axis to short name; several axes if they change together.
        changes: mappings to put on top of a configuration, one after the other.
        exact: whether each change is one key's value, which must then be found in the result.
    """

    settings: Mapping[str, str]
    changes: tuple[Located, ...]
    exact: bool


@dataclass(frozen=True)
class Combination:
    """A variant: one level of every axis."""

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
        """Whether it has all the values in `wanted`, axis to short name."""
        return wanted.items() <= self.settings.items()


def variant_name(settings: Mapping[str, str]) -> str:
    """``axis=value,axis=value``."""
    return ",".join(f"{axis}={name}" for axis, name in settings.items())


def combinations(given: Located, folder: Path, problems: list[str]) -> list[Combination]:
    """All variants of a sweep file, in its order.

    Args:
        given: the sweep file.
        folder: what fragments' `extends` are relative to.
        problems: gets one line for each thing that is wrong.
    """
    axes = [_axis(key, values, folder, problems) for key, values in _items(given, "axes")] + [
        _together(group, problems) for group in _list(given, "zip")
    ]
    found = [Combination(levels) for levels in product(*axes)]
    if problems:
        return found
    for rule in _list(given, "exclude"):
        wanted = select(rule, found, problems, "exclude")
        left = [c for c in found if wanted is None or not c.matches(wanted)]
        if wanted is not None and len(left) == len(found):
            problems.append(f"{rule.place}: exclude: {variant_name(wanted)}: excludes nothing that is left")
        found = left
    return found


def select(
    rule: Located, among: Sequence[Combination], problems: list[str], where: str
) -> dict[str, str] | None:
    """Read a mapping axis: value as short names; None if an axis or a value does not exist.

    Args:
        rule: as written.
        among: variants.
        problems: gets one line for each thing that is wrong.
        where: key of the sweep file, for messages.
    """
    names: dict[str, set[str]] = {}
    for combination in among:
        for axis, name in combination.settings.items():
            names.setdefault(axis, set()).add(name)
    wanted, before = {}, len(problems)
    for axis, value in rule.value.items():
        if axis not in names:
            problems.append(f"{value.place}: {where}.{axis}: no such axis{did_you_mean(axis, names)}")
        elif (name := short(value.plain())) not in names[axis]:
            problems.append(
                f"{value.place}: {where}.{axis}: no value '{name}'{did_you_mean(name, names[axis])}"
            )
        else:
            wanted[axis] = name
    return wanted if len(problems) == before else None


def nest(key: str, value: Located) -> Located:
    """``a.b`` and a value as a mapping of mappings."""
    for part in reversed(key.split(".")):
        value = Located({part: value}, value.place)
    return value


def short(value: Any, full: bool = False) -> str:
    """A value as part of a variant's name.

    Args:
        value: plain data.
        full: name a component's fields as well.
    """
    if isinstance(value, dict):
        fields = " ".join(f"{k}={short(v, True)}" for k, v in value.items() if k != "type")
        if "type" not in value:
            return fields
        return f"{value['type']}({fields})" if full and fields else str(value["type"])
    if isinstance(value, list | tuple):
        return f"[{' '.join(short(item, True) for item in value)}]"
    if isinstance(value, bool) or value is None:
        return "null" if value is None else str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _axis(key: str, values: Located, folder: Path, problems: list[str]) -> list[Level]:
    if isinstance(values.value, dict):
        return _fragments(key, values, folder, problems)
    if not isinstance(values.value, list):
        problems.append(
            f"{values.place}: axes.{key}: value {values.plain()!r}: expected a list of values, or a mapping "
            "of named fragments"
        )
        return []
    _require_two(f"axes.{key}", values, problems)
    names = _keyed(key, values, problems)
    return [
        Level({key: name}, (nest(key, value),), exact=True)
        for name, value in zip(names, values.value, strict=True)
    ]


def _together(group: Located, problems: list[str]) -> list[Level]:
    columns = {key: _keyed(key, values, problems, "zip") for key, values in group.value.items()}
    lengths = {key: len(names) for key, names in columns.items()}
    if len(set(lengths.values())) != 1:
        told = ", ".join(f"{key} has {length}" for key, length in lengths.items()) or "there are no keys"
        problems.append(f"{group.place}: zip: expected lists of one length: {told}")
        return []
    _require_two("zip", next(iter(group.value.values())), problems)
    rows = zip(*(values.value for values in group.value.values()), strict=True)
    return [
        Level(
            {key: names[i] for key, names in columns.items()},
            tuple(nest(key, value) for key, value in zip(columns, row, strict=True)),
            exact=True,
        )
        for i, row in enumerate(rows)
    ]


def _keyed(key: str, values: Located, problems: list[str], where: str = "axes") -> list[str]:
    """The short names of a key's values."""
    if key in RESERVED:
        problems.append(f"{values.place}: {where}.{key}: cannot be an axis; it belongs to {RESERVED[key]}")
    if not all(key.split(".")):
        problems.append(f"{values.place}: {where}: '{key}': expected a key such as optimizer.lr")
    plain = [value.plain() for value in values.value]
    names = [short(value) for value in plain]
    if len(set(names)) < len(names):
        names = [short(value, full=True) for value in plain]
    twice = sorted({name for name in names if names.count(name) > 1 and where == "axes"})
    problems += [f"{values.place}: {where}.{key}: value '{name}' is written twice" for name in twice]
    return names


def _fragments(label: str, named: Located, folder: Path, problems: list[str]) -> list[Level]:
    levels = []
    _require_two(f"axes.{label}", named, problems)
    for name, fragment in named.value.items():
        # A fragment that changes nothing may be written as nothing.
        inside = Located({}, fragment.place) if fragment.value is None else fragment
        if not isinstance(inside.value, dict):
            problems.append(
                f"{fragment.place}: axes.{label}.{name}: value {fragment.plain()!r}: expected a mapping "
                "to put on top of the configuration (`extends: NAME` for that of a file)"
            )
        else:
            changes = extend(inside, folder, problems)
            levels.append(Level({label: name}, (changes,), exact=False))
    return levels


def _require_two(where: str, values: Located, problems: list[str]) -> None:
    if len(values.value) < 2:
        problems.append(
            f"{values.place}: {where}: expected at least two values; a single one belongs into `base`"
        )


def _items(given: Located, key: str) -> Iterable[tuple[str, Located]]:
    return given.value[key].value.items() if key in given.value else ()


def _list(given: Located, key: str) -> Iterable[Located]:
    return given.value[key].value if key in given.value else ()
