"""Which of our tensors are which of theirs: rules that are read in both directions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Shape = tuple[int, ...]


class Transform(ABC):
    """An invertible change of layout; no value is changed, so that a round trip is bit-equal."""

    @abstractmethod
    def to_zoo(self, theirs: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        """Their tensor as ours.

        Args:
            theirs: any dtype, of the shape that `to_hf` gives.
            shapes: the shapes that ours have.
        """

    @abstractmethod
    def to_hf(self, ours: Sequence[Tensor]) -> Tensor:
        """Our tensors as theirs: the inverse."""


class Same(Transform):
    """Tensor for tensor."""

    def to_zoo(self, theirs: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        """As it is."""
        return [theirs]

    def to_hf(self, ours: Sequence[Tensor]) -> Tensor:
        """As it is."""
        (tensor,) = ours
        return tensor


class Transposed(Transform):
    """Theirs is (in, out): GPT-2's Conv1D."""

    def to_zoo(self, theirs: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        """(in, out) -> (out, in)."""
        return [theirs.mT]

    def to_hf(self, ours: Sequence[Tensor]) -> Tensor:
        """(out, in) -> (in, out)."""
        (tensor,) = ours
        return tensor.mT


@dataclass(frozen=True)
class Stacked(Transform):
    """Theirs holds several of ours, one after the other: a fused q, k, v.

    Attributes:
        transposed: theirs is (in, out), and the outputs are what is stacked.
    """

    transposed: bool = False

    def to_zoo(self, theirs: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        """Cut along the outputs."""
        joined = theirs.mT if self.transposed else theirs
        return list(torch.split(joined, [shape[0] for shape in shapes]))

    def to_hf(self, ours: Sequence[Tensor]) -> Tensor:
        """Join along the outputs."""
        joined = torch.cat(list(ours))
        return joined.mT if self.transposed else joined


@dataclass(frozen=True)
class Rule:
    """A tensor of theirs and the same numbers on our side.

    Attributes:
        ours: names in a state dict of ours, ``{i}`` for the number of a layer; more than one where
            theirs stacks several.
        theirs: the name on their side, with the same ``{i}``.
        transform: the change of layout between them.
    """

    ours: tuple[str, ...]
    theirs: str
    transform: Transform

    def at(self, i: int) -> Rule:
        """The rule for layer `i`."""
        layer = str(i)
        ours = tuple(name.replace("{i}", layer) for name in self.ours)
        return Rule(ours, self.theirs.replace("{i}", layer), self.transform)


def rule(ours: str | tuple[str, ...], theirs: str, transform: Transform | None = None) -> Rule:
    """A rule; `transform` None: tensor for tensor."""
    return Rule((ours,) if isinstance(ours, str) else ours, theirs, transform or Same())


def layer_norm(ours: str, theirs: str) -> tuple[Rule, Rule]:
    """The rules of a LayerNorm: scale and bias."""
    return rule(f"{ours}.scale", f"{theirs}.weight"), rule(f"{ours}.bias", f"{theirs}.bias")


def expand(rules: Sequence[Rule], names: Collection[str]) -> list[Rule]:
    """The rules about a model: written out for every layer, without those about parts it has not.

    Args:
        rules: of the family.
        names: of all the model's tensors.

    Returns:
        Rules without ``{i}``; every name of the model is on our side of exactly one.

    Raises:
        ValueError: a name in no rule or in two, or a rule half of whose tensors the model has: the
            family's rules are wrong.
    """
    known = set(names)
    found: list[Rule] = []
    for general in rules:
        i = 0
        while known.intersection((written := general.at(i)).ours):
            if lacking := sorted(set(written.ours) - known):
                raise ValueError(f"the model has only a part of {written.ours}: not {lacking}")
            found.append(written)
            i += 1
            if written == general:  # no {i} in it
                break
    ours = Counter(name for r in found for name in r.ours)
    if wrong := sorted({name for name, times in ours.items() if times > 1} | (known - set(ours))):
        raise ValueError(f"no rule, or more than one, for {wrong}")
    return found
