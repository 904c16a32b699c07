"""Rules for the correspondence of zoo's tensors and those of a Hugging Face checkpoint, both ways."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from zoo.models import ModelConfig

Shape = tuple[int, ...]


class Transform(ABC):
    """An invertible change of layout; values stay as they are, so that a round trip is bit-exact.

    Attributes:
        in_out: whether the checkpoint's matrix is (in, out), and zoo's (out, in).
    """

    in_out: ClassVar[bool] = False

    def of(self, config: ModelConfig) -> Transform:
        """The transform for a model; most depend on the shapes alone."""
        return self

    @abstractmethod
    def to_zoo(self, tensor: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        """Convert a tensor of the checkpoint.

        Args:
            tensor: a tensor of any dtype, in the shape that `to_hf` returns.
            shapes: shapes of zoo's tensors.
        """

    @abstractmethod
    def to_hf(self, tensors: Sequence[Tensor]) -> Tensor:
        """Convert zoo's tensors: the inverse of `to_zoo`."""


class Unchanged(Transform):
    """The same tensor on both sides."""

    def to_zoo(self, tensor: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        """Return the tensor unchanged."""
        return [tensor]

    def to_hf(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the tensor unchanged."""
        (tensor,) = tensors
        return tensor


class Transposed(Transform):
    """The checkpoint's matrix is (in, out): GPT-2's Conv1D."""

    in_out: ClassVar[bool] = True

    def to_zoo(self, tensor: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        """(in, out) -> (out, in)."""
        return [tensor.mT]

    def to_hf(self, tensors: Sequence[Tensor]) -> Tensor:
        """(out, in) -> (in, out)."""
        (tensor,) = tensors
        return tensor.mT


@dataclass(frozen=True)
class Stacked(Transform):
    """The checkpoint's tensor is the concatenation of several of zoo's: a fused q, k, v.

    Attributes:
        transposed: whether the checkpoint's matrix is (in, out) and concatenated along its last axis.
    """

    transposed: bool = False

    @property
    def in_out(self) -> bool:  # type: ignore[override]  # depends on a field
        """Whether it is transposed."""
        return self.transposed

    def to_zoo(self, tensor: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        """Split along the output axis."""
        joined = tensor.mT if self.transposed else tensor
        return list(torch.split(joined, [shape[0] for shape in shapes]))

    def to_hf(self, tensors: Sequence[Tensor]) -> Tensor:
        """Concatenate along the output axis."""
        joined = torch.cat(list(tensors))
        return joined.mT if self.transposed else joined


@dataclass(frozen=True)
class StackedByHead(Transform):
    """The checkpoint's tensor interleaves the rows of several of zoo's, head by head: GPT-NeoX's q, k, v.

    Attributes:
        heads: number of heads, set by `of`.
    """

    heads: int = 1

    def of(self, config: ModelConfig) -> StackedByHead:
        """The transform for the heads of a decoder."""
        return StackedByHead(config.model_dump()["n_heads"])

    def to_zoo(self, tensor: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        """Split the rows of each head."""
        rest = tensor.shape[1:]
        parts = tensor.reshape(self.heads, len(shapes), -1, *rest).unbind(1)
        return [part.reshape(-1, *rest) for part in parts]

    def to_hf(self, tensors: Sequence[Tensor]) -> Tensor:
        """Put the rows of each head together."""
        return torch.stack([t.reshape(self.heads, -1, *t.shape[1:]) for t in tensors], 1).flatten(0, 2)


@dataclass(frozen=True)
class Rule:
    """A tensor of a checkpoint and the corresponding tensors of zoo.

    Attributes:
        zoo_names: names in zoo's state dict, with ``{i}`` for the number of a layer; several if the
            checkpoint's tensor is a concatenation.
        hub_name: name in the checkpoint, with the same ``{i}``.
        transform: change of layout between them.
    """

    zoo_names: tuple[str, ...]
    hub_name: str
    transform: Transform

    def at(self, i: int) -> Rule:
        """The rule for layer `i`."""
        layer = str(i)
        names = tuple(name.replace("{i}", layer) for name in self.zoo_names)
        return Rule(names, self.hub_name.replace("{i}", layer), self.transform)


def rule(zoo_names: str | tuple[str, ...], hub_name: str, transform: Transform | None = None) -> Rule:
    """Make a `Rule`; without a `transform` the tensors are equal."""
    names = (zoo_names,) if isinstance(zoo_names, str) else zoo_names
    return Rule(names, hub_name, transform or Unchanged())


def layer_norm(zoo_name: str, hub_name: str) -> tuple[Rule, Rule]:
    """The rules of a LayerNorm: scale and bias."""
    return (
        rule(f"{zoo_name}.scale", f"{hub_name}.weight"),
        rule(f"{zoo_name}.bias", f"{hub_name}.bias"),
    )


def linear(zoo_name: str, hub_name: str) -> tuple[Rule, Rule]:
    """The rules of a linear map with a bias: weight and bias."""
    return rule(f"{zoo_name}.weight", f"{hub_name}.weight"), rule(f"{zoo_name}.bias", f"{hub_name}.bias")


def _layers(general: Rule, names: Collection[str]) -> list[int]:
    """The layers that have any tensor of a rule; for a rule without ``{i}`` the number has no meaning."""
    patterns = [re.escape(name).replace(r"\{i\}", r"(\d+)") for name in general.zoo_names]
    matches = (re.fullmatch("|".join(patterns), name) for name in names)
    return sorted({int(next(filter(None, match.groups()), 0)) for match in matches if match})


def expand(rules: Sequence[Rule], names: Collection[str], config: ModelConfig | None = None) -> list[Rule]:
    """The rules that apply to a model, one for every layer.

    Args:
        rules: rules of the family.
        names: names of all tensors of the model.
        config: the sizes of the model, for rules that depend on them.

    Returns:
        Rules without ``{i}``; every name of the model is in exactly one of them.

    Raises:
        ValueError: The rules of the family are wrong: a name is in no rule or in two, or the model has only
            some of the tensors of a rule.
    """
    known = set(names)
    expanded: list[Rule] = []
    for general in rules:
        for at_layer in map(general.at, _layers(general, known)):
            if lacking := sorted(set(at_layer.zoo_names) - known):
                raise ValueError(f"the model has only a part of {at_layer.zoo_names}: not {lacking}")
            expanded.append(at_layer)
    counts = Counter(name for r in expanded for name in r.zoo_names)
    if wrong := sorted({name for name, times in counts.items() if times > 1} | (known - set(counts))):
        raise ValueError(f"no rule, or more than one, for {wrong}")
    return [replace(r, transform=r.transform.of(config)) for r in expanded] if config else expanded
