"""An objective: predict every token from those after it, by reading the text backwards."""

from typing import ClassVar, Literal

from torch import Tensor

from zoo import OBJECTIVES, Batch, Objective


@OBJECTIVES.register
class Backwards(Objective):
    """Predict every token from those after it."""

    trains_like: ClassVar[str] = "causal"

    type: Literal["backwards"] = "backwards"

    def examples(self, windows: Tensor, seed: int, first: int, vocab_size: int) -> Batch:
        """Inputs and targets, (n, context) int64, of windows (n, context + 1) read from their ends."""
        reversed_windows = windows.flip(1)
        return reversed_windows[:, :-1], reversed_windows[:, 1:]
