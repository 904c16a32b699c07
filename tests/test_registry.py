"""Registries: what is registered at any time may be named in a configuration from then on."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import Field, TypeAdapter, ValidationError

from zoo.config.registry import (
    CORPORA,
    DATASETS,
    INITS,
    MODELS,
    OBJECTIVES,
    OPTIMIZERS,
    REPARAMS,
    SCHEDULES,
    TRANSFERS,
    Config,
    Kind,
    classes_in,
)
from zoo.data.corpora import TextCorpus
from zoo.data.dataset import DataConfig
from zoo.data.objectives import Objective
from zoo.data.text.dataset import TextData
from zoo.init.schemes import Init
from zoo.init.transfer import Transfer
from zoo.models import ClassifierConfig, DecoderConfig, GPTConfig, ModelConfig
from zoo.optim import OptimizerConfig, ScheduleConfig
from zoo.reparam import Reparam
from zoo.run.catalogue import catalogue
from zoo.run.config import json_schema, load_config
from zoo.utils.errors import ConfigError


@contextmanager
def registered(kind: Kind, cls: type[Config]) -> Iterator[None]:
    """The class is registered within the block."""
    before = dict(kind.choices)
    kind.register(cls)
    try:
        yield
    finally:
        kind.restore(before)


class Halved(ScheduleConfig):
    """Half of the learning rate."""

    type: Literal["halved"] = "halved"
    share: float = 0.5

    def after_warmup(self, step: int, peak: int, length: int) -> float:
        return self.share


class Silence(TextCorpus):
    """No text at all."""

    type: Literal["silence"] = "silence"  # type: ignore[assignment]
    paths: list[str] = Field([])


class Wide(GPTConfig):
    """A wide GPT."""

    type: Literal["wide"] = "wide"  # type: ignore[assignment]


def test_a_class_registered_after_the_first_config_was_read_can_be_named() -> None:
    load_config("gpt-tiny")
    with pytest.raises(ConfigError, match=r"schedule\.type: value 'halved': no such type"):
        load_config("gpt-tiny", ["schedule=halved"])
    with registered(SCHEDULES, Halved):
        config = load_config("gpt-tiny", ["schedule=halved"])
        assert config.schedule == Halved()
        assert load_config(config.model_dump(mode="json")) == config
        with pytest.raises(ConfigError, match=r"schedule\.type: value 'halves'.*did you mean 'halved'"):
            load_config("gpt-tiny", ["schedule=halves"])
        with pytest.raises(ConfigError, match=r"schedule\.shares: unknown key; did you mean 'share'"):
            load_config("gpt-tiny", ["schedule={type: halved, shares: 1}"])
        assert catalogue("schedule")["schedules"]["halved"] == "Half of the learning rate."
        assert "Halved" in json_schema()["$defs"]
    with pytest.raises(ConfigError, match="no such type"):
        load_config("gpt-tiny", ["schedule=halved"])
    assert "Halved" not in json_schema()["$defs"]


LEFT_TO_CLASSES: list[tuple[Kind, type[Config], set[str]]] = [
    (MODELS, ModelConfig, {"build"}),
    (INITS, Init, {"matrix_std"}),
    (REPARAMS, Reparam, {"attach"}),
    (TRANSFERS, Transfer, {"factors"}),
    (OPTIMIZERS, OptimizerConfig, {"build", "slots"}),
    (SCHEDULES, ScheduleConfig, {"after_warmup"}),
    (DATASETS, DataConfig, {"length", "objective_name", "prepare"}),
    (OBJECTIVES, Objective, {"examples"}),
]


@pytest.mark.parametrize(
    ("kind", "base", "methods"), LEFT_TO_CLASSES, ids=[case[0].name for case in LEFT_TO_CLASSES]
)
def test_a_class_without_the_methods_that_its_base_leaves_to_it_is_refused(
    kind: Kind, base: type[Config], methods: set[str]
) -> None:
    class Bare(base):  # type: ignore[misc, valid-type]
        default_init: ClassVar[str] = "small"
        objectives: ClassVar[frozenset[str]] = frozenset()
        unit: ClassVar[str] = "tokens"
        type: Literal["bare"] = "bare"

    named = " and no ".join(f"`{name}`" for name in sorted(methods))
    with pytest.raises(ConfigError, match=f"{kind.name} Bare: no {named}; expected the methods"):
        kind.register(Bare)
    assert "bare" not in kind.choices


def test_choices_within_choices_are_rebuilt() -> None:
    """A corpus is chosen in the data, which is chosen in the run."""
    assert load_config({"data": {"type": "text"}}).data == TextData()
    with registered(CORPORA, Silence):
        assert TextData.model_validate({"corpus": {"type": "silence"}}).corpus == Silence()
        assert load_config({"data": {"type": "text", "corpus": "silence"}}).data == TextData(corpus=Silence())
    with pytest.raises(ConfigError, match="no such type"):
        load_config({"data": {"corpus": "silence"}})


def test_a_field_accepts_the_choices_that_are_derived_from_its_type() -> None:
    class Decoders(Config):
        first: Annotated[DecoderConfig, MODELS]
        rest: tuple[Annotated[ModelConfig, MODELS], ...] = ()

    sizes = {"vocab_size": 16, "d_model": 8, "n_layers": 1, "n_heads": 2}
    assert ClassifierConfig not in classes_in(Decoders.model_fields["first"])
    assert ClassifierConfig in classes_in(Decoders.model_fields["rest"])
    assert Decoders.model_validate({"first": {"type": "gpt", **sizes}}).first == GPTConfig(**sizes)
    with pytest.raises(ValidationError, match="union_tag_invalid"):
        Decoders.model_validate({"first": {"type": "classifier"}})
    with registered(MODELS, Wide):
        both = {"first": {"type": "wide", **sizes}, "rest": [{"type": "wide", **sizes}]}
        assert Decoders.model_validate(both) == Decoders(first=Wide(**sizes), rest=(Wide(**sizes),))


def test_a_registry_of_one_choice_is_a_choice() -> None:
    only = Kind("only", "only")
    with registered(only, Halved):
        adapter = TypeAdapter(Annotated[ScheduleConfig, only])
        assert adapter.validate_python({"type": "halved"}) == Halved()
        with pytest.raises(ValidationError, match="union_tag_invalid"):
            adapter.validate_python({"type": "constant"})
    del Kind.registries["only"]


def no_type() -> type[Config]:
    class Nameless(ScheduleConfig):
        rate: float = 1.0

    return Nameless


def no_default() -> type[Config]:
    class Undecided(Init):
        type: Literal["undecided"]

    return Undecided


REFUSED: list[tuple[Kind, Callable[[], type[Config]], str]] = [
    (SCHEDULES, no_type, r"^schedule Nameless has no name; expected a field `type: Literal\['name'\]"),
    (INITS, no_default, "^init Undecided has no name"),
    (MODELS, lambda: GPTConfig, r"^model GPTConfig: the name 'gpt' is taken by GPTConfig \(.*gpt\.py:\d+\)$"),
]


@pytest.mark.parametrize(("kind", "make", "message"), REFUSED, ids=lambda v: getattr(v, "name", ""))
def test_a_class_without_a_name_of_its_own_is_refused(
    kind: Kind, make: Callable[[], type[Config]], message: str
) -> None:
    before = dict(kind.choices)
    with pytest.raises(ConfigError, match=message):
        kind.register(make())
    assert kind.choices == before


WALK = """
import importlib, pkgutil, zoo
from zoo.config.registry import Kind

asked = {plural: set(kind.choices) for plural, kind in Kind.registries.items()}
for module in pkgutil.walk_packages(zoo.__path__, "zoo."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
for plural, kind in Kind.registries.items():
    for name, cls in kind.choices.items():
        home = f"{cls.__module__}.".startswith(tuple(f"{home}." for home in kind.homes))
        if name not in asked[plural] or not home:
            print(plural, name, cls.__module__)
print("asked for", sum(map(len, asked.values())))
"""


def test_every_choice_is_found_by_asking_for_its_kind() -> None:
    """A module that registers a choice, and that `zoo.config.homes` does not name, would be missing."""
    done = subprocess.run([sys.executable, "-c", WALK], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"asked for [1-9][0-9]+\n", done.stdout)
