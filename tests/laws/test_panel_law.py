"""Panels against the scalar quadrature of the same law."""

import math

import numpy as np
import pytest
from helpers import rank_one

from privproj.laws.panel_law import ScaledEnergy
from privproj.laws.profiles import log_any_rank_profile
from privproj.laws.squared_shift import ScaledBeta


def test_panels_agree_with_the_scalar_quadrature_of_a_beta_law():
    """The same Beta law by panels (through its density) and by :class:`ScaledBeta`: profiles of both kinds agree."""

    class LogBeta:
        ends = (math.log(8 / 508) - 9.0, 0.0, 0.15)

        def density(self, y):
            law = ScaledBeta(8.0, 500.0, 1.0)
            logit = y - np.log1p(-np.exp(np.minimum(y, -1e-12)))
            slope = 1.0 / -np.expm1(np.minimum(y, -1e-12))
            return np.exp([law.log_density(float(t)) for t in logit]) * slope

    for eps in (0.0, 0.2, 1.0):
        for profile in (log_any_rank_profile, rank_one):
            found, known = profile(eps, ScaledEnergy(LogBeta(), 4.0)), profile(eps, ScaledBeta(8.0, 500.0, 4.0))
            assert found.upper == pytest.approx(known.upper, rel=1e-8, abs=1e-8)
