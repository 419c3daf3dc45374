"""A pair that dominates each step and one that it dominates."""

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
from privproj.errors import GridLimit
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
def test_pairs_bracket_the_sampled_profile_between_the_knots_too(z, rate, sampling, coarse):
    profile, run = gaussian(z), Run(steps=100, sampling_rate=rate, sampling=sampling)
    shape = dominating_pairs.outline_step(profile, run)
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


def test_the_add_order_is_the_theorem_for_one_step():
    """``(1 - (1-q) e^eps) delta_0(ln q + eps - ln(1 - (1-q) e^eps))`` below ``-ln(1-q)``, else 0 (Balle et al.)."""
    q, z = 0.3, 1.0
    profile, run = gaussian(z), Run(steps=1, sampling_rate=q)
    shape = dominating_pairs.outline_step(profile, run)
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


def test_a_bound_that_is_not_convex_is_replaced_by_its_hull():
    bumpy = PrivacyProfile(
        lambda e: Enclosure(-math.inf, min(0.0, log_gaussian_delta(e, 1.0) + 0.5 * (1 + math.sin(9 * e))))
    )
    run = Run(steps=3, sampling_rate=0.1)
    shape = dominating_pairs.outline_step(bumpy, run)
    pairs = shape.pairs(shape.deviation / 12)
    assert pairs.below is None
    values = [profile_values(pairs.above, e) for e in np.linspace(0, 3, 40)]
    assert all(x >= y for x, y in pairwise(values))


def test_a_pair_dominates_on_both_sides_of_one_whatever_its_sums_are_off_by(monkeypatch):
    """Where nearly all of the excess at 1 is at infinity the scale is a small difference (C18, scales and rounding)."""
    step, cells, infinite = 0.25, np.arange(-8, 9), 1e-3
    t = np.exp(step * cells)
    left = ((t - t[0]) / (1.0 - t[0])) ** 2 * infinite * (1.0 + 1e-8)
    upper = np.where(cells < 0, left, infinite * (1.0 + 1e-8 * np.maximum((8 - cells) / 8.0, 0.0) ** 4))
    # Masses that are nearly those of the kinks, and sums that are off by as much as is allowed for.
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


def test_the_loss_at_minus_infinity_is_enough_for_the_first_knot_however_far_it_is():
    """The exponential of a loss of -590 nats is off by more than a part in 1e14 (C18, scales and rounding)."""
    step, cells = 0.6583850488533005, np.array([-896, -1, 0, 1, 2])
    upper = np.array([1e-3, 1.001e-3, 0.02, 0.005, 0.0]) * np.exp(np.minimum(step * cells, 0.0))
    pair = dominating_pairs.pair_above(cells, upper, step)
    with mpmath.workdps(40):
        assert mpmath.mpf(pair.infinity_mass_q) * mpmath.exp(mpmath.mpf(step) * -896) >= upper[0]


# --- sparse and full spectra, limits ------------------------------------------------------------------


def test_a_kink_that_rounds_below_its_place_ends_the_hull():
    """A step for which lowering the excess at 1 gives the same float again and again."""
    closed = find_bound(Gaussian, "analytic").representation(Gaussian(noise_multiplier=0.5817958562471157))
    found = compose_on_grid(
        [(closed, Run(steps=6, discretization=0.00013263950792452898))], 0.00013263950792452898
    ).epsilon(-11.5)
    exact = closed.closed_form(6).epsilon(-11.5)
    assert found.lower <= exact.upper and exact.lower <= found.upper


def test_a_pair_whose_mass_at_1_may_have_been_cut_off_is_larger_by_what_its_masses_are_off_by():
    cells, rounding = np.array([-1, 0, 1]), 1e-9
    for middle, infinity_mass in ((0.0, 0.0), (0.5 * rounding, 1e-3)):
        pair = dominating_pairs.DominatingPair(
            cells, np.array([0.5, middle, 0.5]), 0.1, infinity_mass, infinity_mass, rounding
        )
        # |P| as it may be, each mass larger by its error.
        assert pair.log_size >= math.log((1.0 + middle) * (1.0 + rounding) + infinity_mass) * (1.0 - 1e-6)
    pair = dominating_pairs.DominatingPair(cells, np.array([0.25, 0.5, 0.25]), 0.1, 0.0, 0.0, rounding)
    assert pair.log_size == 0.0


def test_a_rate_is_raised_from_above_only():
    """A larger rate has a larger delta: what is known from below at it would be no bound at the rate itself (C17)."""
    profile, cells, step = gaussian(1.0), np.arange(-6, 7), 1e-31
    for kind in ({}, {"relation": "replace", "sampling": "fixed"}):
        tiny, least = (
            dominating_pairs.excess_bounds(profile, Run(steps=2, sampling_rate=q, **kind), cells, step)
            for q in (1e-33, dominating_pairs.LEAST_GRID_RATE)
        )
        assert np.array_equal(tiny.upper, least.upper) and np.any(tiny.upper > 0.0)
        assert np.any(least.find_lower() > 0.0) and not np.any(tiny.find_lower())
        assert tiny.below is None


def test_a_lattice_has_no_more_cells_than_can_be_counted():
    shape = dominating_pairs.outline_step(gaussian(1.0), Run(steps=10, sampling_rate=0.1))
    with pytest.raises(GridLimit, match="cells"):
        shape.knots(1e-25, 64.0)
