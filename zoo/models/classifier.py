"""A classifier of texts: a trunk without its read-out, its states pooled, and a head.

logits <- W pool(states) + b;  on the hypersphere  logits <- (W Norm(pool(states))) s_z

The trunk is declared as in the model it comes from. The head of an nGPT trunk is a read-out of nGPT's
kind, one unit vector a class, scaled by an s_z of the trunk's form, so that all of the model is on the
sphere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from zoo.config.registry import MODELS
from zoo.models.base import DecoderConfig, Model, ModelConfig
from zoo.models.bert import BERTConfig
from zoo.models.encoder_decoder import check_source
from zoo.models.gpt import GPTConfig
from zoo.models.gpt2 import GPT2Config
from zoo.models.hypersphere import HypersphereConfig
from zoo.models.ngpt import NGPTConfig
from zoo.models.ngpt_t5 import NGPTT5Config
from zoo.models.post_gpt import PostGPTConfig
from zoo.models.t5 import T5Config
from zoo.nn.classification import classify
from zoo.nn.linear import Linear, matrix
from zoo.nn.loss import LossParts
from zoo.nn.norm import unit
from zoo.nn.scaling import Scaling, ScalingConfig
from zoo.spec import Module

TrunkConfig = Annotated[
    BERTConfig | GPTConfig | GPT2Config | PostGPTConfig | NGPTConfig | T5Config | NGPTT5Config,
    Field(discriminator="type"),
]
Pool = Literal["first", "last", "mean"]


@MODELS.register
class ClassifierConfig(ModelConfig):
    """Classifier of texts and pairs of texts, on the trunk of an encoder or decoder."""

    objectives: ClassVar[frozenset[str]] = frozenset({"text-classification"})

    type: Literal["classifier"] = "classifier"
    trunk: TrunkConfig = Field(description="the model that reads the text; its read-out is left out")
    classes: int = Field(gt=1, description="number of classes")
    pool: Pool = Field(
        "mean", description="what the head reads: the state of the first or last token, or the mean of all"
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="of what the head reads")

    @model_validator(mode="after")
    def _first_has_read_the_text(self) -> Self:
        if self.pool == "first" and isinstance(self.trunk, DecoderConfig):
            raise ValueError(
                f"pool is 'first', but the first token of a '{self.trunk.type}' sees no other; "
                "expected 'last' or 'mean'"
            )
        return self

    @property
    def default_init(self) -> str:  # type: ignore[override]
        """The trunk's."""
        return self.trunk.default_init

    @property
    def max_seq_len(self) -> int | None:
        """The trunk's."""
        return self.trunk.max_seq_len

    @property
    def vocab_size(self) -> int:
        """The trunk's number of tokens."""
        return self.trunk.vocab_size

    @property
    def tied(self) -> bool:
        """Whether the trunk's embedding is declared as a read-out, which it was before."""
        return self.trunk.tied

    @property
    def n_segments(self) -> int:
        """How many segments the trunk tells apart."""
        return self.trunk.n_segments if isinstance(self.trunk, BERTConfig) else 1

    def build(self) -> Classifier:
        """The model, uninitialised."""
        return Classifier(self)


class Head(Module):
    """logits <- W x + b."""

    def __init__(self, classes: int, d_model: int) -> None:
        super().__init__()
        self.linear = Linear(matrix(("classes", classes), ("embed", d_model)), bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """(n, d) -> logits (n, classes)."""
        logits: Tensor = self.linear(x)
        return logits


class UnitHead(Module):
    """logits <- (W Norm(x)) s_z, the rows of W of unit norm (nGPT, section 2.1)."""

    def __init__(self, classes: int, d_model: int, s_z: ScalingConfig) -> None:
        super().__init__()
        std = d_model**-0.5
        self.linear = Linear(matrix(("classes", classes), ("embed", d_model), input_std=std, sphere="embed"))
        self.s_z = Scaling((("classes", classes),), s_z, default_scale=std)

    def forward(self, x: Tensor) -> Tensor:
        """(n, d) -> logits (n, classes)."""
        logits: Tensor = self.linear(unit(x), self.s_z())
        return logits


class Classifier(Model):
    """Texts -> logits of their classes."""

    def __init__(self, c: ClassifierConfig) -> None:
        super().__init__()
        self.config = c
        self.trunk = c.trunk.build()
        self.trunk.remove_head()
        self.dropout = nn.Dropout(c.dropout)
        self.head = (
            UnitHead(c.classes, c.trunk.d_model, c.trunk.s_z)
            if isinstance(c.trunk, HypersphereConfig)
            else Head(c.classes, c.trunk.d_model)
        )

    @property
    def fsdp_units(self) -> Sequence[nn.Module]:
        """The trunk's."""
        return self.trunk.fsdp_units

    def forward(self, tokens: Tensor, segments: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Classify texts.

        Args:
            tokens: (n, time) int64.
            segments: (n, time) int64, 1 in the second text of a pair and 0 elsewhere, for a trunk that
                tells them apart; None: all 0.
            mask: (n, time) bool, True for the text and then False for padding behind it; None: no padding.

        Returns:
            Logits (n, classes).

        Raises:
            DataError: inputs of another shape or dtype, or texts longer than the trunk can read.
        """
        check_source(tokens, mask)
        states = self.trunk.states(tokens, segments, mask)
        logits: Tensor = self.head(self.dropout(pooled(states, mask, self.config.pool)))
        return logits

    def loss(self, *batch: Tensor, z_loss: float = 0.0) -> LossParts:
        """The loss that `Model` describes, of (tokens, segments, mask, labels); also the accuracy."""
        *inputs, labels = batch
        return classify(self(*inputs), labels, z_loss=z_loss)

    def example(self, batch: int = 1, time: int = 16) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Pairs of texts of different lengths, as long as the trunk can read at most, and labels."""
        c = self.config
        time = min(time, c.max_seq_len or time)
        tokens = torch.arange(batch * time, device="cpu").reshape(batch, time) % c.vocab_size
        position = torch.arange(time, device="cpu").expand(batch, time)
        segments = (position >= time // 2).long() * min(1, c.n_segments - 1)
        padding = torch.arange(batch, device="cpu") % max(1, time // 2)
        return tokens, segments, position < time - padding[:, None], torch.arange(batch) % c.classes


def pooled(states: Tensor, mask: Tensor | None, pool: Pool) -> Tensor:
    """One vector a text.

    Args:
        states: (n, time, d).
        mask: (n, time) bool, True for the text and then False for padding; None: no padding.
        pool: the first or last state of the text, or the mean of all.

    Returns:
        (n, d); nothing of it comes from padding.
    """
    if pool == "first":
        return states[:, 0]
    if mask is None:
        return states[:, -1] if pool == "last" else states.mean(1)
    if pool == "last":
        last = mask.sum(1) - 1
        return states[torch.arange(len(states), device=states.device), last]
    return states.masked_fill(~mask[..., None], 0).sum(1) / mask.sum(1, keepdim=True)
