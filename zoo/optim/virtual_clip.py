"""Clipping by the gradient of the virtual tensors, which is independent of the reparameterisation."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from zoo.config.registry import CLIPS
from zoo.optim.clip import Clip, ClipConfig, Gradients, scale_to
from zoo.optim.fixed_norm import frobenius
from zoo.spec import Role, declared
from zoo.utils.errors import ConfigError
from zoo.utils.sharded import whole


class VirtualNorm(Clip):
    """Clip by the global norm of the gradient of the virtual tensors.

    A gate multiplies the gradient of its matrix: the gradient of W in gate * W is the gate times the gradient
    of the product. The global norm over trained tensors therefore depends on the common sigma, and at small
    widths WeSaR's norm is above 1 in every step. Here each norm is divided by the gate in front of its
    tensor, and the gradients of the gates themselves do not count, so that the norm is that of the plain
    model with the same virtual tensors. All gradients, those of the gates included, are multiplied by one
    factor.

    The WeSaR paper clips by the trained tensors. This norm is our choice.
    """

    def prepare(self, model: nn.Module) -> None:
        """Find the gates.

        Args:
            model: the model, plain or sharded.

        Raises:
            ConfigError: No tensor is reparameterised, or one is reparameterised by something else than a
                gate, or nothing but gates is trained.
        """
        parameters = list(declared(model))
        self._parameters = {p.name: p for p in parameters if p.spec.role is not Role.GATE}
        gated = [p for p in parameters if p.local in p.module.reparameterised]
        if not gated:
            raise ConfigError(
                "train.clip: virtual has no effect: nothing in this model is reparameterised; expected `norm`"
            )
        for p in gated:
            if p.module.reparameterised[p.local].gradient_factor(p.module) is None:
                raise ConfigError(
                    f"train.clip: virtual is for gates (wesar, residual), and {p.name} is reparameterised "
                    "otherwise; expected `norm`"
                )
        if all(p.spec.frozen for p in self._parameters.values()):
            raise ConfigError(
                "train.clip: virtual has no norm to clip by: everything but the gates is frozen; expected "
                "`norm`"
            )

    def clip(self, gradients: Gradients, norm: Tensor) -> None:
        """Clip in place by the norm of the virtual tensors instead of `norm`."""
        if self.largest is not None:
            scale_to(gradients, self.largest, self.norm(gradients).to(norm.dtype))

    def norm(self, gradients: Gradients) -> Tensor:
        """The norm of the gradient of the virtual tensors, 0-dim, the same on all ranks."""
        counted = [(name, p.grad) for name, p in gradients if name in self._parameters and p.grad is not None]
        norms = torch.stack(frobenius([grad for _, grad in counted]))
        factors = torch.stack([self._factor(name).to(norms) for name, _ in counted]).abs()
        smallest = torch.finfo(norms.dtype).tiny  # with a gate of 0 there is no gradient to divide
        norm: Tensor = torch.linalg.vector_norm(norms / factors.clamp_min(smallest))
        return norm

    def _factor(self, name: str) -> Tensor:
        """The present gate in front of a parameter, 0-dim; 1 if there is none."""
        p = self._parameters[name]
        front = p.module.reparameterised.get(p.local)
        factor = 1.0 if front is None else front.gradient_factor(p.module)
        return whole(factor.detach()).reshape(()) if isinstance(factor, Tensor) else torch.tensor(factor)


@CLIPS.register
class VirtualNormConfig(ClipConfig):
    """The global norm of the virtual tensors' gradients, which does not depend on gates (WeSaR)."""

    type: Literal["virtual"] = "virtual"
    needs_reparam: ClassVar[bool] = True

    def build(self, largest: float | None) -> VirtualNorm:
        """The clipping of a run.

        Raises:
            ConfigError: There is no `train.clip_norm`.
        """
        if largest is None:
            raise ConfigError("train.clip: virtual has no effect: clip_norm is null; expected a number")
        return VirtualNorm(largest)
