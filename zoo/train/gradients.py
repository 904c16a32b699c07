"""Running averages of gradients, and the ratio of Assumption 1 of the Amos paper.

    ratio = M2(E[g]) / sqrt(E[M2(g)^2]) >= xi                (Amos, Assumption 1 and section A.6)

E is a running average with decay 0.98, M2 the quadratic mean of the entries. For independent noise the ratio
is not 0: an average with weights w that add up to 1 keeps the share sum(w^2) of the variance, so that the
ratio is `floor`, about 0.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from zoo.init import Entry
from zoo.kernels.foreach import Many, norms
from zoo.optim.sharding import placed_like
from zoo.optim.slots import slot_dtype
from zoo.train.distributed import World
from zoo.utils.sharded import Stored, local

DECAY = 0.98
"""Decay of the running averages, as in the paper's Figure 6."""

SQUARE, COUNT = "square", "count"


class GradientAverages:
    """Running averages E[g] and E[M2(g)^2] of every variable.

    Attributes:
        count: number of gradients in the averages.
    """

    def __init__(self, entries: Iterable[Entry], world: World) -> None:
        """Start with no gradient.

        Args:
            entries: the variables, plain or sharded.
            world: the ranks; each holds a shard of every gradient.
        """
        self._entries, self._world = list(entries), world
        self.clear()

    def clear(self) -> None:
        """Reset the averages and free their memory."""
        self.count = 0
        self._mean: list[Tensor] = []
        self._square = torch.zeros(
            len(self._entries), dtype=self._world.sum_dtype, device=self._world.device
        )  # of this rank's entries; summed over ranks when the ratios are computed

    @torch.no_grad()
    def add(self) -> None:
        """Add the gradients in the variables' `.grad`; a missing one counts as zeros."""
        parameters = [entry.parameter for entry in self._entries]
        if not self._mean:
            self._mean = [_zeros(p) for p in parameters]
        self.count += 1
        gradients = [
            local(torch.zeros_like(p) if p.grad is None else p.grad).to(slot_dtype(p)) for p in parameters
        ]
        Many([local(mean) for mean in self._mean]).lerp_(Many(gradients), 1 - DECAY)
        self._square.lerp_(self._sums_of_squares(gradients), 1 - DECAY)

    def ratios(self) -> dict[str, float | None]:
        """The ratios by name, None where all gradients were zero. All ranks must call this method."""
        if not self.count:
            return dict.fromkeys(entry.name for entry in self._entries)
        of_means = self._world.sum(self._sums_of_squares([local(mean) for mean in self._mean]))
        squares = self._world.sum(self._square.clone())
        unstarted = 1 - DECAY**self.count  # sum of the weights of averages that start at 0
        ratios = (of_means / squares / unstarted).sqrt().tolist()
        return {e.name: r if math.isfinite(r) else None for e, r in zip(self._entries, ratios, strict=True)}

    @property
    def floor(self) -> float | None:
        """The ratio for independent gradients of mean 0: sqrt(sum of the squared weights)."""
        if not self.count:
            return None
        return math.sqrt((1 - DECAY) / (1 + DECAY) * (1 + DECAY**self.count) / (1 - DECAY**self.count))

    def state(self) -> dict[str, Tensor]:
        """The averages by name, for `load`, sharded as the variables are; empty without gradients."""
        if not self.count:
            return {}
        means = {f"mean/{e.name}": m for e, m in zip(self._entries, self._mean, strict=True)}
        return {
            **means,
            SQUARE: self._world.sum(self._square.clone()) / self._world.copies,
            COUNT: torch.tensor(self.count),
        }

    def load(self, state: Mapping[str, Tensor | Stored]) -> None:
        """Restore a `state` of the same variables: whole tensors, saved by any number of ranks."""
        if not state:
            return self.clear()
        self.count = int(placed_like(state[COUNT], torch.tensor(0)))
        self._mean = [placed_like(state[f"mean/{e.name}"], _zeros(e.parameter)) for e in self._entries]
        share = float(self._world.leads_copy)  # only the sum over ranks is used, of every copy the same
        self._square = placed_like(state[SQUARE], self._square) * share

    def _sums_of_squares(self, tensors: list[Tensor]) -> Tensor:
        """The sum of the squared entries of each tensor, (tensors,)."""
        return norms(tensors).to(self._world.sum_dtype).square()


def _zeros(parameter: Tensor) -> Tensor:
    """Zeros shaped and sharded like a parameter, in the precision of slots."""
    return torch.zeros_like(parameter.detach(), dtype=slot_dtype(parameter))
