"""The options that every model on the hypersphere has, those of the nGPT paper."""

from __future__ import annotations

import functools
import logging
from typing import Literal, Self, TypeVar

from pydantic import Field

from zoo.models.language_model import LanguageModelConfig
from zoo.models.starts import NoRuleError, Reach, alpha_start, logit_scale, s_z_start
from zoo.nn.classification import UnitClassificationHead
from zoo.nn.residual import Lerp, Riemannian, Slerp
from zoo.nn.scaling import AlphaConfig, Scaling, ScalingConfig
from zoo.spec import Module, ParamSpec, Role

log = logging.getLogger("zoo")

ScalingT = TypeVar("ScalingT", bound=ScalingConfig)


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
    def depth(self) -> int | None:
        """The number of blocks for the rules of `zoo.models.starts`; None: they do not cover this model."""
        return None

    def logit_scaling(self) -> Scaling:
        """s_z, with an entry for each token of the vocabulary, whose trained value starts at d_model^-1/2."""
        axes = (("vocab", self.vocab_size),)
        return Scaling(axes, self.s_z, self.d_model, target=logit_scale(self.d_model))

    def with_starts(self, reach: Reach | None) -> Self:
        """The fields with the starts of alpha and s_z by the rules of `zoo.models.starts`.

        Args:
            reach: how far the run can move a parameter; None: no run is configured.

        Raises:
            NoRuleError: A scaling other than alpha and s_z is `auto`, the model is no decoder, or nothing is
                known of the run.
        """
        scalings: dict[str, ScalingConfig] = {
            key: getattr(self, key) for key in ("alpha", "s_qk", "s_u", "s_nu", "s_z")
        }
        starts = {
            key: config.model_copy(update={"init": self._start(key, config, reach)})
            for key, config in scalings.items()
            if config.init == "auto"
        }
        return self.model_copy(update=starts)

    def _start(self, key: str, config: ScalingConfig, reach: Reach | None) -> float:
        path = (key, "init")
        if key not in ("alpha", "s_z"):
            raise NoRuleError(path, "there is no rule for this scaling; expected a number (the paper's is 1)")
        if self.depth is None:
            raise NoRuleError(path, "the rule is for decoders; expected a number")
        if key == "alpha":
            return alpha_start(self.depth)
        if not config.trained:
            return s_z_start(self.d_model, 0.0)
        if reach is None:
            raise NoRuleError(path, "the rule needs an optimizer and train.steps; expected a number")
        scale = config.scale or self.d_model**-0.5
        wanted = logit_scale(self.d_model) * scale
        spec = ParamSpec(Role.SCALING, (self.vocab_size,), ("vocab",), start=scale, target=wanted)
        moved = reach(spec)
        if moved is None:
            raise NoRuleError(
                path, "there is no rule for this optimizer, whose steps have no bound; expected a number"
            )
        return s_z_start(self.d_model, moved / scale)

    @property
    def residual(self) -> type[Lerp]:
        """The residual connection of a branch with the stream."""
        return {"lerp": Lerp, "slerp": Slerp, "riemannian": Riemannian}[self.update]

    def classification_head(self, classes: int, bias: bool = True) -> Module:
        """A head of nGPT's kind, so that all of the classifier is on the sphere; it never has a bias."""
        return UnitClassificationHead(classes, self.d_model, self.s_z)

    def transferred(self, base_width: int, depth: float) -> Self:
        """The configuration whose scalings start where nuGPT has them (arXiv 2604.27077, section 3.1).

        The trained value that a scaling starts from, which divides its effective rate, stays that of the base
        size. alpha is proportional to 1 / depth and s_z to the square root of the width.
        """
        scale = base_width**-0.5

        def start(config: ScalingT, factor: float) -> ScalingT:
            changes = {"init": float(config.init) * factor}
            if config.trained:
                changes["scale"] = config.scale or scale
            return config.model_copy(update=changes)

        width = self.d_model / base_width
        scalings = {"alpha": (self.alpha, 1 / depth), "s_qk": (self.s_qk, 1.0), "s_z": (self.s_z, width**0.5)}
        return self.model_copy(update={name: start(*pair) for name, pair in scalings.items()})

    def warn_of_no_effect(self) -> None:
        """Log a warning about a setting that changes nothing, once per process."""
        if self.s_u.kind == "scalar":
            _warn_once("ngpt: one scalar s_u changes nothing, the MLP's output is normalised")


@functools.cache  # a sweep builds many models
def _warn_once(text: str) -> None:
    log.warning(text)
