"""An initialisation is a function of the declaration of a parameter: Glorot and Bengio's of 2010."""

import math
from typing import Literal

from zoo import INITS, Init, ParamSpec


@INITS.register
class Glorot(Init):
    """sqrt(2 / (fan_in + fan_out)) for every matrix."""

    type: Literal["glorot"] = "glorot"

    def matrix_std(self, spec: ParamSpec) -> float:
        """The standard deviation of a matrix: `rows` is its fan-out."""
        return math.sqrt(2 / (spec.fan_in_size + spec.rows))
