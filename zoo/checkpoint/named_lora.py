"""LoRA on matrices that are chosen by the ends of their names, as in adapters of the library peft.

Everything else in zoo chooses parameters by role, axes and depth. An adapter names modules: it may change q
and v but not k, which have the same role and axes, and ranks may differ from module to module.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, Literal

from pydantic import Field

from zoo.config.registry import REPARAMS, Config
from zoo.init.schemes import Init
from zoo.reparam.base import Reparam, require_rows_first
from zoo.reparam.lora import attach_low_rank
from zoo.spec import Declared, ParamSpec, Role
from zoo.utils.errors import ConfigError, did_you_mean

HEAD = "classes"
"""The axis of the parameters that are trained as a whole: the head of a classifier."""


class Target(Config):
    """Matrices whose changes have one rank and one factor."""

    names: tuple[str, ...] = Field(
        ("weight",),
        min_length=1,
        description="ends of names, whole words between dots, e.g. q.weight; weight: all linear maps",
    )
    rank: int = Field(8, gt=0, description="rank r of the changes")
    alpha: float = Field(8.0, gt=0, description="the changes are alpha / r B A")

    def matches(self, name: str) -> bool:
        """Return whether a name has one of the ends."""
        return any(has_end(name, end) for end in self.names)


@REPARAMS.register
class NamedLoRA(Reparam):
    """LoRA on matrices that are chosen by name, with ranks of their own: an adapter of peft."""

    method_family: ClassVar[str] = "low rank"
    method_source: ClassVar[str] = "arXiv 2106.09685"

    type: Literal["peft"] = "peft"
    targets: tuple[Target, ...] = Field(
        (Target(),), min_length=1, description="the matrices to change, in groups of one rank and alpha"
    )

    def freezes(self, spec: ParamSpec) -> bool:
        """Return True for all parameters but those of a classifier's head, which are trained as a whole."""
        return HEAD not in spec.axes

    def choose(self, parameters: list[Declared]) -> tuple[set[str], list[Declared]]:
        """Return the names of the matrices to change.

        Raises:
            ConfigError: An end matches no matrix, or two targets match one.
        """
        known = [p.name for p in parameters if may_change(p.spec)]
        for i, target in enumerate(self.targets):
            for end in target.names:
                if not any(has_end(name, end) for name in known):
                    words = {".".join(name.split(".")[-2:]) for name in known}
                    raise ConfigError(
                        f"reparam.targets.{i}.names: no linear map is called '{end}'"
                        f"{did_you_mean(end, words)}"
                    )
        matching = {name: [i for i, t in enumerate(self.targets) if t.matches(name)] for name in known}
        for name, indices in matching.items():
            if len(indices) > 1:
                raise ConfigError(f"reparam.targets: {indices} all match {name}; expected at most one")
        return {name for name, indices in matching.items() if indices}, []

    def check(self, p: Declared) -> None:
        """Refuse a matrix that is no stack of rows."""
        require_rows_first(p, self.type)

    def attach(self, p: Declared, init: Init) -> None:
        """Declare A and B, see `zoo.reparam.lora.attach_low_rank`."""
        target = next(target for target in self.targets if target.matches(p.name))
        attach_low_rank(p, init, target.rank, target.alpha)


def may_change(spec: ParamSpec) -> bool:
    """Return whether a parameter is a matrix that LoRA can change."""
    return spec.role in (Role.LINEAR, Role.CONV) and HEAD not in spec.axes


def has_end(name: str, end: str) -> bool:
    """Return whether the last words of a name, between dots, are those of `end`."""
    return f".{name}".endswith(f".{end}")


def shortest_end(name: str, group: Collection[str], names: Collection[str]) -> str:
    """Return the shortest end of a name that no name outside of a group has.

    Args:
        name: a name of the group.
        group: the names that may have the end.
        names: all names, those of the group included.
    """
    words = name.split(".")
    ends = (".".join(words[-count:]) for count in range(1, len(words) + 1))
    return next(end for end in ends if all(other in group for other in names if has_end(other, end)))
