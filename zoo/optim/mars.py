"""MARS: AdamW on a gradient whose variance is reduced by means of the previous gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field
from torch import Tensor
from torch.optim.optimizer import ParamsT

from zoo.config.registry import OPTIMIZERS
from zoo.kernels.foreach import Many
from zoo.optim.adam import Decay
from zoo.optim.base import OptimizerConfig, grouped
from zoo.optim.blocks import blocks, changed_blocks
from zoo.optim.moments import adam_step, advance_moments
from zoo.optim.optimizer import CountingOptimizer, gradients, local_rows
from zoo.optim.param_group import ParamGroup
from zoo.optim.ranges import NOT_NEGATIVE, POSITIVE, TWO_DECAYS, check_ranges
from zoo.optim.sharding import complete, totals
from zoo.optim.skip_flag import skip_flag
from zoo.spec import ParamSpec, Role

if TYPE_CHECKING:
    from zoo.init.registry import Entry

MOMENTS = ("exp_avg", "exp_avg_sq")


class MARS(CountingOptimizer):
    r"""MARS-AdamW with the previous gradient as the correction (Yuan et al., arXiv 2411.10438).

    For a matrix, in step t = 1, 2, ...::

        c      <- g + gamma beta1 / (1 - beta1) (g - g_before),  c <- c / max(1, |c|)
        theta  <- AdamW step with c instead of g, decoupled decay

    Parameters that are not two-dimensional take steps of AdamW with `lr_1d` / `lr` times the learning rate,
    `betas_1d` and `weight_decay_1d`. The exact form, which costs a second backward pass, is not offered.
    """

    handles_skip: ClassVar[bool] = True

    valid: ClassVar = {
        "lr": NOT_NEGATIVE,
        "betas": TWO_DECAYS,
        "eps": NOT_NEGATIVE,
        "weight_decay": NOT_NEGATIVE,
        "gamma": NOT_NEGATIVE,
        "betas_1d": TWO_DECAYS,
        "weight_decay_1d": NOT_NEGATIVE,
        "factor_1d": NOT_NEGATIVE,
    }

    def __init__(
        self,
        params: ParamsT,
        lr: float = 3e-3,
        betas: tuple[float, float] = (0.95, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        gamma: float = 0.025,
        *,
        lr_1d: float = 3e-3,
        betas_1d: tuple[float, float] = (0.9, 0.95),
        weight_decay_1d: float = 0.1,
    ) -> None:
        """All arguments but `params` are defaults that a group may override.

        Args:
            params: parameters, or groups of them.
            lr: learning rate of matrices.
            betas: decays of the two averages of matrices.
            eps: added to the root of the second moment.
            weight_decay: decoupled weight decay of matrices, times lr.
            gamma: how much of the difference of two gradients is added.
            lr_1d: learning rate of all other parameters; its ratio to `lr` stays constant.
            betas_1d: decays of the averages of all other parameters.
            weight_decay_1d: weight decay of all other parameters.

        Raises:
            ConfigError: A value is out of range.
        """
        # A ratio to a rate of 0 does not exist; groups, whose rate a schedule may bring to 0, keep theirs.
        rates = {"lr": lr, "lr_1d": lr_1d}
        check_ranges(rates, {"lr": POSITIVE, "lr_1d": NOT_NEGATIVE}, type(self).__name__)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "gamma": gamma,
            "betas_1d": betas_1d,
            "weight_decay_1d": weight_decay_1d,
            "factor_1d": lr_1d / lr,
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: ParamGroup) -> None:
        """Add a group, whose `lr_1d` becomes its ratio to the group's `lr`.

        Raises:
            ConfigError: The group is not valid. It is not added then.
        """
        if "lr_1d" in param_group:
            rates = {"lr": self.defaults["lr"], **param_group}
            check_ranges(rates, {"lr": POSITIVE, "lr_1d": NOT_NEGATIVE}, self.next_place)
            others = {key: value for key, value in param_group.items() if key != "lr_1d"}
            param_group = others | {"factor_1d": float(rates["lr_1d"]) / float(rates["lr"])}
        super().add_param_group(param_group)

    def averages(self, parameter: Tensor) -> Sequence[str]:
        """The two moments and, for a matrix, the previous gradient."""
        return (*MOMENTS, "previous_grad") if parameter.dim() == 2 else MOMENTS

    def move(self, parameters: Sequence[Tensor], t: int, group: ParamGroup) -> None:
        """Take a step, see the class."""
        self._move_matrices([p for p in parameters if p.dim() == 2], t, group)
        self._move_others([p for p in parameters if p.dim() != 2], t, group)

    def _move_matrices(self, matrices: Sequence[Tensor], t: int, group: ParamGroup) -> None:
        """Take AdamW steps with c, which is computed twice: for its norm, and for the step."""
        gamma = group["gamma"] * group["betas"][0] / (1 - group["betas"][0])
        grads, before = gradients(matrices), self.held(matrices, "previous_grad")
        squares = totals(matrices)
        for g, last, square in blocks(grads, before, squares):
            square.add_(corrected(g.type_as(last), last, gamma).sum_of_squares())
        complete(squares, matrices)
        norms = [square.sqrt().clamp_min(1) for square in squares]
        moments = (self.held(matrices, slot) for slot in MOMENTS)
        step = AdamWStep(group["betas"], t, group["eps"], float(group["lr"]), group["weight_decay"])
        changed = local_rows(matrices), before, *moments
        for theta, last, m, v, g, norm in changed_blocks(skip_flag(self), changed, grads, norms):
            g = g.type_as(last)
            c = corrected(g, last, gamma).div_(norm)
            last.copy_(g)
            step.take(theta, c, m, v)

    def _move_others(self, parameters: Sequence[Tensor], t: int, group: ParamGroup) -> None:
        lr, decay = float(group["lr"]) * group["factor_1d"], group["weight_decay_1d"]
        step = AdamWStep(group["betas_1d"], t, group["eps"], lr, decay)
        moments = (self.held(parameters, slot) for slot in MOMENTS)
        changed = local_rows(parameters), *moments
        for theta, m, v, g in changed_blocks(skip_flag(self), changed, gradients(parameters)):
            step.take(theta, g.type_as(m), m, v)


def corrected(g: Many, before: Many, gamma: float) -> Many:
    """g + gamma (g - before), which lies beyond g on the line from the previous gradient."""
    return before.lerp(g, 1 + gamma)


@dataclass(frozen=True)
class AdamWStep:
    """The numbers of a step of AdamW."""

    betas: tuple[float, float]
    t: int
    eps: float
    lr: float
    decay: float

    def take(self, theta: Many, g: Many, m: Many, v: Many) -> None:
        """Advance the moments m and v, and move theta."""
        advance_moments(m, v, g, self.betas)
        correction = 1 - self.betas[0] ** self.t
        adam_step(
            theta,
            m,
            v,
            t=self.t,
            beta2=self.betas[1],
            eps=self.eps,
            lr=self.lr / correction,
            decay=self.decay * correction,
        )


def _never_decays(spec: ParamSpec) -> bool:
    """Whether a parameter is a gate or a scaling, which the models of MARS' authors do not have."""
    return spec.role in (Role.GATE, Role.SCALING) and not spec.decays


@OPTIMIZERS.register
class MARSConfig(OptimizerConfig):
    """MARS-AdamW: the difference of two gradients reduces the variance (arXiv 2411.10438)."""

    method_family: ClassVar[str] = "Adam"
    method_source: ClassVar[str] = "arXiv 2411.10438"

    type: Literal["mars"] = "mars"
    betas: tuple[Decay, Decay] = Field((0.95, 0.99), description="decays of the averages of matrices")
    eps: float = Field(1e-8, gt=0, description="added to the root of the second moment")
    weight_decay: float = Field(0.0, ge=0, description="decoupled weight decay of matrices, times lr")
    gamma: float = Field(0.025, ge=0, description="how much of the difference of two gradients is added")
    lr_1d: float = Field(3e-3, gt=0, description="learning rate of all other parameters, before the schedule")
    betas_1d: tuple[Decay, Decay] = Field(
        (0.9, 0.95), description="decays of the averages of all other parameters"
    )
    weight_decay_1d: float = Field(
        0.1,
        ge=0,
        description="weight decay of all other parameters but gates and scalings; the authors' default",
    )

    def at_rate(self, lr: float) -> Self:
        """The same settings at another learning rate; that of all other parameters is in proportion."""
        return self.model_copy(update={"lr": lr, "lr_1d": self.lr_1d * lr / self.lr})

    def decays_on(self, entry: Entry) -> bool:
        """Whether one of the two weight decays acts on a parameter, which may be a vector as well."""
        return not _never_decays(entry.spec) and not entry.spec.keeps_norm

    def build(self, entries: Sequence[Entry]) -> MARS:
        """The optimizer; its groups are the parameters of one learning rate and the same decays."""
        options = self.model_dump(exclude={"type"})
        decays = {key: options[key] for key in ("weight_decay", "weight_decay_1d")}

        def of_group(entry: Entry) -> ParamGroup:
            if _never_decays(entry.spec):
                return dict.fromkeys(decays, 0.0)
            return decays | {"weight_decay_1d": decays["weight_decay_1d"] * entry.wd_factor}

        return MARS(grouped(entries, self.lr, of_group), **options)

    def slots(self, entry: Entry) -> dict[str, tuple[int, ...]]:
        """The two moments and, for a matrix, the previous gradient."""
        shape = entry.spec.shape
        names = ("exp_avg", "exp_avg_sq", *(("previous_grad",) if len(shape) == 2 else ()))
        return dict.fromkeys(names, shape)
