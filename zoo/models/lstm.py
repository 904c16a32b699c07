"""The LSTM language model of the Amos paper (section 5.2): one layer, its output projected.

x_t <- E token_t;  h_t, c_t <- LSTM(x_t, h_{t-1}, c_{t-1});  logits <- E h_t + b

The paper gives the sizes, the dropout and the eta of the kernel, 1/sqrt(32) for an input of standard
deviation 1/4. For the rest it refers to Gers et al. (2000), whose cell is used here. 1/4 is d^(-1/4): the
table and h then have the same scale, and the logits E h have standard deviation 1. The code that the authors
released later has another cell (normalised inputs and memory, one gate for both forgetting and input); the
constant 1 in the forget gate and the positions of dropout are those of that code, and its starts are offered
(`zero_start`, and `unit_inputs` of the initialisation `amos`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.config.registry import MODELS
from zoo.models.inputs import check_tokens, consecutive_tokens
from zoo.models.language_model import LanguageModel, LanguageModelConfig
from zoo.nn.linear import Embedding
from zoo.nn.lm_head import LMHead
from zoo.nn.loss import LossParts, linear_cross_entropy
from zoo.nn.lstm import LSTM, LSTMState
from zoo.spec import Module, ParamSpec, Role, WidthPowers
from zoo.utils.errors import ConfigError, DataError

STD_POWER = -0.25
"""The power of the width that the standard deviation of x and h is."""


@MODELS.register
class LSTMConfig(LanguageModelConfig):
    """Language model with one projected LSTM layer, whose state may be carried from batch to batch."""

    default_init: ClassVar[str] = "amos"
    type: Literal["lstm"] = "lstm"
    vocab_size: int = Field(gt=0, description="number of tokens")
    d_model: int = Field(256, gt=0, description="size of the hidden state h and of the embedding")
    d_memory: int = Field(1024, gt=0, description="size of the memory c")
    tied: bool = Field(True, description="use the input embedding as the language model head")
    forget_bias: float = Field(
        1.0, allow_inf_nan=False, description="constant added to the forget gate before the sigmoid"
    )
    hidden_dropout: float = Field(0.0, ge=0, lt=1, description="dropout of x and h, drawn anew at every step")
    memory_dropout: float = Field(
        0.0, ge=0, lt=1, description="dropout of the projected vector, drawn once per sequence"
    )
    zero_start: bool = Field(
        False, description="the projection starts at 0, as in the Amos paper's released code"
    )
    streams: int | None = Field(
        None,
        gt=0,
        description="sequences of a training batch, each of which continues the one of the batch before "
        "(objective stream); null: every sequence starts from zeros (objective causal)",
    )

    @property
    def objectives(self) -> frozenset[str]:  # type: ignore[override]  # depends on a field
        """`stream`, whose batches continue each other, if the state is carried; otherwise `causal`."""
        return frozenset({"stream" if self.carries_state else "causal"})

    @property
    def ties_embedding(self) -> bool:
        """Whether the head multiplies by the table of the input embedding."""
        return self.tied

    @property
    def carries_state(self) -> bool:
        """Whether the sequences of a batch go on where those of the batch before ended."""
        return self.streams is not None

    def check_batch(self, batch_size: int, accumulation: int, ranks: int) -> None:
        """Check that every batch has one sequence for each stream, all of them at once and in one process."""
        if self.streams is not None and (batch_size, accumulation, ranks) != (self.streams, 1, 1):
            raise ConfigError(
                f"model.streams: value {self.streams}: train.batch_size is {batch_size}, train.accumulation "
                f"{accumulation}, and the number of processes {ranks}; expected batch_size {self.streams}, "
                "accumulation 1 and one process, because the state is carried for whole batches"
            )

    @property
    def std(self) -> float:
        """Standard deviation of x and h."""
        return float(self.d_model**STD_POWER)

    def build(self) -> LSTMModel:
        """The model, uninitialised."""
        return LSTMModel(self)


class BiasedLMHead(LMHead):
    """logits <- E h + b."""

    def __init__(self, c: LSTMConfig, embedding: Embedding) -> None:
        powers = WidthPowers(input_std=STD_POWER)
        super().__init__(embedding, tied=c.tied, input_std=c.std, powers=powers)
        self.param("bias", ParamSpec(Role.BIAS, shape=(c.vocab_size,), axes=("vocab",)))

    def forward(self, h: Tensor) -> Tensor:
        """(batch, time, d) -> logits (batch, time, vocab)."""
        return self.projection.matmul(h) + self.virtual("bias")

    def loss(self, h: Tensor, targets: Tensor, z_loss: float) -> LossParts:
        """The loss of the logits, to which the bias is added, see `LMHead.loss`."""
        return linear_cross_entropy(
            h.flatten(0, -2), self.weight(), targets.flatten(), bias=self.virtual("bias"), z_loss=z_loss
        )


class StateCache:
    """What an LSTM remembers in a generation: its state, in the place of a transformer's keys and values.

    Attributes:
        state: the state after the tokens read so far.
    """

    def __init__(self, state: LSTMState) -> None:
        self.state, self._stays = state, False

    def fix_shapes(self) -> None:
        """Keep the tensors of the state at their addresses; their shapes are always the same."""
        self._stays = True

    def keep(self, state: LSTMState) -> None:
        """Replace the state."""
        if self._stays:
            for kept, new in zip(self.state, state, strict=True):
                kept.copy_(new)
        else:
            self.state = state


class LSTMModel(LanguageModel):
    """Language model with one projected LSTM layer, from tokens to logits."""

    writes = "continuation"

    def __init__(self, c: LSTMConfig) -> None:
        super().__init__()
        self.config: LSTMConfig = c
        self.embedding = Embedding(
            ("vocab", c.vocab_size),
            c.d_model,
            input_std=c.std,
            output_std=1.0 if c.tied else c.std,
            lookup_std=c.std,
            tied=c.tied,
            powers=WidthPowers(STD_POWER, output_std=0.0 if c.tied else STD_POWER, lookup_std=STD_POWER),
        )
        self.lstm = LSTM(
            c.d_model,
            c.d_memory,
            std=c.std,
            std_power=STD_POWER,
            forget_bias=c.forget_bias,
            hidden_dropout=c.hidden_dropout,
            memory_dropout=c.memory_dropout,
            projection_start=0.0 if c.zero_start else None,
        )
        self.read_out = BiasedLMHead(c, self.embedding)
        self.carried = None if c.streams is None else Carried(c.streams, c.d_model, c.d_memory)

    @property
    def layers(self) -> Sequence[nn.Module]:
        """The LSTM layer."""
        return [self.lstm]

    @property
    def lm_head(self) -> BiasedLMHead:
        """The module that maps hidden states (..., d) to logits (..., vocab)."""
        return self.read_out

    def hidden_states(
        self, tokens: Tensor, segments: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """The output of the layer from a state of zeros; `segments` and `mask` have no effect."""
        check_tokens(tokens)
        return self.read(tokens, None)[0]

    def remove_head(self) -> None:
        """Remove the head, which `hidden_states` does not use."""
        del self.read_out

    def forward(self, tokens: Tensor, cache: StateCache | None = None, last: bool = False) -> Tensor:
        """Predict the next token at every position.

        Args:
            tokens: (batch, time) int64; with a cache, only those that the model has not read yet.
            cache: the state after the tokens before, made by `cache()` and replaced in place. Without a cache
                the state starts from zeros.
            last: whether to predict at the last position only.

        Returns:
            Logits (batch, time, vocab), or (batch, 1, vocab).

        Raises:
            DataError: The tokens have another shape or dtype.
        """
        check_tokens(tokens)
        h, state = self.read(tokens, cache.state if cache else None)
        if cache:
            cache.keep(state)
        logits: Tensor = self.lm_head(h[:, -1:] if last else h)
        return logits

    def loss(self, *batch: Tensor, z_loss: float = 0.0) -> LossParts:
        """The loss described in `Model`; the targets are the tokens that follow.

        In training, the sequences start from the carried state, if there is one, and their last state is
        carried on. In evaluation they start from zeros, so that a row may be a whole text.

        Raises:
            DataError: In training, the number of sequences is not that of the carried state.
        """
        tokens, targets = batch
        check_tokens(tokens)
        carried = self.carried if self.training else None
        h, state = self.read(tokens, carried.state(len(tokens)) if carried else None)
        if carried:
            carried.keep(state)
        return self.lm_head.loss(h, targets, z_loss)

    def read(self, tokens: Tensor, state: LSTMState | None) -> tuple[Tensor, LSTMState]:
        """Run the layer over tokens.

        Args:
            tokens: (batch, time) int64.
            state: the state to start from; None: zeros.

        Returns:
            The hidden states (batch, time, d), and the state after the last token.
        """
        x = self.embedding(tokens)
        h, state = self.lstm(x, state or self.lstm.start(len(tokens), x.device, x.dtype))
        return F.dropout(h, self.config.hidden_dropout, self.training), state

    def cache(
        self,
        batch: int,
        length: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        padding: Tensor | None = None,
        multiple_of: int = 1,
    ) -> StateCache:
        """The state of `batch` sequences before the first token; nothing else but its dtype has an effect."""
        return StateCache(self.lstm.start(batch, device, dtype or torch.float32))

    def example(self, batch: int = 1, time: int = 16) -> tuple[Tensor, Tensor]:
        """Tokens, all different where the vocabulary is large enough, and the tokens that follow."""
        return consecutive_tokens(self.config.vocab_size, batch, time)


class Carried(Module):
    """The state that training carries from batch to batch, and that is saved with the weights.

    Another run that starts from the weights reads its text from the beginning, with a state of zeros.
    """

    def __init__(self, streams: int, d_model: int, d_memory: int) -> None:
        """Declare the state, which starts from zeros.

        Args:
            streams: number of sequences.
            d_model: size of h.
            d_memory: size of c.
        """
        super().__init__()
        self.buffer("h", (streams, d_model), start=0.0, of_run=True)
        self.buffer("c", (streams, d_memory), start=0.0, of_run=True)

    def state(self, batch: int) -> LSTMState:
        """The state that a batch of `batch` sequences starts from.

        Raises:
            DataError: The state has another number of sequences.
        """
        h, c = self.get_buffer("h"), self.get_buffer("c")
        if batch != len(h):
            raise DataError(
                f"model.streams is {len(h)}, but {batch} sequences came at once: the state is carried for "
                "whole batches, so train.batch_size must be model.streams and train.accumulation 1"
            )
        return LSTMState(h.clone(), c.clone())

    @torch.no_grad()
    def keep(self, state: LSTMState) -> None:
        """Store the state for the next batch, without its gradient (truncated BPTT)."""
        self.get_buffer("h").copy_(state.h)
        self.get_buffer("c").copy_(state.c)
