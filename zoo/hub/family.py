"""A family of models on the Hugging Face hub: one set of rules to read it and, inverted, to write it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from pydantic import ValidationError

from zoo.hub.fields import HARMLESS, REQUIRED, Field, Fixed, RefusedError, one_of
from zoo.hub.rules import Rule
from zoo.models import ModelConfig
from zoo.utils.errors import CheckpointError, did_you_mean

Json = dict[str, Any]


def _unchanged(config: Json) -> Json:
    return config


@dataclass(frozen=True)
class Family:
    """What is common to the models of one architecture: their fields and their tensors.

    Every field of a config.json is in `fields` or `fixed`, or harmless, or refused by name. Every
    field of ours is in `fields` or `constants`.

    Attributes:
        architecture: the class in config.json's ``architectures``.
        model_type: config.json's ``model_type``.
        model: the class of our config.
        fields: what corresponds.
        fixed: what our model has at one setting only.
        constants: our fields that their model has at one setting only.
        harmless: further fields that change no logit: dropout, for one, which is of training.
        rules: what the tensors are called, see `zoo.hub.rules.Rule`.
        prefix: what their base model's tensors are called without: ``"transformer."``.
        buffers: patterns of tensors that hold nothing trained, as files of old versions have.
        copies: tensors that may repeat another: the name and that of the original.
        endings: ends of names in files of old versions, and today's.
        inputs: what their model calls the inputs, in the order of ours.
        auto: the Auto class that opens it.
        read: old spellings of config.json to those of `fields`.
        write: what is written for other readers besides; takes and gives a config.json.
    """

    architecture: str
    model_type: str
    model: type[ModelConfig]
    fields: tuple[Field, ...]
    rules: tuple[Rule, ...]
    fixed: tuple[Fixed, ...] = ()
    constants: Mapping[str, Any] = field(default_factory=dict)
    harmless: frozenset[str] = frozenset()
    prefix: str = ""
    buffers: tuple[str, ...] = ()
    copies: Mapping[str, str] = field(default_factory=dict)
    endings: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[str, ...] = ("input_ids",)
    auto: str = "AutoModelForCausalLM"
    read: Callable[[Json], Json] = _unchanged
    write: Callable[[Json], Json] = _unchanged

    def __post_init__(self) -> None:
        ours = [f.ours for f in self.fields] + list(self.constants) + ["type"]
        if sorted(ours) != sorted(self.model.model_fields):
            wrong = sorted(set(ours) ^ set(self.model.model_fields)) or "a field twice"
            raise ValueError(f"{self.architecture}: fields of {self.model.__name__} without place: {wrong}")

    def opens(self, architecture: str) -> bool:
        """Whether a class of theirs is this one, or the same trunk with another head or without one.

        What is said of the trunk holds for all of them; which tensors of a head are there shows on reading.
        """
        stem, head = _STEM.fullmatch(self.architecture).groups()  # type: ignore[union-attr]
        return architecture in {stem + other for other in (head, *_HEADS)}

    def to_zoo(self, config: Json, place: str) -> ModelConfig:
        """Their config.json as ours.

        Args:
            config: its content.
            place: the file, for messages.

        Raises:
            CheckpointError: everything that cannot be expressed, a line each, by their names.
        """
        config = self.read(config)
        problems = self._unknown(config)
        for fixed in self.fixed:
            if not fixed.accepts(config):
                value = config.get(fixed.theirs, fixed.default)
                problems.append(_problem(fixed.theirs, value, one_of(fixed.accepted)))
        ours: Json = dict(self.constants)
        for f in self.fields:
            value = config.get(f.theirs, f.default)
            if value is REQUIRED:
                problems.append(f"{f.theirs}: missing")
                continue
            try:
                ours[f.ours] = f.codec.to_zoo(value)
            except RefusedError as error:
                problems.append(_problem(f.theirs, value, str(error)))
        made = None
        try:
            made = self.model.model_validate(ours, strict=True)
        except ValidationError as error:
            problems += self._invalid(error, problems)
        if problems or made is None:
            raise CheckpointError("\n".join(f"{place}: {problem}" for problem in problems))
        return made

    def to_hf(self, config: ModelConfig) -> Json:
        """Our config as their config.json: the inverse of `to_zoo`.

        Raises:
            CheckpointError: everything that cannot be expressed, a line each, by our names.
        """
        if not isinstance(config, self.model):
            names = [cls.model_fields["type"].default for cls in (type(config), self.model)]
            raise CheckpointError(f"{self.architecture}: model.type: '{names[0]}'; expected '{names[1]}'")
        problems = []
        theirs: Json = {"architectures": [self.architecture], "model_type": self.model_type}
        theirs |= {fixed.theirs: fixed.accepted[0] for fixed in self.fixed if not fixed.each}
        values = config.model_dump(mode="json")
        for name, constant in self.constants.items():
            if values[name] != constant:
                problems.append(_problem(f"model.{name}", values[name], one_of([constant])))
        for f in self.fields:
            value = getattr(config, f.resolved) if f.resolved else values[f.ours]
            try:
                theirs[f.theirs] = f.codec.to_hf(value)
            except RefusedError as error:
                problems.append(_problem(f"model.{f.ours}", value, str(error)))
        if problems:
            raise CheckpointError("\n".join(f"{self.architecture}: {problem}" for problem in problems))
        return self.write(theirs)

    def layers(self, config: ModelConfig) -> dict[str, int]:
        """How many layers a model of the family has, by the names in config.json."""
        return {f.theirs: getattr(config, f.resolved or f.ours) for f in self.fields if f.layers}

    def tolerates(self, name: str) -> bool:
        """Whether config.json may have the field `name` though no model of ours knows it."""
        return name in HARMLESS | self.harmless

    def is_buffer(self, name: str) -> bool:
        """Whether their tensor `name` holds nothing trained."""
        return any(fnmatchcase(name, pattern) for pattern in self.buffers)

    def todays_name(self, written: str, expected: Collection[str]) -> str:
        """What a tensor in a file is called by today's version of their library.

        Args:
            written: its name in the file.
            expected: the names that today's version would have.
        """
        name = written
        for old, new in self.endings.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
        return self.prefix + name if self.prefix + name in expected else name

    def _unknown(self, config: Json) -> list[str]:
        """Refusals of fields that nobody here knows, unless they are null."""
        known = {f.theirs for f in self.fields} | {f.theirs for f in self.fixed} | HARMLESS | self.harmless
        surplus = [name for name, value in config.items() if name not in known and value is not None]
        expected = f"a field of {self.architecture} that zoo knows"
        return [f"{_problem(n, config[n], expected)}{_close(n, known)}" for n in surplus]

    def _invalid(self, error: ValidationError, problems: list[str]) -> list[str]:
        """What our config's own rules refuse, by their names; not what is reported already."""
        names = {f.ours: f.theirs for f in self.fields}
        found = []
        for e in error.errors():
            theirs = names.get(str(e["loc"][0]), str(e["loc"][0])) if e["loc"] else None
            if theirs is None:
                message = e["msg"].removeprefix("Value error, ")
                found.append(re.sub(r"\w+", lambda word: names.get(word[0], word[0]), message))
            elif not any(p.startswith(f"{theirs}:") for p in problems):
                place = ".".join(map(str, (theirs, *e["loc"][1:])))
                found.append(f"{place}: {e['input']!r}; {e['msg']}")
        return found


_STEM = re.compile(r"(\w+?)(LMHeadModel|For[A-Z]\w+)")
_HEADS = (
    "Model",
    "ForPreTraining",
    "ForNextSentencePrediction",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
)


def _problem(name: str, value: Any, expected: str) -> str:
    return f"{name}: {one_of([value])}; expected {expected}"


def _close(name: str, known: set[str] | frozenset[str]) -> str:
    hint = did_you_mean(name, known)
    return hint if "did you mean" in hint else ""
