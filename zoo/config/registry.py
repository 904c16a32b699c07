"""Strict configuration classes, and the registries that a YAML key `type:` selects from.

Annotations are evaluated here, unlike in other modules: pydantic would compile those of `Config` again for
each of its hundred and more subclasses.
"""

import importlib
import inspect
import json
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from numbers import Real
from typing import Annotated, Any, ClassVar, Self, TypeAlias, TypeVar, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, SchemaValidator, core_schema

from zoo.config.homes import HOMES
from zoo.config.yaml import Located
from zoo.utils.errors import ConfigError, did_you_mean
from zoo.utils.untyped import JsonObject

LARGEST = (2 - 2**-23) * 2.0**127
"""The largest number of float32, in which weights, slots and constants are computed."""
SMALLEST = 2.0**-126
"""The smallest number of float32 with full precision; what divides by a smaller one overflows."""

INLINED = "inlined"
"""The key of `Config.inlined` in a JSON schema, until `zoo.config.schema` has expanded it."""


def _note_inlined(schema: JsonObject, cls: type["Config"]) -> None:
    if cls.inlined:
        schema[INLINED] = cls.inlined


class Config(BaseModel):
    """A frozen pydantic model in which an unknown key and a number that is not finite are errors.

    The validator of a class is built when it is first needed, because its choices are registered by then.
    """

    method_family: ClassVar[str] = ""
    """The family of methods that a registered class belongs to, for `zoo list`."""
    method_source: ClassVar[str] = ""
    """The paper or the code that the method comes from."""

    assumed: ClassVar[bool] = False
    """Whether the class is the choice if no ``type:`` is written."""

    extra_keys: ClassVar["type[Config] | None"] = None
    """The class of the values of keys that are no fields; None: such keys are errors."""

    inlined: ClassVar[str] = ""
    """The component whose fields a file may write beside those of this class; "": there is none."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: object) -> None:
        """Store the resolved annotations, which pydantic would otherwise compile again for each subclass."""
        known = {name: field.annotation for name, field in cls.__pydantic_fields__.items()}
        known |= dict.fromkeys(cls.__class_vars__, ClassVar[object])
        cls.__annotations__ = {
            name: known.get(name, text) for name, text in inspect.get_annotations(cls).items()
        }

    @model_validator(mode="after")
    def _fits_into_float32(self) -> Self:
        """Refuse numbers that the tensors of a component, a class that ``type:`` selects, cannot have."""
        fields = type(self).model_fields
        for name in fields if "type" in fields else ():
            value = getattr(self, name)
            if not isinstance(value, float) or not value:
                continue
            if abs(value) > LARGEST:
                raise ValueError(f"{name} {value:g}: expected at most {LARGEST:.2g} in size, as in float32")
            if abs(value) < SMALLEST:
                raise ValueError(
                    f"{name} {value:g}: expected 0 or at least {SMALLEST:.2g} in size, as in float32"
                )
        return self

    @classmethod
    def written_out(cls, fields: dict[str, Located]) -> dict[str, Located]:
        """The fields of a file, with those of the inlined component moved into it."""
        if not cls.inlined or cls.inlined in fields or "type" not in fields:
            return fields
        component = {key: value for key, value in fields.items() if key not in cls.model_fields}
        others = {key: value for key, value in fields.items() if key in cls.model_fields}
        return {cls.inlined: Located(component, fields["type"].place), **others}

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        validate_default=True,
        defer_build=True,
        json_schema_extra=_note_inlined,
    )


ConfigT = TypeVar("ConfigT", bound=type[Config])
Built = TypeVar("Built")
ConfigClass: TypeAlias = Any
"""A registered subclass of `Config`. Any: its arguments and attributes depend on registry and name."""


class Kind:
    """A registry of configuration classes of one kind: the choices of a ``type:`` key.

    A decorator on the class registers it; the field ``type: Literal["name"] = "name"`` gives the name, and
    the first line of the docstring is the description that ``zoo list`` prints. A field of the type
    ``Annotated[Base, KIND]`` accepts every class of the registry `KIND` that is derived from `Base`,
    including those that are registered later.

    Attributes:
        name: name of a single choice in messages.
        plural: name of all choices in ``zoo list``.
        homes: the modules of zoo that register choices of this kind.
        adapt: a function that makes a configuration class of a class outside of zoo, given its path in
            ``type:``; None: only registered classes of this kind can be used.
        adapts: the class whose subclasses `adapt` takes.
    """

    registries: ClassVar["dict[str, Kind]"] = {}
    """All registries by their plurals."""

    def __init__(self, name: str, plural: str) -> None:
        self.name = name
        self.plural = plural
        self.homes = HOMES.get(plural, ())
        self._choices: dict[str, ConfigClass] = {}
        self._unions: dict[type[Config], SchemaValidator] = {}
        self.adapt: Callable[[type, str], type[Config]] | None = None
        self.adapts: type = object
        self.registries[plural] = self

    @property
    def choices(self) -> dict[str, ConfigClass]:
        """The registered classes by their names; zoo's own are imported at the first access."""
        for home in self.homes:
            importlib.import_module(home)
        return self._choices

    @property
    def registered(self) -> dict[str, ConfigClass]:
        """A copy of the choices that are registered by now; nothing is imported for it."""
        return dict(self._choices)

    def register(self, cls: ConfigT) -> ConfigT:
        """Add a class under the default of its ``type`` field; usable as a decorator.

        Raises:
            ConfigError: The class is not derived from the base class of this kind, has a constructor, no
                name, or one that is taken, or lacks a class attribute or a method that its base class
                declares and leaves to it, or has a method of the base class with other arguments.
        """
        self._require_base(cls)
        field = cls.__pydantic_fields__.get("type")
        name = None if field is None else field.default
        if not isinstance(name, str):
            raise ConfigError(
                f"{self.name} {cls.__name__} has no name; expected a field `type: Literal['name'] = 'name'`"
            )
        if missing := [f"`{name}`" for name in sorted(cls.__class_vars__) if not hasattr(cls, name)]:
            raise ConfigError(
                f"{self.name} {cls.__name__}: no {' and no '.join(missing)}; expected the class attributes "
                "that the base class declares"
            )
        at_home = f"{cls.__module__}.".startswith(tuple(f"{home}." for home in self.homes))
        taken = self._choices if at_home else self.choices
        if name in taken:
            raise ConfigError(
                f"{self.name} {cls.__name__}: the name '{name}' is taken by {location(taken[name])}"
            )
        if abstract := [f"`{method}`" for method in sorted(cls.__abstractmethods__)]:
            raise ConfigError(
                f"{self.name} {cls.__name__}: no {' and no '.join(abstract)}; expected the methods that the "
                "base class leaves to it"
            )
        if not at_home and (problem := _wrong_arguments(cls, cls.__mro__[1 : cls.__mro__.index(Config)])):
            raise ConfigError(f"{self.name} {cls.__name__}: {problem}")
        self._choices[name] = cls
        self._unions.clear()
        return cls

    def _require_base(self, cls: object) -> None:
        """Refuse what could never be chosen: the classes of zoo's own choices have one base class.

        Raises:
            ConfigError: It is no class that is derived from the base class, or one with a constructor.
        """
        if isinstance(cls, type) and cls.__module__.partition(".")[0] == "zoo":
            return
        name = getattr(cls, "__name__", repr(cls))
        bases = {base for choice in self.choices.values() for base in _roots(choice)}
        if not (isinstance(cls, type) and issubclass(cls, tuple(bases) or Config)):
            expected = " or ".join(sorted(base.__name__ for base in bases or {Config}))
            raise ConfigError(
                f"{self.name} {name}: expected the decorator, without arguments, on a class that is derived "
                f"from {expected}"
            )
        if any("__init__" in vars(base) for base in cls.__mro__[: cls.__mro__.index(BaseModel)]):
            raise ConfigError(
                f"{self.name} {name}: its settings are read as fields, so that it cannot have an __init__; "
                "expected annotations in the class, for instance `gain: float = 1.0`"
            )

    def restore(self, choices: dict[str, ConfigClass]) -> None:
        """Replace the present choices, by those from before a plugin was imported."""
        if choices != self._choices:
            self._choices = choices
            self._unions.clear()

    def __iter__(self) -> Iterator[str]:
        """The names of the choices, sorted."""
        return iter(sorted(self.choices))

    def __getitem__(self, name: str) -> ConfigClass:
        """The class registered as `name`.

        Raises:
            ConfigError: There is no such class.
        """
        if name not in self.choices:
            raise ConfigError(f"no {self.name} called '{name}'{did_you_mean(name, self.choices)}")
        return self.choices[name]

    def find(self, name: object) -> ConfigClass | None:
        """The class registered as `name`, a value of ``type:`` in a file; None: there is no such class."""
        return self.choices.get(name) if isinstance(name, str) else None

    def describe(self) -> dict[str, str]:
        """The name and the first docstring line of every choice."""
        return {n: (c.__doc__ or "").strip().split("\n")[0] for n, c in sorted(self.choices.items())}

    def origins(self) -> dict[str, tuple[str, str]]:
        """The name of every choice, with its family of methods and its paper or code."""
        return {name: (cls.method_family, cls.method_source) for name, cls in sorted(self.choices.items())}

    def derived_from(self, base: type["Config"]) -> dict[str, type[Config]]:
        """The choices that are derived from the class `base`."""
        return {name: cls for name, cls in self.choices.items() if issubclass(cls, base)}

    def __get_pydantic_core_schema__(self, base: type[Config], handler: GetCoreSchemaHandler) -> CoreSchema:
        """The schema of a component, whose choices are looked up when a value is validated."""

        def validated(value: object, info: ValidationInfo) -> object:
            if type(value) in self._choices.values() and isinstance(value, base):
                return value
            return _validated(self._union(base), value, info)

        def described(_: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
            choices: dict[Hashable, CoreSchema] = {
                name: core_schema.definition_reference_schema(definition_key(cls))
                for name, cls in self.derived_from(base).items()
            }
            return handler(core_schema.tagged_union_schema(choices, discriminator="type"))

        return core_schema.with_info_plain_validator_function(
            validated, metadata={"pydantic_js_functions": [described]}
        )

    def _union(self, base: type[Config]) -> SchemaValidator:
        """The union of the classes that are registered now; the field `type` selects the class."""
        if base not in self._unions:
            choices: dict[Hashable, CoreSchema] = {
                name: _deferred(cls) for name, cls in self.derived_from(base).items()
            }
            union = core_schema.tagged_union_schema(choices, discriminator="type")
            self._unions[base] = SchemaValidator(union)
        return self._unions[base]


def _roots(cls: type) -> set[type]:
    """The base classes of a kind that a class is derived from: those directly below `Config`."""
    return {base for base in cls.__mro__ if Config in base.__bases__}


def _wrong_arguments(cls: type, bases: Sequence[type]) -> str | None:
    """What is wrong with a method of one of the base classes that takes other arguments in `cls`."""
    for base in bases:
        for name in sorted(vars(base)):
            declared, own = getattr(base, name), getattr(cls, name)
            if name.startswith("_") or not inspect.isroutine(declared) or not inspect.isroutine(own):
                continue  # a property, for instance
            expected = inspect.signature(declared).parameters
            if any(one.kind is one.VAR_POSITIONAL for one in expected.values()):
                continue  # the class decides how many there are
            required = [
                one
                for one in expected.values()
                if one.default is one.empty and one.kind is not one.VAR_KEYWORD
            ]
            named = {one.name: one for one in required if one.kind is one.KEYWORD_ONLY}
            try:
                inspect.signature(own).bind(*(one for one in required if one.name not in named), **named)
            except TypeError:
                arguments = ", ".join(one.name for one in required)
                return f"{name}{inspect.signature(own)}: expected the arguments ({arguments})"
    return None


def _deferred(cls: type[Config]) -> CoreSchema:
    """The schema of a class whose validator is built when the first value is validated."""

    def validated(value: object, info: ValidationInfo) -> object:
        cls.model_rebuild()
        return _validated(cls.__pydantic_validator__, value, info)

    return core_schema.with_info_plain_validator_function(validated)


def _validated(
    validator: Any,  # Any: the class of a validator wrapped by a pydantic plugin is not public
    value: object,
    info: ValidationInfo,
) -> object:
    """Validate a part of a value: strictly if the value is JSON, except for a default, which is an object."""
    if info.mode == "json" and not isinstance(value, Config):
        return validator.validate_json(json.dumps(value), strict=True)
    return validator.validate_python(value)


def definition_key(cls: type[Config]) -> str:
    """The name of a class among the definitions of a JSON schema."""
    return f"{cls.__module__}.{cls.__qualname__}:{id(cls)}"


def type_of(config: Config) -> str:
    """The name of a registered class under `type:`."""
    return str(type(config).model_fields["type"].default)


def location(cls: type) -> str:
    """The name of a class, and the file and line of its source, for messages."""
    try:
        return f"{cls.__name__} ({inspect.getsourcefile(cls)}:{inspect.getsourcelines(cls)[1]})"
    except (OSError, TypeError):  # a class that was defined in an interpreter
        return f"{cls.__module__}.{cls.__name__}"


def require_size(cls: type, method: str, value: object) -> float:
    """Check what a method that a plugin may have written returned: a factor, a standard deviation.

    Args:
        cls: the class with the method.
        method: the name of the method.
        value: what the method returned.

    Returns:
        The value.

    Raises:
        ConfigError: The value is no finite number of at least 0; the message names the class and its line.
    """
    if isinstance(value, Real) and math.isfinite(number := float(value)) and number >= 0:
        return number
    raise ConfigError(f"{location(cls)}: {method} returned {value!r}; expected a finite number of at least 0")


def require_instance(cls: type, method: str, value: Built, expected: type) -> Built:
    """Check what a method that a plugin may have written returned: its class, and its methods' arguments.

    Args:
        cls: the class with the method.
        method: the name of the method.
        value: what the method returned.
        expected: the class whose instances are expected.

    Returns:
        The value.

    Raises:
        ConfigError: The value is no such instance, or a method of its class has other arguments than that of
            zoo's class which it replaces; the message names the class and its line.
    """
    if isinstance(value, expected):
        own = type(value)
        if expected.__module__.startswith("zoo.") and not own.__module__.startswith("zoo."):
            left = own.__mro__[1 : own.__mro__.index(expected) + 1]
            if problem := _wrong_arguments(own, left):
                raise ConfigError(f"{location(own)}: {problem}")
        return value
    name = expected.__qualname__
    if expected.__module__ != "builtins":
        name = f"{expected.__module__}.{name}"
    raise ConfigError(f"{location(cls)}: {method} returned {type(value).__name__}; expected a {name}")


def classes_in(field: FieldInfo) -> list[type[Config]]:
    """The configuration classes that a field allows at any depth of its annotation."""
    classes: list[type[Config]] = []
    for base, kind in _allowed(field):
        classes += [base] if kind is None else kind.derived_from(base).values()
    return classes


def kind_of(field: FieldInfo) -> Kind | None:
    """The registry from which a field, or each item of a field, is chosen; None: there is none."""
    return next((kind for _, kind in _allowed(field)), None)


def is_choice(classes: list[type[Config]]) -> bool:
    """Whether a key ``type:`` selects among the classes of a field, even if there is only one."""
    return bool(classes) and all("type" in c.model_fields for c in classes)


_ALLOWED: dict[int, tuple[FieldInfo, tuple[tuple[type[Config], "Kind | None"], ...]]] = {}
"""What `_allowed` has found, by the identity of a field, which is kept; a validation asks a hundred times."""


def _allowed(field: FieldInfo) -> tuple[tuple[type[Config], Kind | None], ...]:
    """The configuration classes in a field's type, each with the registry whose base class it is, if any."""

    def walk(annotation: object, metadata: Sequence[object]) -> Iterator[tuple[type[Config], Kind | None]]:
        if get_origin(annotation) is Annotated:
            inner, *metadata = get_args(annotation)
            yield from walk(inner, metadata)
        elif isinstance(annotation, type) and issubclass(annotation, Config):
            yield annotation, next((item for item in metadata if isinstance(item, Kind)), None)
        else:
            for part in get_args(annotation):
                yield from walk(part, ())

    if id(field) not in _ALLOWED:
        _ALLOWED[id(field)] = (field, tuple(walk(field.annotation, field.metadata)))
    return _ALLOWED[id(field)][1]


MODELS = Kind("model", "models")
INITS = Kind("init", "inits")
REPARAMS = Kind("reparam", "reparams")
CLIPS = Kind("clip", "clips")
CONSTRAINTS = Kind("constraint", "constraints")
OPTIMIZERS = Kind("optimizer", "optimizers")
SCHEDULES = Kind("schedule", "schedules")
DATASETS = Kind("data", "data")
OBJECTIVES = Kind("objective", "objectives")
TOKENIZERS = Kind("tokenizer", "tokenizers")
CORPORA = Kind("corpus", "corpora")
TEMPLATES = Kind("template", "templates")
LOGGERS = Kind("logger", "loggers")
TRANSFERS = Kind("transfer rule", "transfers")
