"""The squared shift of a vector release of M1 whose projection stays secret (C8).

With ``g ~ chi2_r / r`` revealed the release is a Gaussian pair (for unit ``v, v'`` at distance ``s = 2 sin(eta)``),
whose shift is ``S (c + xi)`` with ``xi ~ N(0, 1)``,

    S = (g/r) sin(2 eta) / (sigma tau),   c = r sqrt(sigma^2 + (g/r) sin^2(eta)) / cos(eta),   tau^2 = sigma^2 + g/r.

``|shift|`` grows with ``s`` while ``sin(2 eta)`` and ``c`` do, up to ``s = sqrt 2``; beyond, ``sin(2 eta)`` is replaced
by 1, which bounds all shorter distances too. :mod:`privproj.laws.panel_law` integrates over ``y = ln shift^2``.
"""

import math
from dataclasses import dataclass

import numpy as np

from privproj.laws.panel_law import ROWS_AT_ONCE, SCAN_STRIDE, terms_that_matter
from privproj.numerics.arrays import Array
from privproj.numerics.kernels import stirling_remainder

LEAST_CENTRE_OVER_XI = 40.0
"""``c`` from which on the sum is over ``xi``: a shift of the other sign has a probability below e^-800. Soundness."""

LEAST_SHIFT = 1e-300
"""Least ``c + xi`` whose log is taken, where Newton's method strays. Speed only."""


@dataclass(frozen=True)
class SecretShift:
    """The law of ``y = ln shift^2`` for one pair of unit vectors (C8).

    * ``rank``: ``r``.
    * ``sigma``: standard deviation of the noise, for vectors of norm 1.
    * ``misalignment``: ``m = 1 - v.v' = s^2/2 = 2 sin^2(eta)``, below 2.
    """

    rank: int
    sigma: float
    misalignment: float

    def parts(self, g: Array) -> tuple[Array, Array]:
        """Return the scale ``S`` and the centre ``c`` of the shift ``S (c + xi)`` at an array of ``g``."""
        # S = (g/r) sin(2 eta) / (sigma tau),  c = r sqrt(sigma^2 + (g/r) sin^2 eta) / cos eta;  sin^2 eta = m/2 (C8)
        sine2, share = 0.5 * self.misalignment, g / self.rank
        doubled = 2.0 * math.sqrt(sine2 * (1.0 - sine2)) if sine2 < 0.5 else 1.0
        scale = share * doubled / (self.sigma * np.sqrt(self.sigma**2 + share))
        return scale, self.rank * np.sqrt(self.sigma**2 + share * sine2) / math.sqrt(1.0 - sine2)

    @property
    def centre(self) -> float:
        """The centre ``c`` at ``g = 1``, the mean of ``g``."""
        return float(self.parts(np.ones(1))[1][0])

    @property
    def ends(self) -> tuple[float, float, float]:
        """``(low, high, width)`` of ``y = ln shift^2``, as :class:`privproj.laws.panel_law.LogDensity` names them."""
        c, spread = self.centre, math.sqrt(2.0 / self.rank)
        width = 2.0 * math.hypot(1.0 / max(c, 1.0), spread)
        near = 100.0 if c < LEAST_CENTRE_OVER_XI else -2.0 * math.log1p(-11.0 / c)
        middle = 2.0 * math.log(float(self.parts(np.ones(1))[0][0]) * max(c, 1.0))
        low = middle - near - 2.0 * (11.0 * spread + 100.0 / self.rank)
        # g <= 1 + 2 sqrt(x/r) + 2 x/r but for e^-x, at x = 725 (Laurent, Massart), and |xi| <= 38 but for e^-722.
        reach = 1.0 + math.sqrt(2.0 * 1450.0 / self.rank) + 1450.0 / self.rank
        scale, at_top = (float(x[0]) for x in self.parts(np.array([reach])))
        return low, 2.0 * math.log(scale * (at_top + 38.0)), min(0.8 * width, 1.0)

    def density(self, y: Array) -> Array:
        """Return the density of ``y`` at an array of points, some at a time, which share the terms that matter.

        It is a sum over ``ln g`` where both signs of the shift matter, else a sum over ``xi``.
        """
        parts = self.over_xi if self.centre >= LEAST_CENTRE_OVER_XI else self.over_g
        return np.concatenate([parts(y[i : i + ROWS_AT_ONCE]) for i in range(0, len(y), ROWS_AT_ONCE)])

    def log_gamma(self, v: Array) -> Array:
        """Return ``ln f(v)``, the log of the density of ``v = ln g``, of the shape of ``v``."""
        k = 0.5 * self.rank
        # f(v) = sqrt(k/2 pi) e^-R e^(-k (e^v - 1 - v)), k = r/2, R the remainder of Stirling's formula
        return 0.5 * math.log(k / (2.0 * math.pi)) - stirling_remainder(k) - k * (np.expm1(v) - v)

    def over_g(self, y: Array) -> Array:
        """Return the density of ``y`` as a sum over ``v = ln g``: given ``g`` the shift is normal, with either sign."""
        # sum over v of f(v) e^(y/2) / (2 S) [phi(e^(y/2)/S - c) + phi(e^(y/2)/S + c)] (C8)
        k = 0.5 * self.rank
        step = min(0.7 / math.sqrt(k + 1.5 * self.centre**2), 0.25)
        v = np.arange(-11.0 / math.sqrt(k) - 60.0 / k, math.log1p(2.0 * math.sqrt(720.0 / k) + 720.0 / k), step)
        log_front = math.log(step) - math.log(2.0 * math.sqrt(2.0 * math.pi))

        def log_terms(v: Array) -> Array:
            scale, c = self.parts(np.exp(v))
            log_place = 0.5 * y[:, None] - np.log(scale)
            place = np.exp(log_place)
            # ln(phi(place - c) + phi(place + c)), the second less by e^(-2 c place)
            both = np.log1p(np.exp(-2.0 * c * place)) - 0.5 * (place - c) ** 2
            return self.log_gamma(v) + both + log_place + log_front

        return _row_sums_exp(log_terms(v[terms_that_matter(log_terms(v[::SCAN_STRIDE]), len(v))]))

    def over_xi(self, y: Array) -> Array:
        """Return the density of ``y`` as a sum over ``xi``: for each ``xi`` one ``g`` makes the shift ``e^(y/2)``.

        ``g`` is found by Newton's method in ``v = ln g``. A failure shows in the mass of the law, which
        :mod:`privproj.laws.panel_law` checks.
        """
        step = 0.25 / max(1.0, math.sqrt(0.5 / self.rank) * 4.0)
        xi = np.arange(-38.0, 38.0 + step, step)
        log_front = math.log(step / math.sqrt(2.0 * math.pi))

        def log_terms(xi: Array, accuracy: float) -> Array:
            v = np.zeros((len(y), len(xi)))
            # Most steps of Newton's method for ``ln g``. The total mass of the law is checked. Speed only.
            for _ in range(12):
                value, slope = self.log_shift(v, xi)
                change = (value - 0.5 * y[:, None]) / slope
                v = v - change
                # the error after a step is about the square of the step
                if float(np.max(np.abs(change))) < accuracy:
                    break
            # f(v) phi(xi) dv/dy, where ln shift(v, xi) = y/2 and so dv/dy = 1/(2 slope) (C8)
            slope = self.log_shift(v, xi)[1]
            logs = self.log_gamma(v) - 0.5 * xi * xi - np.log(2.0 * slope) + log_front
            return np.where(np.isfinite(logs), logs, -np.inf)

        return _row_sums_exp(log_terms(xi[terms_that_matter(log_terms(xi[::SCAN_STRIDE], 1e-2), len(xi))], 1e-7))

    def log_shift(self, v: Array, xi: Array) -> tuple[Array, Array]:
        """Return ``ln shift`` at ``ln g = v`` and its slope in ``v``, both of the shape of ``v``."""
        sine2, share = 0.5 * self.misalignment, np.exp(np.clip(v, -60.0, 60.0)) / self.rank
        scale, c = self.parts(share * self.rank)
        # d ln S/dv + (dc/dv)/(c + xi), where d ln S/dv = 1 - (g/r)/(2 tau^2) and
        # dc/dv = c (g/r) sin^2 eta / (2 (sigma^2 + (g/r) sin^2 eta))
        slope_c = 0.5 * c * share * sine2 / (self.sigma**2 + share * sine2)
        slope = 1.0 - 0.5 * share / (self.sigma**2 + share) + slope_c / (c + xi)
        return np.log(scale) + np.log(np.maximum(c + xi, LEAST_SHIFT)), slope


def _row_sums_exp(logs: Array) -> Array:
    """Return ``sum of e^logs`` over each row, of shape ``(rows,)``."""
    peak = np.maximum(np.max(logs, axis=1, keepdims=True), -1e4)
    return np.exp(peak[:, 0]) * np.exp(logs - peak).sum(axis=1)
