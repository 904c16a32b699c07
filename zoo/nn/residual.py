"""Residual connections: how the output of a branch is added to the stream.

Each takes the stream and the branch, a callable, so that any branch (attention or MLP, causal or not) can be
combined with any connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from zoo.nn.norm import RMSNorm, unit
from zoo.nn.scaling import AlphaConfig, Scaling
from zoo.spec import Module, ScalePair, TensorSides
from zoo.utils.exact import exact

Branch = Callable[..., Tensor]
Norm = Callable[[tuple[str, int], float], Module]
"""A function from an axis and eps to a norm."""

ALPHA = 0.25
"""The value that alpha is declared to reach: in the paper's runs of 24 layers of width 1,024 it ends at about
.22 for attention and .33 for the MLP (nGPT, Table 5)."""


class Unnormed(Module):
    """h <- h + dropout(branch(h)), of a stream that is normalised already (ModernBERT's first block)."""

    def __init__(self, dropout: float = 0.0) -> None:
        """Create the dropout: probability of dropping an entry of the branch's output."""
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, h: Tensor, branch: Branch, *args: object) -> Tensor:
        """(batch, time, d) -> the same."""
        out: Tensor = h + self.dropout(branch(h, *args))
        return out


class PreNorm(Module):
    """h <- h + dropout(branch(norm(h)))."""

    def __init__(self, d_model: int, eps: float, dropout: float = 0.0, norm: Norm = RMSNorm) -> None:
        """Create the norm.

        Args:
            d_model: width of the stream.
            eps: added to the mean square or the variance in the norm.
            dropout: probability of dropping an entry of the branch's output.
            norm: a function from axis and eps to the norm.
        """
        super().__init__()
        self.norm = norm(("embed", d_model), eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, h: Tensor, branch: Branch, *args: object) -> Tensor:
        """(batch, time, d) -> the same."""
        return h + self.added(h, branch, *args)

    def added(self, h: Tensor, branch: Branch, *args: object) -> Tensor:
        """What the branch adds to the stream, (batch, time, d)."""
        out: Tensor = self.dropout(branch(self.norm(h), *args))
        return out


class BranchNorm(Module):
    """h <- h + dropout(norm(branch(h))), the reordered norm of OLMo 2 (arXiv 2501.00656, section 3.2)."""

    def __init__(self, d_model: int, eps: float, dropout: float = 0.0, norm: Norm = RMSNorm) -> None:
        """Create the norm; the arguments are those of `PreNorm`."""
        super().__init__()
        self.after = norm(("embed", d_model), eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, h: Tensor, branch: Branch, *args: object) -> Tensor:
        """(batch, time, d) -> the same."""
        out: Tensor = h + self.dropout(self.after(branch(h, *args)))
        return out


class SandwichNorm(PreNorm):
    """h <- h + dropout(norm_2(branch(norm_1(h)))), the norms of Gemma 2 (arXiv 2408.00118, section 2)."""

    def __init__(self, d_model: int, eps: float, dropout: float = 0.0, norm: Norm = RMSNorm) -> None:
        """Create the norms; the arguments are those of `PreNorm`."""
        super().__init__(d_model, eps, dropout, norm)
        self.after = norm(("embed", d_model), eps)

    def added(self, h: Tensor, branch: Branch, *args: object) -> Tensor:
        """What the branch adds to the stream, (batch, time, d)."""
        out: Tensor = self.dropout(self.after(branch(self.norm(h), *args)))
        return out


def norm_before(residual: str, branch: str, reads: Sequence[str]) -> ScalePair:
    """The scale of a `PreNorm`, with the columns of the matrices that read the normalised stream.

    Args:
        residual: name of the connection in its block.
        branch: name of the branch.
        reads: the matrices of the branch.
    """
    columns: TensorSides = tuple((f"{branch}.{name}", "columns") for name in reads)
    return ((f"{residual}.norm.scale", "entries"),), columns


class PostNorm(Module):
    """h <- norm(h + dropout(branch(h))), the original transformer's (Vaswani et al. 2017)."""

    def __init__(self, norm: Module, dropout: float = 0.0) -> None:
        """Store the norm and create the dropout.

        Args:
            norm: applied to the sum, (..., d) -> (..., d).
            dropout: probability of dropping an entry of the branch's output.
        """
        super().__init__()
        self.norm = norm
        self.dropout = nn.Dropout(dropout)

    def forward(self, h: Tensor, branch: Branch, *args: object) -> Tensor:
        """(batch, time, d) -> the same."""
        out: Tensor = self.norm(h + self.dropout(branch(h, *args)))
        return out


class Lerp(Module):
    """nGPT: h <- Norm(h + alpha (h_B - h)), h_B = Norm(branch(h)) (equations 10 and 11)."""

    def __init__(self, d_model: int, alpha: AlphaConfig, first: bool = False) -> None:
        """Declare alpha.

        Args:
            d_model: width of the stream.
            alpha: form and start of the eigen learning rates.
            first: whether the stream comes from an embedding, and is therefore normalised here. On the sphere
                this is the identity, but it removes the radial gradient of the embedding, as in the authors'
                code. After another `Lerp` it would change nothing.
        """
        super().__init__()
        self.first = first
        self.alpha = Scaling((("embed", d_model),), alpha, d_model, target=ALPHA)

    def forward(self, h: Tensor, branch: Branch, *args: object) -> Tensor:
        """(batch, time, d), unit norm -> the same."""
        target = unit(branch(h, *args))
        return unit(self.move(unit(h) if self.first else h, target, self.alpha()))

    def move(self, h: Tensor, target: Tensor, alpha: Tensor | float) -> Tensor:
        """A step from `h` to `target`, both (batch, time, d) of unit norm; the result is not normalised."""
        return h + alpha * (target - h)


class Riemannian(Lerp):
    """nGPT, A.3: h <- Norm(h - alpha (h (h . h_B) - h_B)), the gradient in the tangent space."""

    def move(self, h: Tensor, target: Tensor, alpha: Tensor | float) -> Tensor:
        """A step of `alpha` along the part of `target` that is orthogonal to `h`."""
        cosine = (h * target).sum(-1, keepdim=True)
        return h - alpha * (h * cosine - target)


class Slerp(Lerp):
    """nGPT, 2.2.2: sin((1 - alpha) t) / sin(t) h + sin(alpha t) / sin(t) h_B, t the angle between.

    With a vector alpha the formula holds entry by entry.
    """

    def move(self, h: Tensor, target: Tensor, alpha: Tensor | float) -> Tensor:
        """A step along the great circle, or along the chord where the two points almost coincide."""
        cosine = exact((h * target).sum(-1, keepdim=True)).clamp(-1 + 1e-6, 1 - 1e-6)
        angle = torch.acos(cosine)
        along = torch.sin((1 - alpha) * angle) * h + torch.sin(alpha * angle) * target
        return (along / torch.sin(angle)).to(h.dtype)
