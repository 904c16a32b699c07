"""Drawing tokens from logits."""

from __future__ import annotations

import torch
from torch import Tensor


def sample(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None, generator: torch.Generator
) -> Tensor:
    """Draw one token per row.

    Args:
        logits: (batch, vocab).
        temperature: divisor of the logits; 0 takes the most probable token.
        top_k: number of most probable tokens to draw from, or None for all.
        top_p: least total probability of the most probable tokens to draw from, or None for all.
        generator: random number generator on the device of `logits`.

    Returns:
        (batch, 1) int64.
    """
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    logits = logits.float()
    logits = (logits - logits.amax(-1, keepdim=True)) / temperature  # the largest never overflows
    if top_k is not None and top_k < logits.shape[-1]:
        least = logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if top_p is not None and top_p < 1:  # a sum in float32 may exceed 1 before the last token
        ordered, order = logits.sort(descending=True)
        probability = ordered.softmax(-1)
        enough_before = probability.cumsum(-1) - probability >= top_p
        enough_before[:, 0] = False  # a float32 may round `top_p` to 0
        logits = logits.masked_fill(enough_before.scatter(-1, order, enough_before), -torch.inf)
    return torch.multinomial(logits.softmax(-1), 1, generator=generator)
