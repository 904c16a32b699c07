"""The arguments of an optimizer's constructor as the fields of a configuration."""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError
from torch.optim import Optimizer

from zoo.utils.errors import ConfigError

Annotation: TypeAlias = Any
"""An evaluated annotation: a class, a union, a literal. Any: Python has no common type for all of these."""
FieldDefinitions: TypeAlias = dict[str, Any]
"""Fields by name, as arguments of `pydantic.create_model`: a pair of an `Annotation` and a default.

Any: pydantic declares them so.
"""

SCALARS = (float, int, bool, str, type(None))


def constructor_arguments(cls: type[Optimizer]) -> dict[str, inspect.Parameter]:
    """The named arguments of a constructor, without the parameters to train.

    If it takes ``**kwargs``, the optional arguments of its base classes are included. Their default is None,
    for "not given": the constructor may have a default of its own for them.

    Args:
        cls: A class of optimizers.

    Raises:
        ConfigError: The first argument is not the parameters to train, or they are expected with names.
    """
    arguments: dict[str, inspect.Parameter] = {}
    first = ""
    for base in cls.__mro__[: cls.__mro__.index(Optimizer)]:
        if "__init__" not in vars(base):
            continue
        signature = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
        named = [p for p in signature if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        first = first or next((p.name for p in named), "")
        for parameter in named:
            if parameter.name == first or (base is not cls and parameter.default is parameter.empty):
                continue
            hinted = parameter.replace(annotation=_hint(base, parameter))
            arguments.setdefault(parameter.name, hinted if base is cls else _not_given(hinted))
        if all(p.kind is not p.VAR_KEYWORD for p in signature):
            break
    if "param" not in first:
        raise ConfigError(f"its constructor takes `{first}`, expected the parameters to train first")
    if "named" in first:
        raise ConfigError(
            f"its constructor takes `{first}`, pairs of a name and a parameter; expected one that takes "
            "groups of parameters, as torch.optim's do: zoo has other names than the class may look for"
        )
    return arguments


def fields(arguments: dict[str, inspect.Parameter]) -> FieldDefinitions:
    """Definitions of pydantic fields for the arguments that a YAML file can give.

    An argument whose default cannot be written in YAML (a function, a dtype, infinity) keeps its default.

    Raises:
        ConfigError: An argument without default cannot be given in YAML.
    """
    definitions = {}
    for name, argument in arguments.items():
        kind = _simple(argument.annotation)
        if argument.default is argument.empty:
            if kind is None and argument.annotation is not Any:
                raise ConfigError(f"it needs `{name}`, which a configuration cannot give")
            definitions[name] = (Any if kind is None else kind, Field(description=f"argument {name}"))
        elif _is_plain(argument.default):
            kind = kind if _accepts(kind, argument.default) else _kind_of(argument.default)
            definitions[name] = (kind, Field(argument.default, description=f"argument {name}"))
    return definitions


def _not_given(argument: inspect.Parameter) -> inspect.Parameter:
    """An argument of a base class, of the same type, with the default None."""
    if argument.name == "lr" or not _is_plain(argument.default):
        return argument
    kind = _simple(argument.annotation)
    if kind is None or not _accepts(kind, argument.default):
        kind = _kind_of(argument.default)
    return argument.replace(annotation=Any if kind is Any else kind | None, default=None)


def _hint(owner: type, parameter: inspect.Parameter) -> Annotation:
    """The annotation of an argument; Any where there is none or it cannot be evaluated."""
    if parameter.annotation is parameter.empty:
        return Any
    try:
        return get_type_hints(vars(owner)["__init__"])[parameter.name]
    except (NameError, TypeError, AttributeError):
        return Any


def _simple(annotation: Annotation) -> Annotation:
    """The part of an annotation that plain values can satisfy; None if there is no such part."""
    origin: Annotation = get_origin(annotation)
    parts = get_args(annotation)
    if annotation in SCALARS or origin is Literal:
        return annotation
    if origin in (Union, types.UnionType):
        kinds = [kind for part in parts if (kind := _simple(part)) is not None]
        return reduce(or_, kinds) if kinds else None
    if origin in (tuple, list, dict, Sequence):
        kinds = [part if part is Ellipsis else _simple(part) for part in parts]
        container = list if origin is Sequence else origin
        return None if None in kinds else container[tuple(kinds)]
    return None


def _kind_of(default: object) -> Annotation:
    """The type that a default implies for an argument without a simple annotation."""
    if isinstance(default, bool | str):
        return type(default)
    if isinstance(default, int | float):
        return int | float
    return tuple[Any, ...] if isinstance(default, tuple) else Any


def _accepts(kind: Annotation, default: object) -> bool:
    if kind is None:
        return False
    try:
        TypeAdapter(kind).validate_python(default)
    except ValidationError:
        return False
    return True


def _is_plain(value: object) -> bool:
    """Whether a value can be written in YAML."""
    return all(
        isinstance(leaf, SCALARS) and not (isinstance(leaf, float) and not math.isfinite(leaf))
        for leaf in _leaves(value)
    )


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value
