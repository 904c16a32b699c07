"""Names of the types of NumPy arrays."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
"""An array of float64, in which statistics are computed."""
