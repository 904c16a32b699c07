"""Initialisation schemes: the standard deviation of each matrix, from its declaration.

A scheme gives the standard deviation of the *virtual* tensor, the one that the layer computes with. The
trained tensor is drawn with this standard deviation divided by the factor of its reparameterisation
(`ParamSpec.scale`).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Literal, Self

from pydantic import Field

from zoo.config.registry import INITS, Config, require_size
from zoo.spec import MATRICES, ParamSpec, Role

RANDOM = MATRICES | {Role.POSITION}
"""Roles that start from random numbers; all others start constant."""


class Init(Config):
    """An initialisation scheme: the standard deviations of matrices; vectors start at constants."""

    @abstractmethod
    def matrix_std(self, spec: ParamSpec) -> float:
        """Return the standard deviation of a linear, convolution or embedding matrix."""
        raise NotImplementedError

    def position_std(self, spec: ParamSpec) -> float:
        """Return the standard deviation of a table of relative positions: by default its `output_std`."""
        return spec.output_std

    def lookup_scale(self, spec: ParamSpec) -> float:
        """Return the factor on the vectors that are looked up in an embedding; 1 for none."""
        return 1.0

    def logits_scale(self, spec: ParamSpec) -> float:
        """Return the fixed factor on the logits of a table that is tied to the head; 1 for none."""
        return 1.0

    def folded(self, tied: bool) -> Self:
        """Return the scheme of a model whose gates were merged into its matrices.

        Embedding scaling is then a part of the table, unless the table is tied to the language model
        head, whose logits must not be scaled.

        Args:
            tied: whether the table is tied.
        """
        return self


class ScaledEmbeddings(Init):
    """Schemes of the WeSaR paper, which scale embeddings up to the residual stream's standard deviation."""

    embedding_scaling: bool = Field(
        True, description="multiply embeddings by 1/sigma_e, so that the stream starts with std 1"
    )

    def lookup_scale(self, spec: ParamSpec) -> float:
        """Return 1/sigma_e (WeSaR, Table 1), and 1 for vectors that are on a sphere or normalised next.

        The numerator is the standard deviation that the model declares for the looked-up vectors, which is 1
        in the paper.
        """
        scalable = spec.sphere is None and not spec.normalised
        if spec.role is Role.EMBEDDING and self.embedding_scaling and scalable:
            wanted = spec.output_std if spec.lookup_std is None else spec.lookup_std
            return wanted / self.matrix_std(spec)
        return 1.0

    def folded(self, tied: bool) -> Self:
        """Return the scheme without embedding scaling, unless the table is tied."""
        return self if tied else self.model_copy(update={"embedding_scaling": False})


@INITS.register
class He(ScaledEmbeddings):
    """gain / sqrt(fan_in), over sqrt(2N) where a residual branch ends (WeSaR, Table 1)."""

    type: Literal["he"] = "he"

    def matrix_std(self, spec: ParamSpec) -> float:
        """Return gain / sqrt(fan_in); the gain is output_std / input_std, sqrt(2) after an activation.

        The gain of a table that is no head is 1.
        """
        gain = spec.output_std / spec.input_std if spec.is_kernel else 1.0
        return gain / math.sqrt(spec.fan_in_size * spec.residual_branches)


@INITS.register
class Small(ScaledEmbeddings):
    """sqrt(2 / 5d) for every matrix, over sqrt(2N) where a residual branch ends (WeSaR, Table 1)."""

    type: Literal["small"] = "small"

    def matrix_std(self, spec: ParamSpec) -> float:
        """Return sqrt(2 / 5d), d being the width of the residual stream."""
        return math.sqrt(2 / (5 * width(spec) * spec.residual_branches))


class Normal(Init):
    """One standard deviation for every random tensor."""

    std: float = Field(0.02, gt=0, description="standard deviation")

    def matrix_std(self, spec: ParamSpec) -> float:
        """Return the common standard deviation."""
        return self.std

    def position_std(self, spec: ParamSpec) -> float:
        """Return the common standard deviation."""
        return self.std


@INITS.register
class BERTInit(Normal):
    """0.02 for every random tensor (BERT)."""

    type: Literal["bert"] = "bert"


@INITS.register
class GPT2Init(Normal):
    """0.02 for every matrix, over sqrt(2N) where a residual branch ends (GPT-2)."""

    type: Literal["gpt2"] = "gpt2"

    def matrix_std(self, spec: ParamSpec) -> float:
        """Return the common standard deviation, over sqrt(2N) where a residual branch ends."""
        return self.std / math.sqrt(spec.residual_branches)


@INITS.register
class NGPTInit(Init):
    """1 / sqrt(d), over sqrt(2N) where a residual branch ends (nGPT, A.5)."""

    type: Literal["ngpt"] = "ngpt"

    def matrix_std(self, spec: ParamSpec) -> float:
        """Return 1 / sqrt(d), d being the width of the residual stream."""
        return 1 / math.sqrt(width(spec) * spec.residual_branches)


@INITS.register
class AmosInit(Init):
    """The standard deviation of every matrix is its eta.

    This start is zoo's choice. The Amos paper defines eta as the scale to which a variable should converge
    (section 2), and does not say where it should start.
    """

    type: Literal["amos"] = "amos"
    unit_inputs: bool = Field(
        False,
        description="whether the inputs of kernels are taken to have standard deviation 1, which gives the "
        "smaller start of the LSTM in the Amos paper's released code",
    )

    def matrix_std(self, spec: ParamSpec) -> float:
        """Return eta; with `unit_inputs`, a kernel's is multiplied by the standard deviation of its input."""
        return virtual_eta(spec) * (spec.input_std if self.unit_inputs and spec.is_kernel else 1.0)


def width(spec: ParamSpec) -> int:
    """Return the width of the residual stream that a matrix reads or writes, or else its fan-in."""
    return spec.size("embed") if "embed" in spec.axes else spec.fan_in_size


def virtual_eta(spec: ParamSpec) -> float:
    """Return Amos' model-oriented scale eta of the tensor that a layer computes with.

    eta is output_std / (input_std sqrt(fan_in)) for kernels and for embeddings that also are a kernel,
    output_std / 2 for biases, and output_std otherwise (Amos, section 2 and A.4); for unit vectors of n
    entries it is 1 / sqrt(n). No paper has a rule for scalings and gates: a scaling has the value that its
    layer declares, and all others the value they start from (docs/results/amos-scalings.md).
    """
    if spec.sphere_dim is not None:
        return 1 / math.sqrt(spec.shape[spec.sphere_dim])
    if spec.target is not None:
        return spec.target
    if spec.start is not None and spec.role not in RANDOM:
        return spec.start
    if spec.is_kernel:
        return spec.output_std / (spec.input_std * math.sqrt(max(1, spec.fan_in_size)))  # 0 without entries
    if spec.role is Role.BIAS:
        return spec.output_std / 2
    return spec.output_std


def virtual_std(init: Init, spec: ParamSpec) -> float:
    """Return the standard deviation of the tensor that a layer computes with, before the projection.

    The standard deviation of an embedding includes the factor on its vectors, unless it is tied to a language
    model head.

    Raises:
        ConfigError: The scheme returned something else than a standard deviation.
    """
    if spec.role is Role.POSITION:
        return require_size(type(init), "position_std", init.position_std(spec))
    std = require_size(type(init), "matrix_std", init.matrix_std(spec))
    return std * (1.0 if spec.tied else init.lookup_scale(spec))
