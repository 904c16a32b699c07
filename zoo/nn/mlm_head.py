"""The head of a masked language model, whose matrix is the token embedding."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from zoo.nn.layernorm import LayerNorm
from zoo.nn.linear import Embedding, Linear, matrix
from zoo.nn.loss import LossParts, linear_cross_entropy
from zoo.nn.mlp import GELUForm
from zoo.spec import Module, ParamSpec, Role


class HeadTransform(Module):
    """LayerNorm(GELU(W h + b)), the layer in front of a head (BERT; without biases ModernBERT)."""

    def __init__(
        self,
        d_model: int,
        eps: float,
        *,
        approximate: GELUForm = "none",
        start: float | None = None,
        bias: bool = True,
    ) -> None:
        """Create the matrix and the norm.

        Args:
            d_model: width of the stream.
            eps: added to the variance in the norm.
            approximate: the form of GELU.
            start: the constant that W starts from; None: random numbers.
            bias: whether the matrix and the norm have a bias each.
        """
        super().__init__()
        transformed = ("transformed", d_model)
        self.transform = Linear(matrix(transformed, ("embed", d_model), start=start), bias=bias)
        self.norm = LayerNorm(transformed, eps, bias)
        self.approximate = approximate

    def forward(self, h: Tensor) -> Tensor:
        """LayerNorm(GELU(W h + b)), (..., d) -> (..., d)."""
        y: Tensor = self.norm(F.gelu(self.transform(h), approximate=self.approximate))
        return y


class MLMHead(HeadTransform):
    """logits <- E_token LayerNorm(GELU(W h + b)) + b_out."""

    def __init__(
        self,
        table: Embedding,
        eps: float,
        *,
        approximate: GELUForm = "none",
        start: float | None = None,
        bias: bool = True,
    ) -> None:
        """Create the transform and the output bias.

        Args:
            table: the token embedding.
            eps: added to the variance in the norm.
            approximate: the form of GELU.
            start: the constant that W starts from; None: random numbers.
            bias: whether the matrix and the norm have a bias each; the output has a bias anyway.
        """
        vocab_size, d_model = table.specs["weight"].shape
        super().__init__(d_model, eps, approximate=approximate, start=start, bias=bias)
        # Not through nn.Module.__setattr__: the table is a submodule of the embedding alone.
        self.__dict__["table"] = table
        self.param("bias", ParamSpec(Role.BIAS, shape=(vocab_size,), axes=("vocab",)))

    def weight(self) -> Tensor:
        """E_token, (vocab, d)."""
        table: Embedding = self.__dict__["table"]
        return table.virtual("weight")

    def forward(self, h: Tensor) -> Tensor:
        """(..., d) -> logits (..., vocab)."""
        return F.linear(super().forward(h), self.weight()) + self.virtual("bias")

    def loss(self, h: Tensor, targets: Tensor, z_loss: float) -> LossParts:
        """Cross entropy, computed in chunks: the logits of all tokens are never held at once.

        Args:
            h: (n, d).
            targets: (n,) int64.
            z_loss: coefficient of mean(log Z ^ 2).

        Returns:
            Total, cross entropy and z-loss, 0-dim each.
        """
        return linear_cross_entropy(
            super().forward(h), self.weight(), targets, bias=self.virtual("bias"), z_loss=z_loss
        )
