"""Learning rate schedules: a warm-up, then a function of the steps since the peak."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from zoo.config.registry import SCHEDULES
from zoo.optim.base import ScheduleConfig
from zoo.utils.errors import ConfigError


@SCHEDULES.register
class Constant(ScheduleConfig):
    """Constant: the schedule of Amos; training needs no horizon."""

    type: Literal["constant"] = "constant"

    def after_warmup(self, step: int, peak: int, length: int) -> float:
        """1 at every step."""
        return 1.0


@SCHEDULES.register
class LinearDecay(ScheduleConfig):
    """Linear from 1 to `final`, which the step after the last one would have."""

    type: Literal["linear"] = "linear"
    final: float = Field(0.0, ge=0, le=1, description="factor at the end of the run")

    def after_warmup(self, step: int, peak: int, length: int) -> float:
        """1 at the peak, `final` from the end of the run on."""
        return 1 - (1 - self.final) * min(step / length, 1.0)


@SCHEDULES.register
class LinearRestart(ScheduleConfig):
    """Linear to 0 at step `after`, then as in a schedule that is linear to 0 over the whole, longer run.

    The Amos paper calls it AdamW-Cont. (section 5.1): a finished run is continued, and its learning rate
    jumps to what it would have been in the longer run. It equals a finished run with the schedule `linear`
    that is resumed with more steps.
    """

    type: Literal["linear-restart"] = "linear-restart"
    after: int = Field(gt=0, description="steps of the finished run")

    def factor(self, step: int, total: int) -> float:
        """`LinearDecay`'s factor in a run of `after` steps, and from step `after` on in one of `total`."""
        return super().factor(step, self.after if step < self.after else total)

    def after_warmup(self, step: int, peak: int, length: int) -> float:
        """1 at the peak, 0 from the end of the run on."""
        return 1 - min(step / length, 1.0)

    def check(self, total_steps: int) -> None:
        """Check that the schedule fits the length of a run, see `ScheduleConfig.check`.

        Raises:
            ConfigError: The run ends before step `after`, or the warm-up ends after it.
        """
        if not self.warmup <= self.after < total_steps:
            raise ConfigError(
                f"schedule.after {self.after}: expected at least schedule.warmup {self.warmup} "
                f"and less than the run's {total_steps} steps"
            )


@SCHEDULES.register
class Cosine(ScheduleConfig):
    """Half a cosine to `final`, which the step after the last one would have."""

    type: Literal["cosine"] = "cosine"
    final: float = Field(0.0, ge=0, le=1, description="factor at the end of the run")

    def after_warmup(self, step: int, peak: int, length: int) -> float:
        """1 at the peak, `final` from the end of the run on."""
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * min(step / length, 1.0))) / 2


@SCHEDULES.register
class RSqrt(ScheduleConfig):
    """One over the square root of the step, 1 at the end of the warm-up (T5's, AdamW-rsqrt)."""

    type: Literal["rsqrt"] = "rsqrt"

    def after_warmup(self, step: int, peak: int, length: int) -> float:
        """sqrt(peak / t) for step t, counted from 1."""
        return math.sqrt(peak / (peak + step))


@SCHEDULES.register
class WSD(ScheduleConfig):
    """Warm-up, stable, decay: constant, and linear to `final` over the last part of the run."""

    type: Literal["wsd"] = "wsd"
    decay: float = Field(0.2, gt=0, le=1, description="share of the steps after the peak that decay")
    final: float = Field(0.0, ge=0, le=1, description="factor at the end of the run")

    def after_warmup(self, step: int, peak: int, length: int) -> float:
        """1 until the decay begins, `final` from the end of the run on."""
        left = max(length - step, 0) / (self.decay * length)
        return self.final + (1 - self.final) * min(left, 1.0)
