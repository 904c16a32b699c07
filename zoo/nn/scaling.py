"""nGPT's scaling vectors: a trainable tensor with an effective learning rate of its own."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator
from torch import Tensor

from zoo.config.registry import Config
from zoo.spec import NO_POWERS, Module, ParamSpec, Role, WidthPowers
from zoo.utils.errors import ConfigError

LEAST_SCALE = 1e-10
"""The smallest `scale` that is accepted, and the inverse of the largest (our choice: float32 holds both)."""


class ScalingConfig(Config):
    """A scaling of nGPT (paper, section 2.5): its initial value and its effective learning rate."""

    kind: Literal["vector", "scalar", "fixed"] = Field(
        "vector", description="one entry per dimension, one learned number per layer, or a constant (Table 5)"
    )
    init: float | Literal["auto"] = Field(
        1.0,
        description="s_init: the effective value at the start; auto (alpha and s_z alone): "
        "alpha 1 / n_layers, s_z sqrt(d_model), or 1 in a run that is long enough to get from 1 to there",
    )
    scale: float | None = Field(
        None,
        ge=LEAST_SCALE,
        le=1 / LEAST_SCALE,
        description="s_scale: the value the trainable tensor starts at; null: 1/sqrt(d_model) (s_u, s_nu: 1)",
    )

    @model_validator(mode="after")
    def _can_be_trained(self) -> Self:
        """Refuse a start of 0, from which the effective value could not move, and a scale of a constant.

        Raises:
            ValueError: The start is 0, or `scale` has no effect.
        """
        if self.trained and self.init == 0:
            raise ValueError(
                "init is 0, and the trained value is multiplied by init / scale, so that its gradient would "
                "always be 0; expected another number"
            )
        if not self.trained and self.scale is not None:
            raise ValueError("`scale` has no effect with kind: fixed, which trains nothing")
        return self

    @property
    def trained(self) -> bool:
        """Whether the scaling is learned, and not a constant."""
        return self.kind != "fixed"


class AlphaConfig(ScalingConfig):
    """The eigen learning rates alpha of nGPT's residual connections."""

    init: float | Literal["auto"] = Field(
        0.05, description="start of the order of 1 / number of layers; auto: 1 / number of layers"
    )
    signed: bool = Field(False, description="use alpha itself, not |alpha| (paper, A.2)")


class Scaling(Module):
    """A scaling tensor s: trained from s_scale on, used as s * (s_init / s_scale)."""

    def __init__(
        self,
        axes: tuple[tuple[str, int], ...],
        config: ScalingConfig,
        d_model: int | None = None,
        target: float | None = None,
    ) -> None:
        """Create the tensor, unless the scaling is fixed.

        Args:
            axes: name and size of each axis of the `vector` form.
            config: form, initial value and s_scale.
            d_model: width of the model, if the default of s_scale is 1 / sqrt(d_model) (paper, section 2.5);
                None: the default is 1 at every width.
            target: the effective value that the scaling should reach; None: it is not known.

        Raises:
            ConfigError: `init` is still `auto`, which is resolved by the configuration of a run.
        """
        super().__init__()
        if config.init == "auto":
            raise ConfigError("a scaling's init is auto; expected a number, or a configuration of a run")
        self.fixed = config.init if config.kind == "fixed" else None
        start, powers = config.scale or 1.0, NO_POWERS
        if config.scale is None and d_model is not None:
            start, powers = d_model**-0.5, WidthPowers(start=-0.5)
        self.factor = config.init / start
        self.absolute = isinstance(config, AlphaConfig) and not config.signed
        if config.kind == "scalar":
            axes = (("one", 1),)
        if self.fixed is None:
            self.param(
                "scale",
                ParamSpec(
                    Role.SCALING,
                    shape=tuple(size for _, size in axes),
                    axes=tuple(name for name, _ in axes),
                    start=start,
                    target=abs(target / self.factor) if target and self.factor else None,
                    powers=powers,
                ),
            )

    def forward(self) -> Tensor | float:
        """The effective scaling: the declared shape, (1,) for a scalar, a number when fixed."""
        if self.fixed is not None:
            return abs(self.fixed) if self.absolute else self.fixed
        scale = self.virtual("scale") * self.factor
        return scale.abs() if self.absolute else scale
