"""The size of the update of each matrix in one step, measured at an interval."""

from __future__ import annotations

from collections.abc import Iterable

from zoo.init import Entry
from zoo.spec import MATRICES
from zoo.utils.sharded import norms


class Monitor:
    """Measures one step: create it before the step, show it the gradient, and read it after the step.

    It holds a copy of every matrix during the step, and is therefore not used at every step.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        """Copy the matrices among `entries`, plain or sharded."""
        matrices = [entry for entry in entries if entry.spec.role in MATRICES]
        self._before = [(entry, entry.parameter.detach().clone()) for entry in matrices]
        self._gradients: dict[str, float] = {}

    def see_gradient(self) -> None:
        """Measure the norms of the gradients in `.grad`. All ranks must call this method."""
        gradients = {entry.name: entry.parameter.grad for entry, _ in self._before}
        seen = {name: gradient for name, gradient in gradients.items() if gradient is not None}
        self._gradients = dict(zip(seen, norms(seen.values()).tolist(), strict=True))

    def measure(self) -> dict[str, dict[str, float | None]]:
        """Measure after the step. All ranks must call this method.

        Returns:
            For every matrix: `update_ratio` = ||dW|| / ||W|| with W before the step (None for a
            matrix of zeros), `norm` = ||W|| after it, `gradient_norm` before clipping (None where no
            gradient was seen), `m2` = sqrt(mean(W^2)), `eta` from the registry and `m2_over_eta`, which
            Amos drives to about 1 (Amos, section 2).
        """
        pairs = ((entry.parameter.detach(), before) for entry, before in self._before)
        measured = norms(t for after, before in pairs for t in (after - before, before, after))
        numbers = measured.reshape(-1, 3).tolist()
        return {entry.name: self._row(entry, *numbers[i]) for i, (entry, _) in enumerate(self._before)}

    def _row(self, entry: Entry, moved: float, before: float, after: float) -> dict[str, float | None]:
        m2 = after / entry.spec.numel**0.5
        ratio = moved / before if before else None
        return {
            "update_ratio": ratio,
            "norm": after,
            "gradient_norm": self._gradients.get(entry.name),
            "m2": m2,
            "eta": entry.eta,
            "m2_over_eta": m2 / entry.eta,
        }
