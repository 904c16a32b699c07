"""Which fields of our configuration are which of theirs: each is used, fixed or known to be harmless."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

REQUIRED: Any = object()
"""The default of a field that must be there."""


class RefusedError(Exception):
    """A value that has no counterpart; the message says what would have one."""


class Codec(ABC):
    """A bijection between their values of a field and ours."""

    @abstractmethod
    def to_zoo(self, value: Any) -> Any:
        """Their value as ours.

        Raises:
            RefusedError: it has no counterpart.
        """

    @abstractmethod
    def to_hf(self, value: Any) -> Any:
        """Our value as theirs.

        Raises:
            RefusedError: it has no counterpart.
        """


class Plain(Codec):
    """The same value on both sides."""

    def to_zoo(self, value: Any) -> Any:
        """As it is."""
        return value

    def to_hf(self, value: Any) -> Any:
        """As it is."""
        return value


PLAIN = Plain()


@dataclass(frozen=True)
class Choice(Codec):
    """Words for words.

    Attributes:
        words: theirs to ours; where two of theirs mean the same, the first is written.
    """

    words: Mapping[Any, Any]

    def to_zoo(self, value: Any) -> Any:
        """Look up."""
        if not isinstance(value, str | int | bool | None) or value not in self.words:
            raise RefusedError(one_of(self.words))
        return self.words[value]

    def to_hf(self, value: Any) -> Any:
        """Look up the other way round."""
        for theirs, ours in self.words.items():
            if ours == value:
                return theirs
        raise RefusedError(one_of(self.words.values()))


@dataclass(frozen=True)
class Field:
    """One field of theirs and one of ours.

    Attributes:
        theirs: its name in config.json.
        ours: its name in the model's config.
        default: what their library assumes where config.json does not have it.
        codec: how values correspond.
        resolved: the property of our config to write, where our field may be null: `kv_heads`.
        layers: it counts layers, each of which has tensors of its own; see `Family.layers`.
    """

    theirs: str
    ours: str
    default: Any = REQUIRED
    codec: Codec = PLAIN
    resolved: str | None = None
    layers: bool = False


@dataclass(frozen=True)
class Fixed:
    """A field of theirs that our model has at one setting only.

    Attributes:
        theirs: its name in config.json.
        accepted: what it may be; the first is written.
        default: what their library assumes where config.json does not have it; by default the first.
        each: the field is a list, one entry for each layer; nothing is written.
    """

    theirs: str
    accepted: tuple[Any, ...]
    default: Any = REQUIRED
    each: bool = False

    def accepts(self, config: Mapping[str, Any]) -> bool:
        """Whether a config.json has it at the right setting, or not at all."""
        value = config.get(self.theirs, self.accepted[0] if self.default is REQUIRED else self.default)
        values = value if self.each and isinstance(value, list) else [value]
        return all(any(same(found, accepted) for accepted in self.accepted) for found in values)


def one_of(values: Iterable[Any]) -> str:
    """The values for a message: 'a' or 'b'."""
    words = {None: "null", True: "true", False: "false"}
    return " or ".join(words[v] if v is None or isinstance(v, bool) else repr(v) for v in values)


def same(found: Any, accepted: Any) -> bool:
    """Equal and of one kind: 0 is not false."""
    return bool(found == accepted) and isinstance(found, bool) == isinstance(accepted, bool)


HARMLESS = frozenset(
    {
        # what wrote the file, and how the numbers are kept in it
        *("_name_or_path", "architectures", "model_type", "transformers_version", "torch_dtype", "dtype"),
        # how their library runs or returns things
        *("use_cache", "return_dict", "output_attentions", "output_hidden_states", "torchscript"),
        *("_attn_implementation", "attn_implementation", "_attn_implementation_autoset", "use_bfloat16"),
        *("chunk_size_feed_forward", "gradient_checkpointing", "problem_type", "id2label", "label2id"),
        # how their training starts
        "initializer_range",
        # tokens, prompts and settings of text generation
        *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id", "unk_token_id"),
        *("decoder_start_token_id", "prefix", "task_specific_params", "max_length", "min_length"),
        *("do_sample", "temperature", "top_k", "top_p", "typical_p", "num_beams", "num_beam_groups"),
        *("diversity_penalty", "repetition_penalty", "length_penalty", "no_repeat_ngram_size"),
        *("encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "output_scores"),
        *("return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values"),
        *("exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "early_stopping"),
        *("finetuning_task", "tokenizer_class"),
    }
)
"""Fields that every config.json may have and that change no logit."""
