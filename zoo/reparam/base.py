"""The base class of reparameterisation methods."""

from __future__ import annotations

import logging
from abc import abstractmethod
from typing import ClassVar

from torch import nn

from zoo.config.registry import Config
from zoo.init.schemes import Init
from zoo.reparam.gate import attach_gate
from zoo.spec import Declared, ParamSpec, Role, declared
from zoo.utils.errors import ConfigError

LEAST_VARIANCE = 1e-20
"""The smallest `sigma2` that is accepted (our choice): float32 holds the compensating factor, up to 1e10."""

log = logging.getLogger("zoo")


class Reparam(Config):
    """A method of reparameterisation: the tensors that it acts on, and how it reparameterises them.

    Attributes:
        preserves_outputs: whether the virtual tensors start with the values of the model without the method,
            so that `split` can reparameterise a trained model without a change of its outputs.
        needs_scale: whether `split` needs tensors that are not all zeros, because the method divides by their
            scale or their norms.
        common_std: whether all trained matrices have one standard deviation and gates carry the scale; None:
            the transfer rules do not cover the method.
        scales_branches: whether the method puts a factor behind residual branches.
        no_effect_reason: why the tensors of `has_no_effect_on` are left out, for the warning.
    """

    preserves_outputs: ClassVar[bool] = True
    needs_scale: ClassVar[bool] = True
    common_std: ClassVar[bool | None] = None
    scales_branches: ClassVar[bool] = False
    no_effect_reason: ClassVar[str] = "the sphere gives them their norm already"

    def acts_on(self, spec: ParamSpec) -> bool:
        """Return whether the method reparameterises the tensor."""
        return False

    def freezes(self, spec: ParamSpec) -> bool:
        """Return whether the method freezes the parameter."""
        return False

    def has_no_effect_on(self, spec: ParamSpec) -> bool:
        """Return whether reparameterising the tensor would change nothing, or remove it from its sphere."""
        return spec.sphere_dim is not None

    def require_tensors(self, parameters: list[Declared], kind: str) -> None:
        """Refuse a model in which the method finds nothing.

        A checkpoint of such a model, which older versions have written, can be read nevertheless.

        Args:
            parameters: the parameters of the model.
            kind: its type, for the message.

        Raises:
            ConfigError: The method acts on no tensor of the model, and freezes none.
        """
        if not any(self.acts_on(p.spec) or self.freezes(p.spec) for p in parameters):
            raise ConfigError(
                f"reparam '{getattr(self, 'type', '')}' finds no tensor to act on in a model of type "
                f"'{kind}'; expected another method, or none"
            )

    def is_idle_on(self, p: Declared) -> bool:
        """Return whether what the method puts in front of the tensor, where it is free, changes nothing.

        Such a tensor is reparameterised nevertheless, and a warning says so: without the factor, a model
        would have other parameters than its older checkpoints.
        """
        return False

    def check(self, p: Declared) -> None:
        """Refuse a tensor that the method cannot act on, before any tensor is changed.

        Raises:
            ConfigError: The tensor has another layout or start than the method needs.
        """

    @abstractmethod
    def attach(self, p: Declared, init: Init) -> None:
        """Reparameterise one tensor, which is not initialised yet.

        Args:
            p: the parameter.
            init: the scheme that the virtual tensor starts from.
        """
        raise NotImplementedError

    def apply(self, model: nn.Module, init: Init) -> None:
        """Reparameterise a model, before it is initialised.

        The embedding scaling of the scheme becomes a fixed gate, unless the method includes it.

        Args:
            model: a model of declared parameters, not reparameterised.
            init: the scheme that the virtual tensors start from.
        """
        parameters = list(declared(model))
        chosen, without_effect = self.checked_choice(parameters)
        for p in parameters:
            if self.freezes(p.spec):
                p.module.freeze(p.local)
            if p.name in chosen:
                self.attach(p, init)
            else:
                scale_embedding(p, init)
        if without_effect:
            log.warning(self._warning(without_effect))
        if idle := [p for p in parameters if p.name in chosen and self.is_idle_on(p)]:
            log.warning(
                f"reparam '{getattr(self, 'type', '')}': the factors of {len(idle)} matrices ({_axes(idle)}) "
                "change nothing, because their output is normalised next"
            )

    def choose(self, parameters: list[Declared]) -> tuple[set[str], list[Declared]]:
        """Return the names of the tensors to reparameterise, and the tensors where that has no effect."""
        wanted = [p for p in parameters if self.acts_on(p.spec)]
        without_effect = [p for p in wanted if self.has_no_effect_on(p.spec)]
        return {p.name for p in wanted if not self.has_no_effect_on(p.spec)}, without_effect

    def checked_choice(self, parameters: list[Declared]) -> tuple[set[str], list[Declared]]:
        """Return what `choose` returns.

        Raises:
            ConfigError: The method cannot act on one of the tensors to reparameterise.
        """
        chosen, without_effect = self.choose(parameters)
        for p in parameters:
            if p.name in chosen:
                self.check(p)
        return chosen, without_effect

    def _warning(self, without_effect: list[Declared]) -> str:
        return (
            f"reparam '{getattr(self, 'type', '')}': nothing on {len(without_effect)} matrices on the sphere "
            f"({_axes(without_effect)}): {self.no_effect_reason}"
        )


def _axes(parameters: list[Declared]) -> str:
    """The axes of each kind of matrix among the parameters, for a message."""
    return ", ".join(sorted({" x ".join(p.spec.axes) for p in parameters}))


def is_normalised_next(p: Declared) -> bool:
    """Return whether a norm cancels every factor of a free matrix.

    It does not if a bias is added in front of the norm, because a factor of the matrix alone changes the sum.
    """
    alone = all(spec.role is not Role.BIAS for spec in p.module.specs.values())
    kernel = p.spec.role in (Role.LINEAR, Role.CONV)
    return kernel and alone and p.spec.normalised and p.spec.sphere_dim is None


def scale_embedding(p: Declared, init: Init) -> None:
    """Apply the scheme's embedding scaling: a fixed gate on the table, or on the vectors of a tied table.

    A tied table also gets the scheme's factor on its logits.
    """
    factor = init.lookup_scale(p.spec)
    start, lookup = (init.logits_scale(p.spec), factor) if p.spec.tied else (factor, 1.0)
    if (start, lookup) != (1.0, 1.0):
        attach_gate(p.module, p.local, start, trained=False, lookup=lookup)


def require_random_rows(p: Declared, method: str) -> None:
    """Refuse a matrix that starts at 0, which has no direction, or that is no stack of rows.

    Raises:
        ConfigError: The matrix is one of the two.
    """
    if p.spec.start == 0:
        raise ConfigError(
            f"reparam '{method}': {p.name} starts at 0 (model.zero_start), but the method divides by its norm"
        )
    require_rows_first(p, method)


def require_rows_first(p: Declared, method: str) -> None:
    """Refuse a matrix that is no stack of rows, (out, in) or (out, in, height, width).

    Raises:
        ConfigError: An axis that is summed over is in front of one that is not.
    """
    summed = [axis in p.spec.fan_in for axis in p.spec.axes]
    if summed != sorted(summed):
        raise ConfigError(
            f"reparam '{method}': {p.name} ({' x '.join(p.spec.axes)}) sums over {', '.join(p.spec.fan_in)}; "
            "expected the axes that are summed over behind all others, because the method is about rows"
        )


def tied_lookup_scale(p: Declared, init: Init) -> float:
    """Return the embedding scaling of a tied table, whose matrix must keep its scale; 1 for other tensors."""
    return init.lookup_scale(p.spec) if p.spec.tied else 1.0
