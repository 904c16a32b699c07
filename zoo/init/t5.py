"""T5's initialisation."""

from __future__ import annotations

import math
from typing import Literal

from zoo.config.registry import INITS
from zoo.init.schemes import Init
from zoo.spec import ParamSpec, Role


@INITS.register
class T5Init(Init):
    """output_std / sqrt(fan_in), and output_std for embeddings (T5); no gain after activations."""

    type: Literal["t5"] = "t5"

    def matrix_std(self, spec: ParamSpec) -> float:
        """Return the standard deviation; T5 declares an output_std of 1 / sqrt(h) for its queries."""
        if spec.role is Role.EMBEDDING and not spec.tied:
            return spec.output_std
        return spec.output_std / math.sqrt(spec.fan_in_size)
