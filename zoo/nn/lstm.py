"""The LSTM with a projected output (Gers et al. 2000; Sak et al. 2014): one kernel for [x, h].

i, f, g, o = W [x_t, h_{t-1}] + b
c_t = sigmoid(f) c_{t-1} + sigmoid(i) tanh(g)
h_t = P (sigmoid(o) tanh(c_t))
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.kernels.matmul import linear
from zoo.kernels.recurrence import recurrence
from zoo.spec import Module, ParamSpec, Role, WidthPowers

MEMORY_STD = 0.29
"""Standard deviation of sigmoid(o) tanh(c) after many steps, if x, h and the gates have the declared standard
deviations and the constant of the forget gate is 1. It was found by simulation, since h is fed back; with the
constant 0 it would be 0.22."""

CHUNK = 256
"""Number of steps computed at once without gradients, so that a text may have any length."""


class LSTMState(NamedTuple):
    """The state between two steps: h (batch, d) and the memory c (batch, m)."""

    h: Tensor
    c: Tensor


class LSTM(Module):
    """A layer from a sequence of vectors of size d to a sequence of vectors of size d."""

    def __init__(
        self,
        d_model: int,
        d_memory: int,
        *,
        std: float,
        std_power: float = 0.0,
        forget_bias: float,
        hidden_dropout: float = 0.0,
        memory_dropout: float = 0.0,
        projection_start: float | None = None,
    ) -> None:
        """Declare kernel, bias and projection.

        Args:
            d_model: d, size of x and h.
            d_memory: m, size of c.
            std: standard deviation of x, which h should have as well.
            std_power: the power of the model's width that `std` is proportional to.
            forget_bias: constant that is added to f.
            hidden_dropout: probability of dropping an entry of x or h, at every step anew.
            memory_dropout: probability of dropping an entry of the projected vector; the same entries are
                dropped at every step of a sequence.
            projection_start: the constant that the projection starts from; None: random numbers.
        """
        super().__init__()
        self.d_model, self.d_memory = d_model, d_memory
        self.forget_bias = forget_bias
        self.hidden_dropout, self.memory_dropout = hidden_dropout, memory_dropout
        self.param(
            "weight",
            ParamSpec(
                Role.LINEAR,
                shape=(4 * d_memory, 2 * d_model),
                axes=("gates", "inputs"),
                fan_in=("inputs",),
                input_std=std,
                powers=WidthPowers(input_std=std_power),
            ),
        )
        self.param("bias", ParamSpec(Role.BIAS, shape=(4 * d_memory,), axes=("gates",)))
        self.param(
            "projection",
            ParamSpec(
                Role.LINEAR,
                shape=(d_model, d_memory),
                axes=("embed", "memory"),
                fan_in=("memory",),
                input_std=MEMORY_STD,
                output_std=std,
                powers=WidthPowers(output_std=std_power),
                start=projection_start,
            ),
        )

    def start(self, batch: int, device: torch.device | str | None, dtype: torch.dtype) -> LSTMState:
        """The state before the first step: zeros."""
        h = torch.zeros(batch, self.d_model, device=device, dtype=dtype)
        return LSTMState(h, h.new_zeros(batch, self.d_memory))

    def forward(self, x: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        """Read a sequence.

        Args:
            x: (batch, time, d).
            state: the state after the steps before, see `start`.

        Returns:
            h of every step (batch, time, d), in the dtype of `x`, and the state after the last one, float32
            or better.
        """
        kernel = self.virtual("weight")
        # Contiguous copies, because products with a slice are many times slower.
        of_x, of_h = (half.contiguous() for half in kernel.chunk(2, dim=1))
        bias, projection = self._bias(), self.virtual("projection")
        steps = x.transpose(0, 1)
        masks = self._masks(steps)
        steps = F.dropout(steps, self.hidden_dropout, self.training)
        h, c = state
        outputs = []
        whole = self.training or torch.is_grad_enabled()
        for chunk in [steps] if whole else torch.split(steps, CHUNK):
            gates = linear(chunk, of_x) + bias
            output, c = recurrence(gates, of_h, projection, h, c, *masks)
            h = output[-1]
            outputs.append(output)
        return torch.cat(outputs).transpose(0, 1).to(x.dtype), LSTMState(h, c)

    def _bias(self) -> Tensor:
        """b, (4 m,), with the constant of the forget gate."""
        bias = self.virtual("bias")
        constant = torch.zeros_like(bias)
        constant[self.d_memory : 2 * self.d_memory] = self.forget_bias
        return bias + constant

    def _masks(self, steps: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Dropout masks of h (time, batch, d) and of the projected vector (batch, m); None: no dropout."""
        memory = steps.new_ones(steps.shape[1], self.d_memory)
        pairs = ((torch.ones_like(steps), self.hidden_dropout), (memory, self.memory_dropout))
        of_h, of_memory = (F.dropout(ones, p) if p and self.training else None for ones, p in pairs)
        return of_h, of_memory
