"""The repetition penalty (Keskar et al. 2019, arXiv:1909.05858, section 4.1), as transformers has it."""

from __future__ import annotations

import torch
from torch import Tensor


class Repetition:
    """Makes tokens that are there already less likely: their logits / penalty if above 0, * penalty below."""

    def __init__(self, penalty: float) -> None:
        """Start without any token.

        Args:
            penalty: above 1 against repetition, below 1 for it.
        """
        self.penalty = penalty
        self.seen: Tensor | None = None

    def __call__(self, logits: Tensor, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Take note of tokens, and penalise all those noted so far.

        Args:
            logits: (batch, vocab).
            tokens: (batch, time) int64, what each row has got since the last call.
            mask: (batch, time) bool, False for padding, which is not counted; None: all of it is.

        Returns:
            Like `logits`.
        """
        if self.seen is None:
            self.seen = torch.zeros_like(logits, dtype=torch.bool)
        # A row's own last token stands in for its padding.
        noted = tokens if mask is None else tokens.where(mask, tokens[:, -1:])
        self.seen.scatter_(1, noted, True)
        penalised = torch.where(logits < 0, logits * self.penalty, logits / self.penalty)
        return torch.where(self.seen, penalised, logits)
