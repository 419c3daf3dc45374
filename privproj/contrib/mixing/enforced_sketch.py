"""The profile of a sketch whose noise follows a noisy least eigenvalue: an integral over the noise of that (C33).

The noise ``u`` of the eigenvalue is standard normal without the record, and ``N(rho mu, 1)`` with it, for some ``rho``
from 0 to 1. Given ``u`` the sketch changes its variance by at most the factor ``1 + nu(u)``, ``nu(u) = 1/(G - Z u)``.
Both orders are integrals over ``u`` of the profile of that sketch, at the worst ratio of the normal densities. Panels
are halved where two Gauss rules disagree; their difference is added as an error, which is observed, not proved.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from privproj.distributions.gamma_hockey_stick import QUADRATURE_RELATIVE_ERROR, log_gamma_hockey_stick
from privproj.numerics.arrays import Array, Index
from privproj.numerics.interval import widen_outward_each
from privproj.numerics.quadrature import gauss_nodes
from privproj.numerics.special import LOG_SQRT_2PI, log_normal_density, mills

NODES_FINE = 16
"""Gauss nodes of a panel whose sum is the value. Speed only."""

NODES_CHECK = 11
"""Gauss nodes of the check. The difference of both rules stands for the error: observed, not proved.
Soundness (measured)."""

MOST_LEVELS = 10
"""How often panels are halved; what remains then is added to the answer. Speed only."""

WINDOW = 39.0
"""Deviations of the eigenvalue's noise at which the integral ends; the rest is added to the answer. Speed only."""

TAIL_ERROR = 1e-12
"""Relative error allowed to the mass beyond, and as much per nat of it. Soundness."""

LEAST_START = 1e-8
"""Least start of a hockey stick over its ``k`` that is told apart, as the nodes of a shorter range have no digits.

A smaller start is raised to it, which adds a relative 1e-11 at most. Soundness.
"""

LOG_TAIL_OF_WINDOW = -750.0
"""``ln`` of a probability above that of more than :data:`WINDOW` deviations. Soundness."""

LARGEST_CHANGE = 1e7
"""``nu`` from which on all is lost from above, as where it is infinite; from below that is left out. Soundness."""

SHARE_AT_END = 1e-12
"""Share of the way to an infinite ``nu`` whose digits are lost at large ``gamma``; it is treated likewise.
Soundness."""

WIDEST_PANEL = 2.0
"""Width of a panel in deviations of the eigenvalue's noise. Speed only."""

NEGLIGIBLE_PANEL_NATS = 46.0
"""Nats below the largest panel where one is left out: less than a rounding. Soundness."""

NODES_AT_ONCE = 2**9
"""Nodes whose sketches are evaluated together, so that they stay in the cache. Speed only."""

LADDER = 600.0 * 1.3 ** -np.arange(40.0)[::-1]
"""Losses in nats at which a tail may be cut. Speed only."""


@dataclass(frozen=True)
class EnforcedSketch:
    """The profile of one release in both orders: with the record against without (``present``), and the other way."""

    rank: float
    """The number of rows of the sketch."""

    gamma: float
    """``G``: the noisy least eigenvalue and the variance of the noise add up to ``G B^2`` at least."""

    eigen_noise: float
    """``Z``: the standard deviation of the eigenvalue's noise over ``B^2``."""

    @property
    def mu(self) -> float:
        """``mu = 1/Z``, the largest shift of the eigenvalue in units of its noise."""
        return 1.0 / self.eigen_noise

    @property
    def left_at_end(self) -> float:
        """What is left of ``G`` at the last ``u`` that is integrated."""
        return max(1.0 / LARGEST_CHANGE, SHARE_AT_END * self.gamma)

    def log_delta_ends(self, eps: Array, present: bool) -> tuple[Array, Array]:
        """Return ``(lower, upper)`` of ``ln H_eps`` in one order, arrays of the shape of ``eps >= 0``."""
        last = min((self.gamma - self.left_at_end) / self.eigen_noise, WINDOW + (self.mu if present else 0.0))
        left, right, owner = self._first_panels(eps, present, last)
        logs, error = self._integrate(left, right, owner, eps, present)
        # The rounding of ln R, of the size of mu^2, counts beside that of the sketch.
        relative = error + QUADRATURE_RELATIVE_ERROR + 4e-15 * self.mu * self.mu
        with np.errstate(invalid="ignore"):
            lower, upper = widen_outward_each(logs, relative, 4.0 * np.abs(logs) + 40.0)
        beyond = self._log_tail(self.gamma / self.eigen_noise, present), self._log_tail(last, present)
        lower = np.logaddexp(lower, beyond[0] - TAIL_ERROR * (1.0 - beyond[0]))
        upper = np.logaddexp(upper, beyond[1] + TAIL_ERROR * (1.0 - beyond[1]))
        return np.minimum(lower, 0.0), np.minimum(np.logaddexp(upper, LOG_TAIL_OF_WINDOW) + 1e-14, 0.0)

    def excess(self, losses: Array) -> tuple[Array, Array]:
        """Return bounds of ``H_t - max(0, 1 - t)``, with the record against without, at ``ln t`` of any sign.

        From the loss on at which the tail hardly falls, the upper bound is constant (in the other order for ``t < 1``),
        and nothing is known from below: a small mass at losses of many scales is not worth its time (C33).
        """
        first, last = self._cuts
        inside = np.clip(losses, first, last)
        at, which = np.unique(inside, return_inverse=True)
        lower, upper = (end[which] for end in self._whole_excess(at))
        upper = upper * np.exp(np.minimum(losses - inside, 0.0)) * (1.0 + 1e-14)
        return np.where(inside == losses, lower * (1.0 - 1e-14), 0.0), upper

    def _whole_excess(self, losses: Array) -> tuple[Array, Array]:
        """The same with the whole tails."""
        lower, upper = np.empty(len(losses)), np.empty(len(losses))
        for rows, present in ((losses >= 0.0, True), (losses < 0.0, False)):
            if rows.any():
                # For t < 1 it is t H_(1/t) of the other order (C1).
                ends = self.log_delta_ends(np.abs(losses[rows]), present)
                lower[rows], upper[rows] = (np.exp(end + np.minimum(losses[rows], 0.0)) for end in ends)
        return lower, upper

    @cached_property
    def _cuts(self) -> tuple[float, float]:
        """The losses below and above which the tails are cut."""
        cuts = []
        for present in (False, True):
            log_excess = self.log_delta_ends(LADDER, present)[1]
            # A tail is cut, and counted as infinite losses in a composition, where its excess is so near its last, or
            # below 1e-40.
            # Speed only.
            ended = log_excess < max(log_excess[-1] + math.log(5.0), math.log(1e-40))
            cuts.append(float(LADDER[np.argmax(ended)]))
        return -cuts[0], cuts[1]

    def _log_ratio(self, u: Array, present: bool) -> Array:
        """``ln R(u)``: the largest ratio of the densities of ``u`` over all ``rho``, or the least where not present."""
        mu = self.mu
        # max over rho of rho mu u - rho^2 mu^2/2 at rho = u/mu, cut to [0, 1]; the minimum is at an end (C33).
        shift = np.clip(u, 0.0, mu) if present else np.where(u < 0.5 * mu, mu, 0.0)
        return shift * u - 0.5 * shift * shift

    def _log_tail(self, u: float, present: bool) -> float:
        """``ln`` of the integral of ``phi R`` beyond ``u >= 0``, or of ``phi`` where not present."""
        mu = self.mu
        if present and u < mu:
            # phi(u) R(u) = 1/sqrt(2 pi) up to mu, and half is beyond.
            return math.log((mu - u) * math.exp(-LOG_SQRT_2PI) + 0.5)
        far = u - mu if present else u
        return log_normal_density(far) + math.log(mills(far))

    def _kink(self, eps: float, present: bool) -> float:
        """The ``u`` at which the eigenvalue alone has used up ``eps``, so that the rest of it is 0."""
        mu = self.mu
        if not present:
            return 0.5 * mu - eps / mu
        return math.sqrt(2.0 * eps) if 2.0 * eps < mu * mu else eps / mu + 0.5 * mu

    def _first_panels(self, eps: Array, present: bool, last: float) -> tuple[Array, Array, Index]:
        """The panels ``[left, right]`` on which every integral starts, and the number of the epsilon of each."""
        mu = self.mu
        fixed = [*np.linspace(-WINDOW, last, 2 + math.ceil((last + WINDOW) / WIDEST_PANEL)), 0.0, mu, 0.5 * mu]
        fixed += [last - step for step in _steps(self.left_at_end / self.eigen_noise)]
        lefts, rights, owners = [], [], []
        for i, e in enumerate(eps.tolist()):
            kink, edges = self._kink(e, present), list(fixed)
            if -WINDOW < kink < last:
                # The loss of the sketch has the deviation nu sqrt(r/2), that of the eigenvalue mu for each unit of u.
                spread = math.sqrt(0.5 * self.rank) / (self.gamma - self.eigen_noise * kink) / mu
                near = list(_steps(min(0.25 * spread, WIDEST_PANEL)))
                edges += [kink, *(kink + step for step in near), *(kink - step for step in near)]
            inside = np.unique([edge for edge in edges if -WINDOW <= edge <= last])
            lefts.append(inside[:-1])
            rights.append(inside[1:])
            owners.append(np.full(len(inside) - 1, i, np.intp))
        return np.concatenate(lefts), np.concatenate(rights), np.concatenate(owners)

    def _integrate(self, left: Array, right: Array, owner: Index, eps: Array, present: bool) -> tuple[Array, Array]:
        """The logs of the integrals for each epsilon, and their relative errors as two Gauss rules show them."""
        middle = 0.5 * (left + right)
        ends = [self._log_integrand(u, eps[owner], present) for u in (left, middle, right)]
        height = np.maximum.reduce(ends) + np.log(right - left)
        top = np.full(len(eps), -np.inf)
        np.maximum.at(top, owner, height)
        counted = height > top[owner] - NEGLIGIBLE_PANEL_NATS
        left, right, owner = left[counted], right[counted], owner[counted]
        total, error, top = np.zeros(len(eps)), np.zeros(len(eps)), np.where(np.isfinite(top), top, 0.0)
        for level in range(MOST_LEVELS + 1):
            if not len(left):
                break
            fine, check = (
                self._panel_sums(left, right, owner, eps, present, n, top) for n in (NODES_FINE, NODES_CHECK)
            )
            estimate, apart = total.copy(), np.abs(fine - check)
            np.add.at(estimate, owner, fine)
            # A panel whose error is above this share of the value is halved. What remains is added. Speed only.
            done = (apart <= 1e-12 * estimate[owner]) | (level == MOST_LEVELS)
            np.add.at(total, owner[done], fine[done])
            np.add.at(error, owner[done], apart[done])
            left, right, owner = left[~done], right[~done], owner[~done]
            middle = 0.5 * (left + right)
            left, right = np.concatenate([left, middle]), np.concatenate([middle, right])
            owner = np.concatenate([owner, owner])
        with np.errstate(divide="ignore"):
            return np.log(total) + top, error / np.where(total > 0.0, total, 1.0)

    def _panel_sums(
        self, left: Array, right: Array, owner: Index, eps: Array, present: bool, count: int, top: Array
    ) -> Array:
        """The integral over each panel by a Gauss rule, over ``e^top`` of its epsilon."""
        nodes, weights = gauss_nodes(count)
        width = right - left
        u = left[:, None] + width[:, None] * nodes
        at = np.broadcast_to(eps[owner, None], u.shape)
        logs = self._log_integrand(u.ravel(), at.ravel(), present).reshape(u.shape)
        return width * (np.exp(logs - top[owner, None]) @ weights)

    def _log_integrand(self, u: Array, eps: Array, present: bool) -> Array:
        """``ln`` of ``phi(u) R(u) h`` or, where not present, of ``phi(u) h``; ``h`` is the profile of the sketch."""
        ratio = self._log_ratio(u, present)
        left = eps - ratio if present else eps + ratio
        nu = 1.0 / (self.gamma - self.eigen_noise * u)
        parts = [slice(i, i + NODES_AT_ONCE) for i in range(0, len(u), NODES_AT_ONCE)]
        log_h = np.concatenate([log_sketch(0.5 * self.rank, nu[part], left[part], present) for part in parts])
        return -0.5 * u * u - LOG_SQRT_2PI + log_h + (ratio if present else 0.0)


def _steps(first: float) -> list[float]:
    """Distances from ``first`` (above 0) on, each four times the one before, up to a panel's width."""
    steps = [first]
    while steps[-1] < WIDEST_PANEL:
        steps.append(4.0 * steps[-1])
    return steps


def log_sketch(half_rank: float, nu: Array, eps: Array, present: bool) -> Array:
    """Return ``ln H_eps`` of a sketch of rank ``2 half_rank`` for each ``nu`` and real ``eps`` (C14), in one order.

    Its relative error is that of the quadrature. With ``present`` it is the record against none, else the other way.
    """
    size, half, k = np.abs(eps), half_rank * np.log1p(nu), nu / (1.0 + nu)
    rises, logs = (eps >= 0.0) == present, np.empty_like(nu)
    with np.errstate(all="ignore"):
        for rows, rate, start, sign in (
            (rises, nu, (half + size) / nu, 1.0),
            (~rises, k, np.where(size < half, np.maximum((half - size) / k, LEAST_START * half_rank), 0.0), -1.0),
        ):
            if rows.any():
                logs[rows] = log_gamma_hockey_stick(half_rank, rate[rows], start[rows], sign)
        # H_-e(A||B) = 1 - e^-e + e^-e H_e(B||A) (C1)
        mirrored = np.logaddexp(np.log(-np.expm1(-size)), logs - size)
    return np.where(eps >= 0.0, logs, mirrored)
