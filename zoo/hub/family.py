"""Families of Hugging Face models: one set of rules to read a checkpoint and, inverted, to write one."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from pydantic import ValidationError

from zoo.config.registry import Config
from zoo.hub.fields import HARMLESS, REQUIRED, ConfigField, FixedField, RefusedError, Value, one_of
from zoo.hub.rules import Rule
from zoo.hub.window import LAYER_TYPES
from zoo.models import ModelConfig
from zoo.utils.errors import CheckpointError, did_you_mean
from zoo.utils.untyped import JsonObject


def _unchanged(config: JsonObject) -> JsonObject:
    return config


@dataclass(frozen=True)
class SequenceHead:
    """The head of a family's ``...ForSequenceClassification``.

    Attributes:
        pool: the hidden state that the head reads, as in `zoo.models.classifier.ClassifierConfig`; "": see
            `pooling`.
        rules: the rules of the head's tensors.
        segments: the argument of transformers' `forward` for segments; "": there is none.
        pooling: the field that selects the hidden state, for a head that has the choice.
        biased: whether zoo's head of this trunk may have a bias, by `bias` of its configuration.
        drops: whether the head has dropout, in the field ``classifier_dropout``; null: that of the trunk.
        no_dropout: the dropout if a config.json lacks this field; None: that of the trunk.
        decodes: whether the head reads the decoder of an encoder-decoder, at the last end token of a text.
        prefix: prefix of the names of the trunk's tensors, in addition to that of the language model.
    """

    pool: Literal["first", "last", ""]
    rules: tuple[Rule, ...]
    segments: str = ""
    pooling: ConfigField | None = None
    biased: bool = True
    drops: bool = False
    no_dropout: float | None = None
    decodes: bool = False
    prefix: str = ""


@dataclass(frozen=True)
class Family:
    """The models of one architecture: how their fields and tensors correspond to zoo's.

    Every field of a config.json is in `fields`, in `fixed` or harmless; any other field is an error. Every
    field of zoo's configuration is in `fields` or `constants`.

    Attributes:
        architecture: the class in config.json's ``architectures``.
        model_type: config.json's ``model_type``.
        model: class of zoo's model configuration.
        fields: corresponding fields.
        fixed: fields of config.json for which zoo's model supports only one setting.
        constants: fields of zoo's configuration that have one value in this family.
        harmless: further fields that do not change the logits, such as dropout.
        rules: corresponding tensors, see `zoo.hub.rules.Rule`.
        prefix: prefix of the tensors that files of the base model lack: ``"transformer."``.
        buffers: patterns of tensors in files of old versions that are not trained.
        duplicates: tensors that files may contain although they equal another tensor: their names to that of
            the original.
        left_out: tensors of the model that files with tied weights lack, and that start as copies of another
            tensor: their names to that of the other tensor.
        renamed_suffixes: ends of tensor names in files of old versions, and their current spelling.
        modules: modules whose names in memory, where adapters find them, differ from those in the files: name
            in the files to that in memory.
        inputs: names of the arguments of transformers' `forward`, in the order of zoo's; "": there is no such
            argument.
        padding: id of a token that transformers treats as padding at any position; None: there is none.
        null_tokens: fields of special tokens, besides those of the beginning and the end, that are written as
            null if there is no such token, because transformers would assume tokens of its first model.
        auto: the Auto class that opens the model.
        read: converts old spellings in a config.json to those of `fields`.
        write: adds fields to a config.json that readers other than zoo expect.
        head: the head of classifiers; None: there is none, or zoo does not support it.
        trunk: the beginning of the names of the classes with other heads; "": that of `architecture`.
    """

    architecture: str
    model_type: str
    model: type[ModelConfig]
    fields: tuple[ConfigField, ...]
    rules: tuple[Rule, ...]
    fixed: tuple[FixedField, ...] = ()
    constants: Mapping[str, Value] = field(default_factory=dict)
    harmless: frozenset[str] = frozenset()
    prefix: str = ""
    buffers: tuple[str, ...] = ()
    duplicates: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    renamed_suffixes: Mapping[str, str] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[str, ...] = ("input_ids",)
    padding: int | None = None
    null_tokens: tuple[str, ...] = ()
    auto: str = "AutoModelForCausalLM"
    read: Callable[[JsonObject], JsonObject] = _unchanged
    write: Callable[[JsonObject], JsonObject] = _unchanged
    head: SequenceHead | None = None
    trunk: str = ""

    def __post_init__(self) -> None:
        names = [f.zoo_name for f in self.fields] + list(self.constants) + ["type"]
        expected = _expected(self.model, names)
        if sorted(names) != sorted(expected):
            wrong = sorted(set(names) ^ set(expected)) or "a field twice"
            raise ValueError(f"{self.architecture}: fields of {self.model.__name__} without place: {wrong}")

    def accepts(self, architecture: str) -> bool:
        """Whether a class of transformers is this architecture, or its trunk with another head or none.

        The fields are the same for all of them; the tensors of the heads are compared when they are read.
        """
        return architecture in {self.architecture, *(self.trunk_name + head for head in _OTHER_HEADS)}

    @property
    def trunk_name(self) -> str:
        """The common beginning of the names of transformers' classes with other heads: ``Llama``."""
        return self.trunk or _HEAD.sub("", self.architecture)

    def to_zoo(self, config: JsonObject, place: str) -> ModelConfig:
        """Convert a config.json to zoo's configuration.

        Args:
            config: content of the file.
            place: path of the file, for messages.

        Raises:
            CheckpointError: Fields cannot be expressed; the message has a line for each.
        """
        for name, layers in self._layer_counts(config).items():
            if isinstance(layers, int | float) and layers > MOST_LAYERS:  # `read` makes lists of all layers
                raise CheckpointError(f"{place}: {name}: value {layers}; expected at most {MOST_LAYERS}")
        problems = self._other_lengths(config)
        config = self.read(config)
        problems += self._unknown(config)
        for fixed in self.fixed:
            if not fixed.accepts(config):
                value = config.get(fixed.hub_name, fixed.default)
                problems.append(_problem(fixed.hub_name, value, one_of(fixed.accepted)))
        values: JsonObject = {}
        for name, constant in self.constants.items():
            _put(values, name, constant)
        for f in self.fields:
            value = config.get(f.hub_name, f.default)
            if value is REQUIRED:
                problems.append(f"{f.hub_name}: missing")
                continue
            try:
                _put(values, f.zoo_name, f.codec.to_zoo(value))
            except RefusedError as error:
                problems.append(_problem(f.hub_name, value, str(error)))
        model = None
        try:
            model = self.model.model_validate(_tuples(values), strict=True)
        except ValidationError as error:
            problems += self._invalid(error, problems)
        if problems or model is None:
            raise CheckpointError("\n".join(f"{place}: {problem}" for problem in problems))
        return model

    def to_hf(self, config: ModelConfig) -> JsonObject:
        """Convert zoo's configuration to a config.json: the inverse of `to_zoo`.

        Raises:
            CheckpointError: Fields cannot be expressed; the message has a line for each.
        """
        if not isinstance(config, self.model):
            names = [cls.model_fields["type"].default for cls in (type(config), self.model)]
            raise CheckpointError(f"{self.architecture}: model.type: '{names[0]}'; expected '{names[1]}'")
        problems = []
        written: JsonObject = {"architectures": [self.architecture], "model_type": self.model_type}
        written |= {fixed.hub_name: fixed.accepted[0] for fixed in self.fixed if fixed.written}
        values = config.model_dump(mode="json")
        for name, constant in self.constants.items():
            if (value := _get(values, name)) != constant:
                problems.append(_problem(f"model.{name}", value, one_of([constant])))
        for f in self.fields:
            value = getattr(config, f.resolved) if f.resolved else _get(values, f.zoo_name)
            try:
                written[f.hub_name] = f.codec.to_hf(value)
            except RefusedError as error:
                problems.append(_problem(f"model.{f.zoo_name}", value, str(error)))
        if problems:
            raise CheckpointError("\n".join(f"{self.architecture}: {problem}" for problem in problems))
        return self.write(written)

    def layers(self, config: ModelConfig) -> dict[str, int]:
        """The numbers of layers of a model, by the names of the fields in config.json."""
        return {f.hub_name: getattr(config, f.resolved or f.zoo_name) for f in self.fields if f.layers}

    def ignores(self, name: str) -> bool:
        """Whether a field of config.json is harmless and has no counterpart in zoo."""
        return name in HARMLESS | self.harmless

    def is_buffer(self, name: str) -> bool:
        """Whether the checkpoint's tensor `name` is not trained."""
        return any(fnmatchcase(name, pattern) for pattern in self.buffers)

    def current_name(self, file_name: str, expected: Collection[str]) -> str:
        """The name of a tensor in the current version of transformers.

        Args:
            file_name: name in the file.
            expected: all names of the current version.
        """
        name = file_name
        for old, new in self.renamed_suffixes.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
        if self.head is not None and (local := name.removeprefix(self.head.prefix)) in expected:
            return local
        return self.prefix + name if self.prefix + name in expected else name

    def name_in_memory(self, name: str) -> str:
        """The name in memory of the tensor that is called `name` in the files."""
        module, _, local = name.rpartition(".")
        return f"{self.modules[module]}.{local}" if module in self.modules else name

    def _layer_counts(self, config: JsonObject) -> JsonObject:
        """The values of the fields of config.json that count layers, of whatever type they are."""
        return {f.hub_name: config.get(f.hub_name, f.default) for f in self.fields if f.layers}

    def _other_lengths(self, config: JsonObject) -> list[str]:
        """The problem of a list of all layers' types that has not as many entries as there are layers."""
        types = config.get(LAYER_TYPES.hub_name)
        if not isinstance(types, list):
            return []
        return [
            f"{LAYER_TYPES.hub_name}: {len(types)} entries; expected {n} as {name} is {n}"
            for name, n in self._layer_counts(config).items()
            if isinstance(n, int) and n != len(types)
        ]

    def _unknown(self, config: JsonObject) -> list[str]:
        """The problems of unknown fields that are not null."""
        known = (
            {f.hub_name for f in self.fields} | {f.hub_name for f in self.fixed} | HARMLESS | self.harmless
        )
        surplus = [name for name, value in config.items() if name not in known and value is not None]
        expected = f"a field of {self.architecture} that zoo knows"
        return [f"{_problem(n, config[n], expected)}{_close(n, known)}" for n in surplus]

    def _invalid(self, error: ValidationError, problems: list[str]) -> list[str]:
        """The errors of zoo's configuration by the names in config.json, without those reported already."""
        names = {f.zoo_name: f.hub_name for f in self.fields}
        messages = []
        for e in error.errors():
            if not e["loc"]:
                messages.append(in_terms_of(names, e["msg"]))
                continue
            parts = [str(part) for part in e["loc"]]
            ends = [i for i in range(1, len(parts) + 1) if ".".join(parts[:i]) in names]
            end = max(ends, default=1)
            name = names.get(".".join(parts[:end]), parts[0])
            if not any(p.startswith(f"{name}:") for p in problems):
                place = ".".join((name, *parts[end:]))
                messages.append(f"{place}: {e['input']!r}; {e['msg']}")
        return messages


def in_terms_of(names: Mapping[str, str], message: str) -> str:
    """An error about several fields of zoo's configuration, by their names in config.json.

    Args:
        names: names in config.json by the names in zoo.
        message: pydantic's message.
    """
    message = message.removeprefix("Value error, ")
    return re.sub(r"\w+", lambda word: names.get(word[0], word[0]), message)


def _expected(model: type[Config], names: Collection[str]) -> list[str]:
    """The fields of a configuration; a field whose parts are named is replaced by its own fields."""
    expected = []
    for name, info in model.model_fields.items():
        inner = info.annotation
        parted = any(given.startswith(f"{name}.") for given in names)
        if parted and isinstance(inner, type) and issubclass(inner, Config):
            expected += [f"{name}.{inner_name}" for inner_name in inner.model_fields]
        else:
            expected.append(name)
    return expected


def _put(values: JsonObject, name: str, value: Value) -> None:
    """Set a field; a name with a dot refers to a field of a part."""
    *parts, last = name.split(".")
    for part in parts:
        values = values.setdefault(part, {})
    values[last] = value


def _tuples(value: Value) -> Value:
    """A JSON value with tuples instead of lists, as in the fields of zoo's configurations."""
    if isinstance(value, dict):
        return {key: _tuples(v) for key, v in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _get(values: JsonObject, name: str) -> Value:
    """The inverse of `_put`."""
    value: Value = values
    for part in name.split("."):
        value = value[part]
    return value


MOST_LAYERS = 100_000
"""Largest number of layers that is read: the lists of all layers are made before tensors are counted."""
LONGEST_VALUE = 100
"""Largest number of characters of a value in a message, because lists can be long."""

_HEAD = re.compile(r"(LMHeadModel|For[A-Z]\w+)$")
_OTHER_HEADS = (
    "Model",
    "ForPreTraining",
    "ForNextSentencePrediction",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
)


def _problem(name: str, value: object, expected: str) -> str:
    shown = one_of([value])
    if len(shown) > LONGEST_VALUE:
        shown = f"{shown[:LONGEST_VALUE]}..."
    return f"{name}: {shown}; expected {expected}"


def _close(name: str, known: set[str] | frozenset[str]) -> str:
    hint = did_you_mean(name, known)
    return hint if "did you mean" in hint else ""
