"""The choices that every model on the hypersphere has: those of nGPT's paper."""

from __future__ import annotations

import logging
from typing import Literal

from pydantic import Field

from zoo.config.registry import Config
from zoo.nn.residual import Lerp, Riemannian, Slerp
from zoo.nn.scaling import AlphaConfig, ScalingConfig

log = logging.getLogger("zoo")


class HypersphereConfig(Config):
    """How the stream moves, and the scalings, each with every ablation of the paper."""

    update: Literal["lerp", "slerp", "riemannian"] = Field(
        "lerp", description="how the stream moves: equation 10, section 2.2.2, appendix A.3"
    )
    qk_norm: bool = Field(True, description="normalise queries and keys (Table 6 without)")
    alpha: AlphaConfig = Field(AlphaConfig(), description="eigen learning rates of the stream, alpha")
    s_qk: ScalingConfig = Field(ScalingConfig(), description="scaling of queries and keys")
    s_u: ScalingConfig = Field(ScalingConfig(), description="scaling of the MLP's u")
    s_nu: ScalingConfig = Field(ScalingConfig(), description="scaling of the MLP's nu")
    s_z: ScalingConfig = Field(ScalingConfig(), description="scaling of the logits")

    @property
    def residual(self) -> type[Lerp]:
        """What connects a branch to the stream."""
        return {"lerp": Lerp, "slerp": Slerp, "riemannian": Riemannian}[self.update]

    def announce(self) -> None:
        """Say what changes nothing."""
        if self.s_u.kind == "scalar":
            log.warning("ngpt: one scalar s_u changes nothing, the MLP's output is normalised")
