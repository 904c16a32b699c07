"""Changes of basis inside an attention head that leave its output unchanged."""

from __future__ import annotations

import torch
from torch import Tensor

STEPS = 60
"""Number of bisections of an interval, enough for the precision of float64."""


def balanced_pairs(queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Turn the pairs that RoPE rotates, so that both rows of a pair are about equally long.

    RoPE turns the pair (i, i + h/2) of q and of k by an angle of the position. A further angle, the same in q
    and k, commutes with it and cancels in q . k. With the rows w_1, w_2 of a pair, D = |w_1|^2 - |w_2|^2 and
    X = w_1 . w_2, the difference after a turn by theta is D cos 2 theta - 2 X sin 2 theta; theta minimises
    the sum of the squared differences, relative to the lengths, over the queries and the keys of the group.

    Args:
        queries: (group, h, d) float64, the query heads of one key head.
        keys: (h, d).

    Returns:
        The turned queries and keys, of the same shapes.
    """
    rows = torch.cat((queries, keys[None]))
    first, second = rows.chunk(2, dim=1)
    length = (first.square() + second.square()).sum(-1).clamp_min(1e-300)
    uneven = (first.square() - second.square()).sum(-1) / length
    along = -2 * (first * second).sum(-1) / length
    form = torch.stack((uneven, along), -1)  # (group + 1, h / 2, 2), to be orthogonal to (cos, sin) 2 theta
    cos, sin = torch.linalg.eigh(torch.einsum("gpi,gpj->pij", form, form)).eigenvectors[..., 0].unbind(-1)
    angle = torch.atan2(sin, cos)[:, None] / 2
    cos, sin = angle.cos(), angle.sin()
    turned = torch.cat((first * cos - second * sin, first * sin + second * cos), dim=1)
    return turned[:-1], turned[-1]


def pair_lengths(rows: Tensor) -> Tensor:
    """Root mean square length of the two rows of each pair, (..., h, d) -> (..., h), equal for both."""
    squares = rows.square().sum(-1)
    first, second = squares.chunk(2, dim=-1)
    return ((first + second) / 2).sqrt().repeat(*[1] * (rows.dim() - 2), 2)


class Product:
    """W_o W_v of one key head, (group, d, d) of rank h, as singular vectors and values.

    For any invertible M, W_v <- M W_v and W_o <- W_o M^-1 leave the product unchanged. With singular values s
    and the Hadamard matrix H, all of whose entries are of one size, M can be chosen such that

        W_o = U s^t H^T / a,    W_v = H s^(1 - t) V^T / b:

    for every t, all columns of W_o and all rows of W_v have unit length, and a b is the product of their
    former lengths.

    Attributes:
        values: s, (h,) float64.
    """

    def __init__(self, outputs: Tensor, values: Tensor) -> None:
        """Decompose the product.

        Args:
            outputs: (group, d, h) float64, the columns of W_o of the query heads of one key head.
            values: (h, d), the rows of W_v.
        """
        self.group, self.d, h = outputs.shape
        left, left_root = torch.linalg.qr(outputs.reshape(-1, h))
        right, right_root = torch.linalg.qr(values.mT)
        u, self.values, v = torch.linalg.svd(left_root @ right_root.mT)
        # Only the lengths of a group's stacked columns can be equal: sqrt(group) each.
        self.values = self.values / self.group**0.5
        self.left, self.right = left @ u, v @ right.mT
        self.mix = even_rotation(h)

    @property
    def least(self) -> float:
        """The smallest possible product of lengths: the mean of s, at t = 1/2."""
        return float(self.values.mean())

    def factors(self, product: float) -> tuple[Tensor, Tensor]:
        """W_o (group, d, h) and W_v (h, d) of unit columns and rows, where product W_o W_v is unchanged.

        Args:
            product: product of the lengths, at least `least`. If it is larger than that of t = 1, it is met
                only approximately.
        """
        low, high = 0.5, 1.0
        for _ in range(STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._product(middle) < product else (low, middle)
        outputs = self.left * self.values**low @ self.mix.mT
        values = self.mix @ (self.values[:, None] ** (1 - low) * self.right)
        outputs = outputs.reshape(self.group, self.d, -1)
        return outputs / outputs.norm(dim=1, keepdim=True), values / values.norm(dim=1, keepdim=True)

    def _product(self, t: float) -> float:
        squares = [self.values.pow(2 * power).mean() for power in (t, 1 - t)]
        return float((squares[0] * squares[1]).sqrt())


def even_rotation(size: int) -> Tensor:
    """An orthogonal matrix (size, size), float64, whose entries are as equal in size as possible.

    It is Hadamard's (Sylvester's construction) if `size` is a power of two; otherwise it consists of several
    Hadamard blocks over interleaved indices, so that each block gets large and small ones of the sorted
    values.
    """
    block = size & -size
    mix = torch.ones(1, 1, dtype=torch.float64)
    while len(mix) < block:
        mix = torch.cat((torch.cat((mix, mix), 1), torch.cat((mix, -mix), 1))) / 2**0.5
    return torch.kron(mix, torch.eye(size // block, dtype=torch.float64))
