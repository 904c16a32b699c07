"""What every method of reparameterisation has in common."""

from __future__ import annotations

import logging
from typing import ClassVar

from torch import nn

from zoo.config.registry import Config
from zoo.init.schemes import Init
from zoo.reparam.gate import attach_gate
from zoo.spec import Declared, ParamSpec, declared

log = logging.getLogger("zoo")


class Reparam(Config):
    """A method: which tensors it acts on, and what it puts in front of them.

    Attributes:
        keeps_the_model: the virtual tensors start as the backbone has them, so that a model can be
            turned into one of the method without a change (`split`).
        why_idle: the reason that is given for what `idle_on` leaves out.
    """

    keeps_the_model: ClassVar[bool] = True
    why_idle: ClassVar[str] = "the sphere gives them their norm already"

    def acts_on(self, spec: ParamSpec) -> bool:
        """Whether the tensor is one of those the method is for."""
        return False

    def freezes(self, spec: ParamSpec) -> bool:
        """Whether a parameter of the backbone is not trained any more."""
        return False

    def idle_on(self, spec: ParamSpec) -> bool:
        """Whether the method would change nothing there, or take from a sphere what defines it."""
        return spec.sphere is not None

    def attach(self, p: Declared, init: Init) -> None:
        """Put the method in front of one tensor, which is not filled yet.

        Args:
            p: the parameter.
            init: the backbone's scheme, which says how the virtual tensor starts.
        """
        raise NotImplementedError

    def apply(self, model: nn.Module, init: Init) -> None:
        """Put the method in front of a model's tensors, before it is initialised.

        The scheme's embedding scaling is a fixed gate, unless the method takes it up.

        Args:
            model: declared, not reparameterised.
            init: the backbone's scheme.
        """
        parameters = list(declared(model))
        chosen, idle = self.choose(parameters)
        for p in parameters:
            if self.freezes(p.spec):
                p.module.freeze(p.local)
            if p.name in chosen:
                self.attach(p, init)
            else:
                scale_lookups(p, init)
        if idle:
            log.warning(self._without_effect(idle))

    def choose(self, parameters: list[Declared]) -> tuple[set[str], list[Declared]]:
        """The names of the tensors to act on, and those where that would have no effect."""
        wanted = [p for p in parameters if self.acts_on(p.spec)]
        idle = [p for p in wanted if self.idle_on(p.spec)]
        return {p.name for p in wanted if not self.idle_on(p.spec)}, idle

    def _without_effect(self, idle: list[Declared]) -> str:
        axes = sorted({" x ".join(p.spec.axes) for p in idle})
        return (
            f"reparam '{getattr(self, 'type', '')}': nothing on {len(idle)} matrices on the sphere "
            f"({', '.join(axes)}): {self.why_idle}"
        )


def scale_lookups(p: Declared, init: Init) -> None:
    """The scheme's embedding scaling on its own: a fixed gate on the table, or on what is looked up."""
    factor = init.lookup_scale(p.spec)
    if factor != 1.0:
        start, lookup = (1.0, factor) if p.spec.tied else (factor, 1.0)
        attach_gate(p.module, p.local, start, trained=False, lookup=lookup)


def kept_lookup(p: Declared, init: Init) -> float:
    """The part of embedding scaling that a method cannot take up: a read-out must not be scaled."""
    return init.lookup_scale(p.spec) if p.spec.tied else 1.0
