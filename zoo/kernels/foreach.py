"""One call for many tensors: torch's private ``_foreach`` functions, and a loop where torch has none."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from zoo.kernels.support import has_function, is_trusted

FAST = is_trusted()
NORM = has_function("_foreach_norm")


class Many:
    """Several tensors with the interface of a single one.

    An operation has the name and the arguments of the operation of a tensor. It acts on each of the tensors,
    in one call if torch has such a function. The other operand is either a number or equally many tensors,
    which are paired by index.

    Args:
        tensors: tensors of any shapes; in-place operations change them.
    """

    __slots__ = ("tensors",)

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(tensors)

    def type_as(self, other: Many) -> Many:
        """The tensors in the dtypes of others; tensors that have the dtype already are not copied."""
        pairs = list(self._pairs(other))
        if any(a.dtype == b.dtype for a, b in pairs):
            return Many([a if a.dtype == b.dtype else a.to(b.dtype) for a, b in pairs])
        return Many([torch.empty_like(a, dtype=b.dtype) for a, b in pairs]).copy_(self)

    def copy_(self, source: Many) -> Many:
        """Copy the entries of others."""
        return self._in_place("copy_", source)

    def add_(self, other: Many | float, alpha: float = 1) -> Many:
        """Add alpha times another."""
        return self._in_place("add_", other, alpha=alpha) if alpha != 1 else self._in_place("add_", other)

    def sub(self, other: Many) -> Many:
        """The difference to another."""
        return self._new("sub", other)

    def mul(self, other: Many | float) -> Many:
        """The product with another."""
        return self._new("mul", other)

    def mul_(self, other: Many | float) -> Many:
        """Multiply by another."""
        return self._in_place("mul_", other)

    def scaled(self, by: Tensor) -> Many:
        """The product with a 0-dim tensor, whose value the ``_foreach`` function would read on the host."""
        if FAST and len(self.tensors) > 1:
            return Many(torch.ops.aten._foreach_mul.Tensor(self.tensors, by))
        return Many([tensor * by for tensor in self.tensors])

    def div(self, other: Many | float) -> Many:
        """The quotient by another."""
        return self._new("div", other)

    def div_(self, other: Many | float) -> Many:
        """Divide by another."""
        return self._in_place("div_", other)

    def addcmul_(self, one: Many, other: Many, value: float) -> Many:
        """Add value times the product of two."""
        return self._in_place("addcmul_", one, other, value=value)

    def addcdiv_(self, one: Many, other: Many, value: float) -> Many:
        """Add value times the quotient of two."""
        return self._in_place("addcdiv_", one, other, value=value)

    def lerp(self, end: Many, weight: float) -> Many:
        """The point at the fraction `weight` of the way to another."""
        return self._new("lerp", end, weight)

    def lerp_(self, end: Many, weight: float) -> Many:
        """Move towards another by the fraction `weight` of the way."""
        return self._in_place("lerp_", end, weight)

    def sign_(self) -> Many:
        """Replace every entry by its sign."""
        return self._in_place("sign_")

    def sqrt(self) -> Many:
        """The square roots."""
        return self._new("sqrt")

    def sqrt_(self) -> Many:
        """Take the square roots."""
        return self._in_place("sqrt_")

    def gt_(self, other: float) -> Many:
        """Replace every entry by 1 where it is greater than a number, and by 0 elsewhere."""
        return self._in_place("gt_", other)

    def clamp_min_(self, least: float) -> Many:
        """Replace every smaller entry by a number."""
        return self._in_place("clamp_min_", least)

    def sum(self) -> Many:
        """The sum over the entries of each tensor, 0-dim."""
        return Many([tensor.sum() for tensor in self.tensors])

    def sum_of_squares(self) -> Many:
        """The sum over the squares of the entries of each tensor, 0-dim."""
        return Many([torch.linalg.vector_norm(tensor).square() for tensor in self.tensors])

    def sum_of_sizes(self) -> Many:
        """The sum over the absolute values of the entries of each tensor, 0-dim."""
        return Many([tensor.abs().sum() for tensor in self.tensors])  # the 1-norm takes four times as long

    def dot(self, other: Many) -> Many:
        """The scalar product of each pair of tensors, 0-dim."""
        return Many([torch.dot(a.flatten(), b.flatten()) for a, b in self._pairs(other)])

    def _pairs(self, other: Many) -> zip[tuple[Tensor, Tensor]]:
        return zip(self.tensors, other.tensors, strict=True)

    def _in_place(self, name: str, *operands: Many | float, **options: float) -> Many:
        self._each(name, operands, options)
        return self

    def _new(self, name: str, *operands: Many | float) -> Many:
        return Many(self._each(name, operands, {}))

    def _each(
        self, name: str, operands: Sequence[Many | float], options: dict[str, float]
    ) -> Sequence[Tensor]:
        if len(self.tensors) == 1:  # a block of a large tensor: the cost is that of the call
            given = [x.tensors[0] if isinstance(x, Many) else x for x in operands]
            return [getattr(self.tensors[0], name)(*given, **options)]
        at_once = getattr(torch, f"_foreach_{name}", None) if FAST else None
        if at_once is not None:
            lists = [x.tensors if isinstance(x, Many) else x for x in operands]
            results: Sequence[Tensor] = at_once(self.tensors, *lists, **options)
            return results
        return [
            getattr(tensor, name)(*(x.tensors[i] if isinstance(x, Many) else x for x in operands), **options)
            for i, tensor in enumerate(self.tensors)
        ]


def norms(tensors: list[Tensor]) -> Tensor:
    """The Euclidean norm of each tensor, (tensors,)."""
    if NORM:
        return torch.stack(torch._foreach_norm(tensors))
    return torch.stack([torch.linalg.vector_norm(tensor) for tensor in tensors])
