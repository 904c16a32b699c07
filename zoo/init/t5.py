"""T5's initialisation."""

from __future__ import annotations

import math
from typing import Literal

from zoo.config.registry import INITS
from zoo.init.schemes import Init
from zoo.spec import ParamSpec


@INITS.register
class T5Init(Init):
    """output_std / sqrt(fan_in), and output_std for embeddings (T5); no gain after activations.

    A table of relative positions starts with the standard deviation that the model declares, which is 0.5
    (Amos, A.4.2). T5's own code starts it with 1 / sqrt(d_model).
    """

    type: Literal["t5"] = "t5"

    def matrix_std(self, spec: ParamSpec) -> float:
        """Return the standard deviation; T5 declares an output_std of 1 / sqrt(h) for its queries.

        A table that is also the head gets the standard deviation with which the head's logits have their
        declared one. That is 1 for the first T5, whose hidden states are divided by sqrt(d) before the head.
        """
        if not spec.is_kernel:
            return spec.output_std
        std = spec.output_std / math.sqrt(spec.fan_in_size)
        return std / spec.input_std if spec.tied else std
