"""The repetition penalty (Keskar et al. 2019, arXiv:1909.05858, section 4.1), in the form of transformers."""

from __future__ import annotations

import torch
from torch import Tensor


class Repetition:
    """Makes seen tokens less probable: divides their logits by the penalty if positive, multiplies others."""

    def __init__(self, penalty: float) -> None:
        """Start with no seen tokens.

        Args:
            penalty: above 1 it makes repetition less probable, below 1 more probable.
        """
        self.penalty = penalty
        self.seen: Tensor | None = None

    def __call__(self, logits: Tensor, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Add tokens to those that were seen, and penalise all of them.

        Args:
            logits: (batch, vocab).
            tokens: (batch, time) int64, the tokens that are new since the last call.
            mask: (batch, time) bool, False for padding, which is ignored; None: there is no padding.

        Returns:
            Like `logits`.
        """
        if self.seen is None:
            self.seen = torch.zeros_like(logits, dtype=torch.bool)
        # The last token of a row replaces its padding.
        seen = tokens if mask is None else tokens.where(mask, tokens[:, -1:])
        self.seen.scatter_(1, seen, True)
        penalised = torch.where(logits < 0, logits * self.penalty, logits / self.penalty)
        limits = torch.finfo(logits.dtype)
        penalised = penalised.clamp(limits.min, limits.max)
        return torch.where(self.seen, penalised, logits)
