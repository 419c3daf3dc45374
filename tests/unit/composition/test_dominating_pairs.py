"""Dominating and dominated pairs of one step."""

import math
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from helpers import gaussian
from hypothesis import given, settings
from hypothesis import strategies as st

from privproj import Gaussian
from privproj.composition import dominating_pairs
from privproj.composition.compose import compose_on_grid
from privproj.errors import GridSizeError
from privproj.mechanisms.registry import find_bound
from privproj.numerics.interval import Enclosure, log1m_exp
from privproj.profiles.gaussian import log_gaussian_delta
from privproj.profiles.privacy_profile import PrivacyProfile
from privproj.run import Run


def profile_values(pair, eps):
    losses = pair.step * pair.cells
    return pair.infinity_mass + float(pair.masses @ np.maximum(-np.expm1(eps - losses), 0.0))


# --- the pairs --------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    z=st.floats(-1, 3).map(lambda x: 10.0**x),
    rate=st.floats(-5, 0).map(lambda x: 10.0**x),
    sampling=st.sampled_from(["poisson", "fixed"]),
    coarse=st.integers(0, 5),
)
def test_pairs_bracket_sampled_profile_between_knots_too(z, rate, sampling, coarse):
    profile, run = gaussian(z), Run(steps=100, sampling_rate=rate, sampling=sampling)
    shape = dominating_pairs.describe_coarsely(profile, run)
    step = shape.deviation / 256.0 * 4.0**coarse
    pairs = shape.pairs(step)
    above, below = pairs.above, pairs.below
    for place in (0.0, 0.1234, 0.5, 1.71, 3.3, 6.1):
        loss = place * shape.deviation
        exact = math.log(rate) + log_gaussian_delta(math.log1p(math.expm1(loss) / rate), 1 / z)
        if exact > -75.0:
            assert math.log(profile_values(above, loss)) >= exact - 1e-12
            if below is not None:
                assert math.log(max(profile_values(below, loss), 1e-300)) <= exact + 1e-12
    add = above.mirrored()
    assert add.mirrored().masses == pytest.approx(above.masses, rel=1e-9, abs=0)
    assert above.masses.sum() + above.infinity_mass == pytest.approx(1.0, rel=1e-9, abs=0)
    assert add.masses.sum() + add.infinity_mass == pytest.approx(1.0, rel=1e-9, abs=0)


def test_add_direction_of_one_step_equals_amplification():
    """``(1 - (1-q) e^eps) delta_0(ln q + eps - ln(1 - (1-q) e^eps))`` below ``-ln(1-q)``, else 0 (Balle et al.)."""
    q, z = 0.3, 1.0
    profile, run = gaussian(z), Run(steps=1, sampling_rate=q)
    shape = dominating_pairs.describe_coarsely(profile, run)
    above = shape.pairs(shape.deviation / 256).above.mirrored()
    for eps in (0.0, 0.05, 0.2, 0.3):
        rest = 1.0 - (1.0 - q) * math.exp(eps)
        exact = rest * math.exp(privproj_delta(profile, math.log(q) + eps - math.log(rest)))
        assert exact <= profile_values(above, eps) <= exact * (1 + 1e-3)
    assert profile_values(above, -math.log1p(-q) + 2 * above.step) == 0.0


def privproj_delta(profile, eps):
    if eps >= 0.0:
        return profile.log_delta(eps).upper
    # delta(eps) = 1 - e^eps (1 - delta(-eps)) for eps < 0 (C1)
    return log1m_exp(eps + log1m_exp(profile.log_delta(-eps).upper))


def test_pair_above_replaces_bound_by_its_convex_hull():
    bumpy = PrivacyProfile(
        lambda e: Enclosure(-math.inf, min(0.0, log_gaussian_delta(e, 1.0) + 0.5 * (1 + math.sin(9 * e))))
    )
    run = Run(steps=3, sampling_rate=0.1)
    shape = dominating_pairs.describe_coarsely(bumpy, run)
    pairs = shape.pairs(shape.deviation / 12)
    assert pairs.below is None
    values = [profile_values(pairs.above, e) for e in np.linspace(0, 3, 40)]
    assert all(x >= y for x, y in pairwise(values))


def test_pair_dominates_despite_errors_of_its_sums(monkeypatch):
    """If nearly all of the excess at 1 is at infinity, the scale is a small difference (C18, scales and rounding)."""
    step, cells, infinite = 0.25, np.arange(-8, 9), 1e-3
    t = np.exp(step * cells)
    left = ((t - t[0]) / (1.0 - t[0])) ** 2 * infinite * (1.0 + 1e-8)
    upper = np.where(cells < 0, left, infinite * (1.0 + 1e-8 * np.maximum((8 - cells) / 8.0, 0.0) ** 4))
    # Masses close to those of the kinks, and sums with the largest allowed error.
    kinks, sums = dominating_pairs._polygon_kinks, dominating_pairs._excess_sums
    noise, error = np.where(cells == -4, 1e-9, 0.0), 0.99 * dominating_pairs.NESTED_SUM_RELATIVE_ERROR
    monkeypatch.setattr(dominating_pairs, "_lower_hull", lambda cells, values, _: (cells, values))
    monkeypatch.setattr(dominating_pairs, "_polygon_kinks", lambda *a: kinks(*a) * (1.0 - noise))
    monkeypatch.setattr(dominating_pairs, "_excess_sums", lambda *a: tuple(x * (1.0 + error) for x in sums(*a)))
    pair = dominating_pairs.pair_above(cells, upper, step)
    with mpmath.workdps(40):
        atoms = [(mpmath.exp(mpmath.mpf(x)), mpmath.mpf(p)) for x, p in zip(pair.losses, pair.masses, strict=True)]
        gain = pair.infinity_mass - pair.infinity_mass_q + sum(p * (1 - 1 / x) for x, p in atoms if x > 1)
        factor = gain / sum(p * (1 / x - 1) for x, p in atoms if x < 1)
        for cell, wanted in zip(cells[1:8], upper[1:8], strict=True):
            at = mpmath.exp(mpmath.mpf(step * cell))
            assert at * pair.infinity_mass_q + factor * sum(p * (at / x - 1) for x, p in atoms if x < at) >= wanted


def test_mass_at_minus_infinity_covers_far_first_knot():
    """The exponential of a loss of -590 nats has a relative error above 1e-14 (C18, scales and rounding)."""
    step, cells = 0.6583850488533005, np.array([-896, -1, 0, 1, 2])
    upper = np.array([1e-3, 1.001e-3, 0.02, 0.005, 0.0]) * np.exp(np.minimum(step * cells, 0.0))
    pair = dominating_pairs.pair_above(cells, upper, step)
    with mpmath.workdps(40):
        assert mpmath.mpf(pair.infinity_mass_q) * mpmath.exp(mpmath.mpf(step) * -896) >= upper[0]


# --- sparse and full spectra, limits ------------------------------------------------------------------


def test_lower_hull_ends_at_rounded_kink():
    """For this step the lowered excess at 1 is the same float."""
    closed = find_bound(Gaussian, "analytic").representation(Gaussian(noise_multiplier=0.5817958562471157))
    found = compose_on_grid(
        [(closed, Run(steps=6, discretization=0.00013263950792452898))], 0.00013263950792452898
    ).epsilon(-11.5)
    exact = closed.closed_form(6).epsilon(-11.5)
    assert found.lower <= exact.upper and exact.lower <= found.upper


def test_log_size_covers_rounding_of_clipped_cell_0():
    cells, rounding = np.array([-1, 0, 1]), 1e-9
    for middle, infinity_mass in ((0.0, 0.0), (0.5 * rounding, 1e-3)):
        pair = dominating_pairs.DominatingPair(
            cells, np.array([0.5, middle, 0.5]), 0.1, infinity_mass, infinity_mass, rounding
        )
        # The largest |P|: each mass plus its error.
        assert pair.log_size >= math.log((1.0 + middle) * (1.0 + rounding) + infinity_mass) * (1.0 - 1e-6)
    pair = dominating_pairs.DominatingPair(cells, np.array([0.25, 0.5, 0.25]), 0.1, 0.0, 0.0, rounding)
    assert pair.log_size == 0.0


def test_tiny_rate_is_raised_in_upper_bounds_only():
    """A larger rate has a larger delta, so a lower bound at it is not a lower bound at the rate itself (C17)."""
    profile, cells, step = gaussian(1.0), np.arange(-6, 7), 1e-31
    for kind in ({}, {"relation": "replace", "sampling": "fixed"}):
        tiny, least = (
            dominating_pairs.excess_bounds(profile, Run(steps=2, sampling_rate=q, **kind), cells, step)
            for q in (1e-33, dominating_pairs.LEAST_GRID_RATE)
        )
        assert np.array_equal(tiny.upper, least.upper) and np.any(tiny.upper > 0.0)
        assert np.any(least.find_lower() > 0.0) and not np.any(tiny.find_lower())
        assert tiny.below is None


def test_grid_with_too_many_cells_raises():
    shape = dominating_pairs.describe_coarsely(gaussian(1.0), Run(steps=10, sampling_rate=0.1))
    with pytest.raises(GridSizeError, match="cells"):
        shape.knots(1e-25, 64.0)
