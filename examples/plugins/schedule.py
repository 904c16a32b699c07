"""A schedule: constant, then 1 - sqrt(x) over the last part of the run (Hägele et al., 2024)."""

import math
from typing import Literal

from pydantic import Field

from zoo import SCHEDULES, ScheduleConfig


@SCHEDULES.register
class OneMinusSqrt(ScheduleConfig):
    """Constant, then 1 - sqrt(x) over the last part of the run."""

    type: Literal["one-minus-sqrt"] = "one-minus-sqrt"
    decay: float = Field(0.2, gt=0, le=1, description="share of the steps after the warm-up that decay")

    def after_warmup(self, step: int, peak: int, length: int) -> float:
        """The factor on the learning rate `step` steps after the warm-up, of `length` until the end."""
        start = (1 - self.decay) * length
        return 1 - math.sqrt(max(step - start, 0) / (length - start))
