"""Hyperball as a setting: the matrices that keep their norm, and the settings that exclude it.

`zoo.optim.fixed_norm` implements the update.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from zoo.config.registry import CONSTRAINTS
from zoo.optim.base import OptimizerConfig
from zoo.optim.constraint import Constraint
from zoo.optim.fixed_norm import starts_at_zero
from zoo.optim.matrices import is_hidden
from zoo.spec import WHOLE, Declared, Role, declared
from zoo.utils.errors import ConfigError

log = logging.getLogger("zoo")

DECAYS = ("weight_decay", "extra_l2")
"""The settings of optimizers that decay matrices."""


@CONSTRAINTS.register
class Hyperball(Constraint):
    """Hyperball: every step turns a matrix by about lr, and its norm stays constant (arXiv 2606.16899)."""

    method_family: ClassVar[str] = "fixed norm"
    method_source: ClassVar[str] = "arXiv 2606.16899"

    type: Literal["hyperball"] = "hyperball"
    matrices: Literal["all", "hidden"] = Field(
        "all",
        description="all: every matrix but embeddings; hidden: without those of inputs and outputs as well",
    )

    def apply(self, model: nn.Module) -> None:
        """Declare ``sphere: whole`` for the matrices; those on a sphere of their own stay on it.

        Raises:
            ConfigError: A matrix starts at zero or keeps its norm already, or there is no matrix.
        """
        chosen = [p for p in declared(model) if self._acts_on(p)]
        if not chosen:
            raise ConfigError(f"constraint: hyperball with matrices: {self.matrices} finds none to constrain")
        if twice := [p.name for p in chosen if p.spec.keeps_norm]:
            raise ConfigError(f"constraint: a second one on {', '.join(twice)}, whose norm is kept already")
        if zero := [p.name for p in chosen if p.spec.start == 0]:
            raise ConfigError(starts_at_zero(zero))
        idle = [p for p in chosen if p.spec.sphere is not None]
        if idle:
            log.warning(
                f"constraint 'hyperball': idle on {len(idle)} of {len(chosen)} matrices, whose vectors have "
                "unit norm already (nGPT)"
            )
        for p in chosen:
            if p.spec.sphere is None:
                p.module.specs[p.local] = replace(p.spec, sphere=WHOLE)

    def _acts_on(self, p: Declared) -> bool:
        spec = p.spec
        kernel = spec.role in (Role.LINEAR, Role.CONV) and not spec.frozen
        return kernel and (self.matrices == "all" or is_hidden(spec))

    def check(self, optimizer: OptimizerConfig) -> None:
        """Refuse weight decay, and optimizers that the rule is not defined for.

        Raises:
            ConfigError: The optimizer is excluded, or one of its settings is.
        """
        check_under_fixed_norm(optimizer)


def check_under_fixed_norm(optimizer: OptimizerConfig) -> None:
    """Refuse an optimizer that cannot train matrices whose norm is kept.

    Raises:
        ConfigError: The optimizer decays matrices, or its step is not a displacement that may be rescaled.
    """
    for key in DECAYS:
        if value := getattr(optimizer, key, 0):
            raise ConfigError(
                f"optimizer.{key}: {value} has no effect on matrices whose norm is kept (constraint: "
                "hyperball); expected 0"
            )
    if reason := optimizer.not_under_fixed_norm():
        raise ConfigError(f"constraint: hyperball cannot be combined with this optimizer: {reason}")
