"""The data set of prompts and conversations for training a decoder, and its configuration."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Annotated, ClassVar, Literal, Protocol, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator

from zoo.config.inputs import READS_FILES
from zoo.config.registry import DATASETS, TEMPLATES
from zoo.data.dataset import TOKENS, Batch, DataConfig, ModelRequirements, Units
from zoo.data.files import sha256
from zoo.data.instructions.files import Conversation, Message, read_conversations
from zoo.data.instructions.rendering import ChatTemplateError
from zoo.data.instructions.template import EncodedConversation, PlainTemplate, Template
from zoo.data.map_dataset import MapDataset, padded_length
from zoo.data.packing import pack
from zoo.data.prompting import decode_in_vocabulary
from zoo.data.split import check_validation, file_digests, read_split
from zoo.data.tokenizers import AnyTokenizer, ByteConfig, Tokenizer
from zoo.data.tokenizers.base import built_tokenizer, check_ids, check_vocabulary
from zoo.nn.loss import IGNORE_INDEX
from zoo.utils.errors import DataError
from zoo.utils.measures import OF_TEXTS

AnyTemplate = Annotated[Template, TEMPLATES]

log = logging.getLogger("zoo")


class DecoderRequirements(ModelRequirements, Protocol):
    """The fields of a decoder's configuration with which the data set must agree."""

    vocab_size: int


@DATASETS.register
class InstructionData(DataConfig):
    """Prompts and responses, or conversations, in JSON Lines or Parquet; only answers are learned."""

    unit: ClassVar[str] = "examples"

    type: Literal["instructions"] = "instructions"
    train: Annotated[str, READS_FILES] = Field(
        description="a .jsonl, .json or .parquet file, or a folder that datasets has saved, of {prompt, "
        "response}, {messages}, {conversations} or {instruction, ...}"
    )
    validation: Annotated[str | float | None, READS_FILES] = Field(
        0.05, description="another file, or the share of the examples of `train` to hold out; null: none"
    )
    template: AnyTemplate = Field(
        default=PlainTemplate(), description="template that turns a conversation into a text"
    )
    tokenizer: AnyTokenizer = Field(default=ByteConfig(), description="how text becomes tokens")
    context: int = Field(
        256,
        gt=1,
        description="maximal number of tokens of an example; longer ones lose their beginnings",
    )
    packing: bool = Field(
        False,
        description="put several examples into a row of `context` tokens, none of which sees another; "
        "train.batch_size counts rows",
    )
    invalid: Literal["error", "skip"] = Field(
        "error",
        description="what happens to a line or row that is no conversation or that the template refuses",
    )

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        check_validation(self.validation)
        return self

    @property
    def measures(self) -> frozenset[str]:
        """The loss of the answers, and bits per byte if the tokenizer may keep the text."""
        if self.validation is None:
            return frozenset()
        return OF_TEXTS if self.tokenizer.may_keep_text else OF_TEXTS - {"bits_per_byte"}

    @property
    def objective_name(self) -> str:
        """The name of the objective: prediction of the next token, with some targets ignored."""
        return "causal"

    @property
    def length(self) -> int:
        """Maximal number of tokens of an example."""
        return self.context

    @property
    def units(self) -> Units:
        """One example, or the tokens of a packed row."""
        return Units(self.context, TOKENS) if self.packing else super().units

    @property
    def separates_documents(self) -> bool:
        """Whether rows have several examples (packing)."""
        return self.packing

    @property
    def prompting(self) -> TemplatePrompting:
        """The prompting in the template of the training."""
        return TemplatePrompting(self.template)

    def prepare(self, model: ModelRequirements) -> InstructionDataset:
        """Read and tokenise the conversations.

        Raises:
            DataError: The files or sizes cannot be used, or the model cannot be trained on such examples.
        """
        self.check_model(model)
        return InstructionDataset(self, cast(DecoderRequirements, model).vocab_size)


@dataclass(frozen=True)
class TemplatePrompting:
    """A prompt is a user's message in a template, and the model generates the assistant's.

    Attributes:
        template: the template of the training.
    """

    template: Template
    decoder_start_id: ClassVar[None] = None
    continues_prompt: ClassVar[bool] = False
    special_tokens: ClassVar[tuple[str, ...]] = ()

    def eos_id(self, tokenizer: Tokenizer) -> int:
        """The id that ends an answer in the template."""
        return self.template.end_id(tokenizer)

    def encode(self, text: str, tokenizer: Tokenizer) -> list[int]:
        """The prompt in the template, up to the first token of the answer."""
        return self.encode_messages([Message("user", text)], tokenizer) if text else []

    def encode_messages(self, messages: Sequence[Message], tokenizer: Tokenizer) -> list[int]:
        """A conversation that ends with a user's message, up to the first token of the answer."""
        return self.template.encode_prompt(messages, tokenizer)

    def decode(self, ids: Iterable[int], tokenizer: Tokenizer) -> str:
        """The answer."""
        return decode_in_vocabulary(ids, tokenizer)


class EncodedConversations:
    """Tokenised conversations in rows, none longer than the context.

    A longer conversation loses the tokens after its first one, so that the last answer and the text before it
    are kept. A conversation whose last answer alone does not fit is dropped.

    Attributes:
        encoded: the conversations as tokens.
        rows: the indices of the conversations in each row: one or, with packing, as many as fit.
        n_truncated: number of conversations that lost tokens.
        n_dropped: number of conversations that were dropped.
    """

    def __init__(
        self,
        conversations: Sequence[Conversation],
        template: Template,
        tokenizer: Tokenizer,
        context: int,
        skipped: list[DataError] | None = None,
        packing: bool = False,
    ) -> None:
        """Tokenise conversations.

        Args:
            conversations: the conversations, at least one.
            template: the template that turns conversations into text.
            tokenizer: the tokenizer of the text.
            context: maximal number of input tokens of an example.
            skipped: a list that receives the errors of conversations that the template refuses and that are
                left out; None: such an error is raised. An error of the template itself is always raised.
            packing: whether several conversations share a row of `context` tokens.

        Raises:
            DataError: The template refuses a conversation.
        """
        self.encoded: list[EncodedConversation] = []
        self.n_truncated = self.n_dropped = 0
        for conversation in conversations:
            try:
                encoded = template.encode_checked(conversation.messages, tokenizer)
            except DataError as error:
                placed = DataError(f"{conversation.place}: {error}")
                if skipped is None or isinstance(error, ChatTemplateError):
                    raise placed from error
                skipped.append(placed)
                continue
            if encoded.input_length > context:
                if all(encoded.loss_mask[-context - 1 :]):
                    self.n_dropped += 1
                    continue
                self.n_truncated += 1
                encoded = EncodedConversation(*([part[0], *part[-context:]] for part in encoded))
            self.encoded.append(encoded)
        self.rows = (
            pack(self.lengths, context) if packing else [[example] for example in range(len(self.encoded))]
        )

    @property
    def lengths(self) -> list[int]:
        """The number of input tokens of each conversation."""
        return [encoded.input_length for encoded in self.encoded]

    def __len__(self) -> int:
        return len(self.rows)


class InstructionDataset(MapDataset[EncodedConversations]):
    """Conversations in rows, reshuffled in every epoch; a batch is padded to its longest row.

    With packing every row has `context` tokens, and the conversations that share a row are the same in
    every epoch, so that a batch is a function of the step alone.
    """

    unit = InstructionData.unit

    def __init__(self, data: InstructionData, vocab_size: int) -> None:
        """Read and tokenise the files.

        Args:
            data: files, template and tokenizer.
            vocab_size: vocabulary of the model that will be trained on the conversations.

        Raises:
            DataError: A file or the tokenizer cannot be used, or no example fits into the context.
        """
        self._skipped: list[DataError] | None = [] if data.invalid == "skip" else None
        read = partial(read_conversations, skipped=self._skipped)
        train, held_out = read_split(data.train, data.validation, read, _split_key)
        self.tokenizer = built_tokenizer(
            data.tokenizer, lambda: (m.content for c in train for m in c.messages)
        )
        check_vocabulary(self.tokenizer, vocab_size)
        self._data, self._padding = data, self.tokenizer.eos_id
        self.train_examples = self._encode(train, self.tokenizer, "training")
        self.validation_examples = self._encode(held_out, self.tokenizer, "validation") if held_out else None
        for examples in filter(None, (self.train_examples, self.validation_examples)):
            for encoded in examples.encoded:
                check_ids(encoded.tokens, self.tokenizer, vocab_size)
        if self._skipped:
            log.warning(f"data: {len(self._skipped):,} lines are left out; the first: {self._skipped[0]}")
        if data.packing:
            self._describe_packing()
        self._check_ends(self.tokenizer)
        self.fingerprint = _fingerprint(data, self.tokenizer, [*train, *held_out])
        if self.validation_examples is not None and self.tokenizer.keeps_text:
            self.bytes_per_target = _bytes_per_target(self.validation_examples.encoded, self.tokenizer)

    def _check_ends(self, tokenizer: Tokenizer) -> None:
        """Warn if no answer ends with the token at which generation stops."""
        end = self._data.template.end_id(tokenizer)
        encoded = self.train_examples.encoded
        if not any(
            token == end and learned for each in encoded for token, learned in zip(*each, strict=True)
        ):
            log.warning(
                "data: the template puts no special token behind answers, so that the model does not learn "
                "to stop there; give `zoo generate` what follows them, --stop"
            )

    def _describe_packing(self) -> None:
        """Count units without padding, and describe the amount of padding in the summary."""
        examples, context = self.train_examples, self._data.context
        rows, tokens = len(examples), sum(examples.lengths)
        self.unit, self.units_per_example = TOKENS, round(tokens / rows)
        self.summary = (
            f"packing: {len(examples.encoded):,} examples in {rows:,} rows of {context:,} tokens, "
            f"{rows * context - tokens:,} of them padding ({1 - tokens / (rows * context):.1%}); "
            "tokens/s is without padding"
        )

    def _encode(
        self, conversations: Sequence[Conversation], tokenizer: Tokenizer, side: str
    ) -> EncodedConversations:
        """Tokenise conversations, with a warning if some were truncated or dropped."""
        data, total = self._data, len(conversations)
        examples = EncodedConversations(
            conversations, data.template, tokenizer, data.context, self._skipped, data.packing
        )
        for count, fate in (
            (examples.n_truncated, "lose their beginnings"),
            (examples.n_dropped, "are left out, since their answers alone are longer"),
        ):
            if count:
                log.warning(
                    f"data: {count:,} of {total:,} {side} examples are longer than data.context "
                    f"{data.context} and {fate}"
                )
        if not len(examples):
            refused = total - examples.n_dropped
            why = f"; the first error is: {self._skipped[-refused]}" if refused and self._skipped else ""
            raise DataError(
                f"data: no {side} example is left of {total:,}: {examples.n_dropped:,} answers alone are "
                f"longer than data.context {data.context}, the template refuses {refused:,}{why}"
            )
        return examples

    def collate(self, examples: EncodedConversations, indices: NDArray[np.int64]) -> Batch:
        """Tokens and targets, (n, time) int64; the target is -1 where the loss mask is False.

        With packing, a tensor between the two has the number of each token's example in its row. Padding is
        on the right, where the causal mask hides it from every token that has a target; it counts as an
        example of its own.
        """
        rows = [[examples.encoded[example] for example in examples.rows[i]] for i in indices]
        lengths = [sum(encoded.input_length for encoded in row) for row in rows]
        context, packing = self._data.context, self._data.packing
        shape = (len(rows), context if packing else padded_length(lengths, context))
        tokens = np.full(shape, self._padding, dtype=np.int64)
        targets = np.full(shape, IGNORE_INDEX, dtype=np.int64)
        documents = np.zeros(shape, dtype=np.int64)
        for i, row in enumerate(rows):
            start = 0
            for number, encoded in enumerate(row):
                end = start + encoded.input_length
                part = np.s_[i, start:end]
                tokens[part] = encoded.tokens[:-1]
                targets[part] = np.where(encoded.loss_mask[1:], encoded.tokens[1:], IGNORE_INDEX)
                documents[part] = number
                start = end
            documents[i, start:] = len(row)
        batch = (tokens, documents, targets) if packing else (tokens, targets)
        return tuple(map(torch.from_numpy, batch))


def _bytes_per_target(conversations: Sequence[EncodedConversation], tokenizer: Tokenizer) -> float | None:
    """The bytes of the text that the targets decode to per target; the ends of answers have no bytes."""
    targets = size = 0
    for tokens, loss_mask in conversations:
        learned = zip(loss_mask[1:], tokens[1:], strict=True)  # the first token is not predicted
        for is_target, run in groupby(learned, key=itemgetter(0)):
            if is_target:
                ids = [token for _, token in run]
                targets += len(ids)
                size += len(decode_in_vocabulary(ids, tokenizer).encode("utf-8"))
    return size / targets if size else None


def _split_key(conversation: Conversation) -> str:
    """The prompt, so that all answers to it, and the conversations that go on from them, are on one side."""
    return json.dumps(_prompt(conversation))


def _prompt(conversation: Conversation) -> Sequence[Message]:
    """The messages before the first answer, which is the assistant's first message behind a user's.

    If no user speaks, they are the messages before the last one.
    """
    messages = conversation.messages
    answers = (i for i, (before, message) in enumerate(pairwise(messages), 1) if _is_answer(before, message))
    return messages[: next(answers, len(messages) - 1)]


def _is_answer(before: Message, message: Message) -> bool:
    return before.role == "user" and message.role == "assistant"


def _goes_on(conversation: Conversation) -> bool:
    """Whether a conversation has further messages behind its first answer."""
    return len(_prompt(conversation)) < len(conversation.messages) - 1


def _fingerprint(data: InstructionData, tokenizer: Tokenizer, conversations: Sequence[Conversation]) -> str:
    share = data.validation if isinstance(data.validation, float) else None
    packed = ["packed"] if data.packing else []
    # Earlier versions divided by all messages but the last one, which is the same for a single answer.
    divided = ["by first prompt"] if share is not None and any(map(_goes_on, conversations)) else []
    identity = data.template.identity(tokenizer)
    settings = [share, identity, data.context, tokenizer.hash, *packed, *divided]
    return sha256(json.dumps([*file_digests(data.train, data.validation), *settings]).encode())
