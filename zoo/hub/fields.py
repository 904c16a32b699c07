"""The correspondence of fields in a Hugging Face config.json and in zoo's model configurations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from zoo.nn.attention_options import AttentionOptions

Value: TypeAlias = Any
"""A value in config.json or in zoo's configuration. Any: as for `Json`, codecs check their inputs."""

REQUIRED: Value = object()
"""The default that marks a field which config.json must have."""


class RefusedError(Exception):
    """Raised for a value without a counterpart; the message lists the values that have one."""


class Codec(ABC):
    """A bijection between the values of a field in config.json and in zoo's configuration."""

    @abstractmethod
    def to_zoo(self, value: Value) -> Value:
        """Convert a value from config.json.

        Raises:
            RefusedError: The value has no counterpart.
        """

    @abstractmethod
    def to_hf(self, value: Value) -> Value:
        """Convert a value of zoo's configuration.

        Raises:
            RefusedError: The value has no counterpart.
        """


class Identity(Codec):
    """The same value on both sides."""

    def to_zoo(self, value: Value) -> Value:
        """Return the value unchanged."""
        return value

    def to_hf(self, value: Value) -> Value:
        """Return the value unchanged."""
        return value


IDENTITY = Identity()


@dataclass(frozen=True)
class ValueMap(Codec):
    """A conversion of a field by a table of corresponding values.

    Attributes:
        words: zoo's values by the values in config.json; if several have the same one, the first is written.
    """

    words: Mapping[Value, Value]

    def to_zoo(self, value: Value) -> Value:
        """Look the value up."""
        if not isinstance(value, str | int | bool | None) or value not in self.words:
            raise RefusedError(one_of(self.words))
        return self.words[value]

    def to_hf(self, value: Value) -> Value:
        """Look the value up in reverse."""
        for hub_value, zoo_value in self.words.items():
            if zoo_value == value:
                return hub_value
        raise RefusedError(one_of(self.words.values()))


@dataclass(frozen=True)
class ConfigField:
    """A field of config.json and the corresponding field of zoo's configuration.

    Attributes:
        hub_name: name in config.json.
        zoo_name: name in zoo's configuration, with dots for a field of a part: ``attention.window``.
        default: value that transformers assumes if config.json lacks the field.
        codec: converts the values.
        resolved: property of zoo's configuration to write if the field itself may be null: `kv_heads`.
        layers: whether the field counts layers that have tensors of their own; see `Family.layers`.
    """

    hub_name: str
    zoo_name: str
    default: Value = REQUIRED
    codec: Codec = IDENTITY
    resolved: str | None = None
    layers: bool = False


@dataclass(frozen=True)
class FixedField:
    """A field of config.json for which zoo's model supports only one setting.

    Attributes:
        hub_name: name in config.json.
        accepted: supported values; the first one is written.
        default: value that transformers assumes if config.json lacks the field; by default the first.
        each: whether the field is a list with one entry for each layer.
        written: whether exports contain the field, unlike fields that only some published files have.
    """

    hub_name: str
    accepted: tuple[Value, ...]
    default: Value = REQUIRED
    each: bool = False
    written: bool = True

    def accepts(self, config: Mapping[str, Value]) -> bool:
        """Whether a config.json has a supported value, or lacks the field."""
        value = config.get(self.hub_name, self.accepted[0] if self.default is REQUIRED else self.default)
        values = value if self.each and isinstance(value, list) else [value]
        return all(any(_equal(value, accepted) for accepted in self.accepted) for value in values)


def one_of(values: Iterable[object]) -> str:
    """The values as text of a message: 'a' or 'b'."""
    words = {None: "null", True: "true", False: "false"}
    return " or ".join(words[v] if v is None or isinstance(v, bool) else repr(v) for v in values)


def _equal(value: object, accepted: object) -> bool:
    """Whether two values are equal, where 0 differs from false."""
    return bool(value == accepted) and isinstance(value, bool) == isinstance(accepted, bool)


HARMLESS = frozenset(
    {
        # the software that wrote the files, and their dtype
        *("_name_or_path", "architectures", "model_type", "transformers_version", "torch_dtype", "dtype"),
        # how transformers runs a model and returns its outputs
        *(
            "use_cache",
            "output_past",
            "return_dict",
            "output_attentions",
            "output_hidden_states",
            "torchscript",
        ),
        *("_attn_implementation", "attn_implementation", "_attn_implementation_autoset", "use_bfloat16"),
        *("chunk_size_feed_forward", "gradient_checkpointing", "problem_type", "id2label", "label2id"),
        # the initialisation
        "initializer_range",
        # tokens, prompts and settings of text generation
        *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id", "unk_token_id"),
        *("decoder_start_token_id", "prefix", "task_specific_params", "max_length", "min_length"),
        *("do_sample", "temperature", "top_k", "top_p", "typical_p", "num_beams", "num_beam_groups"),
        *("diversity_penalty", "repetition_penalty", "length_penalty", "no_repeat_ngram_size"),
        *("encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "output_scores"),
        *("return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values"),
        *("exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "early_stopping"),
        *("finetuning_task", "tokenizer_class", "num_labels", "_num_labels"),
    }
)
"""Fields that any config.json may have and that do not change the logits."""


PLAIN_DECODER: dict[str, Value] = {
    **{f"attention.{name}": value for name, value in AttentionOptions().model_dump(mode="json").items()},
    "soft_cap": None,
}
"""The options of attention and head for most architectures: none."""

PLAIN_ROPE: dict[str, Value] = {"rope_fraction": 1.0, "rope_blocks": [True], "rope_window_base": None}
"""The rotation in most architectures: all entries of all blocks."""


def without(constants: Mapping[str, Value], *names: str) -> dict[str, Value]:
    """The constants of another family without those that are fields of the present one."""
    return {name: value for name, value in constants.items() if name not in names}
