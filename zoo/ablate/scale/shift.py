"""The shift of one curve of loss over tokens against another, for many studies at once.

With u = ln T - mean ln T, the baseline follows ``ln L = g(u)``, the variant ``ln L = g(u + theta + phi u)``.
If the sides have different budgets, phi multiplies u less its mean over the variant's budgets, so that
theta is the mean shift over the tokens that the variant was trained on. g is a polynomial that both share.
For given theta and phi, fitting g is a linear least squares problem, so that only these two need a search
(variable projection with Kaufman's Jacobian and Levenberg-Marquardt damping).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zoo.utils.arrays import Array

STARTS = (-1.0, -0.5, 0.0, 0.5, 1.0)
"""Values of theta from which the search starts."""
MOST_STEPS = 60
"""Largest number of steps of a search, which usually converges in about 10."""
LONGEST_STEP = 1.0
"""Largest step in ln tokens, beyond which the slope does not represent the curve."""
CONVERGED = 1e-10
"""Largest move of a study at which its search ends."""
ROUNDING = 1e-12
"""Largest relative increase of the squared residuals that counts as rounding, so that the step is taken.
Near the best shift a step changes them by less than their rounding error, which differs between processors:
without this tolerance, one processor would take the step and another would refuse it."""


@dataclass(frozen=True)
class Ladder:
    """The points of both sides at one size, the variant's after the baseline's.

    Attributes:
        u: (points,) ln tokens, less the mean over the baseline's budgets.
        of_variant: (points,) whether a point is the variant's.
        degree: degree of the curve that both sides share.
        drifts: whether the shift may depend on the budget.
        middle: mean of `u` over the variant's budgets, where the shift is theta.
    """

    u: Array
    of_variant: NDArray[np.bool_]
    degree: int
    drifts: bool
    middle: float = 0.0

    def search(self, y: Array, weights: Array | None = None) -> Array:
        """The best shifts from several starts.

        Args:
            y: (studies, points), mean ln loss.
            weights: (studies, points), where 0 leaves a point out; None: all weights are 1.

        Returns:
            (studies, 2), theta and phi.
        """
        count = len(y)
        starts = np.repeat([[theta, 0.0] for theta in STARTS], count, 0)
        all_y = np.tile(y, (len(STARTS), 1))
        all_weights = None if weights is None else np.tile(weights, (len(STARTS), 1))
        refined = self.refine(all_y, starts, all_weights)
        costs = self.project(all_y, refined, all_weights)[0].reshape(-1, count)
        # A curve that is not monotonic also fits from the far side; of equal fits the nearest one counts.
        equal = costs <= costs.min(0) * (1 + 1e-6) + 1e-18
        shifts = refined.reshape(-1, count, 2)
        best = np.where(equal, np.abs(shifts[:, :, 0]), np.inf).argmin(0)
        chosen: Array = shifts[best, np.arange(count)]
        return chosen

    def refine(self, y: Array, start: Array, weights: Array | None = None) -> Array:
        """The best shifts near given ones; arguments and results as in `search`."""
        weights = np.ones_like(y) if weights is None else weights
        free = 2 if self.drifts else 1
        found, moving = start.copy(), np.arange(len(y))
        shift, damping = start, np.full(len(y), 1e-3)
        cost, gradient, normal = self._normal_equations(y, shift, weights, free)
        for _ in range(MOST_STEPS):
            ridge = damping[:, None] * np.einsum("kii->ki", normal) + 1e-18
            step = np.linalg.solve(normal + ridge[:, :, None] * np.eye(free), gradient[:, :, None])[:, :, 0]
            step = step.clip(-LONGEST_STEP, LONGEST_STEP)
            tried = shift.copy()
            tried[:, :free] += step
            new = self._normal_equations(y, tried, weights, free)
            better = new[0] <= cost * (1 + ROUNDING)
            shift = np.where(better[:, None], tried, shift)
            cost = np.where(better, new[0], cost)
            gradient = np.where(better[:, None], new[1], gradient)
            normal = np.where(better[:, None, None], new[2], normal)
            damping = np.where(better, damping / 10, damping * 10).clip(1e-15, 1e15)
            found[moving] = shift
            moves = np.abs(step).max(1) >= CONVERGED
            if not moves.any():
                break
            rest = moving, y, weights, shift, damping, cost, gradient, normal
            moving, y, weights, shift, damping, cost, gradient, normal = (values[moves] for values in rest)
        return found

    def project(self, y: Array, shift: Array, weights: Array | None = None) -> tuple[Array, Array]:
        """The squared residuals (studies,), and the curves (studies, degree + 1), the highest power first."""
        weights = np.ones_like(y) if weights is None else weights
        _, _, _, rest, curve = self._fitted(y, shift, weights)
        return (rest**2).sum(1), curve

    def slopes(self, shift: Array, curve: Array) -> Array:
        """The change of ln loss per e-fold of a side's own tokens at every point of fitted curves.

        Args:
            shift: (studies, 2), theta and phi.
            curve: (studies, degree + 1), from `project`.

        Returns:
            (studies, points).
        """
        of_curve = self._slope(self._powers(shift), curve)
        slopes: Array = of_curve * np.where(self.of_variant, 1 + shift[:, 1:], 1.0)
        return slopes

    def _powers(self, shift: Array) -> Array:
        """The powers of the points' places on the curve of each study, the highest first."""
        moves = shift[:, :1] + shift[:, 1:] * (self.u - self.middle)
        z = self.u + np.where(self.of_variant, moves, 0.0)
        powers: Array = z[:, :, None] ** np.arange(self.degree, -1, -1)
        return powers

    def _slope(self, powers: Array, curve: Array) -> Array:
        """The derivative of each study's curve at its points, of which `_powers` are given."""
        slope: Array = np.einsum(
            "kpi,ki->kp", powers[:, :, 1:], curve[:, :-1] * np.arange(self.degree, 0, -1)
        )
        return slope

    def _fitted(self, y: Array, shift: Array, weights: Array) -> tuple[Array, Array, Array, Array, Array]:
        """The powers of the shifted u, their orthonormal basis, its size, the residuals and coefficients."""
        powers = self._powers(shift)
        q, r = np.linalg.qr(weights[:, :, None] * powers)
        diagonal = np.einsum("kii->ki", r)
        diagonal += np.where(np.abs(diagonal) < 1e-12, 1e-12, 0.0)  # too few distinct points
        target = weights * y
        seen = np.einsum("kpi,kp->ki", q, target)
        rest = target - np.einsum("kpi,ki->kp", q, seen)
        return powers, q, r, rest, np.linalg.solve(r, seen[:, :, None])[:, :, 0]

    def _normal_equations(
        self, y: Array, shift: Array, weights: Array, free: int
    ) -> tuple[Array, Array, Array]:
        """The squared residuals, and both sides of the normal equations of the next step."""
        powers, q, _, rest, curve = self._fitted(y, shift, weights)
        inner = weights * self._slope(powers, curve) * self.of_variant
        jacobian = np.stack([inner, inner * (self.u - self.middle)], 2)[:, :, :free]
        jacobian -= np.einsum("kpi,kij->kpj", q, np.einsum("kqi,kqj->kij", q, jacobian))
        gradient = np.einsum("kpj,kp->kj", jacobian, rest)
        return (rest**2).sum(1), gradient, np.einsum("kpi,kpj->kij", jacobian, jacobian)
