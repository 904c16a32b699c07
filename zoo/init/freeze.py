"""Parts of a model that are not trained, which are addressed by role, axes and depth, never by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from pydantic import Field, model_validator
from torch import nn

from zoo.config.registry import Config
from zoo.spec import Declared, Role, declared
from zoo.utils.errors import ConfigError


class FreezeRule(Config):
    """Parameters that are not trained: those that meet all conditions."""

    roles: tuple[Role, ...] = Field((), description="one of these roles; empty: any")
    axes: tuple[str, ...] = Field((), description="all of these axes, by name")
    depth: tuple[int, int] | None = Field(
        None, description="first and last depth: 0 embeddings, 1..L the layers, L + 1 after them; null: any"
    )

    @model_validator(mode="after")
    def _has_a_condition(self) -> Self:
        if not (self.roles or self.axes or self.depth):
            raise ValueError("expected a condition: `roles`, `axes` or `depth`")
        if self.depth is not None and not 0 <= self.depth[0] <= self.depth[1]:
            raise ValueError(f"depth {list(self.depth)}: expected the first and the last one, from 0 on")
        return self

    def matches(self, p: Declared) -> bool:
        """Return whether a parameter meets all conditions."""
        first, last = self.depth or (p.depth, p.depth)
        right_role = not self.roles or p.spec.role in self.roles
        return right_role and set(self.axes) <= set(p.spec.axes) and first <= p.depth <= last


def freeze(model: nn.Module, rules: Sequence[FreezeRule]) -> None:
    """Declare which parameters are not trained.

    Args:
        model: a model of declared parameters, on any device, not sharded yet.
        rules: applied one after the other.

    Raises:
        ConfigError: A rule freezes nothing, or the rules leave nothing to train.
    """
    for i, rule in enumerate(rules):
        trained = [p for p in declared(model) if not p.spec.frozen]
        chosen = [p for p in trained if rule.matches(p)]
        if not chosen:
            known = sorted({f"{p.spec.role} {list(p.spec.axes)} at depth {p.depth}" for p in trained})
            raise ConfigError(
                f"freeze[{i}] {rule.model_dump(mode='json', exclude_defaults=True)} matches nothing that is "
                f"trained; there is: {'; '.join(known)}"
            )
        for p in chosen:
            p.module.freeze(p.local)
    if all(p.spec.frozen for p in declared(model)):
        raise ConfigError("freeze: nothing is left to train")
