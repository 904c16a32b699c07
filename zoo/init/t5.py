"""T5's initialisation."""

from __future__ import annotations

import math
from typing import Literal

from zoo.config.registry import INITS
from zoo.init.schemes import Init
from zoo.spec import ParamSpec, Role


@INITS.register
class T5Init(Init):
    """output_std / sqrt(fan_in), and embeddings in their range (T5): activations get no gain."""

    type: Literal["t5"] = "t5"

    def matrix_std(self, spec: ParamSpec) -> float:
        """T5's queries have an output_std of 1 / sqrt(h), its embeddings one of 1."""
        if spec.role is Role.EMBEDDING and not spec.tied:
            return spec.output_std
        return spec.output_std / math.sqrt(spec.fan_in_size)
