"""The head of a language model: from hidden states to the logits of the vocabulary."""

from __future__ import annotations

from torch import Tensor

from zoo.nn.linear import Embedding, Linear, Matrix, matrix
from zoo.nn.loss import LossParts, capped, linear_cross_entropy
from zoo.nn.scaling import Scaling
from zoo.spec import NO_POWERS, Module, WidthPowers


class LMHead(Module):
    """logits <- (E (f h)) s, where E is a matrix of the head or the input embedding, and s is optional."""

    def __init__(
        self,
        embedding: Embedding,
        s_z: Scaling | None = None,
        *,
        tied: bool = False,
        input_std: float = 1.0,
        sphere: str | None = None,
        soft_cap: float | None = None,
        factor: float = 1.0,
        powers: WidthPowers = NO_POWERS,
    ) -> None:
        """Create the matrix, unless the embedding is tied.

        Args:
            embedding: the input embedding, whose table has the shape of E.
            s_z: one factor for each token of the vocabulary, or None.
            tied: whether E is the table of the embedding.
            input_std: standard deviation of the entries of h.
            sphere: "embed" if the rows of E have unit norm.
            soft_cap: c of logits <- c tanh(logits / c), in float32; None: no cap.
            factor: f, a constant that hidden states are multiplied by.
            powers: which constants of E depend on the width of the model, unless it is the table.
        """
        super().__init__()
        self.s_z = s_z
        self.tied = tied
        self.soft_cap = soft_cap
        self.factor = factor
        if tied:
            # Not through nn.Module.__setattr__: the table is a submodule of the embedding alone.
            self.__dict__["table"] = embedding
        else:
            spec = embedding.specs["weight"]
            rows, columns = zip(spec.axes, spec.shape, strict=True)
            rescaled = s_z is not None and s_z.fixed is None
            self.matrix = Linear(
                matrix(rows, columns, input_std=input_std, sphere=sphere, rescaled=rescaled, powers=powers)
            )

    @property
    def projection(self) -> Matrix:
        """The module whose weight is E."""
        projection: Matrix = self.__dict__["table"] if self.tied else self.matrix
        return projection

    def weight(self) -> Tensor:
        """E, (vocab, d)."""
        return self.projection.virtual("weight")

    def scale(self) -> Tensor | None:
        """s, (vocab,), or None."""
        if self.s_z is None:
            return None
        s = self.s_z()
        weight = self.projection.weight
        return s.expand(len(weight)) if isinstance(s, Tensor) else weight.new_full((len(weight),), s)

    def scaled(self, h: Tensor) -> Tensor:
        """f h, of the shape of h."""
        return h if self.factor == 1 else h * self.factor

    def forward(self, h: Tensor) -> Tensor:
        """(batch, time, d) -> logits (batch, time, vocab)."""
        logits = self.projection.matmul(self.scaled(h))
        s = self.scale()
        logits = logits if s is None else logits * s
        return logits if self.soft_cap is None else capped(logits, self.soft_cap)

    def loss(self, h: Tensor, targets: Tensor, z_loss: float) -> LossParts:
        """Cross entropy, computed in chunks: the logits of all tokens are never held at once.

        Args:
            h: (batch, time, d).
            targets: (batch, time) int64; targets of -1 are ignored.
            z_loss: coefficient of mean(log Z ^ 2).

        Returns:
            Total, cross entropy and z-loss, 0-dim each.
        """
        return linear_cross_entropy(
            self.scaled(h).flatten(0, -2),
            self.weight(),
            targets.flatten(),
            scale=self.scale(),
            z_loss=z_loss,
            soft_cap=self.soft_cap,
        )
