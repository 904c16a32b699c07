"""Feed-forward blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from zoo.nn.linear import Linear, matrix
from zoo.nn.scaling import Scaling, ScalingConfig
from zoo.spec import Module, ScalePair

ACTIVATION_STD = math.sqrt(0.5)
"""Standard deviation of the output of an activation whose input has standard deviation 1 (Amos, Table 1)."""

GELUForm = Literal["none", "tanh"]
"""The forms of GELU by their names in torch: the exact one, and the approximation with tanh of GPT-2."""

GELU_FORMS: dict[Literal["exact", "tanh"], GELUForm] = {"exact": "none", "tanh": "tanh"}
"""The forms of GELU by the names that configurations of models give them."""


class GELUMLP(Module):
    """W_d GELU(W_u x), two matrices (the MLP of the WeSaR paper; with biases, BERT's and GPT-2's).

    Attributes:
        reads: the matrices that the input is multiplied by.
    """

    reads = ("up.weight",)

    def __init__(
        self,
        d_model: int,
        d_mlp: int,
        residual_branches: int,
        bias: bool = False,
        approximate: GELUForm = "none",
        down_start: float | None = None,
        normalised: bool = False,
    ) -> None:
        """Create the two matrices.

        Args:
            d_model: width of the stream.
            d_mlp: inner width.
            residual_branches: number of residual branches of the stack, 2N for N layers, one of which W_d
                ends.
            bias: whether each of the two maps has a bias.
            approximate: the form of GELU.
            down_start: the constant that W_d starts from; None: random numbers.
            normalised: whether the output is normalised next.
        """
        super().__init__()
        self.approximate = approximate
        embed, mlp = ("embed", d_model), ("mlp", d_mlp)
        self.up = Linear(matrix(mlp, embed), bias)
        down = matrix(
            embed,
            mlp,
            input_std=ACTIVATION_STD,
            residual_branches=residual_branches,
            start=down_start,
            normalised=normalised,
        )
        self.down = Linear(down, bias)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, d) -> the same."""
        y: Tensor = self.down(F.gelu(self.up(x), approximate=self.approximate))
        return y


class ReLUMLP(Module):
    """W_d dropout(ReLU(W_u x)), without biases (the first T5; Vaswani et al. 2017 have biases)."""

    def __init__(self, d_model: int, d_mlp: int, residual_branches: int, dropout: float = 0.0) -> None:
        """Create the two matrices.

        Args:
            d_model: width of the stream.
            d_mlp: inner width.
            residual_branches: number of residual branches of the stack, 2N for N layers, one of which W_d
                ends.
            dropout: probability of dropping an entry of the inner activations.
        """
        super().__init__()
        embed, mlp = ("embed", d_model), ("mlp", d_mlp)
        self.up = Linear(matrix(mlp, embed))
        self.down = Linear(matrix(embed, mlp, input_std=ACTIVATION_STD, residual_branches=residual_branches))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, d) -> the same."""
        y: Tensor = self.down(self.dropout(F.relu(self.up(x))))
        return y


class Gated(Module):
    """The three matrices of W_d (u * f(nu)), u = W_u x, nu = W_nu x (Shazeer 2020).

    Attributes:
        reads: the matrices that the input is multiplied by.
    """

    reads = ("u.weight", "nu.weight")

    def __init__(self, d_model: int, d_mlp: int, residual_branches: int, normalised: bool = False) -> None:
        """Create the three matrices.

        Args:
            d_model: width of the stream.
            d_mlp: inner width.
            residual_branches: number of residual branches of the stack, 2N for N layers, one of which W_d
                ends.
            normalised: whether the output is normalised next; the scale of u then has no effect either.
        """
        super().__init__()
        embed, mlp = ("embed", d_model), ("mlp", d_mlp)
        self.u = Linear(matrix(mlp, embed, normalised=normalised))
        self.nu = Linear(matrix(mlp, embed))
        self.down = Linear(
            matrix(
                embed,
                mlp,
                input_std=ACTIVATION_STD,
                residual_branches=residual_branches,
                normalised=normalised,
            )
        )

    @property
    def scale_pairs(self) -> Sequence[ScalePair]:
        """Rows of u with columns of down, because the output is linear in u."""
        return [((("u.weight", "rows"),), (("down.weight", "columns"),))]


class SwiGLU(Gated):
    """f is SiLU (nGPT, equations 17 to 19)."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, d) -> the same."""
        y: Tensor = self.down(self.u(x) * F.silu(self.nu(x)))
        return y


class GatedGELU(Gated):
    """f is GELU, and dropout acts on the product u * f(nu) (T5 v1.1, Gemma; the exact one: ModernBERT)."""

    def __init__(
        self,
        d_model: int,
        d_mlp: int,
        residual_branches: int,
        dropout: float = 0.0,
        normalised: bool = False,
        approximate: GELUForm = "tanh",
    ) -> None:
        """Create the three matrices.

        Args:
            d_model: width of the stream.
            d_mlp: inner width.
            residual_branches: number of residual branches of the stack, 2N for N layers, one of which W_d
                ends.
            dropout: probability of dropping an entry of the product.
            normalised: whether the output is normalised next; the scale of u then has no effect either.
            approximate: the form of GELU.
        """
        super().__init__(d_model, d_mlp, residual_branches, normalised)
        self.dropout = nn.Dropout(dropout)
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, d) -> the same."""
        y: Tensor = self.down(self.dropout(self.u(x) * F.gelu(self.nu(x), approximate=self.approximate)))
        return y


class ScaledSwiGLU(Module):
    """nGPT's SwiGLU on the sphere: u <- u s_u, nu <- nu s_nu sqrt(d) (equations 20 and 21)."""

    def __init__(
        self, d_model: int, d_mlp: int, residual_branches: int, s_u: ScalingConfig, s_nu: ScalingConfig
    ) -> None:
        super().__init__()
        embed, mlp = ("embed", d_model), ("mlp", d_mlp)
        std = d_model**-0.5
        self.sqrt_d = math.sqrt(d_model)
        self.u = Linear(matrix(mlp, embed, input_std=std, sphere="embed", normalised=True))
        self.nu = Linear(matrix(mlp, embed, input_std=std, sphere="embed", rescaled=s_nu.trained))
        self.s_u = Scaling((mlp,), s_u)
        self.s_nu = Scaling((mlp,), s_nu)
        self.down = Linear(
            matrix(
                embed,
                mlp,
                input_std=ACTIVATION_STD * std,
                residual_branches=residual_branches,
                sphere="embed",
                normalised=True,
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, d) -> the same."""
        u = self.u(x, self.s_u())
        nu = self.nu(x, self.s_nu() * self.sqrt_d)
        y: Tensor = self.down(u * F.silu(nu))
        return y
