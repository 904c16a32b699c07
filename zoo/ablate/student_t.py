"""Student's t distribution, in the three forms that tests and intervals need.

`scipy.special` returns the same numbers as `scipy.stats.t`. It does so some fifty times as fast for a single
number, of which a simulated study needs thousands, and is imported in a sixth of the time.
"""

from __future__ import annotations

import math

from scipy import special


def quantile(p: float, df: float) -> float:
    """The value below which t lies with probability `p`.

    Args:
        p: the probability.
        df: degrees of freedom.
    """
    return float(special.stdtrit(df, p))


def critical_value(error: float, df: float) -> float:
    """The value that |t| exceeds with probability `error`.

    Args:
        error: the probability; no value is large enough for 0.
        df: degrees of freedom.
    """
    return float(-special.stdtrit(df, error / 2)) if error > 0 else math.inf


def two_sided_p(t: float, df: float) -> float:
    """The probability that |t| exceeds a given value.

    Args:
        t: the value, of any sign.
        df: degrees of freedom.
    """
    return float(2 * special.stdtr(df, -abs(t)))
