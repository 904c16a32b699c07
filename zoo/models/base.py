"""What every model offers, and what every decoder shares: the read-out, the loss, the cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from zoo.config.registry import Config
from zoo.nn.attention import KVCache, Rope
from zoo.nn.linear import Embedding, Linear, Matrix, matrix
from zoo.nn.loss import LossParts, linear_cross_entropy
from zoo.nn.positions import CachePosition
from zoo.nn.scaling import Scaling
from zoo.spec import Module
from zoo.utils.errors import DataError


class Model(Module):
    """What every architecture offers besides ``model(tokens) -> logits``.

    Attributes:
        recipe: the `zoo.checkpoint.recipe.Recipe` that the model was made from, put here by
            `zoo.checkpoint.recipe.declare`. It has no type here, since recipes lie in a layer above.
    """

    recipe: Any

    @property
    def fsdp_units(self) -> Sequence[nn.Module]:
        """What is gathered at a time when the model is sharded; the rest is one more piece."""
        return ()

    @property
    def layers(self) -> Sequence[nn.Module]:
        """The blocks, which are what is gathered at a time."""
        return self.fsdp_units

    def example(self, batch: int = 1, time: int = 16) -> tuple[Tensor, ...]:
        """Inputs and then targets for trying the model out, on the CPU.

        Args:
            batch: examples, the first dimension of all.
            time: their length, where they have one.
        """
        raise NotImplementedError

    def loss(self, *batch: Tensor, z_loss: float = 0.0) -> LossParts:
        """Mean cross entropy of the targets.

        Args:
            *batch: the inputs, as `forward` takes them, and the targets, int64; of these -1 is ignored.
            z_loss: coefficient of mean(log Z ^ 2), 0 for none.

        Returns:
            Total, cross entropy and z-loss (with its coefficient), 0-dim each.
        """
        raise NotImplementedError


class ModelConfig(Config):
    """The fields of an architecture.

    Attributes:
        default_init: name of the initialisation it was published with.
        objectives: what it can be trained by, see `zoo.data.dataset.DataConfig`.
    """

    default_init: ClassVar[str]
    objectives: ClassVar[frozenset[str]]

    @property
    def max_seq_len(self) -> int | None:
        """Tokens of a sequence at most: those there are position vectors for; None: any number."""
        return None

    def build(self) -> Model:
        """The model, uninitialised, on the current default device."""
        raise NotImplementedError


class DecoderConfig(ModelConfig):
    """The sizes of a decoder-only transformer."""

    objectives: ClassVar[frozenset[str]] = frozenset({"causal"})

    vocab_size: int = Field(gt=0, description="number of tokens")
    d_model: int = Field(gt=0, description="width of the stream")
    n_layers: int = Field(gt=0, description="number of blocks")
    n_heads: int = Field(gt=0, description="number of query heads; divides d_model, unless d_head is given")
    n_kv_heads: int | None = Field(
        None, gt=0, description="key and value heads (grouped queries); null: n_heads"
    )
    d_head: int | None = Field(None, gt=0, description="entries per head; null: d_model / n_heads")
    d_mlp: int | None = Field(None, gt=0, description="inner width of the MLP; null: 4 d_model")
    tied: bool = Field(False, description="use the input embedding as the read-out")

    @model_validator(mode="after")
    def _sizes_divide(self) -> Self:
        if self.d_head is None and self.d_model % self.n_heads:
            raise ValueError(f"d_model {self.d_model} is not divisible by n_heads {self.n_heads}")
        if self.n_heads % self.kv_heads:
            raise ValueError(f"n_heads {self.n_heads} is not divisible by n_kv_heads {self.kv_heads}")
        return self

    @property
    def head_size(self) -> int:
        """Entries per head, h."""
        return self.d_head or self.d_model // self.n_heads

    @property
    def kv_heads(self) -> int:
        """Number of key and value heads."""
        return self.n_kv_heads or self.n_heads

    @property
    def mlp_size(self) -> int:
        """Inner width of the MLP."""
        return self.d_mlp or 4 * self.d_model

    @property
    def residual_branches(self) -> int:
        """2N: two branches in each of the N layers."""
        return 2 * self.n_layers


class Vocabulary(Protocol):
    """What a read-out has to know of a model's sizes."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""

    @property
    def d_model(self) -> int:
        """Width of the stream."""

    @property
    def tied(self) -> bool:
        """Whether the input embedding is the read-out."""


class LMHead(Module):
    """logits <- (E h) s, with E a matrix of its own or the input embedding, s optional."""

    def __init__(
        self, config: Vocabulary, embedding: Embedding, s_z: Scaling | None = None, **stream: Any
    ) -> None:
        """Create the matrix, unless the embedding is tied.

        Args:
            config: sizes, and whether the embedding is tied.
            embedding: the input embedding.
            s_z: one factor per vocabulary item, or None.
            **stream: `input_std` and `sphere` of the matrix.
        """
        super().__init__()
        self.s_z = s_z
        if config.tied:
            # Past nn.Module's bookkeeping: the table belongs to the embedding alone.
            self.__dict__["table"] = embedding
        else:
            spec = matrix(("vocab", config.vocab_size), ("embed", config.d_model), **stream)
            self.matrix = Linear(spec)
        self.tied = config.tied

    @property
    def owner(self) -> Matrix:
        """What E belongs to."""
        owner: Matrix = self.__dict__["table"] if self.tied else self.matrix
        return owner

    def weight(self) -> Tensor:
        """E, (vocab, d)."""
        return self.owner.virtual("weight")

    def scale(self) -> Tensor | None:
        """s, (vocab,) or None."""
        if self.s_z is None:
            return None
        s = self.s_z()
        weight = self.owner.weight
        return s.expand(len(weight)) if isinstance(s, Tensor) else weight.new_full((len(weight),), s)

    def forward(self, h: Tensor) -> Tensor:
        """(batch, time, d) -> logits (batch, time, vocab)."""
        logits = self.owner.matmul(h)
        s = self.scale()
        return logits if s is None else logits * s

    def loss(self, h: Tensor, targets: Tensor, z_loss: float) -> LossParts:
        """Cross entropy without ever holding all logits.

        Args:
            h: (batch, time, d).
            targets: (batch, time) int64; -1 is ignored.
            z_loss: coefficient of mean(log Z ^ 2).

        Returns:
            Total, cross entropy and z-loss, 0-dim each.
        """
        return linear_cross_entropy(
            h.flatten(0, -2), self.weight(), targets.flatten(), scale=self.scale(), z_loss=z_loss
        )


class Trunk(Protocol):
    """What a model that reads text offers to be given another head."""

    @property
    def fsdp_units(self) -> Sequence[nn.Module]:
        """See `Model`."""

    def remove_head(self) -> None:
        """Remove all that does not contribute to `states`; the model then predicts nothing any more."""

    def states(self, tokens: Tensor, segments: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Read texts.

        Args:
            tokens: (batch, time) int64.
            segments: (batch, time) int64, the segment of each token, for models that tell segments apart.
            mask: (batch, time) bool, False where there is padding, which stands behind the text; None: no
                padding.

        Returns:
            What the read-out would be applied to, (batch, time, d); of no meaning where there is padding.
        """


class Decoder(Model):
    """A decoder language model; a subclass adds the parts named here, and `hidden`."""

    config: DecoderConfig
    embedding: Embedding
    blocks: nn.ModuleList
    read_out: LMHead

    @property
    def fsdp_units(self) -> Sequence[nn.Module]:
        """The blocks."""
        return list(self.blocks)

    def stream(self, tokens: Tensor, cache: KVCache | None = None) -> Tensor:
        """Embed the tokens and pass them through all blocks.

        Args:
            tokens: (batch, time) integers.
            cache: keys and values of the tokens before, or None.

        Returns:
            (batch, time, d).
        """
        check_tokens(tokens, cache)
        position = cache.position if cache else 0
        padding = cache.padding if cache else None
        rope = self.rope(position, tokens.shape[1], tokens.device, padding)
        h = self.embed(tokens, position, padding)
        for i, block in enumerate(self.blocks):
            h = block(h, rope, cache.layers[i] if cache else None, position)
        if cache:
            cache.position += tokens.shape[1]
        return h

    def rope(
        self, position: CachePosition, time: int, device: torch.device, padding: Tensor | None = None
    ) -> Rope | None:
        """The rotations, in a model that tells positions by them.

        Args:
            position: of the first token, padding included.
            time: number of tokens.
            device: where the result lives.
            padding: (batch,) int64, the tokens in front of each text that are none of it; None: none.

        Returns:
            Cosines and sines, (time, h / 2) or, with padding, (batch, time, h / 2).
        """
        return None

    def embed(self, tokens: Tensor, position: CachePosition, padding: Tensor | None = None) -> Tensor:
        """What the first block is given, (batch, time, d); `position` and `padding` as for `rope`."""
        h: Tensor = self.embedding(tokens)
        return h

    def hidden(self, tokens: Tensor, cache: KVCache | None = None) -> Tensor:
        """(batch, time) int64 -> what the read-out is applied to, (batch, time, d)."""
        raise NotImplementedError

    def states(self, tokens: Tensor, segments: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """What `Trunk` describes; padding stands behind the text, where no token sees it."""
        return self.hidden(tokens)

    def remove_head(self) -> None:
        """Remove the read-out."""
        del self.read_out

    def forward(self, tokens: Tensor, cache: KVCache | None = None, last: bool = False) -> Tensor:
        """Predict the next token at every position.

        Args:
            tokens: (batch, time) int64; with a cache, only those it does not hold yet.
            cache: from `cache()`; extended in place.
            last: only at the last position, which is all that generation needs of a prompt.

        Returns:
            Logits (batch, time, vocab), or (batch, 1, vocab).

        Raises:
            DataError: tokens of another shape or dtype, or more than the cache holds.
        """
        h = self.hidden(tokens, cache)
        logits: Tensor = self.read_out(h[:, -1:] if last else h)
        return logits

    def loss(self, *batch: Tensor, z_loss: float = 0.0) -> LossParts:
        """The loss that `Model` describes, computed in chunks; the targets are the tokens that follow."""
        tokens, targets = batch
        return self.read_out.loss(self.hidden(tokens), targets, z_loss)

    def cache(
        self,
        batch: int,
        length: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        padding: Tensor | None = None,
    ) -> KVCache:
        """An empty cache for `batch` sequences of up to `length` tokens.

        Args:
            batch: number of sequences.
            length: tokens in each, padding included.
            device: where the cache lives.
            dtype: of its entries.
            padding: (batch,) int64, tokens in front of each text that it does not see and that do not
                count as positions (left padding); None: none.
        """
        c = self.config
        return KVCache(c.n_layers, (batch, length, c.kv_heads, c.head_size), device, dtype, padding)

    def example(self, batch: int = 1, time: int = 16) -> tuple[Tensor, Tensor]:
        """Tokens and targets for trying the model out: all different as far as possible."""
        return consecutive(self.config.vocab_size, batch, time)


def consecutive(vocab_size: int, batch: int, time: int) -> tuple[Tensor, Tensor]:
    """0, 1, 2, ... as tokens and the tokens that follow, int64 (batch, time) each, on the CPU."""
    count = torch.arange(batch * (time + 1), device="cpu").reshape(batch, time + 1) % vocab_size
    return count[:, :-1], count[:, 1:]


def check_tokens(tokens: Tensor, cache: KVCache | None) -> None:
    """Refuse what is not a (batch, time) tensor of token ids, or does not fit the cache."""
    if tokens.dim() != 2 or tokens.dtype not in (torch.int64, torch.int32):
        raise DataError(
            f"tokens: expected (batch, time) integers, got shape {tuple(tokens.shape)} of {tokens.dtype}"
        )
    if cache is None or isinstance(cache.position, Tensor):  # who fixed it knows that there is room
        return
    if cache.position + tokens.shape[1] > cache.capacity:
        raise DataError(
            f"tokens: {tokens.shape[1]} more do not fit the cache: "
            f"{cache.position} of {cache.capacity} positions are used"
        )
