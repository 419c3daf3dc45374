"""Compute the exact profile of random clipping, and a bound for several records.

Claim C32 (random clipping by Gaussian probes) of docs/proofs.md proves the profile and the bound. A record is clipped
by an estimate of its norm from ``r`` Gaussian probes. Let ``mu`` be one over the noise multiplier. The squared
sensitivity of the record, divided by the noise variance, is ``X = mu^2 r / chi2_r``. This is ``X = scale / U`` with
``U ~ Gamma(a)``, ``a = r/2`` and ``scale = mu^2 r/2``. The moments of ``X`` of order ``a`` or more are infinite. The
bound ``exact`` needs no moments, and ``any-records`` needs the first moment.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from privproj.contrib.jl_clip import JLClip
from privproj.distributions.mixture_profile import any_rank_profile, rank_one_profile
from privproj.distributions.squared_sensitivity import log_gaussian_delta_at, log_gaussian_delta_slope
from privproj.errors import UnsupportedError
from privproj.mechanisms.bound import OF_ONE_RECORD, Bound
from privproj.numerics.interval import Enclosure, widen_outward
from privproj.numerics.quadrature import log_integral
from privproj.numerics.special import log_gamma_below, log_gamma_front, log_gamma_tail

if TYPE_CHECKING:
    from privproj.distributions.binned import Bins

NODE_RELATIVE_ERROR = 1e-15  # soundness: relative error of a node of the quadrature, a few roundings


@dataclass(frozen=True)
class InverseGamma:
    """The inverse gamma distribution of ``X = scale / U`` with ``U ~ Gamma(a)``."""

    a: float
    scale: float

    least_tail: ClassVar[float] = -1e7
    supremum = math.inf

    @property
    def mean(self) -> float:
        """The mean ``E X = scale / (a - 1)``; it is infinite for ``a <= 1``."""
        return self.scale / (self.a - 1.0) if self.a > 1.0 else math.inf

    def mean_above(self, x: float) -> float:
        """Return ``E[X | X > x]``, which is at least ``x`` and infinite for ``a <= 1``."""
        if self.a <= 1.0:
            return math.inf
        # E[X | X > x] = E X P(scale/Gamma(a - 1) > x) / P(X > x)
        biased = InverseGamma(self.a - 1.0, self.scale)
        return max(x, self.mean * math.exp(biased.log_tail(x) - self.log_tail(x)))

    def log_density(self, t: float) -> float:
        """Return the log of the density of ``t = ln(a / U)`` for ``U ~ Gamma(a)``."""
        # ln[U^a e^-U / Gamma(a)] at U = a e^-t
        return log_gamma_front(self.a, math.expm1(-t), math.exp(-t)) if t > -700.0 else -math.inf

    def log_tail(self, x: float) -> float:
        """Return ``ln P(X > x) = ln P(U < scale / x)``."""
        center = self.scale / self.a
        excess, ratio = (center - x) / x, center / x
        if ratio <= 1.0:
            return log_gamma_below(self.a, excess, ratio)
        return math.log1p(-math.exp(min(log_gamma_tail(self.a, excess, ratio), -1e-300)))

    def expected_profile(self, eps: float, up_to: float = math.inf) -> Enclosure:
        """Return an enclosure of ``ln E[h_eps(X); X <= up_to]``, by quadrature.

        ``h_eps(x)`` is the Gaussian delta at the squared sensitivity ``x`` (C4: random sensitivity). The quadrature
        error is estimated, not proved.
        """
        center = self.scale / self.a

        def value(t: float) -> float:
            return center * math.exp(min(t, 700.0))

        def gain(t: float) -> float:
            # ln [h(X) f(t)]
            return log_gaussian_delta_at(eps, value(t)) + self.log_density(t)

        def gain_by_parts(t: float) -> float:
            # ln [X h'(X) P(X > x)], as E h(X) = int h'(x) P(X > x) dx
            x = value(t)
            return log_gaussian_delta_slope(eps, x) + math.log(x) + self.log_tail(x)

        # h rises from 0 to 1 within sqrt(2/eps) of ln X, the density within sqrt(1/a)
        if up_to < math.inf:
            log_mean, error = log_integral(gain, 0.0, 1.0 / math.sqrt(self.a), math.log(up_to / center))
        elif eps > 2.0 * self.a:
            log_mean, error = log_integral(gain_by_parts, math.log(2.0 * eps / center), math.sqrt(2.0 / eps))
        else:
            log_mean, error = log_integral(gain, 0.0, 1.0 / math.sqrt(self.a))
        # |d ln delta / d ln mu| <= min(2 a, (eps/mu + sqrt(eps) + 2)^2), mu^2 = scale/a (C32)
        steepness = min(2.0 * self.a, (eps / math.sqrt(center) + math.sqrt(eps) + 2.0) ** 2)
        # a node t is off by a rounding of |t|, which moves an integrand as steep as 1/width
        reach = 1.0 + abs(math.log(2.0 * eps / center)) if eps > 0.0 else 1.0
        rounding = NODE_RELATIVE_ERROR * reach * (math.sqrt(eps) + math.sqrt(self.a))
        return widen_outward(log_mean, error + rounding, steepness)

    def bins(self, finer: int = 1) -> "Bins":
        """Return the distribution with its mass in discrete bins.

        ``finer`` multiplies the default number of bins.
        """
        from privproj.distributions.binned import BINS, inverse_gamma_bins

        # six times as many bins as for a light tail
        return inverse_gamma_bins(self.a, self.scale, finer * 6 * BINS)


def distribution(mechanism: JLClip) -> InverseGamma:
    """Return the distribution of ``X`` for the worst-case record.

    ``X`` is the squared sensitivity of the record, divided by the noise variance.
    """
    assert mechanism.probes is not None
    half = 0.5 * mechanism.probes
    # worst case: the limit in which the norm of the record is much larger than the clipping norm
    # X = mu^2 r / chi2_r (C32).
    return InverseGamma(half, mechanism.mu**2 * half)


EXACT = Bound(
    name="exact",
    mechanism=JLClip,
    summary="exact for one record per user, if the adversary sees the probes (random vectors that estimate norms)",
    formula="delta(eps) = E[h_eps(mu^2 r / chi2_r)], mu = 1/z, h_eps(x) the Gaussian delta at sqrt(x)",
    source="privproj: records with very large norms are the worst case; the algorithm is from arXiv 2102.03013",
    proof="C32",
    # delta(eps) = E[h_eps(mu^2 r / chi2_r)] (C32).
    representation=lambda mechanism: rank_one_profile(distribution(mechanism)),
    version=4,
    worst_differences=lambda mechanism: (rank_one_profile(distribution(mechanism)),),
    exact=True,
    **OF_ONE_RECORD,
)


def _check_probes(mechanism: JLClip) -> None:
    """Raise :class:`UnsupportedError` for fewer than three probes."""
    # With one or two probes the squared sensitivity has no mean.
    if (mechanism.probes or 0) < 3:
        raise UnsupportedError(f"the bound any-records needs probes >= 3, got {mechanism.probes}")


ANY_RECORDS = Bound(
    name="any-records",
    mechanism=JLClip,
    summary="bound for the replace relation and for several records per user",
    formula="delta(eps) = min_p E[g_p(mu^2 r / chi2_r)], g_p the convex majorant of the Gaussian delta",
    source="privproj: Jensen's inequality on a convex majorant",
    proof="C32",
    example="--group-size 2 --probes 30 --noise-multiplier 2",
    # delta(eps) = min_p E[g_p(mu^2 r / chi2_r)] (C32, several records).
    representation=lambda mechanism: any_rank_profile(distribution(mechanism)),
    version=6,
    worst_differences=lambda mechanism: (rank_one_profile(distribution(mechanism)),),
    check=_check_probes,
)
