"""When the step from one token to the next is compiled without being asked for."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

log = logging.getLogger("zoo")

PAYS = 2048
"""Number of tokens of one shape from which on a step is compiled without being asked for.

The number is our choice. It lies between those at which compilation breaks even with 11 M parameters and one
prompt on two cores: about a thousand tokens if the compiler's cache knows the step, about five thousand if
not. Both the time that a token saves and the time of the compilation grow with the number of layers.
"""


@dataclass
class StepCount:
    """What this process has generated with one model and one shape of the step.

    Attributes:
        drawn: number of tokens drawn, where one for each text counts once.
        told: whether the compilation of this shape was announced.
        failed: whether the compilation of this shape failed.
    """

    drawn: int = 0
    told: bool = False
    failed: bool = False

    def compilation_pays(self, device: torch.device, certain: int) -> bool:
        """Whether to compile the step, by numbers of tokens alone, so that a program repeats its choices.

        On a GPU a step is only compiled when it is asked for.

        Args:
            device: the device of the model.
            certain: number of further tokens that are sure to be drawn.
        """
        return device.type == "cpu" and not self.failed and self.drawn + certain >= PAYS

    def tell(self) -> None:
        """Announce the compilation of this shape, which takes a while, once."""
        if not self.told:
            log.warning("generate: compiling the step from one token to the next; this takes up to a minute")
        self.told = True

    def give_up(self, reason: str) -> None:
        """Note that the step of this shape cannot be compiled, and tell why."""
        log.warning("generate: the step cannot be compiled here; it is taken without: %s", reason)
        self.failed = True


_counts: WeakKeyDictionary[nn.Module, dict[Hashable, StepCount]] = WeakKeyDictionary()


def step_count(model: nn.Module, prompt: Tensor, capacity: int, source: bool, padded: bool) -> StepCount:
    """What this process has generated with a model by steps of one shape.

    Args:
        model: the model.
        prompt: (batch, time) int64.
        capacity: number of tokens of the cache.
        source: whether the model reads the prompt as a source, whose length is part of the shape.
        padded: whether the prompts are padded.
    """
    shape = (len(prompt), capacity, prompt.shape[1] if source else None, padded)
    return _counts.setdefault(model, {}).setdefault(shape, StepCount())
