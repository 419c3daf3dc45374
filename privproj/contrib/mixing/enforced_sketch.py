"""Compute the profile of Gaussian mixing as an integral.

Gaussian mixing releases a noisy eigenvalue, then a sketch whose noise depends on the released eigenvalue
(:class:`privproj.contrib.mixing.Mixing`). ``G`` and ``Z`` are the parameters ``gamma`` and ``eigen_noise``, and ``mu =
1/Z``. The normalized noise ``u`` of the eigenvalue is standard normal without the record. With the record it is ``N(rho
mu, 1)`` for some ``rho`` from 0 to 1. Given ``u``, the record changes the variance of the sketch by at most the factor
``1 + nu(u)`` with ``nu(u) = 1/(G - Z u)``.

In each direction, the profile of Gaussian mixing is an integral over ``u``. The integrand depends on the profile of the
sketch given ``u``, and on the worst ratio ``R(u)`` of the normal densities with and without the record (C33: a sketch
whose noise follows an eigenvalue). The integral is computed by two Gauss rules. Their difference, which widens the
result, is an estimate of the error; that the error is no larger is observed and not proved.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from privproj.distributions.gamma_hockey_stick import QUADRATURE_RELATIVE_ERROR
from privproj.mechanisms.sketch.exact_rank1 import log_sketch_profile
from privproj.numerics.arrays import Array, Index
from privproj.numerics.interval import widen_outward_each
from privproj.numerics.quadrature import gauss_nodes
from privproj.numerics.special import LOG_SQRT_2PI, log_normal_density, mills

NODES_FINE = 16  # Gauss nodes of the value
NODES_CHECK = 11  # Gauss nodes of the check; soundness: the difference estimates the error, as observed
MOST_LEVELS = 10  # halvings of a panel; the remaining error is added to the value
WINDOW = 39.0  # standard deviations of the eigenvalue's noise; the tail beyond is added to the value
TAIL_ERROR = 1e-12  # soundness: relative error of the mass beyond, and per nat of it

LOG_TAIL_OF_WINDOW = -750.0  # soundness: ln of a probability above that of more than WINDOW standard deviations
LARGEST_CHANGE = 1e7  # soundness: a larger nu counts as infinite in upper bounds and is omitted in lower bounds
SHARE_AT_END = 1e-12  # soundness: the last part of the range, where nu has no correct digits, is treated the same way
WIDEST_PANEL = 2.0  # standard deviations of the eigenvalue's noise
NEGLIGIBLE_PANEL_NATS = 46.0  # soundness: panels so far below the largest one are less than a rounding
NODES_AT_ONCE = 2**9  # nodes that fit into the cache
LADDER = 600.0 * 1.3 ** -np.arange(40.0)[::-1]  # nats; losses at which a tail may be cut


@dataclass(frozen=True)
class EnforcedSketch:
    """The profile of one release of Gaussian mixing in both directions.

    The two datasets differ in one record. If the argument ``present`` of a method is True, the first dataset has this
    record, else the second one.
    """

    rank: float  # number of rows of the sketch

    gamma: float  # G: noisy eigenvalue plus variance of the noise is at least G times the squared clipping norm

    eigen_noise: float  # Z: standard deviation of the eigenvalue's noise over the squared clipping norm

    @property
    def mu(self) -> float:
        """The sensitivity of the eigenvalue, divided by the standard deviation of its noise."""
        return 1.0 / self.eigen_noise

    @property
    def left_at_end(self) -> float:
        """The difference ``gamma - eigen_noise u`` at the upper end ``u`` of the integral."""
        return max(1.0 / LARGEST_CHANGE, SHARE_AT_END * self.gamma)

    def log_delta_ends(self, eps: Array, present: bool) -> tuple[Array, Array]:
        """Return lower and upper bounds of ``ln delta(eps)`` for each ``eps >= 0``.

        If ``present``, the first of the two datasets has the record, and otherwise the second one.
        """
        last = min((self.gamma - self.left_at_end) / self.eigen_noise, WINDOW + (self.mu if present else 0.0))
        left, right, owner = self._first_panels(eps, present, last)
        logs, error = self._integrate(left, right, owner, eps, present)
        # The rounding error of ln R, which is of size mu^2, adds to that of the sketch.
        relative = error + QUADRATURE_RELATIVE_ERROR + 4e-15 * self.mu * self.mu
        with np.errstate(invalid="ignore"):
            lower, upper = widen_outward_each(logs, relative, 4.0 * np.abs(logs) + 40.0)
        beyond = self._log_tail(self.gamma / self.eigen_noise, present), self._log_tail(last, present)
        lower = np.logaddexp(lower, beyond[0] - TAIL_ERROR * (1.0 - beyond[0]))
        upper = np.logaddexp(upper, beyond[1] + TAIL_ERROR * (1.0 - beyond[1]))
        return np.minimum(lower, 0.0), np.minimum(np.logaddexp(upper, LOG_TAIL_OF_WINDOW) + 1e-14, 0.0)

    def excess(self, losses: Array) -> tuple[Array, Array]:
        """Return lower and upper bounds of ``delta(eps) - max(0, 1 - e^eps)``.

        ``losses`` are values of ``eps`` of any sign. ``delta`` is the profile if the first of the two datasets has the
        record.
        """
        # Beyond the cuts, the lower bound is 0, and the upper bound is constant for eps > 0 and proportional to e^eps
        # for eps < 0.
        first, last = self._cuts
        inside = np.clip(losses, first, last)
        at, which = np.unique(inside, return_inverse=True)
        lower, upper = (end[which] for end in self._whole_excess(at))
        upper = upper * np.exp(np.minimum(losses - inside, 0.0)) * (1.0 + 1e-14)
        return np.where(inside == losses, lower * (1.0 - 1e-14), 0.0), upper

    def _whole_excess(self, losses: Array) -> tuple[Array, Array]:
        """Return the bounds of :meth:`excess` by quadrature, also in the tails."""
        lower, upper = np.empty(len(losses)), np.empty(len(losses))
        for rows, present in ((losses >= 0.0, True), (losses < 0.0, False)):
            if rows.any():
                # For t < 1 it is t H_(1/t) in the other direction (C1).
                ends = self.log_delta_ends(np.abs(losses[rows]), present)
                lower[rows], upper[rows] = (np.exp(end + np.minimum(losses[rows], 0.0)) for end in ends)
        return lower, upper

    @cached_property
    def _cuts(self) -> tuple[float, float]:
        """The losses below and above which :meth:`excess` uses simple bounds of the tails."""
        cuts = []
        for present in (False, True):
            log_excess = self.log_delta_ends(LADDER, present)[1]
            # A tail is cut, and counts as infinite loss in a composition, if its excess is within a factor of 5 of its
            # last value or below 1e-40.
            ended = log_excess < max(log_excess[-1] + math.log(5.0), math.log(1e-40))
            cuts.append(float(LADDER[np.argmax(ended)]))
        return -cuts[0], cuts[1]

    def _log_ratio(self, u: Array, present: bool) -> Array:
        """Return ``ln R(u)`` for the worst ratio ``R(u)`` of two normal densities at ``u``.

        ``R(u)`` is the density with the record divided by the density without the record. Over all possible records,
        ``R(u)`` is the largest ratio if ``present``, and the smallest ratio otherwise.
        """
        mu = self.mu
        # with the record u is N(rho mu, 1) for some rho from 0 to 1, and without it N(0, 1)
        # max over rho of rho mu u - rho^2 mu^2/2 at rho = u/mu, cut to [0, 1]; the minimum is at an end (C33).
        shift = np.clip(u, 0.0, mu) if present else np.where(u < 0.5 * mu, mu, 0.0)
        return shift * u - 0.5 * shift * shift

    def _log_tail(self, u: float, present: bool) -> float:
        """Return the log of the integral of the standard normal density beyond ``u >= 0``.

        If ``present``, the density is multiplied by the exponential of :meth:`_log_ratio`.
        """
        mu = self.mu
        if present and u < mu:
            # phi(u) R(u) = 1/sqrt(2 pi) up to mu, and half is beyond.
            return math.log((mu - u) * math.exp(-LOG_SQRT_2PI) + 0.5)
        far = u - mu if present else u
        return log_normal_density(far) + math.log(mills(far))

    def _kink(self, eps: float, present: bool) -> float:
        """Return the noise ``u`` at which the eigenvalue alone has privacy loss ``eps``."""
        mu = self.mu
        if not present:
            return 0.5 * mu - eps / mu
        return math.sqrt(2.0 * eps) if 2.0 * eps < mu * mu else eps / mu + 0.5 * mu

    def _first_panels(self, eps: Array, present: bool, last: float) -> tuple[Array, Array, Index]:
        """Return the left ends, right ends and epsilon indices of the initial panels.

        Panels are the intervals of the quadrature, which may be halved later. ``last`` is the upper end of the
        integrals.
        """
        mu = self.mu
        fixed = [*np.linspace(-WINDOW, last, 2 + math.ceil((last + WINDOW) / WIDEST_PANEL)), 0.0, mu, 0.5 * mu]
        fixed += [last - step for step in _steps(self.left_at_end / self.eigen_noise)]
        lefts, rights, owners = [], [], []
        for i, e in enumerate(eps.tolist()):
            kink, edges = self._kink(e, present), list(fixed)
            if -WINDOW < kink < last:
                # The loss of the sketch has the standard deviation nu sqrt(r/2). The loss of the eigenvalue grows by
                # mu per unit of u.
                spread = math.sqrt(0.5 * self.rank) / (self.gamma - self.eigen_noise * kink) / mu
                near = list(_steps(min(0.25 * spread, WIDEST_PANEL)))
                edges += [kink, *(kink + step for step in near), *(kink - step for step in near)]
            inside = np.unique([edge for edge in edges if -WINDOW <= edge <= last])
            lefts.append(inside[:-1])
            rights.append(inside[1:])
            owners.append(np.full(len(inside) - 1, i, np.intp))
        return np.concatenate(lefts), np.concatenate(rights), np.concatenate(owners)

    def _integrate(self, left: Array, right: Array, owner: Index, eps: Array, present: bool) -> tuple[Array, Array]:
        """Return the log of the integral for each epsilon, and estimated relative errors.

        Panel ``i`` is the interval from ``left[i]`` to ``right[i]``, and belongs to the epsilon ``eps[owner[i]]``.
        """
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
            # 1e-12: share of the value; a panel with a larger error is halved
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
        """Return, for each panel, the integral over this panel divided by ``e^top``.

        The integral is computed by a Gauss rule with ``count`` nodes. ``owner`` has the index of each panel's epsilon
        in ``eps``, which is also the index of its number in ``top``.
        """
        nodes, weights = gauss_nodes(count)
        width = right - left
        u = left[:, None] + width[:, None] * nodes
        at = np.broadcast_to(eps[owner, None], u.shape)
        logs = self._log_integrand(u.ravel(), at.ravel(), present).reshape(u.shape)
        return width * (np.exp(logs - top[owner, None]) @ weights)

    def _log_integrand(self, u: Array, eps: Array, present: bool) -> Array:
        """Return the log of the integrand of ``delta(eps)`` at each noise ``u``."""
        # phi(u) R(u) h if present, else phi(u) h, with the standard normal density phi, the worst ratio R and the
        # profile h of the sketch
        ratio = self._log_ratio(u, present)
        left = eps - ratio if present else eps + ratio
        nu = 1.0 / (self.gamma - self.eigen_noise * u)
        parts = [slice(i, i + NODES_AT_ONCE) for i in range(0, len(u), NODES_AT_ONCE)]
        log_h = np.concatenate([log_sketch_profile(0.5 * self.rank, nu[part], left[part], present) for part in parts])
        return -0.5 * u * u - LOG_SQRT_2PI + log_h + (ratio if present else 0.0)


def _steps(first: float) -> list[float]:
    """Return ``first``, ``4 first``, ``16 first``, ... up to the width of a panel."""
    steps = [first]
    while steps[-1] < WIDEST_PANEL:
        steps.append(4.0 * steps[-1])
    return steps
