"""Measurements of every variable at an interval: its scale relative to eta, and the ratio of Assumption 1.

Each of the `WINDOW` steps before a measurement costs a pass over the gradients, and needs a copy of the
weights; docs/results/diagnose.md gives the share of a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor
from torch.optim import Optimizer

from zoo.init import Registry
from zoo.train.distributed import World
from zoo.train.gradients import GradientAverages
from zoo.utils.sharded import Stored, norms
from zoo.utils.untyped import JsonObject

WINDOW = 100
"""Number of steps whose gradients are averaged; with decay 0.98, all earlier ones would weigh 0.13."""


class Diagnosis:
    """Measures every variable while a run trains."""

    def __init__(
        self, registry: Registry, optimizer: Optimizer, world: World, every: int | None, steps: int
    ) -> None:
        """Register the hook that reads the gradients.

        Args:
            registry: the variables.
            optimizer: the optimizer of the variables; gradients are read before its step, after clipping.
            world: the ranks.
            every: steps between measurements; None: never.
            steps: steps of the whole run, which ends with a measurement.
        """
        self._registry, self._every, self._steps = registry, every, steps
        self._averages = GradientAverages(registry, world)
        self._step = 0
        self._is_paused = False
        optimizer.register_step_pre_hook(self._before_update)

    def begin(self, step: int) -> None:
        """Set the number of the next step, counted from 1."""
        self._step = step

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the gradients of steps that are taken in a `with` block, because they are undone."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def _before_update(self, *_: object) -> None:
        if self._is_paused:
            return
        if self._step > self._before_window:
            self._averages.add()

    def _next(self, every: int) -> int:
        """The number of the next step that a measurement follows."""
        return min(-(-self._step // every) * every, self._steps)

    @property
    def _before_window(self) -> int:
        """The last step before the window of the next measurement."""
        return self._steps if self._every is None else max(self._next(self._every) - WINDOW, 0)

    @property
    def due(self) -> bool:
        """Whether a measurement follows the current step."""
        return self._every is not None and self._step == self._next(self._every)

    def measure(self) -> JsonObject:
        """Measure after a step, and start the next window. All ranks must call this method.

        Returns:
            `gradients`, the number of averaged gradients; `floor`, the ratio of pure noise; and for every
            variable `m2` = sqrt(mean(theta^2)), `m2_over_eta` (Amos, Figure 3), and `ratio`, the ratio of
            Assumption 1, None where all gradients were zero (Amos, Figure 6).
        """
        sizes = norms(entry.parameter.detach() for entry in self._registry)
        ratios = self._averages.ratios()
        variables = {}
        for entry, norm in zip(self._registry, sizes.tolist(), strict=True):
            m2 = norm / entry.spec.numel**0.5
            variables[entry.name] = {"m2": m2, "m2_over_eta": m2 / entry.eta, "ratio": ratios[entry.name]}
        measured = {
            "gradients": self._averages.count,
            "floor": self._averages.floor,
            "variables": variables,
        }
        self._averages.clear()
        return measured

    def state(self) -> dict[str, Tensor]:
        """The averages of the current window; empty between windows."""
        return self._averages.state()

    def load(self, state: Mapping[str, Tensor | Stored], step: int) -> None:
        """Continue the window of a `state`.

        The interval may be another one than that of the run so far. Then the window of the next measurement
        is another one as well, and gradients from before it are left out, with all that were averaged with
        them.

        Args:
            state: that of the checkpoint that the run goes on from.
            step: the step of the checkpoint.
        """
        self._averages.load(state)
        self._step = step + 1
        if self._averages.count > step - self._before_window:
            self._averages.clear()
