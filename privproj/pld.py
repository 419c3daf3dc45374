"""From a privacy profile to the privacy loss distribution of a run: the only seam to dp-accounting.

Write ``t = e^eps`` and ``E(t) = delta - max(0, 1 - t)``, the excess over a perfectly private pair. A profile that
is the same in both orders has ``E(1/t) = E(t)/t``. Sampling at rate ``q`` maps ``t`` to ``1 + q (t - 1)`` and ``E`` to
``q E`` in the remove order under Poisson sampling (Balle, Barthe, Gaboardi 2018, in this notation), and on ``t >= 1``
under a fixed batch size, where the lower half follows by symmetry. So a hull in ``t`` of the profile is a hull of
the subsampled profile, and working with ``E`` keeps small rates free of cancellation.

Between the points where the profile was evaluated it is replaced by chords in ``t``: the true profile is convex in
``t``, so chords of upper bounds are upper bounds. The discrete pair with that profile on the grid ``j * step``
dominates (connect-the-dots); the add order is the remove order mirrored, with weights ``e^-loss``.
"""

import math
from dataclasses import dataclass

import numpy as np
from dp_accounting.pld import common, pld_pmf
from numpy.typing import NDArray

from privproj.errors import PrecisionLimit
from privproj.numerics import Enclosure, crossing, next_up
from privproj.profile import PrivacyProfile
from privproj.runs import Run

Array = NDArray[np.float64]

NOISE_PER_STEP, NOISE = 2e-16, 2e-13
"""Rounding noise of dp-accounting's FFT in a composed delta, ``NOISE + NOISE_PER_STEP * steps``: measured on Gaussian

runs up to 1e6 steps (4e-17 a step, 8e-14 at 1e4 steps) with a factor of 3 to 5 on top; not proved. It is added to
every delta, and a delta below :data:`SHARE` times it is refused.
"""

SHARE = 50.0

INFINITY_MASS = 1e-15
"""What the truncated tails of all steps together may add to delta."""

POINTS = 600
LARGEST_LOSS, LARGEST_STEP, LEAST_TAU = 600.0, 10.0, -1.0 + 1e-13
REMEDY = "ask for a larger delta, add noise, or use a Renyi bound (m2: mixture-rdp, gaussian: rdp)"
MOST_CELLS, LIMIT_CELLS = 2**20, 2**23
"""Cells of the default grid at most (a coarser grid is used, still sound, where more would be), and of any grid."""

QUICK_STEPS = 20_000
"""Steps up to which dp-accounting's window is at most some 40 times the range of one step, which is checked apart."""

DENSE_CELLS = 20_000
"""Cells of one step up to which a dense profile is evaluated at every one."""

STEPS_PER_DEVIATION = 20.0


@dataclass(frozen=True)
class Hull:
    """A convex, piecewise linear profile: ``tau = e^eps - 1``, increasing, and the excess ``E`` there."""

    tau: Array
    excess: Array

    @property
    def losses(self) -> Array:
        """``eps`` of the vertices."""
        return np.log1p(self.tau)

    def deviation(self) -> float:
        """Standard deviation of the finite privacy losses, masses taken at the vertices."""
        slopes = np.diff(self.excess) / np.diff(self.tau) - (self.tau[:-1] < 0.0)
        slopes = np.concatenate([[self.excess[0] / (1.0 + self.tau[0]) - 1.0], slopes, [0.0]])
        mass = np.maximum((1.0 + self.tau) * np.diff(slopes), 0.0)
        mean = np.sum(mass * self.losses) / np.sum(mass)
        return float(math.sqrt(np.sum(mass * (self.losses - mean) ** 2) / np.sum(mass)))

    def on_grid(self, step: float) -> tuple[int, Array]:
        """``(j of the first cell, E at j * step)`` over the vertices' range, rounded outward."""
        first = math.floor(self.losses[0] / step)
        last = max(math.ceil(self.losses[-1] / step), first + 2, 1)
        tau = np.expm1(step * np.arange(first, last + 1))
        return first, np.interp(
            tau, np.concatenate([[-1.0], self.tau]), np.concatenate([[0.0], self.excess]), right=self.excess[-1]
        )


def lower_hull(tau: Array, excess: Array) -> Hull:
    """The lower convex hull of ``delta = E + max(0, -tau)`` through these points and ``(t, delta) = (0, 1)``."""
    kept: list[tuple[float, float]] = [(-1.0, 0.0)]
    for point in zip(tau.tolist(), excess.tolist(), strict=True):
        while len(kept) > 1 and slope(kept[-2], kept[-1]) >= slope(kept[-1], point):
            kept.pop()
        kept.append(point)
    if all(tau != 0.0 for tau, _ in kept):
        kept.append((0.0, excess_at_one(kept)))
    vertices = np.array(sorted(kept[1:]))
    return Hull(vertices[:, 0], vertices[:, 1])


def slope(left: tuple[float, float], right: tuple[float, float]) -> float:
    """Slope of delta between two points given as ``(tau, E)``."""
    drop = min(right[0], 0.0) - min(left[0], 0.0)
    return (right[1] - left[1] - drop) / (right[0] - left[0])


def excess_at_one(kept: list[tuple[float, float]]) -> float:
    """``E`` of the hull at ``tau = 0``, which is a vertex or lies on a chord."""
    right = next(i for i, (tau, _) in enumerate(kept) if tau >= 0.0)
    (x, y), end = kept[right - 1], kept[right]
    return y - min(x, 0.0) + slope((x, y), end) * (0.0 - x)


def base_points(profile: PrivacyProfile, reach: float) -> tuple[Array, Array]:
    """``eps >= 0`` and upper bounds of delta there, from 0 to ``reach``."""
    eps = reach * np.linspace(0.0, 1.0, POINTS) ** 1.5
    if profile.table is not None:
        return eps, profile.table(eps)
    few = eps[::4]
    return few, np.array([math.exp(profile.log_delta(float(e)).upper) for e in few])


def grid_points(profile: PrivacyProfile, reach: float, step: float, rate: float) -> tuple[Array, Array]:
    """The points of a dense profile that sampling maps onto the grid, so that no chord is needed there."""
    cells = np.arange(1, int(np.log1p(rate * math.expm1(min(reach, 700.0))) / step) + 2)
    above = np.log1p(np.expm1(step * cells) / rate)
    below = -np.log1p(np.maximum(np.expm1(-step * cells) / rate, -1.0 + 1e-16))
    eps = np.unique(np.concatenate([[0.0, reach], above[above < reach], below[below < reach]]))
    assert profile.table is not None
    return eps, profile.table(eps)


def reach_of(profile: PrivacyProfile, run: Run) -> float:
    """``eps`` beyond which what one step leaves, over all steps, is at most :data:`INFINITY_MASS`.

    A larger one is cut at :data:`LARGEST_LOSS`; what lies beyond counts as an infinite loss.
    """
    log_tail = math.log(INFINITY_MASS) - math.log(run.sampling_rate) - math.log(run.steps)
    found = crossing(lambda e: profile.log_delta(e).upper - log_tail, 1.0, low=1e-6, high=LARGEST_LOSS, rtol=1e-2)
    return min(found.upper, LARGEST_LOSS)


def subsampled(points: tuple[Array, Array], run: Run) -> Hull:
    """The hull of one step in the remove order (for a fixed batch size, in both orders), from points of the profile."""
    (eps, delta), q = points, run.sampling_rate
    above, below = q * np.expm1(eps), q * np.expm1(-eps[:0:-1])
    mirrored = np.exp(-eps[:0:-1]) * q * delta[:0:-1]
    if run.sampling == "fixed":
        below = -above[:0:-1] / (1.0 + above[:0:-1])
        mirrored = (1.0 + below) * q * delta[:0:-1]
    tau = np.concatenate([below, above])
    kept = np.concatenate([[True], np.diff(tau) > 0.0]) & (tau > LEAST_TAU)
    return lower_hull(tau[kept], np.concatenate([mirrored, q * delta])[kept])


def step_hull(profile: PrivacyProfile, run: Run, step: float | None) -> tuple[Hull, float]:
    """The hull of one step and the grid step, the default one where ``step`` is None."""
    reach = reach_of(profile, run)
    hull = subsampled(base_points(profile, reach), run)
    step = step or grid_step(hull, run.steps)
    if profile.dense and (hull.losses[-1] - hull.losses[0]) / step < DENSE_CELLS:
        hull = subsampled(grid_points(profile, reach, step, run.sampling_rate), run)
    return hull, step


def grid_step(hull: Hull, steps: int) -> float:
    """The default grid: a twentieth of one step's loss deviation, coarser where the cells would be too many."""
    deviation = max(hull.deviation(), 1e-12)
    fine = deviation / STEPS_PER_DEVIATION
    return max(fine, cells_span(hull, deviation, steps) / MOST_CELLS)


def cells_span(hull: Hull, deviation: float, steps: int) -> float:
    """The range of losses that one step, or the composed run after dp-accounting's truncation, can occupy.

    Its Chernoff orders are at least ``1 / (range of one step)``, which leaves a wide window to very many steps.
    """
    single = float(hull.losses[-1] - hull.losses[0])
    chernoff = steps * deviation**2 / (2.0 * single) if math.sqrt(steps) * deviation > 8.0 * single else 0.0
    return min(steps * single, single + 24.0 * deviation * math.sqrt(steps) + chernoff)


def masses(hull: Hull, step: float) -> tuple[int, Array, float, float]:
    """``(first cell, P-masses, P-mass at +inf, Q-mass at -inf of the loss)`` of the pair with the hull's profile."""
    first, excess = hull.on_grid(step)
    rise = np.diff(excess)
    jump = (np.append(rise, 0.0) - np.exp(step) * np.insert(rise, 0, 0.0)) / math.expm1(step)
    jump[0] = (rise[0] / math.expm1(step)) - excess[0]
    jump[-1] = -math.exp(step) * rise[-1] / math.expm1(step)
    jump[-first] += 1.0
    lost = float(excess[0] * math.exp(-first * step))
    return first, np.maximum(jump, 0.0), float(excess[-1]), lost


def run_distributions(hull: Hull, step: float, steps: int, symmetric: bool) -> list[pld_pmf.PLDPmf]:
    """The loss of the run in the remove order and, unless the pair is symmetric, in the add order."""
    first, mass, at_infinity, lost = masses(hull, step)
    remove = self_composed(first, mass, at_infinity, step, steps)
    if symmetric:
        return [remove]
    mirrored = (mass * np.exp(-step * np.arange(first, first + len(mass))))[::-1]
    return [remove, self_composed(-(first + len(mass) - 1), mirrored, lost, step, steps)]


def self_composed(first: int, mass: Array, at_infinity: float, step: float, steps: int) -> pld_pmf.PLDPmf:
    """``steps`` times the pessimistic loss distribution with these masses; its size is known before it is made.

    Dense from the start: composing a sparse one raises its size to the power of the steps.
    """
    if steps * len(mass) > LIMIT_CELLS and steps > QUICK_STEPS:
        lower, upper = common.compute_self_convolve_bounds(mass.tolist(), steps, INFINITY_MASS)
        check_cells(upper - lower + 1, step)
    cells = dict(enumerate(mass.tolist(), start=first))
    single = pld_pmf.create_pmf(cells, step, at_infinity, pessimistic_estimate=True).to_dense_pmf()
    return single.self_compose(steps) if steps > 1 else single


def check_cells(cells: float, step: float) -> None:
    """Raise :class:`PrecisionLimit` for a grid that would take too much memory."""
    if not cells <= LIMIT_CELLS:
        given = f"discretization={step:.3g} with {cells:.2g} cells"
        raise PrecisionLimit(f"expected a grid of at most {LIMIT_CELLS:.2g} cells, got {given}; {REMEDY}")


@dataclass(frozen=True)
class ComposedCurve:
    """The curve of a composed run: the larger of the two orders. Lower ends are not known."""

    distributions: tuple[pld_pmf.PLDPmf, ...]
    noise: float
    numerics: dict[str, object]

    @property
    def floor(self) -> float:
        """Smallest composed delta that is answered; nearer to the noise this much is said instead."""
        return SHARE * self.noise

    def log_delta(self, eps: float) -> Enclosure:
        """``ln delta(eps)``, never below the floor (which is then a sound, loose answer)."""
        delta = max(float(pmf.get_delta_for_epsilon(eps)) for pmf in self.distributions) + self.noise
        return Enclosure(-math.inf, math.log(min(1.0, max(delta, self.floor))))

    def epsilon(self, log_delta: float) -> Enclosure:
        """``eps(delta)``; raises :class:`PrecisionLimit` below the floor or where losses leave double precision."""
        delta = math.exp(log_delta)
        if delta < self.floor:
            raise PrecisionLimit(f"expected a composed delta of at least {self.floor:.1e}, got {delta:.3g}; {REMEDY}")
        eps = max(float(pmf.get_epsilon_for_delta(delta - self.noise)) for pmf in self.distributions)
        if eps == math.inf:
            raise PrecisionLimit(f"expected losses below {LARGEST_LOSS:g} in one step, got larger ones; {REMEDY}")
        return Enclosure(-math.inf, next_up(max(eps, 0.0)))


def composed(profile: PrivacyProfile, run: Run) -> ComposedCurve:
    """``run.steps`` adaptive releases with this profile, subsampled as the run says, on the grid it asks for."""
    return composed_phases([(profile, run)], run.discretization)


def composed_phases(phases: list[tuple[PrivacyProfile, Run]], step: float | None = None) -> ComposedCurve:
    """Phases with different profiles and runs, composed jointly on one grid (the finest that any of them asks for)."""
    step = step or min(step_hull(profile, run, None)[1] for profile, run in phases)
    if step > LARGEST_STEP:
        raise PrecisionLimit(f"expected a run whose grid is finer than {LARGEST_STEP:g}, got {step:.3g}; {REMEDY}")
    hulls = [step_hull(profile, run, step)[0] for profile, run in phases]
    spans = [cells_span(h, max(h.deviation(), 1e-12), r.steps) for h, (_, r) in zip(hulls, phases, strict=True)]
    cells = int(sum(spans) / step) + 1
    check_cells(cells, step)
    symmetric = all(run.sampling != "poisson" for _, run in phases)
    parts = [run_distributions(h, step, run.steps, symmetric) for h, (_, run) in zip(hulls, phases, strict=True)]
    whole = parts[0]
    for part in parts[1:]:
        whole = [left.compose(right) for left, right in zip(whole, part, strict=True)]
    noise = NOISE + NOISE_PER_STEP * sum(run.steps for _, run in phases)
    numerics = {"composer": "dp-accounting", "grid_step": step, "grid_cells": cells}
    numerics |= {"added_to_delta": noise, "rounding": "measured, not proved"}
    return ComposedCurve(tuple(whole), noise, numerics)
