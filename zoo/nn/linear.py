"""Linear maps and embeddings: the declared matrices that every model is made of."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor, nn

from zoo.kernels.matmul import PreparedMatrix, linear
from zoo.spec import NO_POWERS, Module, ParamSpec, Role, WidthPowers
from zoo.utils.errors import DataError


def matrix(
    out: tuple[str, int],
    into: tuple[str, int],
    *,
    input_std: float = 1.0,
    output_std: float | None = None,
    residual_branches: int = 1,
    sphere: str | None = None,
    normalised: bool = False,
    rescaled: bool = False,
    start: float | None = None,
    parts: tuple[tuple[str, int], ...] = (),
    powers: WidthPowers = NO_POWERS,
) -> ParamSpec:
    """Declare a linear kernel in torch's layout, (out, in).

    Args:
        out: name and size of the output axis.
        into: name and size of the input axis, which is summed over.
        input_std: standard deviation of the input.
        output_std: standard deviation that the output should have; None: 1, or on a sphere the one that
            vectors of unit norm give.
        residual_branches: 2N if the matrix ends a residual branch, otherwise 1.
        sphere: the axis along which vectors have unit norm, or None.
        normalised: whether the output is normalised next.
        rescaled: whether a trained scaling multiplies the output next.
        start: the constant that all entries start from; None: random numbers.
        parts: axes that consist of equal parts, and their numbers of parts.
        powers: which of the constants depend on the width of the model.

    Returns:
        The declaration.
    """
    if output_std is None:
        sizes = dict([out, into])
        output_std = 1.0 if sphere is None else input_std * math.sqrt(into[1] / sizes[sphere])
    return ParamSpec(
        Role.LINEAR,
        shape=(out[1], into[1]),
        axes=(out[0], into[0]),
        fan_in=(into[0],),
        input_std=input_std,
        output_std=output_std,
        residual_branches=residual_branches,
        sphere=sphere,
        normalised=normalised,
        rescaled=rescaled,
        start=start,
        parts=parts,
        powers=powers,
    )


class Matrix(Module):
    """A module that multiplies by its parameter `weight`, (out, in).

    Attributes:
        prepared: a function that multiplies by the virtual weight instead of `matmul`; set within
            `zoo.nn.prepared` and `zoo.reparam.forward_start`, otherwise None.
    """

    weight: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.prepared: Callable[[Tensor], Tensor] | None = None

    def matmul(self, x: Tensor, scale: Tensor | float | None = None) -> Tensor:
        """Multiply by the matrix, and by a scale if there is one.

        Args:
            x: (..., in).
            scale: factor of x W^T, (out,) or (1,) or a number; None: 1. It multiplies W, which in training
                has fewer entries than the output, or, if W is prepared for few rows, the output.

        Returns:
            (..., out).
        """
        if self.prepared is not None:
            y = self.prepared(x)
            return y if scale is None else y * scale
        weight, factor = self.factored("weight")
        if scale is not None:
            weight = weight * (scale.unsqueeze(-1) if isinstance(scale, Tensor) else scale)
        return linear(x, weight, factor)

    def prepare(self, rows: int, compiled: bool = False) -> None:
        """Set `prepared` for inputs of `rows` rows, unless the weight is sharded or only looked up.

        Args:
            rows: the expected number of rows of inputs.
            compiled: whether the products will be compiled.
        """
        spec = self.specs["weight"]
        if (spec.role is Role.LINEAR or spec.tied) and type(self.weight) is nn.Parameter:
            self.prepared = PreparedMatrix(self.virtual("weight"), rows, compiled)


class Linear(Matrix):
    """y = x W^T (+ b), with W declared by `matrix`."""

    def __init__(self, spec: ParamSpec, bias: bool = False) -> None:
        """Create the kernel and, if asked for, the bias.

        Args:
            spec: the declaration of the kernel, (out, in).
            bias: whether there is a bias, which is declared along the output axis of the kernel.
        """
        super().__init__()
        self.param("weight", spec)
        self.has_bias = bias
        if bias:
            self.param(
                "bias",
                ParamSpec(
                    Role.BIAS,
                    shape=spec.shape[:1],
                    axes=spec.axes[:1],
                    output_std=spec.output_std,
                    residual_branches=spec.residual_branches,
                ),
            )

    def forward(self, x: Tensor, scale: Tensor | float | None = None) -> Tensor:
        """(..., in) -> (..., out); the scale is that of `matmul`."""
        y = self.matmul(x, scale)
        return y + self.virtual("bias").to(y.dtype) if self.has_bias else y  # autocast casts only y


class Embedding(Matrix):
    """One vector of size `width` for each of `rows` items.

    An embedding that is tied to the language model head is declared with the ranges of the head: the
    Amos paper (A.4) gives BERT's table the scale of a kernel, and T5's, which is not tied, 1.
    """

    def __init__(
        self,
        rows: tuple[str, int],
        width: int,
        *,
        input_std: float = 1.0,
        output_std: float = 1.0,
        lookup_std: float | None = None,
        tied: bool = False,
        sphere: str | None = None,
        normalised: bool = False,
        rescaled: bool = False,
        powers: WidthPowers = NO_POWERS,
    ) -> None:
        """Create the table.

        Args:
            rows: name and number of the items.
            width: size of a vector; its axis is called "embed".
            input_std: standard deviation of the hidden states that a tied table is multiplied by.
            output_std: standard deviation of the vectors' entries; of the logits if the table is tied.
            lookup_std: standard deviation of the entries of looked-up vectors under a scheme that scales
                them; None: it is `output_std`.
            tied: whether the language model head multiplies by the table.
            sphere: "embed" if the vectors have unit norm.
            normalised: whether the vectors that are looked up are normalised next.
            rescaled: whether a trained scaling multiplies the logits of a tied table, whose vectors are
                normalised when they are looked up.
            powers: which of the constants depend on the width of the model.
        """
        super().__init__()
        self.param(
            "weight",
            ParamSpec(
                Role.EMBEDDING,
                shape=(rows[1], width),
                axes=(rows[0], "embed"),
                fan_in=("embed",),
                input_std=input_std,
                output_std=output_std,
                lookup_std=lookup_std,
                tied=tied,
                sphere=sphere,
                normalised=normalised,
                rescaled=rescaled,
                powers=powers,
            ),
        )

    def forward(self, index: Tensor) -> Tensor:
        """Look vectors up: (...) int64 -> (..., width).

        Raises:
            DataError: An index has no vector. On a GPU, PyTorch stops with an assertion of its own.
        """
        try:
            return self.virtual_rows("weight", index)
        except IndexError as error:
            rows = len(self.weight)
            wrong = index[(index < 0) | (index >= rows)]
            if not wrong.numel():
                raise
            raise DataError(
                f"embedding ({self.specs['weight'].axes[0]}): id {int(wrong[0])} has no vector; "
                f"expected 0 to {rows - 1}"
            ) from error
