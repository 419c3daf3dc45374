"""Compose dominating pairs on a uniform grid by Fourier inversion, with a proved error bound (C19).

The loss distribution of the run is exponentially tilted: each mass is multiplied by ``e^(theta loss)``, with a *tilt*
``theta`` for which the bulk of the tilted distribution is near the epsilon of the query. Then a relative error of the
bulk causes an equal relative error of delta, however small delta is. Delta is computed from the discrete Fourier
transform of the tilted distribution, with bounds of the aliasing, truncation and rounding errors.
"""

# ``P`` is the distribution of the loss of the run, in units of the grid step ``h``. Each mass at the loss ``S h`` is
# multiplied by ``e^(theta S h)``. The *tilt* ``theta`` is chosen so that the bulk of the tilted distribution is near
# ``eps``. Then a relative error of the bulk causes an equal relative error of delta, however small delta is. The
# inversion uses a window of ``n`` cells, ``a <= S < a + n``. The finite part of delta is the part that is due to finite
# losses. Except for aliasing, it equals ``scale / n sum_k R_k W_k``, where ``R_k`` is the discrete Fourier transform of
# the tilted distribution at the frequency ``k``, and ``W_k`` is the difference of two geometric series. Claim C19
# proves this and numbers the errors as follows (``u`` is the unit roundoff):
#
# * (i) mass outside the window and (ii) aliasing, which are absolute errors; all others are relative to ``scale``;
# * (iii) rounding of the tilted masses, (iv) of the transform of these masses, in bins or by FFT, and (v) of the powers
#   of the transform. (v) includes (iii) and (iv);
# * (vi) omitted frequencies, (vii) rounding of the sum over frequencies, and (viii) of the exponents of ``scale`` and
#   ``b = e^(eps - s h)``, where ``s`` is the first cell with a loss above ``eps``.

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise, starmap
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privproj.composition.dominating_pairs import REMEDY, UNIT_ROUNDING, Cells, DominatingPair, FloatArray
from privproj.errors import GridSizeError
from privproj.numerics.arrays import join_copies

Spectrum = NDArray[np.complex128]  # values of a transform at some frequencies

PROBABILITY_OUTSIDE_WINDOW = 1e-12  # tilted mass beyond either end of the window, counted in errors (i) and (ii)
SKIPPED_SPECTRUM = 1e-13  # bound of |R_k| below which a frequency is omitted, counted as error (vi)
UNDERFLOWN_TILTED_MASS = 1e-300  # soundness: replaces a mass that underflowed in the Chernoff bounds of (i)
LEAST_LOG_MASS = 1e-300  # soundness: replaces a smaller mass or delta before its log, so that bounds only grow
LEAST_SEARCHED_DELTA = 1e-320  # least delta whose log guides a search for epsilon
# soundness (measured): relative error of an FFT in the 2-norm for each doubling of its length, four times Higham's
# constant for radix 2. The factor of four covers the other radices of the library. It is not proved (docs/proofs.md,
# section "What is only observed").
FFT_RELATIVE_ERROR_PER_DOUBLING = 3.5e-15
MOST_WINDOW_CELLS = 2**31  # cells of a window; a run that needs more is not supported
# Largest product of the numbers of atoms and frequencies, on average over many phases, at which the transform is
# computed frequency by frequency if an FFT would be too long.
MOST_OF_A_PHASE = 5 * 10**7
MOST_FFT_CELLS = 2**22  # cells, longest FFT on a given grid; a longer one is not supported
QUICK_FFT_CELLS = 2**19  # cells, longest FFT on a default grid; the grid is made coarser if it needs a longer one
THINNED_ATOMS = 300  # groups of atoms of a phase in the search for a tilt; every tilt gives a valid bound
MOST_THINNED = 16 * THINNED_ATOMS  # atoms of all phases in that search
TERMS_OF_BIN = 18  # soundness: terms of the series in a bin; 1/18! is below 2 units of rounding
SUMMED_BLOCK = 512  # soundness: neighboring frequencies that are summed at once if there are many (vii)
FEWEST_IN_BLOCKS = 2**13  # soundness: fewest frequencies summed in blocks, where error (vii) covers the blocks
# soundness: spacing of ln theta. Tilts are rounded down to a geometric grid, so that a value depends on eps alone
# (C24). Any spacing is valid, but it must not change between queries.
TILT_SPACING = 0.1
# soundness: the same for small deltas, where rare large losses form a second bulk and only few tilts resolve both
FINE_TILT_SPACING = 0.005
CACHED_VALUES = 64  # values that a composition caches, because searches and their checks evaluate the same ones
NEWTON_RTOL = 1e-11  # relative accuracy of Newton's method for epsilon; its root is then moved to the safe side


class DeltaValue(NamedTuple):
    """The part of delta that is due to finite losses, with a guaranteed error."""

    value: float  # computed delta, a probability

    error: float  # proved bound of the absolute error of ``value``; ``inf`` where nothing is known

    slope: float  # approximate derivative of delta in ``eps``; it only guides searches


class _RepeatedPair(NamedTuple):
    """A dominating pair of measures, composed with itself ``steps`` times."""

    # Values that are cheap to compute are not cached, because there may be many phases.

    pair: DominatingPair
    steps: int

    @property
    def logs(self) -> FloatArray:
        """The natural logs of the masses of one release."""
        return np.log(np.maximum(self.pair.masses, LEAST_LOG_MASS))

    def thin(self, atoms: int) -> tuple[FloatArray, FloatArray]:
        """Return losses (nats) and log masses, merged into about ``atoms`` groups to guide searches."""
        starts = np.arange(0, len(self.pair.cells), max(1, len(self.pair.cells) // atoms))
        every = np.maximum(self.pair.masses, LEAST_LOG_MASS)
        masses = np.add.reduceat(every, starts)
        return np.add.reduceat(every * self.pair.losses, starts) / masses, np.log(masses)

    def delta_at_zero(self) -> float:
        """Return delta of one release at ``eps = 0``, rounded up, without infinite losses."""
        # sum_(j > 0) p_j (1 - e^(-j h))
        above = self.pair.losses > 0.0
        return -float(self.pair.masses[above] @ np.expm1(-self.pair.losses[above])) * (1.0 + 3e-6)


class FourierComposition:
    """The composition of phases on a uniform grid, with a proved error of delta (C19).

    The result of ``delta`` has a value and an error. If the pairs dominate the releases, value plus error plus the mass
    of infinite losses is an upper bound of delta. If the releases dominate the pairs, value minus error is a lower
    bound.

    Args:
        phases: The pair of measures of one release of each phase, and the number of releases. All pairs have the same
            grid step.
        most_fft: The longest FFT in cells; if a longer one is needed, :class:`GridSizeError` is raised.
        small_delta: True for very small deltas, for which the exponentially tilted distribution may consist of rare
            large losses only.
    """

    def __init__(
        self, phases: list[tuple[DominatingPair, int]], most_fft: int = MOST_FFT_CELLS, *, small_delta: bool = False
    ) -> None:
        self.most_fft, self.small_delta = most_fft, small_delta
        self.spacing = FINE_TILT_SPACING if small_delta else TILT_SPACING
        self.phases = list(starmap(_RepeatedPair, phases))
        self.step = phases[0][0].step
        # Infinite part of delta: M sum_i T_i m_i, M = prod_i max(1, |P_i|)^T_i (C19).
        excess = sum(t * pair.log_size for pair, t in phases)
        self.infinity_mass = (
            math.exp(min(excess, 700.0)) * sum(t * pair.infinity_mass for pair, t in phases) * (1.0 + 1e-12)
        )
        # delta(0) of the run is at most the sum of delta(0) over all releases (C23, simple bound (ii) at eps = 0).
        self.basic = (
            sum(p.steps * (p.delta_at_zero() + p.pair.infinity_mass) for p in self.phases) if excess < 1e-6 else 1.0
        )
        most = MOST_THINNED if small_delta else THINNED_ATOMS
        # 20: least number of atoms of a phase if there are many phases
        thin = [p.thin(max(min(most, MOST_THINNED // len(phases)), 20)) for p in self.phases]
        self.thin_losses, self.thin_logs = (np.concatenate(column) for column in zip(*thin, strict=True))
        self.thin_sizes = np.array([len(logs) for _, logs in thin])
        self.thin_starts = np.cumsum(self.thin_sizes) - self.thin_sizes
        self.counts = np.array([float(phase.steps) for phase in self.phases])
        mean, variance = self.moments(0.0)[1:]
        self.mean, self.deviation = mean, math.sqrt(variance)
        self.steps = sum(t for _, t in phases)
        self.tilt_at = lru_cache(maxsize=4)(self._tilt_at)
        self.delta = lru_cache(maxsize=CACHED_VALUES)(self._delta)
        self.log_chernoff_bound = lru_cache(maxsize=CACHED_VALUES)(self._log_chernoff_bound)
        self.largest_step = max(float(max(-p.pair.cells[0], p.pair.cells[-1])) * self.step for p in self.phases)
        self.largest = sum(max(p.pair.step * p.pair.cells[-1], 0.0) * p.steps for p in self.phases) * (1.0 + 1e-9)

    @property
    def single(self) -> bool:
        """True for a composition of one release, whose delta needs no Fourier inversion."""
        return len(self.phases) == 1 and self.phases[0].steps == 1

    def moments(self, theta: float) -> tuple[float, float, float]:
        """Return the log moment generating function of the loss at ``theta``, and two derivatives.

        The result is approximate and only guides searches.
        """
        # the function is ln E e^(theta loss) of the run
        losses, starts, sizes = self.thin_losses, self.thin_starts, self.thin_sizes
        exponent = theta * losses + self.thin_logs
        top = np.maximum.reduceat(exponent, starts)
        weight = np.exp(exponent - np.repeat(top, sizes))
        mass = np.add.reduceat(weight, starts)
        mean = np.add.reduceat(weight * losses, starts) / mass
        variance = np.add.reduceat(weight * (losses - np.repeat(mean, sizes)) ** 2, starts) / mass
        return float(self.counts @ (np.log(mass) + top)), float(self.counts @ mean), float(self.counts @ variance)

    def tilt_for(self, eps: float) -> float:
        """Return approximately the best exponential tilt for computing ``delta(eps)``.

        Any tilt gives a valid result.
        """
        # At the best tilt, the terms of delta(eps) are largest near the mean of the distribution tilted by e^(theta
        # loss).

        def gap(theta: float) -> tuple[float, float]:
            # The derivative of K(theta) - theta eps - ln(1 + theta) - theta ln(1 + 1/theta) is
            # K'(theta) - eps - ln(1 + 1/theta), and its slope is K''(theta) + 1/(theta (theta + 1)).
            _, mean, variance = self.moments(theta)
            return mean - eps - math.log1p(1.0 / theta), variance + 1.0 / (theta * (theta + 1.0))

        return self.limit_tilt(self.solve_tilt(gap, max(eps - self.mean, self.deviation) / self.deviation**2))

    def tilt_for_delta(self, log_delta: float) -> float:
        """Return approximately the best exponential tilt for computing epsilon at a delta.

        Any tilt gives a valid result.
        """

        def gap(theta: float) -> tuple[float, float]:
            # The tilt is best for eps = K'(theta) - ln(1 + 1/theta), where the log of the bound is K - theta K' -
            # ln(1 + theta). Find the root of ln delta - K + theta K' + ln(1 + theta), with the slope theta K'' +
            # 1/(1 + theta).
            value, mean, variance = self.moments(theta)
            return log_delta + theta * mean - value + math.log1p(theta), theta * variance + 1.0 / (1.0 + theta)

        return self.limit_tilt(self.solve_tilt(gap, math.sqrt(2.0 * max(-log_delta, 0.5)) / self.deviation))

    def solve_tilt(self, gap: Callable[[float], tuple[float, float]], theta: float) -> float:
        """Return approximately the root of an increasing function of the exponential tilt.

        Args:
            gap: Map from a tilt to the value of the function and its slope.
            theta: The tilt at which the search starts.
        """
        # bracketed Newton steps in ln theta; a poor tilt gives a large error bound, but a valid result
        low, high = 1e-3 / self.deviation, max(1e3 / self.deviation, 4.0 * theta)
        for _ in range(60):
            value, slope = gap(theta)
            low, high = (low, theta) if value > 0.0 else (theta, high)
            nearer = theta * math.exp(min(max(-value / (slope * theta), -1.5), 1.5))
            nearer = nearer if low < nearer < high else math.sqrt(low * high)
            if abs(nearer - theta) < min(self.spacing, 0.03) * theta:
                return nearer
            theta = nearer
        return theta

    def limit_tilt(self, theta: float) -> float:
        """Return the exponential tilt, reduced if rare, huge losses would dominate the distribution."""
        # at most 600 / (largest loss of one step), so that e^(theta loss) does not overflow
        # The tilt is reduced while the variance of the tilted distribution more than triples between 0.85 theta and
        # theta. For compositions with small_delta the tilt is not changed.
        if self.small_delta:
            return theta
        theta = min(theta, 600.0 / self.largest_step)
        for _ in range(60):
            if self.moments(theta)[2] <= 3.0 * self.moments(0.85 * theta)[2]:
                break
            theta *= 0.93
        return theta

    def _log_chernoff_bound(self, eps: float) -> float:
        """Return the log of Chernoff's bound of delta plus the mass of infinite losses (C19).

        The result is an upper bound of ``ln delta(eps)`` if the pairs dominate the releases.
        """
        # E e^(theta loss) max_l e^(-theta l) (1 - e^(eps - l)) for the loss of the run, at nearly the best theta
        if eps > self.largest:
            return math.log(max(self.infinity_mass, LEAST_LOG_MASS))
        theta = self.tilt_for(eps)
        value = math.fsum(p.steps * _log_sum_exp(theta * p.pair.losses + p.logs) for p in self.phases)
        # The maximum is at l = eps + ln(1 + 1/theta); the log of the bound is
        # sum T_i K_i - theta eps - ln(1 + theta) - theta ln(1 + 1/theta).
        exponent = value - theta * eps - math.log1p(theta) - theta * math.log1p(1.0 / theta)
        # Its rounding is added, and then the infinite part.
        finite = exponent + 1e-12 * (1.0 + abs(value) + theta * eps + 10.0 * self.steps)
        return math.log(max(math.exp(min(finite, 1.0)) + self.infinity_mass, LEAST_LOG_MASS))

    def tilted_sum(self, theta: float) -> "TiltedSum":
        """Return the loss distribution of the run, tilted by ``e^(theta loss)``.

        Raises:
            GridSizeError: The transform exceeds the limits of memory or time.
        """
        # The tilt is rounded down to a geometric grid of tilts.
        tilted = self.tilt_at(math.floor(math.log(theta) / self.spacing))
        if isinstance(tilted, GridSizeError):
            raise tilted
        return tilted

    def _tilt_at(self, index: int) -> "TiltedSum | GridSizeError":
        try:
            return TiltedSum(self, math.exp(index * self.spacing))
        except GridSizeError as error:
            return error

    def _delta(self, eps: float) -> "DeltaValue":
        """Return the part of delta due to finite losses at ``eps`` (nats), with its error."""
        if self.single:
            return self.direct(eps)
        if eps > self.largest:
            return DeltaValue(0.0, 0.0, 0.0)
        return self.tilted_sum(self.tilt_for(eps)).delta(eps)

    def direct(self, eps: float) -> "DeltaValue":
        """Return the part of delta due to finite losses of one release at ``eps`` (nats)."""
        # by direct summation
        pair, losses = self.phases[0].pair, self.phases[0].pair.losses
        above = losses > eps
        # sum_(j h > eps) p_j (1 - e^(eps - j h))
        masses, gap = pair.masses[above], eps - losses[above]
        value = -float(masses @ np.expm1(gap))
        # Rounding of the sum and of the masses: value ((N + 40) u + rounding). Rounding of the exponents eps - j h:
        # 16 u sum_(j h > eps) p_j (|j h| + eps + 1).
        error = value * ((len(losses) + 40.0) * UNIT_ROUNDING + pair.rounding)
        error += 16.0 * UNIT_ROUNDING * float(masses @ (np.abs(losses[above]) + eps + 1.0))
        return DeltaValue(value, error, -float(masses @ np.exp(gap)))

    def epsilon(self, delta: float, *, above: bool, near: "float | None" = None) -> float:
        """Return an upper or lower bound of ``eps(delta)`` in nats.

        Args:
            delta: A probability above 0.
            above: True for an upper bound, False for a lower bound.
            near: The start of the search in nats (None: from the tilt for ``delta``). Any start gives a valid result.

        Raises:
            GridSizeError: The error of the composition is too large to tell whether ``delta(eps)`` is above or below
                ``delta``.
        """
        # If above, approximately the least eps >= 0 at which the curve is certainly at most delta. Otherwise
        # approximately the largest eps at which the curve is certainly at least delta, or 0.
        # Newton's method in (eps, ln delta)
        sign = 1.0 if above else -1.0
        if above and self.basic <= delta:
            return 0.0

        def excess(eps: float) -> tuple[float, float]:
            finite = self.delta(eps)
            end = finite.value + sign * finite.error + (self.infinity_mass if above else 0.0)
            end, fall = max(end, LEAST_SEARCHED_DELTA), max(-finite.slope, LEAST_SEARCHED_DELTA)
            return math.log(end) - math.log(delta), fall / end

        if near is None and not self.single:
            theta = self.tilt_for_delta(math.log(delta))
            # The eps at which the Chernoff bound is delta: (sum T_i K_i - ln(1 + theta) - ln delta) / theta
            # - ln(1 + 1/theta).
            size = self.moments(theta)[0] - math.log1p(theta) - math.log(delta)
            near = max(size / theta - math.log1p(1.0 / theta), 0.0)
        return self.refine_root(excess, near or 0.0, sign)

    def refine_root(self, excess: Callable[[float], tuple[float, float]], eps: float, sign: float) -> float:
        """Return a point near the root of a decreasing function, where the sign of the function is certain (C19).

        Args:
            excess: Map from ``eps`` to the value of the function and the absolute value of its slope.
            eps: The start of the search.
            sign: 1 for a point where the function is at most 0; -1 for a point where the function is at least 0, or
                for the point 0.

        Raises:
            GridSizeError: No point with the required sign was found near the root.
        """
        low, high = 0.0, float(self.largest)
        for _ in range(100):
            gap, fall = excess(eps)
            low, high = (eps, high) if gap > 0.0 else (low, eps)
            nearer = eps + gap / fall if fall > 0.0 else high
            # If most of delta is error, its slope is meaningless, so the log ratio must be small too.
            settled = abs(nearer - eps) <= NEWTON_RTOL * eps and abs(gap) <= 1e-8
            if not settled and not low < nearer < high:
                nearer = 0.5 * (low + high)
            eps = nearer
            if settled or high - low <= NEWTON_RTOL * nearer or high <= 1e-12:
                break
        # Move outward far enough that the side is certain at the first evaluation and does not depend on the last bit.
        eps = max(eps * (1.0 + sign * NEWTON_RTOL), 0.0)
        nudge = NEWTON_RTOL * max(eps, 1e-12)
        for _ in range(60):
            if sign * excess(eps)[0] <= 0.0 or (sign < 0.0 and eps == 0.0):
                return eps
            eps, nudge = max(eps + sign * nudge, 0.0), 4.0 * nudge
        raise GridSizeError(f"delta is below the error of the composition on this grid. {REMEDY}")


class TiltedSum:
    """The exponentially tilted loss distribution of a run, with its Fourier transform."""

    # Everything that does not depend on eps is computed once.

    # The error bounds at the top of this module are computed as follows: (i) and (ii) in window, (iii) in add, (iv) in
    # both transform_by_..., (v) and (vi) in transform, and (vii) in prepare_sums. delta computes (viii) and adds up all
    # errors.

    def __init__(self, composition: FourierComposition, theta: float) -> None:
        self.composition, self.theta = composition, theta
        self.step, self.steps = composition.step, composition.steps
        self.logs, self.masses, self.tops, self.errors, self.variances, self.log_growth = [], [], [], [], [], 0.0
        for phase in composition.phases:
            self.add(phase)
        logs = [p.steps * k for p, k in zip(composition.phases, self.logs, strict=True)]
        self.log_mass, self.log_sizes = math.fsum(logs), math.fsum(map(abs, logs))
        # A frequency may be omitted if ln |R_k| is at most this, even before all factors of R_k are known (C19): the
        # product prod |phi_i|^T_i of the remaining factors is at most e^log_growth.
        self.least_bound = math.log(SKIPPED_SPECTRUM) - self.log_growth
        self.start, self.length, self.tail = self.window()
        self.frequencies, values, errors = self.transform()
        self.masses, self.tops = [], []  # not needed any more
        self.blocks: Any = None
        self.terms: Any = None
        self.prepare_sums(values, errors)

    def add(self, phase: _RepeatedPair) -> None:
        """Tilt and normalize the masses of one release of a phase, and bound their rounding error."""
        # K = ln sum_j p_j e^(theta j h),  p~_j = p_j e^(theta j h - K)
        exponent, cells = self.theta * phase.pair.losses, phase.pair.cells
        log_mass = _log_sum_exp(exponent + phase.logs)
        # Error (iii), tilted masses: sum_j p~_j (r/(1-r) + rounding), r = u (6 + 3 theta |j h| + 2 |K|), and for cell
        # 0, whose error is absolute, rounding e^(-K).
        relative = UNIT_ROUNDING * (6.0 + 3.0 * np.abs(exponent) + 2.0 * abs(log_mass))
        if not relative.max() < 1.0:
            raise GridSizeError(f"the privacy losses exceed double precision on this grid. {REMEDY}")
        tilted, relative = phase.pair.masses * np.exp(exponent - log_mass), relative / (1.0 - relative)
        relative += phase.pair.rounding
        at_one = phase.pair.rounding * math.exp(-log_mass)
        mean = float(tilted @ cells)
        self.logs.append(log_mass)
        self.masses.append(tilted)
        self.tops.append(tilted * (1.0 + relative) + at_one * (cells == 0))
        self.errors.append(float(tilted @ relative) + at_one)
        self.variances.append(float(tilted @ (cells - mean) ** 2))
        # sum_i T_i ln(1 + (|p~_i| - 1)^+), as |phi_i| <= |p~_i|
        self.log_growth += phase.steps * max(float(tilted.sum()) * (1.0 + 1e-12) + self.errors[-1] - 1.0, 0.0)

    # --- the window ---------------------------------------------------------------------------------

    def window(self) -> tuple[int, int, float]:
        """Return the range of losses that the transform covers, and the tilted mass outside it.

        The range is given by its first grid point and its number of grid points. The mass is an upper bound.

        Raises:
            GridSizeError: The range is too long.
        """
        # The range is a <= S < a + n for the loss S of the run in grid steps. The mass causes errors (i) and (ii).
        phases = self.composition.phases
        mean = math.fsum(p.steps * float(m @ p.pair.cells) for p, m in zip(phases, self.masses, strict=True))
        deviation = math.sqrt(math.fsum(p.steps * v for p, v in zip(phases, self.variances, strict=True))) + 1e-3
        low = sum(p.steps * int(p.pair.cells[0]) for p in phases)
        high = sum(p.steps * int(p.pair.cells[-1]) for p in phases)
        span = max(int(p.pair.cells[-1] - p.pair.cells[0]) for p in phases)
        scales = [(x / deviation, x * span / deviation) for x in (2.0, 7.0)]
        # 300: largest Chernoff order times the range of the losses of one step, in nats. With a larger one, a mass that
        # underflowed (below 1e-308) could still count after the tilt. It is less than half of the 708 nats at which a
        # double underflows. The bound holds with any value, because such a mass is replaced by UNDERFLOWN_TILTED_MASS.
        narrow = [order for order, exponent in scales if exponent < 300.0]
        first = max(low, mean - self.reach([*narrow, 24.0 / span, 96.0 / span], -1.0, mean))
        last = min(high, mean + self.reach([*narrow, 6.0 / span, 12.0 / span], 1.0, mean))
        # a = floor(first), and n is at least the number of cells up to last: an even 2^k or 3 * 2^k.
        start, count = math.floor(first), math.ceil(last) - math.floor(first) + 1
        if not 0 < count <= MOST_WINDOW_CELLS:
            raise _too_long(count, MOST_WINDOW_CELLS, self.step)
        # Errors (i) tail and (ii) aliasing: the mass beyond both ends is at most 2 PROBABILITY_OUTSIDE_WINDOW.
        length = max(2, 2 ** math.ceil(math.log2(count)))
        length = length * 3 // 4 if length * 3 // 4 >= count and length > 4 else length
        return start, length, 2.0 * PROBABILITY_OUTSIDE_WINDOW * (1.0 + 1e-6)

    def reach(self, orders: list[float], sign: float, mean: float) -> float:
        """Return the distance from the mean, in grid steps, beyond which the tilted mass is negligible.

        The mass is at most :data:`PROBABILITY_OUTSIDE_WINDOW` by Chernoff's bound (C19).

        Args:
            orders: Orders of Chernoff's bound, of which the best is used; any order is valid.
            sign: 1 above the mean, -1 below.
            mean: The mean of the tilted distribution in grid steps.
        """
        # P~(+-(S - mean) >= B) <= e^(growth - x B) for the order x, where
        # growth = sum_i T_i ln sum_j p~_ij e^(+-x (j - mean/T)), the masses with their error (iii).
        # The right side is PROBABILITY_OUTSIDE_WINDOW at B = (growth - ln PROBABILITY_OUTSIDE_WINDOW) / x.
        log_outside, middle = math.log(PROBABILITY_OUTSIDE_WINDOW), mean / self.steps

        def reach_of(order: float) -> float:
            growth = 0.0
            for phase, masses in zip(self.composition.phases, self.tops, strict=True):
                power = np.exp((sign * order) * (phase.pair.cells - middle))
                growth += phase.steps * math.log(float(np.sum(np.maximum(masses, UNDERFLOWN_TILTED_MASS) * power)))
            margin = 1e-13 * (abs(growth) + self.steps + order * abs(mean))
            return (growth + margin - log_outside) / order

        return min(map(reach_of, orders))

    # --- the transform ------------------------------------------------------------------------------

    def transform(self) -> tuple[Cells, Spectrum, FloatArray]:
        """Return the discrete Fourier transform of the tilted distribution of the run.

        The result has the frequencies that are not negligible, the transform there, and an error bound for it.

        Raises:
            GridSizeError: The FFT would be too long.
        """
        n, phases = self.length, self.composition.phases
        wanted = None if n <= 2**16 else self.wanted_frequencies()
        atoms = sum(len(m) for m in self.masses)
        most = max(10 * n, MOST_OF_A_PHASE if n > self.composition.most_fft else 0) * len(phases)
        by_fft = wanted is None or len(wanted) * atoms > most
        if by_fft and n > self.composition.most_fft:
            raise _too_long(n, self.composition.most_fft, self.step)
        frequencies = np.arange(n // 2 + 1) if by_fft or wanted is None else wanted
        value = np.ones(len(frequencies), complex)
        bound, log_size, relative = np.zeros((3, len(frequencies)))
        # Phase by phase, so that one spectrum at a time is in memory.
        for i, phase in enumerate(phases):
            phi, e = self.transform_by_fft(i, n) if by_fft else self.transform_by_sums(i, frequencies, n)
            phi = phi[frequencies] if len(frequencies) < len(phi) else phi
            squares = _squared_size(phi)
            # Error (vi), skipped frequencies: those with prod |phi_i|^T_i <= SKIPPED_SPECTRUM are omitted.
            bound = bound + 0.5 * phase.steps * np.log(_squared_size_bound(squares, e))
            if not np.all(above := bound > self.least_bound):
                at = np.flatnonzero(above)
                frequencies, phi, squares, value = frequencies[at], phi[at], squares[at], value[at]
                bound, log_size, relative = bound[at], log_size[at], relative[at]
            # Error (v), powers: (8 T u + sum T_i e_i / r_i) prod r_i^T_i, where r_i = |phi_i| + e_i. The product is
            # taken as exp(sum T_i ln r_i + 8 T u).
            size = np.sqrt(squares) + e
            value *= join_copies(phi, phase.steps, np.multiply)
            log_size = log_size + phase.steps * np.log(size)
            relative = relative + phase.steps * e / size
        powers = 8.0 * UNIT_ROUNDING * self.steps
        return frequencies, value, (powers + relative) * np.exp(log_size + powers)

    def transform_by_fft(self, i: int, n: int) -> tuple[Spectrum, float]:
        """Return the Fourier transform of one step of phase ``i`` by FFT, and an error bound."""
        # The frequencies are k = 0..n/2. The error covers the rounding of the masses (iii) and of the FFT (iv).
        wrapped = np.bincount(self.composition.phases[i].pair.cells % n, self.masses[i], n)
        # Error (iv), transform by FFT: g log2(n) sqrt(n) |p~|_2 + N u, the latter for sums of masses on one cell.
        error = (
            FFT_RELATIVE_ERROR_PER_DOUBLING * math.log2(n) * math.sqrt(n) * math.sqrt(float(np.sum(wrapped * wrapped)))
        )
        return np.fft.rfft(wrapped), self.errors[i] + error + len(self.masses[i]) * UNIT_ROUNDING

    def transform_by_sums(self, i: int, wanted: Cells, n: int) -> tuple[Spectrum, float]:
        """Return the Fourier transform of one step of phase ``i`` by direct sums, and an error bound.

        Args:
            i: The index of the phase.
            wanted: The frequencies, as integers.
            n: The length of the transform in grid points.
        """
        # The error covers the rounding of the masses (iii) and of the sums (iv), in bins of neighboring grid points.
        cells, masses = self.composition.phases[i].pair.cells, self.masses[i]
        # Ranges of frequencies that are wide enough for few bins, in which most factors e^(-i w_k j) are 1.
        few_bins = 8.0 * n / (int(cells[-1] - cells[0]) + 1)
        # 256: least number of neighboring frequencies that are evaluated by the same sums
        wide = max(256, 2 ** math.floor(math.log2(few_bins)))
        windows = np.rint(wanted / wide).astype(np.int64) * wide
        phi, most, start = np.empty(len(wanted), complex), 0, 0
        for stop in (np.flatnonzero(np.diff(windows, append=-1)) + 1).tolist():
            middle = int(windows[start])
            turned = _turn_masses(masses, cells, middle, n)
            phi[start:stop], bins = _transform_in_bins(turned, cells, wanted[start:stop] - middle, n)
            start, most = stop, max(most, bins)
        # Error (iv), transform in bins: u max(1064 + N, 3 (N/4 + 3 B/2 + 101)).
        count = len(masses)
        return phi, self.errors[i] + UNIT_ROUNDING * max(1064.0 + count, 3.0 * (0.25 * count + 1.5 * most + 101.0))

    def wanted_frequencies(self) -> Cells | None:
        """Return the frequencies at which the transform is not negligible; None if too many."""
        # only k <= n/2
        # A shorter FFT determines the frequencies. The omitted ones are counted as error (vi) of delta.
        n, phases = self.length, self.composition.phases
        # The shorter FFT resolves the phase with the largest variance, and all phases together.
        widest = math.sqrt(max(self.variances))
        total = math.sqrt(math.fsum(p.steps * v for p, v in zip(phases, self.variances, strict=True)))
        wide = max(16.0, min(256.0 * widest, max(32.0 * widest, 0.7 * total)))
        short = min(2 ** math.ceil(math.log2(wide)), MOST_FFT_CELLS)
        if short >= n:
            return None
        # Only a few frequencies are evaluated for all phases, because the first phases rule out the others.
        few = min(128, 5 * n * len(phases) // sum(len(m) for m in self.masses))
        bound, arcs = np.zeros(short // 2), np.arange(short // 2)
        for i, (phase, variance) in enumerate(zip(phases, self.variances, strict=True)):
            # f <= max of both neighbors + (2 pi / N)^2 V / 4 (C19, "Which arcs")
            phi, e = self.transform_by_fft(i, short)
            f = _squared_size_bound(_squared_size(phi), e)
            between = np.maximum(f[1:], f[:-1]) + (2.0 * np.pi / short) ** 2 * variance / 4.0 * (1.0 + 1e-9)
            bound += 0.5 * phase.steps * np.log(between)
            arcs = np.flatnonzero(bound > self.least_bound)
            if len(arcs) * n <= few * short:
                break
        starts = np.ceil(arcs * (n / short)).astype(np.int64)
        stops = np.floor((arcs + 1) * (n / short)).astype(np.int64)
        count = int(np.sum(stops - starts + 1))
        # 10^9: atoms times frequencies above which frequencies are not summed one by one
        if count * sum(len(m) for m in self.masses) > max(10**9, MOST_OF_A_PHASE * len(phases)):
            return None
        return _join_ranges(starts, stops)

    # --- delta --------------------------------------------------------------------------------------

    def prepare_sums(self, values: Spectrum, errors: FloatArray) -> None:
        """Compute the parts of delta and of its error that do not depend on ``eps``.

        Args:
            values: The Fourier transform of the tilted distribution, at the frequencies that are not omitted.
            errors: The error bounds of these values.
        """
        # parts of both geometric series of W_k, and of the errors (v) and (vii)
        # Frequencies k and n - k together: the real part counts twice, except for k = 0 and k = n/2. All is over n.
        weight = np.where((self.frequencies == 0) | (2 * self.frequencies == self.length), 1.0, 2.0) / self.length
        values *= weight
        # 1 / (1 - e^(-x h) e^(i w_k)), x = theta and theta + 1: the two series of W_k, without their ends.
        angle = -2.0 * np.pi / self.length * self.frequencies
        sine, half = np.sin(angle), np.sin(0.5 * angle)
        self.terms, size = np.empty((2, len(angle)), complex), np.zeros(len(angle))
        for x, terms in zip((self.theta, self.theta + 1.0), self.terms, strict=True):
            # a + b i = (1 - e^-xh) + 2 e^-xh sin^2(angle / 2) + i e^-xh sin(angle) is 1 - e^(-xh - i angle) without
            # cancellation, and 1 / (a + b i) = (a - b i) / (a^2 + b^2).
            fall = math.exp(-(x * self.step))
            real, imaginary = -math.expm1(-(x * self.step)) + 2.0 * fall * half * half, fall * sine
            square = real * real + imaginary * imaginary
            terms.real, terms.imag = real / square, -imaginary / square
            terms *= values
            # Each series is multiplied by a difference of two numbers of modulus at most 1, so |W_k| <= 2 (|first| +
            # |second|).
            size += 2.0 / np.sqrt(square)
        # Error (v), powers: sum_k error(R_k) |W_k| / n, with |W_k| bounded by the series, or by W_0 (in delta).
        self.error_by_series = float(np.sum(weight * errors * size)) * (1.0 + 1e-9)
        self.error_sum = float(np.sum(weight * errors)) * (1.0 + 1e-9)
        # Error (vii), sum over frequencies: (60 + N/8) u sum_k |R_k| 2 (|first| + |second|) / n.
        sizes = np.sqrt(_squared_size(values))
        self.error_of_sums = (60.0 + len(size) / 8.0) * UNIT_ROUNDING * float(np.sum(sizes * size))
        # The ends e^(i w_k (a + n)) of the series are those of every eps.
        self.end_sums = self.sums_at(self.start)

    def sums_at(self, cell: int) -> tuple[float, float]:
        """Return the transform times two geometric series that start at ``cell``, each summed over frequencies."""
        # Re sum_k R_k / n e^(i w_k cell) / (1 - e^(-x h) e^(i w_k)) for x = theta and x = theta + 1, with w_k = 2 pi k
        # / n, the tilt theta, the grid step h, the length n of the transform, and the transform R_k of the tilted
        # distribution
        n, block = self.length, SUMMED_BLOCK
        if len(self.frequencies) < FEWEST_IN_BLOCKS or 8 * len(self.frequencies) < int(self.frequencies[-1]):
            turn = np.exp(2j * np.pi / n * (self.frequencies * (cell % n) % n))
            first, second = np.sum((self.terms * turn).real, axis=1)
            return float(first), float(second)
        if self.blocks is None:
            rows = int(self.frequencies[-1]) // block + 1
            self.blocks = np.zeros((2, rows * block), complex)
            self.blocks[:, self.frequencies] = self.terms
            self.blocks, self.terms = self.blocks.reshape(2, rows, block), self.terms[:, :0]
        # e^(i w_k cell) = e^(i w_(m q) cell) e^(i w_p cell), k = m q + p
        rows = np.exp(2j * np.pi / n * (np.arange(self.blocks.shape[1]) * (block * (cell % n) % n) % n))
        turns = np.exp(2j * np.pi / n * (np.arange(block) * (cell % n) % n))
        inner: Any = np.einsum("srk,k->sr", self.blocks, turns)
        first, second = np.sum((inner * rows).real, axis=1)
        return float(first), float(second)

    def delta(self, eps: float) -> DeltaValue:
        """Return the part of delta due to finite losses at ``eps`` (nats), with its error (C19).

        The error is infinite if the tilt is far from the best tilt for ``eps``.
        """
        h, theta, n = self.step, self.theta, self.length
        # The cells S = s .. a + n - 1 are the losses of the window above eps, s = max(a, floor(eps / h) + 1).
        first = max(self.start, math.floor(eps / h) + 1)
        count = self.start + n - first
        # scale = e^(sum T_i K_i - theta h s)
        log_scale = self.log_mass - theta * h * first
        # Errors (i) tail and (ii) aliasing: the mass outside times e^(sum T_i K_i - theta eps), the largest weight of
        # a cell above eps. If the cell below s is at or below eps, its weight is used, which is not less.
        outside = self.tail * math.exp(min(self.log_mass - theta * min(eps, h * (first - 1)), 700.0))
        if count <= 0 or log_scale > 700.0:
            return DeltaValue(0.0, outside if count <= 0 else math.inf, 0.0)
        # b = e^(eps - s h)
        b = math.exp(min(eps - first * h, 0.0))
        # W_k = sum_S e^(-theta h (S - s)) e^(i w_k S) - b sum_S e^(-(theta + 1) h (S - s)) e^(i w_k S), S = s .. a+n-1.
        # Each sum is (e^(i w_k s) - e^(i w_k (a + n)) e^(-x h count)) / (1 - e^(-x h) e^(i w_k)), and e^(i w_k n) = 1.
        begin, end = self.sums_at(first), self.end_sums
        # sum = scale / n sum_k R_k W_k, the difference of both series; minus the second is its slope in eps.
        first_sum = begin[0] - math.exp(-theta * h * count) * end[0]
        second_sum = b * (begin[1] - math.exp(-(theta + 1.0) * h * count) * end[1])
        # W_0 <= 1 / (1 - e^(-theta h)) - b / (1 - e^(-(theta + 1) h))
        w_0 = -1.0 / math.expm1(-theta * h) + b / math.expm1(-(theta + 1.0) * h)
        # Errors over scale: (v), which contains (iii) and (iv), by the series or by W_0; (vii); and (vi), which is
        # SKIPPED_SPECTRUM W_0.
        error = min(self.error_by_series, w_0 * self.error_sum) + self.error_of_sums + SKIPPED_SPECTRUM * w_0
        value, scale = first_sum - second_sum, math.exp(log_scale)
        # Error (viii), exponents: 8 u (4 + sum T_i |K_i| + |theta h s| + theta |eps|) of the sum.
        exponent_error = 8.0 * UNIT_ROUNDING * (4.0 + self.log_sizes + abs(theta * h * first) + theta * abs(eps))
        # All eight: scale ((v) + (vii) + (vi) + |sum| (viii)) + (i), (ii).
        error = (scale * (error + abs(value) * exponent_error) + outside) * (1.0 + 1e-9)
        return DeltaValue(scale * value, error, -scale * second_sum)


def _too_long(cells: int, most: int, step: float) -> GridSizeError:
    return GridSizeError(
        f"the composed grid needs {cells:.2g} cells at discretization={step:.3g}, more than {most:.2g}. Use a larger "
        f"discretization, or {REMEDY[0].lower()}{REMEDY[1:]}"
    )


def _log_sum_exp(logs: FloatArray) -> float:
    """Return ``ln sum e^logs`` without overflow."""
    top = float(logs.max())
    return math.log(float(np.exp(logs - top).sum())) + top


def _turn_masses(masses: FloatArray, cells: Cells, k: int, n: int) -> FloatArray | Spectrum:
    """Return the masses times ``e^(-2 pi i k cells / n)``, which shifts their Fourier transform by ``k``."""
    # p_j e^(-2 pi i k j / n) for the masses p_j at the grid points j; real if all factors are 1 or -1
    if 2 * k in (0, n):
        return masses * (1.0 - 2.0 * (cells & 1)) if k else masses
    return masses * np.exp(-2j * np.pi / n * (k * (cells % n) % n))


def _transform_in_bins(masses: FloatArray | Spectrum, cells: Cells, k: Cells, n: int) -> tuple[Spectrum, int]:
    """Return the Fourier transform of masses at small frequencies, by series in bins of grid points (C19).

    The second result is the number of bins.
    """
    # sum_j q_j e^(-2 pi i k j / n) for the masses q_j at the grid points j (C19, "Sums in bins")
    # Bins of b cells, a power of two that divides n, such that |x| = pi |k| b / n <= 1.
    wide = math.floor(math.log2(n / (math.pi * max(1, int(np.max(np.abs(k)))))))
    bits = max(min(wide, (n & -n).bit_length() - 1), 0)
    bins = cells >> bits
    starts = np.concatenate([[0], np.flatnonzero(np.diff(bins)) + 1])
    # y = (j - c) / (b / 2), exactly
    y = (cells - (bins << bits)) * 2.0 ** (1 - bits) - (1.0 - 2.0**-bits)
    terms = np.empty((TERMS_OF_BIN, len(cells)), masses.dtype)
    terms[0] = masses
    for before, term in pairwise(terms):
        np.multiply(before, y, out=term)
    sums = np.add.reduceat(terms, starts, axis=1)
    # e^(-i v b l) for the l-th bin, v = 2 pi k / n, from the roots of unity; not a matrix product, for which BLAS
    # would start threads.
    count = n >> bits
    angles, places = 2.0 * np.pi / count * np.arange(count), np.multiply.outer(k, bins[starts]) % count
    turned = np.einsum("kl,ml->km", np.cos(angles)[places], sums) - 1j * np.einsum(
        "kl,ml->km", np.sin(angles)[places], sums
    )
    # (-i x)^m / m!, and e^(-i x (1 - 1/b)) for the middle of the bin, which begins at b l
    x = math.pi * 2.0**bits / n * k
    powers = np.cumprod(np.divide.outer(-1j * x, np.arange(1.0, TERMS_OF_BIN)), axis=1)
    series = turned[:, 0] + np.sum(powers * turned[:, 1:], axis=1)
    return np.exp(-1j * (1.0 - 2.0**-bits) * x) * series, len(starts)


def _join_ranges(starts: Cells, stops: Cells) -> Cells:
    """Return the distinct integers in sorted ranges from ``starts`` to ``stops``, ends included."""
    # the ranges overlap at most at their ends
    starts = np.maximum(starts, np.concatenate([starts[:1], stops[:-1] + 1]))
    counts = np.maximum(stops - starts + 1, 0)
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(int(counts.sum()))


def _squared_size(phi: Spectrum) -> FloatArray:
    return phi.real**2 + phi.imag**2


def _squared_size_bound(squares: FloatArray, error: float) -> FloatArray:
    """Return upper bounds of the squared moduli of complex numbers with an absolute error.

    ``squares`` are the computed squared moduli.
    """
    # (|phi^| + e)^2 = |phi^|^2 + (2 |phi^| + e) e <= |phi^|^2 + 3 e, because |phi| <= 1
    return squares * (1.0 + 1e-12) + 3.0 * error
