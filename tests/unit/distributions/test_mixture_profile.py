"""The profile for a difference of any rank uses the best tangent."""

import itertools
import math

import pytest
from scipy.integrate import quad
from scipy.optimize import brentq, minimize_scalar
from scipy.special import ndtr
from scipy.stats import beta

from privproj.distributions import mixture_profile as profiles
from privproj.distributions.beta_gamma_kernels import inflection
from privproj.distributions.densities import ProjectedEnergy
from privproj.distributions.mixture_profile import any_rank_profile, log_any_rank_profile
from privproj.distributions.squared_sensitivity import BetaGammaSensitivity, ScaledBeta
from privproj.distributions.tabulated import TabulatedSensitivity


def tangent_bound(eps, mu, dim, rank, p):
    """``E[g_p(mu^2 B)]``, the bound in its primal form, by scipy's adaptive quadrature split at every kink."""
    a, b, scale = rank / 2, (dim - rank) / 2, mu * mu
    slope = math.exp(-0.5 * (eps / math.sqrt(p) - math.sqrt(p) / 2) ** 2) / math.sqrt(8 * math.pi * p)

    def h(x):
        m = math.sqrt(x)
        return ndtr(m / 2 - eps / m) - math.exp(eps) * ndtr(-m / 2 - eps / m)

    def gap(x):
        return h(x) - h(p) - slope * (x - p)

    inflexion = 2 * (math.sqrt(1 + eps * eps) - 1)
    cut = brentq(gap, 1e-9 * inflexion, inflexion, xtol=1e-15) if gap(1e-9 * inflexion) > 0 else 0.0

    def integrand(share):
        x = scale * share
        return (h(x) if x < cut else h(p) + slope * (x - p)) * beta.pdf(share, a, b)

    cuts = sorted({0.0, 1.0, min(1.0, cut / scale), *beta.ppf([1e-12, 1e-3, 0.5, 0.999, 1 - 1e-12], a, b)})
    parts = [quad(integrand, *ends, epsabs=0, epsrel=1e-11, limit=200)[0] for ends in itertools.pairwise(cuts)]
    return math.log(math.fsum(parts))


@pytest.mark.full
@pytest.mark.parametrize(
    ("dim", "rank", "mu", "eps"),
    [(768, 16, 5.0, 0.2), (768, 16, 10.0, 3.0), (40, 3, 8.0, 2.0), (20, 18, 3.0, 1.0), (12, 2, 6.0, 2.0)],
)
def test_dual_equals_best_tangent(dim, rank, mu, eps):
    low, high = log_any_rank_profile(eps, ScaledBeta(rank / 2, (dim - rank) / 2, mu * mu))
    span = (math.log(inflection(eps)), math.log(mu * mu))
    found = minimize_scalar(lambda s: tangent_bound(eps, mu, dim, rank, math.exp(s)), bounds=span, method="bounded")
    tangents = [tangent_bound(eps, mu, dim, rank, math.exp(span[0] + f * (span[1] - span[0]))) for f in (0.2, 0.6, 0.9)]
    assert min([found.fun, *tangents]) >= low - 1e-9
    assert found.fun == pytest.approx(high, rel=0, abs=1e-7)


@pytest.mark.parametrize(("a", "b"), [(8.0, 1016.0), (5e5 - 0.5, 0.5), (5e9, 4.95e11), (5e11 - 5e5, 5e5)])
def test_scalar_profile_matches_kernels(a, b):
    """Also for a rank near the dimension and for tails with thousands of terms, the enclosures overlap."""
    dist, spread = ScaledBeta(a, b, (a + b) / a), math.sqrt(b / a / (a + b))
    kernels = any_rank_profile(BetaGammaSensitivity(a, b, dist.scale))
    for deviations in (-1.5, -0.4, 0.3, 0.6, 2.0, 8.0):
        eps = math.sqrt(1.25) * (1.0 + deviations * spread)
        one, other = log_any_rank_profile(eps, dist), kernels.log_delta(eps)
        assert one.lower <= other.upper and other.lower <= one.upper
        assert other.upper - other.lower <= 2e-11 + 5e-15 * math.sqrt(min(a, b))


def test_any_rank_profile_with_unresolved_tail(monkeypatch):
    """The profile is that of rank one plus the unresolved tail, without a search for the cut."""
    dist = TabulatedSensitivity(ProjectedEnergy(25.0, 49.5, 50), 1.0 / 15.12**2)
    losses = [0.3, 1.0, 3.0, 5.0, 8.0, 20.0, 100.0]
    looks = []
    monkeypatch.setattr(profiles, "_tangent_cut", lambda *a, find=profiles._tangent_cut: looks.append(a) or find(*a))
    quick = [log_any_rank_profile(eps, dist) for eps in losses]
    assert 0 < len(looks) < len(losses)
    monkeypatch.setattr(profiles, "_is_cut_beyond_doubles", lambda eps, dist: False)
    assert [log_any_rank_profile(eps, dist) for eps in losses] == quick
