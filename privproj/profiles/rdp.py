"""Renyi curves, concentrated DP, and their conversions to ``(eps, delta)`` (C14, C15).

A Renyi curve bounds the Renyi divergence ``D(alpha)`` between the output distributions on neighboring datasets, in nats
and in both directions. Over a run the divergences add up. Every order ``alpha > 1`` gives a valid conversion (Canonne,
Kamath, Steinke 2020):

    eps      = inf_alpha  D(alpha) + ln(1/delta)/(alpha - 1) - ln(alpha)/(alpha - 1) + ln(1 - 1/alpha)
    ln delta = inf_alpha  (alpha - 1) (D(alpha) - eps + ln(1 - 1/alpha)) - ln(alpha)
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache

from privproj.errors import UnsupportedError
from privproj.numerics.interval import Enclosure, log1m_exp, next_up
from privproj.numerics.root_finding import minimize, minimize_integer
from privproj.numerics.special import log_add
from privproj.run import Run

UNKNOWN_END = -math.inf  # unknown: the search for the infimum over orders may miss it

LARGEST_ORDER = 1200  # largest integer order that is tried; every order gives a valid bound

# soundness: rounding of a conversion at one order, relative to the sum of its terms: 18 units of rounding
ONE_ORDER_ERROR = 2e-15

# advice in the error message of a sampled run
PROFILE_ADVICE = "Use a bound with a privacy profile (`privproj compare` lists them)."

SAMPLING_ADVICE = (
    "Use a bound with a privacy profile if `privproj compare` lists one. Otherwise omit the sampling to count releases "
    "on the whole dataset."
)


def poisson_curve(log_moment: Callable[[int], float]) -> "Callable[[float], RenyiCurve]":
    """Return a map from the sampling rate to the Renyi curve under Poisson sampling (C15).

    The release is Gaussian with a random sensitivity. ``S`` is the squared sensitivity divided by the noise variance.

    Args:
        log_moment: Map from ``j`` to ``ln E exp(j (j-1) S / 2)``.
    """
    moment = lru_cache(maxsize=None)(log_moment)

    def at_rate(q: float) -> RenyiCurve:
        # D(a) = 1/(a-1) ln sum_{j=0}^{a} C(a,j) (1-q)^(a-j) q^j e^{log_moment(j)} at integer orders a (Mironov, Talwar,
        # Zhang 2019, Section 3.3), in the remove direction; that in the add direction is never larger.
        def divergence(alpha: float) -> float:
            a, total = round(alpha), -math.inf
            for j in range(2, a + 1):
                # The sum minus 1, in logs, so that small rates keep their digits:
                # sum_{j=2}^{a} C(a,j) (1-q)^(a-j) q^j (e^log_moment(j) - 1)
                grown = moment(j)
                if grown > 0.0:
                    ways = math.lgamma(a + 1) - math.lgamma(j + 1) - math.lgamma(a - j + 1)
                    weight = ways + (a - j) * math.log1p(-q) + j * math.log(q)
                    total = log_add(total, weight + grown + log1m_exp(-grown))
            # ln(1 + total) / (a - 1); total is enlarged by a relative 1e-11 for its rounding, and by more than the
            # rounding of the logs of factorials if these are large
            return log_add(0.0, total + max(1e-11, 1e-15 * math.lgamma(a + 1))) / (a - 1)

        return RenyiCurve(divergence, integer_orders=True)

    return at_rate


@dataclass(frozen=True)
class RenyiCurve:
    """An upper bound of the Renyi divergence in the add and remove directions."""

    # The code that builds the curve guarantees that it is valid.
    divergence: Callable[[float], float]  # Map from an order ``alpha > 1`` to ``D(alpha)``, in nats

    integer_orders: bool = False  # True if only integer orders ``alpha >= 2`` may be used

    # Map from a sampling rate to the curve of a release on a Poisson-sampled batch; None if there is no theorem
    poisson: "Callable[[float], RenyiCurve] | None" = None

    low: float = 1.0  # Least order at which the curve holds; the order must also be above 1

    high: float = math.inf  # The curve holds at orders below this one

    # The only orders at which the divergence is known; empty if it is known at all orders
    orders: tuple[float, ...] = ()

    # How the curve is computed, for the result
    numerics: dict[str, object] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        # Every search starts with the same orders.
        object.__setattr__(self, "divergence", lru_cache(maxsize=2 * LARGEST_ORDER)(self.divergence))

    def over_run(self, run: Run) -> "RenyiCurve":
        """Return the Renyi curve of a run: the sum of the divergences of its steps.

        Raises:
            UnsupportedError: No theorem covers the sampling of the run.
        """
        step = self
        if run.sampling_rate < 1.0:
            if self.poisson is None or run.sampling != "poisson":
                raise UnsupportedError(f"this Renyi bound does not support {run.sampling} sampling. {SAMPLING_ADVICE}")
            step = self.poisson(run.sampling_rate)
        return replace(step, divergence=lambda alpha: run.steps * step.divergence(alpha), poisson=None)

    def at(self, order: float) -> float:
        """Return the Renyi divergence (nats) at an order, ``inf`` if there is no bound."""
        allowed = order in self.orders if self.orders else not self.integer_orders or float(order).is_integer()
        holds = allowed and self.low <= order < self.high
        return self.divergence(order) if holds else math.inf

    def divergence_at(self, alpha: float) -> float:
        """Return an upper bound of the Renyi divergence (nats), ``inf`` if there is none."""
        # If only integer orders may be used, D(ceil(alpha)) bounds D(alpha), because D increases with alpha.
        return next_up(self.at(max(2.0, math.ceil(alpha)) if self.integer_orders else alpha))

    def least_over_orders(self, objective: Callable[[float], float]) -> float:
        """Return approximately the least ``objective(alpha)`` over the orders at which the curve may be used."""
        if self.orders:
            return min(map(objective, self.orders))
        if self.integer_orders:
            return self.least_whole(objective)

        def at(s: float) -> float:
            return objective(1.0 + math.exp(s))

        first = math.log(self.low - 1.0) if self.low > 1.0 else -14.0
        last = min(34.0, math.log(self.high - 1.0) - 1e-12) if math.isfinite(self.high) else 34.0
        return minimize(at, first, last, rtol=1e-6, points=41)[1] if first < last else math.inf

    def least_whole(self, objective: Callable[[float], float]) -> float:
        """Return approximately the least ``objective(alpha)`` over integer orders."""
        best, risen, alpha, place = math.inf, 0, 2, 2
        while alpha <= LARGEST_ORDER and risen < 4:
            value = objective(float(alpha))
            best, risen, place = (value, 0, alpha) if value < best else (best, risen + 1, place)
            alpha += 1 + alpha // 12
        low, high = max(2, place - 1 - place // 12), min(LARGEST_ORDER, place + 1 + place // 12)
        return min(best, minimize_integer(lambda a: objective(float(a)), low, high))

    def log_delta(self, eps: float) -> Enclosure:
        """Return an upper bound of ``ln delta(eps)``; the lower end is ``-inf`` (unknown)."""

        def at(alpha: float) -> float:
            # (alpha - 1) (D(alpha) - eps + ln(1 - 1/alpha)) - ln(alpha)
            inner = next_up(self.divergence(alpha)) - eps + math.log1p(-1.0 / alpha)
            return (alpha - 1.0) * inner - math.log(alpha)

        return Enclosure(UNKNOWN_END, min(0.0, self.least_over_orders(at) + 1e-12))

    def epsilon(self, log_delta: float) -> Enclosure:
        """Return an upper bound of ``eps(delta)`` (nats); the lower end is unknown (-inf)."""

        def at(alpha: float) -> float:
            # D(alpha) + (ln(1/delta) - ln(alpha))/(alpha - 1) + ln(1 - 1/alpha)
            price = (-log_delta - math.log(alpha)) / (alpha - 1.0)
            return next_up(self.divergence(alpha)) + price + math.log1p(-1.0 / alpha)

        return Enclosure(UNKNOWN_END, next_up(max(0.0, self.least_over_orders(at) + 1e-15)))


@dataclass(frozen=True)
class BestCurve:
    """Several Renyi curves of one release, of which the best is used at each epsilon or delta."""

    curves: tuple[RenyiCurve, ...]  # Curves, each of which is a valid bound

    def over_run(self, run: Run) -> "BestCurve":
        """Return the Renyi curves of a run.

        Raises:
            UnsupportedError: No theorem covers the sampling of the run.
        """
        return BestCurve(tuple(curve.over_run(run) for curve in self.curves))

    def divergence_at(self, alpha: float) -> float:
        """Return the least bound of the Renyi divergence (nats), ``inf`` if there is none."""
        return min(curve.divergence_at(alpha) for curve in self.curves)

    def least_over_orders(self, objective: Callable[[float], float]) -> float:
        """Return approximately the least ``objective(alpha)`` over the orders of all curves."""
        return min(curve.least_over_orders(objective) for curve in self.curves)

    def log_delta(self, eps: float) -> Enclosure:
        """Return the least bound of ``ln delta(eps)``; the lower end is unknown (-inf)."""
        return Enclosure(UNKNOWN_END, min(curve.log_delta(eps).upper for curve in self.curves))

    def epsilon(self, log_delta: float) -> Enclosure:
        """Return the least bound of ``eps(delta)`` (nats); the lower end is unknown (-inf)."""
        return Enclosure(UNKNOWN_END, min(curve.epsilon(log_delta).upper for curve in self.curves))


@dataclass(frozen=True)
class OneOrder:
    """A Renyi divergence at a single order, and its conversion to epsilon and delta."""

    order: float  # The order ``alpha``, above 1

    # The code that builds the object guarantees that it is an upper bound.
    divergence: float  # ``D(alpha)``, in nats

    @property
    def log_share(self) -> float:
        """The term ``ln(1 - 1/alpha)`` of the conversion at the order ``alpha``."""
        return math.log((self.order - 1.0) / self.order)

    def price(self, log_delta: float) -> float:
        """Return ``eps(delta) - D(alpha)`` of the conversion at the order ``alpha``."""
        # rounded to nearest: (ln(1/delta) - ln(alpha))/(alpha - 1) + ln(1 - 1/alpha)
        return (-log_delta - math.log(self.order)) / (self.order - 1.0) + self.log_share

    def log_delta(self, eps: float) -> Enclosure:
        """Return an enclosure of the ``ln delta(eps)`` that the Renyi divergence proves."""
        a, share = self.order, self.log_share
        # (alpha - 1) (D - eps + ln(1 - 1/alpha)) - ln(alpha)
        middle = (a - 1.0) * (self.divergence - eps + share) - math.log(a)
        margin = ONE_ORDER_ERROR * ((a - 1.0) * (self.divergence + eps + 1.0 + abs(share)) + math.log(a))
        return Enclosure(min(0.0, middle - margin), min(0.0, middle + margin))

    def epsilon(self, log_delta: float) -> Enclosure:
        """Return an enclosure of the ``eps(delta)`` that the Renyi divergence proves."""
        a, share = self.order, self.log_share
        middle = self.divergence + self.price(log_delta)
        margin = ONE_ORDER_ERROR * (self.divergence + (math.log(a) - log_delta) / (a - 1.0) + 1.0 + abs(share))
        return Enclosure(max(0.0, middle - margin), max(0.0, middle + margin))


@dataclass(frozen=True)
class ConcentratedCurve:
    """Concentrated DP: a Renyi divergence of at most ``rho alpha`` at orders below ``omega``.

    The orders ``alpha`` are above 1 (C14, C15).
    """

    # The code that builds the curve guarantees the bound. The conversion is that of Bun, Dwork, Rothblum, Steinke 2018
    # and Bun, Steinke 2016.
    rho: float  # The slope of the divergence, in nats, above 0

    # The bound holds for orders below ``omega``: ``(rho, omega)``-tCDP, or ``rho``-zCDP if ``omega`` is inf
    omega: float = math.inf

    def over_run(self, run: Run) -> "ConcentratedCurve":
        """Return the concentrated DP of a run, where ``rho`` is the sum over the steps.

        Raises:
            UnsupportedError: The run samples batches.
        """
        if run.sampling_rate < 1.0:
            raise UnsupportedError(f"this zCDP bound does not support {run.sampling} sampling. {PROFILE_ADVICE}")
        return ConcentratedCurve(run.steps * self.rho, self.omega)

    def epsilon(self, log_delta: float) -> Enclosure:
        """Return an enclosure of ``eps(delta)`` in nats."""
        # rho + 2 sqrt(rho ln(1/delta)) if ln(1/delta) <= (omega - 1)^2 rho, else rho omega + ln(1/delta)/(omega - 1)
        if -log_delta <= (self.omega - 1.0) ** 2 * self.rho:
            eps = self.rho + 2.0 * math.sqrt(self.rho * -log_delta)
        else:
            eps = self.rho * self.omega - log_delta / (self.omega - 1.0)
        return Enclosure(eps * (1.0 - 1e-15), next_up(eps))

    def log_delta(self, eps: float) -> Enclosure:
        """Return an enclosure of ``ln delta(eps)``."""
        if eps <= self.rho:
            return Enclosure(0.0, 0.0)
        # ln(1/delta) = (eps - rho)^2/(4 rho),  or (omega - 1) (eps - rho omega) on the linear branch
        reach = (eps - self.rho) ** 2 / (4.0 * self.rho)
        if reach > (self.omega - 1.0) ** 2 * self.rho:
            reach = (self.omega - 1.0) * (eps - self.rho * self.omega)
        # If eps - rho has an error of e, the error of reach is at most ((eps - rho + e)^2 - (eps - rho)^2)/(4 rho).
        rounding = 1e-15 * (eps + self.rho)
        margin = 1e-12 + 2e-15 * reach + rounding * (eps - self.rho + rounding) / self.rho
        return Enclosure(-reach - margin, min(0.0, -reach + margin))
