"""A classifier of texts: a language model without its head, its hidden states pooled, and a new head.

logits <- W pool(hidden states) + b;  on the hypersphere  logits <- (W Norm(pool(hidden states))) s_z

The parameters of the trunk are declared as in the language model. An nGPT trunk gets a head of nGPT's kind,
with one unit vector for each class and an s_z of the trunk's form, so that all of the model is on the
sphere. In an encoder-decoder the head reads the hidden states of the encoder, or those of the decoder, for
which the text is source and target at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from zoo.config.registry import MODELS
from zoo.models.base import Model, ModelConfig
from zoo.models.inputs import check_mask, check_tokens, mask_in
from zoo.models.language_model import LanguageModel, LanguageModelConfig
from zoo.models.starts import NoRuleError, Reach
from zoo.nn.classification import classify
from zoo.nn.loss import LossParts

Pool = Literal["first", "last", "mean"]


@MODELS.register
class ClassifierConfig(ModelConfig):
    """Classifier of texts and pairs of texts, on the trunk of any language model."""

    objectives: ClassVar[frozenset[str]] = frozenset({"text-classification"})

    type: Literal["classifier"] = "classifier"
    trunk: Annotated[LanguageModelConfig, MODELS] = Field(
        description="the language model that reads the text, without its head"
    )
    classes: int = Field(gt=1, description="number of classes")
    pool: Pool = Field(
        "mean",
        description="what the head reads: the first or last hidden state, or the mean of all",
    )
    decoder_start_id: int | None = Field(
        None,
        ge=0,
        description="id of the token that the decoder begins with (T5: 0), for an encoder-decoder whose head "
        "reads the decoder; null: the head reads the encoder",
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout of the pooled hidden state")
    bias: bool = Field(True, description="whether the head has a bias; transformers gives decoders none")
    pooler: bool = Field(
        False,
        description="whether a layer comes between the pooled hidden state and the head: tanh(W h + b) as in "
        "BERT, or in a modernbert LayerNorm(GELU(W h))",
    )

    @model_validator(mode="after")
    def _first_has_read_the_text(self) -> Self:
        if self.pool == "first" and (not self.trunk.bidirectional or self.decoder_start_id is not None):
            reader = self.trunk.type if self.decoder_start_id is None else f"{self.trunk.type} decoder"
            raise ValueError(
                f"pool is 'first', but the first token of a '{reader}' sees no other; "
                "expected 'last' or 'mean'"
            )
        return self

    @model_validator(mode="after")
    def _decoder_is_there(self) -> Self:
        start = self.decoder_start_id
        if start is not None and not self.trunk.has_decoder:
            raise ValueError(
                f"decoder_start_id {start} has no effect: a '{self.trunk.type}' is no encoder-decoder; "
                "leave it out"
            )
        if start is not None and start >= self.vocab_size:
            raise ValueError(
                f"decoder_start_id {start}: expected an id below trunk.vocab_size {self.vocab_size}"
            )
        return self

    @model_validator(mode="after")
    def _texts_are_independent(self) -> Self:
        if self.trunk.carries_state:
            raise ValueError(
                "the trunk carries its state from batch to batch, but the texts of a classifier do not "
                "continue each other; leave trunk.streams out"
            )
        return self

    @property
    def default_init(self) -> str:  # type: ignore[override]  # depends on a field
        """The default initialisation of the trunk."""
        return self.trunk.default_init

    @property
    def max_seq_len(self) -> int | None:
        """The longest sequence that the trunk can read."""
        return self.trunk.max_seq_len

    @property
    def vocab_size(self) -> int:
        """The number of tokens that the trunk knows."""
        return self.trunk.vocab_size

    @property
    def ties_embedding(self) -> bool:
        """Whether the trunk's embedding is declared as the table of a head, as in the language model."""
        return self.trunk.ties_embedding

    @property
    def n_segments(self) -> int:
        """How many segments the trunk distinguishes."""
        return self.trunk.segment_types

    @property
    def starts_texts(self) -> bool:
        """Whether texts have a start token; a decoder as reader begins with `decoder_start_id` instead."""
        return self.decoder_start_id is None

    def with_starts(self, reach: Reach | None) -> Self:
        """The fields with the starts of the trunk's scalings.

        Raises:
            NoRuleError: There is no rule for an `auto`.
        """
        try:
            return self.model_copy(update={"trunk": self.trunk.with_starts(reach)})
        except NoRuleError as error:
            raise NoRuleError(("trunk", *error.path), error.reason) from error

    def transferred(self, base_width: int, depth: float) -> Self:
        """The configuration with the starts that nuGPT gives to the scalings of the trunk and the head."""
        return self.model_copy(update={"trunk": self.trunk.transferred(base_width, depth)})

    def build(self) -> Classifier:
        """The model, uninitialised."""
        return Classifier(self)


class Classifier(Model):
    """Texts -> logits of their classes."""

    def __init__(self, c: ClassifierConfig) -> None:
        super().__init__()
        self.config: ClassifierConfig = c
        self.trunk: LanguageModel = c.trunk.build()
        if c.decoder_start_id is None:
            self.trunk.remove_head()
        else:
            self.trunk.remove_read_out()
        self.dropout = nn.Dropout(c.dropout)
        self.pooler = c.trunk.pooling_layer() if c.pooler else None
        without = {} if c.bias else {"bias": False}
        self.head = c.trunk.classification_head(c.classes, **without)

    @property
    def fsdp_units(self) -> Sequence[nn.Module]:
        """The units of the trunk."""
        return self.trunk.fsdp_units

    @property
    def depth(self) -> int:
        """The number of blocks of the trunk that rules for depth follow."""
        return self.trunk.depth

    def forward(self, tokens: Tensor, segments: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Classify texts.

        Args:
            tokens: (n, time) int64.
            segments: (n, time) int64, 1 in the second text of a pair and 0 elsewhere, for a trunk that
                distinguishes segments; None: all 0.
            mask: (n, time) bool, False for padding, which comes after the text; None: there is no padding.

        Returns:
            Logits (n, classes).

        Raises:
            DataError: The inputs have another shape or dtype, or the texts are longer than the trunk can
                read.
        """
        check_tokens(tokens)
        check_mask(mask, tokens)
        if (start := self.config.decoder_start_id) is None:
            hidden_states = self.trunk.hidden_states(tokens, segments, mask)
        else:
            hidden_states = self.trunk.target_states(tokens, mask, start)
        read = pooled(hidden_states, mask, self.config.pool)
        if self.pooler is not None:
            read = self.pooler(read)
        logits: Tensor = self.head(self.dropout(read))
        return logits

    def loss(self, *batch: Tensor, z_loss: float = 0.0) -> LossParts:
        """The loss described in `Model`, of a batch (tokens, segments, mask, labels), and the accuracy."""
        *inputs, labels = batch
        return classify(self(*inputs), labels, z_loss=z_loss)

    def padding_mask(self, *batch: Tensor) -> Tensor | None:
        """The mask of a batch (tokens, segments, mask, labels)."""
        return mask_in(batch)

    def example(self, batch: int = 1, time: int = 16) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Pairs of texts of different lengths, up to the longest that the trunk can read, and labels."""
        c = self.config
        time = min(time, c.max_seq_len or time)
        tokens = torch.arange(batch * time, device="cpu").reshape(batch, time) % c.vocab_size
        position = torch.arange(time, device="cpu").expand(batch, time)
        segments = (position >= time // 2).long() * min(1, c.n_segments - 1)
        padding = torch.arange(batch, device="cpu") % max(1, time // 2)
        labels = torch.arange(batch, device="cpu") % c.classes
        return tokens, segments, position < time - padding[:, None], labels


def pooled(hidden_states: Tensor, mask: Tensor | None, pool: Pool) -> Tensor:
    """Reduce the hidden states of each text to one vector.

    Args:
        hidden_states: (n, time, d).
        mask: (n, time) bool, False for padding, which comes after the text; None: there is no padding.
        pool: "first" or "last" for the hidden state of that token of the text, "mean" for the mean of all.

    Returns:
        (n, d), independent of the hidden states of padding; the mean of a text of padding alone is 0.
    """
    if pool == "first":
        return hidden_states[:, 0]
    if mask is None:
        return hidden_states[:, -1] if pool == "last" else hidden_states.mean(1)
    if pool == "last":
        last = mask.sum(1) - 1
        return hidden_states[torch.arange(len(hidden_states), device=hidden_states.device), last]
    return hidden_states.masked_fill(~mask[..., None], 0).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
