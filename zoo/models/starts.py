"""Where nGPT's scalings start in a run of any size: `alpha.init: auto` and `s_z.init: auto`.

The paper starts alpha at .05, "of the order of 1 / n_layers", and s_z at 1 (section 2.6), for 24 and 36
layers, widths from 1,024 on, and long runs. There s_z ends at about 61, twice sqrt(d_model), and a short run
cannot move it that far. The rules here are ours, see docs/results/ngpt-starts.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from zoo.spec import ParamSpec
from zoo.utils.errors import ConfigError

Reach = Callable[[ParamSpec], float | None]
"""How far an entry of a parameter can move in a run, at most; None where the optimizer has no bound."""

SLOW = 0.05
"""The start of s_z is sqrt(d_model) if the way from 1 to sqrt(d_model) is more than this share of its reach.
The threshold lies between our measured runs, which gain from the start sqrt(d_model), and the paper's long
runs with a share of about .02, which lose by it (Table 4)."""


class NoRuleError(ConfigError):
    """The error of an `auto` for which there is no rule.

    Attributes:
        path: the keys of the value in the configuration of the model.
    """

    def __init__(self, path: tuple[str, ...], reason: str) -> None:
        super().__init__(f"{'.'.join(path)}: value 'auto': {reason}")
        self.path, self.reason = path, reason


def alpha_start(n_layers: int) -> float:
    """Return 1 / n_layers, the order that the paper names (section 2.6)."""
    return 1 / n_layers


def logit_scale(d_model: int) -> float:
    """Return sqrt(d_model), the s_z that gives logits a standard deviation of 1.

    It follows from Amos' rule, output over input standard deviation, because the dot product of two random
    unit vectors has standard deviation 1 / sqrt(d_model).
    """
    return math.sqrt(d_model)


def s_z_start(d_model: int, reach: float) -> float:
    """Return where s_z starts.

    Args:
        d_model: width of the model.
        reach: how far the run can move an s_z that starts at 1, at most: the sum of its learning rates over
            s_scale, for an optimizer whose steps are at most the rate.

    Returns:
        1 as in the paper, if the way to sqrt(d_model) takes at most the share `SLOW` of the reach, otherwise
        sqrt(d_model).
    """
    return logit_scale(d_model) if logit_scale(d_model) - 1 > SLOW * reach else 1.0
