"""Frozen, strict configuration classes, and the registries that YAML's ``type:`` selects from."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Annotated, Any, ClassVar, Generic, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field

from zoo.utils.errors import ConfigError, did_you_mean


class Config(BaseModel):
    """A frozen pydantic model in which an unknown key is an error."""

    assumed: ClassVar[bool] = False
    """Whether it is the choice where no ``type:`` is written."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


ConfigT = TypeVar("ConfigT", bound=type[Config])


class Kind(Generic[ConfigT]):
    """A registry of configuration classes of one kind: the choices of a ``type:`` key.

    Registering is one decorator on the class; its field ``type: Literal["name"] = "name"`` gives
    the name, its first docstring line the description that ``zoo list`` prints.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.choices: dict[str, Any] = {}

    def register(self, cls: ConfigT) -> ConfigT:
        """Add a class under the default of its ``type`` field; usable as a decorator."""
        fields: dict[str, Any] = cls.__pydantic_fields__
        name = fields["type"].default
        if not isinstance(name, str) or name in self.choices:
            raise ValueError(f"{self.name} '{name}' is registered twice or has no name")
        self.choices[name] = cls
        return cls

    def __getitem__(self, name: str) -> Any:
        """The class registered as `name`.

        Raises:
            ConfigError: there is none.
        """
        if name not in self.choices:
            raise ConfigError(f"no {self.name} called '{name}'{did_you_mean(name, self.choices)}")
        return self.choices[name]

    def describe(self) -> dict[str, str]:
        """Name and first docstring line of every choice."""
        return {n: (c.__doc__ or "").strip().split("\n")[0] for n, c in sorted(self.choices.items())}


def choice(kind: Kind[Any]) -> Any:
    """The type of a field whose key ``type:`` selects a class registered in `kind` so far."""
    return Annotated[reduce(or_, kind.choices.values()), Field(discriminator="type")]


def classes_in(annotation: Any) -> list[type[Config]]:
    """The configuration classes that the annotation of a field allows, however nested."""
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return [annotation]
    return [found for part in get_args(annotation) for found in classes_in(part)]


def is_choice(classes: list[type[Config]]) -> bool:
    """Whether a key ``type:`` selects among the classes of a field, or would if there were more."""
    return bool(classes) and all("type" in c.model_fields for c in classes)


MODELS: Kind[Any] = Kind("model")
INITS: Kind[Any] = Kind("init")
REPARAMS: Kind[Any] = Kind("reparam")
OPTIMIZERS: Kind[Any] = Kind("optimizer")
SCHEDULES: Kind[Any] = Kind("schedule")
TOKENIZERS: Kind[Any] = Kind("tokenizer")
CORPORA: Kind[Any] = Kind("corpus")
OBJECTIVES: Kind[Any] = Kind("objective")
DATASETS: Kind[Any] = Kind("data")
