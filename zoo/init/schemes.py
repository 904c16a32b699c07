"""Initialisations: what standard deviation each matrix should have, from its declaration.

A scheme gives the standard deviation of the *virtual* tensor, the one the layer computes with.
What is drawn is that divided by the factor a reparameterisation puts in front (`ParamSpec.scale`).
"""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field

from zoo.config.registry import INITS, Config
from zoo.spec import MATRICES, ParamSpec, Role

DRAWN = MATRICES | {Role.POSITION}
"""What starts from random numbers; everything else starts constant."""


class Init(Config):
    """A scheme: standard deviations of matrices; vectors start at constants."""

    def matrix_std(self, spec: ParamSpec) -> float:
        """The standard deviation of a linear, convolution or embedding matrix as drawn."""
        raise NotImplementedError

    def position_std(self, spec: ParamSpec) -> float:
        """The same of a table of relative positions: what it gives is added, so it starts in its range."""
        return spec.output_std

    def lookup_scale(self, spec: ParamSpec) -> float:
        """The factor on the vectors an embedding gives; 1 where there is none."""
        return 1.0

    def folded(self, tied: bool) -> Self:
        """The scheme of a model whose gates were merged: no embedding scaling is left to do.

        A tied table keeps it, because its read-out must not be scaled.
        """
        return self


class ScaledEmbeddings(Init):
    """Schemes of the WeSaR paper, which scale the embedding's output up to the stream."""

    embedding_scaling: bool = Field(
        True, description="multiply embeddings by 1/sigma_e, so that the stream starts with std 1"
    )

    def lookup_scale(self, spec: ParamSpec) -> float:
        """1/sigma_e for an embedding (WeSaR, Table 1), unless its vectors have their norm or get it next."""
        scalable = spec.sphere is None and not spec.normalised
        if spec.role is Role.EMBEDDING and self.embedding_scaling and scalable:
            return spec.output_std / self.matrix_std(spec)
        return 1.0

    def folded(self, tied: bool) -> Self:
        """Without embedding scaling, unless the table is tied."""
        return self if tied else self.model_copy(update={"embedding_scaling": False})


@INITS.register
class He(ScaledEmbeddings):
    """gain / sqrt(fan_in), over sqrt(2N) where a residual branch ends (WeSaR, Table 1)."""

    type: Literal["he"] = "he"

    def matrix_std(self, spec: ParamSpec) -> float:
        """The gain is output_std / input_std: sqrt(2) after an activation."""
        gain = 1.0 if spec.role is Role.EMBEDDING else spec.output_std / spec.input_std
        return gain / math.sqrt(spec.fan_in_size * spec.residual_branches)


@INITS.register
class Small(ScaledEmbeddings):
    """sqrt(2 / 5d) for every matrix, over sqrt(2N) where a residual branch ends (WeSaR, Table 1)."""

    type: Literal["small"] = "small"

    def matrix_std(self, spec: ParamSpec) -> float:
        """d is the width of the stream."""
        return math.sqrt(2 / (5 * width(spec) * spec.residual_branches))


class Normal(Init):
    """One standard deviation for everything that is drawn."""

    std: float = Field(0.02, gt=0, description="standard deviation")

    def matrix_std(self, spec: ParamSpec) -> float:
        """The common standard deviation."""
        return self.std

    def position_std(self, spec: ParamSpec) -> float:
        """The common standard deviation."""
        return self.std


@INITS.register
class BERTInit(Normal):
    """0.02 for everything that is drawn (BERT)."""

    type: Literal["bert"] = "bert"


@INITS.register
class GPT2(Normal):
    """0.02 for every matrix, over sqrt(2N) where a residual branch ends (GPT-2)."""

    type: Literal["gpt2"] = "gpt2"

    def matrix_std(self, spec: ParamSpec) -> float:
        """The common standard deviation, smaller where a residual branch ends."""
        return self.std / math.sqrt(spec.residual_branches)


@INITS.register
class NGPTInit(Init):
    """1 / sqrt(d), over sqrt(2N) where a residual branch ends (nGPT, section 3)."""

    type: Literal["ngpt"] = "ngpt"

    def matrix_std(self, spec: ParamSpec) -> float:
        """d is the width of the stream."""
        return 1 / math.sqrt(width(spec) * spec.residual_branches)


@INITS.register
class AmosInit(Init):
    """Every matrix starts at its model-oriented scale eta (Amos, section 3)."""

    type: Literal["amos"] = "amos"

    def matrix_std(self, spec: ParamSpec) -> float:
        """eta itself."""
        return virtual_eta(spec)


def width(spec: ParamSpec) -> int:
    """Size of the stream a matrix reads or writes; a matrix off the stream has its fan-in."""
    return spec.size("embed") if "embed" in spec.axes else spec.fan_in_size


def virtual_eta(spec: ParamSpec) -> float:
    """Amos' model-oriented scale of the tensor a layer computes with.

    eta = output_std / (input_std sqrt(fan_in)) for kernels (and embeddings that also are one),
    output_std / 2 for biases, output_std otherwise (Amos, section 3 and Table 1). A scaling vector
    or a gate has the value it starts from; unit vectors of n entries have exactly 1 / sqrt(n).
    """
    if spec.sphere is not None:
        return 1 / math.sqrt(spec.size(spec.sphere))
    if spec.start is not None and spec.role not in DRAWN:
        return spec.start
    if spec.role in (Role.LINEAR, Role.CONV) or spec.tied:
        return spec.output_std / (spec.input_std * math.sqrt(spec.fan_in_size))
    if spec.role is Role.BIAS:
        return spec.output_std / 2
    return spec.output_std


def virtual_std(init: Init, spec: ParamSpec) -> float:
    """Standard deviation of the tensor a layer computes with, before anything is put on a sphere.

    An embedding that is no read-out includes its lookup factor: scaling what it gives and scaling
    the table are the same thing.
    """
    if spec.role is Role.POSITION:
        return init.position_std(spec)
    return init.matrix_std(spec) * (1.0 if spec.tied else init.lookup_scale(spec))
