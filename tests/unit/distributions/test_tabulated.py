"""Panels against the scalar quadrature of the same distribution."""

import math

import numpy as np
import pytest
from helpers import rank_one

from privproj.distributions.densities import ProjectedEnergy
from privproj.distributions.mixture_profile import log_any_rank_profile
from privproj.distributions.squared_sensitivity import ScaledBeta
from privproj.distributions.tabulated import TabulatedSensitivity
from privproj.profiles.gaussian import gaussian_values, log_gaussian_delta


def test_panels_match_scalar_quadrature_of_beta():
    """Profiles of a Beta distribution by panels (through its density) and by :class:`ScaledBeta` agree."""

    class LogBeta:
        ends = (math.log(8 / 508) - 9.0, 0.0, 0.15)

        def density(self, y):
            dist = ScaledBeta(8.0, 500.0, 1.0)
            logit = y - np.log1p(-np.exp(np.minimum(y, -1e-12)))
            slope = 1.0 / -np.expm1(np.minimum(y, -1e-12))
            return np.exp([dist.log_density(float(t)) for t in logit]) * slope

    for eps in (0.0, 0.2, 1.0):
        for profile in (log_any_rank_profile, rank_one):
            found, known = profile(eps, TabulatedSensitivity(LogBeta(), 4.0)), profile(eps, ScaledBeta(8.0, 500.0, 4.0))
            assert found.upper == pytest.approx(known.upper, rel=1e-8, abs=1e-8)


def test_gaussian_values_match_kernel():
    """Sensitivities from 4e-6 to 50, within half of the margin plus the reported rounding."""
    rng = np.random.default_rng(5)
    for eps in (0.0, *np.exp(rng.uniform(-12.0, 4.0, 12)).tolist()):
        x = np.exp(rng.uniform(-25.0, 8.0, 200))
        found = zip(np.sqrt(x).tolist(), *(part.tolist() for part in gaussian_values(eps, np.sqrt(x))), strict=True)
        for shift, value, rounding in found:
            log_known = log_gaussian_delta(eps, shift)
            if log_known > -650.0:
                known = math.exp(log_known)
                assert abs(value - known) <= known * (2e-15 * abs(log_known) + 5e-13) + rounding
                assert rounding <= 1e-9 * known or shift < 1e-4 * max(1.0, eps / shift)


@pytest.mark.parametrize("scale", [1e-6, 1e-12, 1e-30, 1e-60])
def test_small_sensitivities_keep_their_digits(scale):
    """``h_0(x)`` is ``sqrt(x / 2 pi)`` for small ``x``: at ``eps = 0`` delta scales with the root of the scale."""
    dist = ProjectedEnergy(8.0, 20.0, 16)
    one, other = (TabulatedSensitivity(dist, s).expected_profile(0.0) for s in (1e-10, 1e-10 * scale))
    assert one.upper - one.lower < 1e-11 and other.upper - other.lower < 3e-11
    assert other.upper - one.upper == pytest.approx(0.5 * math.log(scale), rel=0, abs=1e-9)


def test_interpolated_panels_have_exact_tails():
    """A Beta distribution with closed-form tails, at points within panels, down to e^-100."""

    class LogBeta:
        ends = (math.log(8 / 508) - 9.0, 0.0, 0.15)

        def density(self, y):
            dist = ScaledBeta(8.0, 500.0, 1.0)
            logit = y - np.log1p(-np.exp(np.minimum(y, -1e-12)))
            return np.exp([dist.log_density(float(t)) for t in logit]) / -np.expm1(np.minimum(y, -1e-12))

    panels, exact = TabulatedSensitivity(LogBeta(), 1.0), ScaledBeta(8.0, 500.0, 1.0)
    assert panels.panels.interpolants[1].mean() > 0.8
    for x in np.linspace(0.004, 0.18, 23).tolist():
        assert panels.log_tail(x) == pytest.approx(exact.log_tail(x), rel=1e-13, abs=4e-12)
        assert panels.mean_above(x) == pytest.approx(exact.mean_above(x), rel=1e-11, abs=0)
