"""The options that every model on the hypersphere has, those of the nGPT paper."""

from __future__ import annotations

import logging
from typing import Literal

from pydantic import Field

from zoo.models.language_model import LanguageModelConfig
from zoo.nn.classification import UnitClassificationHead
from zoo.nn.residual import Lerp, Riemannian, Slerp
from zoo.nn.scaling import AlphaConfig, ScalingConfig
from zoo.spec import Module

log = logging.getLogger("zoo")


class HypersphereConfig(LanguageModelConfig):
    """The update of the stream and the scalings, with every ablation of the paper."""

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
        """The residual connection of a branch with the stream."""
        return {"lerp": Lerp, "slerp": Slerp, "riemannian": Riemannian}[self.update]

    def classification_head(self, classes: int) -> Module:
        """A head of nGPT's kind, so that all of the classifier is on the sphere."""
        return UnitClassificationHead(classes, self.d_model, self.s_z)

    def warn_of_no_effect(self) -> None:
        """Log a warning about a setting that changes nothing."""
        if self.s_u.kind == "scalar":
            log.warning("ngpt: one scalar s_u changes nothing, the MLP's output is normalised")
